"""Ports for servers that are started, killed and started again in their place."""

import random
import socket
from typing import Final

NEVER_OUTGOING: Final = range(20_000, 32_000)
"""Below those that a system gives to outgoing connections: one of these could sit on a server's port while that is down."""


def free_port() -> int:
    """Return a free port on the loopback interface."""
    while True:
        port = random.choice(NEVER_OUTGOING)  # noqa: S311 - keeps tests apart, guards nothing
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
