"""The flavour for asyncio."""
