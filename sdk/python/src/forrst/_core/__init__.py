"""What both flavours of the client share, without I/O.

An operation is a generator. It yields the steps that need I/O (:class:`~forrst._core.steps.Send`,
:class:`~forrst._core.steps.Sleep`), and a runner, blocking or asyncio, carries them out and sends back what came of them. So
requests, retry rules and the clock of a lease are written once.
"""
