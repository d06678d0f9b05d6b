"""Tocsin in a process that never gets an answer to one kind of append, and so cannot finish.

    python -m tests.system.stuck WORD [tocsin's own arguments]

WORD is a token of the subject, for example `dispatched`.
"""

import asyncio
import sys
from typing import Final

import structlog

from tocsin.adapters.nats.client.connection import Connection
from tocsin.adapters.nats.client.fast_client import Headers
from tocsin.cli import main

STUCK: Final = "stuck"
"""The action of the line for each that gets stuck."""

_store = Connection.store
_log = structlog.get_logger("tocsin.stuck")


def stick_at(word: str) -> None:
    """Have nothing of this kind stored."""

    async def store(self: Connection, subject: str, body: bytes, headers: Headers) -> int:
        if word in subject.split("."):
            _log.info("stuck", action=STUCK)
            await asyncio.Event().wait()
        return await _store(self, subject, body, headers)

    Connection.store = store  # type: ignore[method-assign]


if __name__ == "__main__":
    stick_at(sys.argv.pop(1))
    main()
