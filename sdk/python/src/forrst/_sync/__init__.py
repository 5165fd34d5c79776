"""The blocking flavour: sockets and threads."""
