"""Tocsin in a process that never gets an answer to one kind of append, and so cannot finish.

    python -m tests.system.stuck WORD [tocsin's own arguments]

WORD is a token of the subject, for example `dispatched`.
"""

import asyncio
import sys
from collections.abc import Sequence
from typing import Final

import structlog

from tocsin.adapters.nats.client.connection import Connection
from tocsin.adapters.nats.client.transport import Outgoing
from tocsin.cli import main

STUCK: Final = "stuck"
"""The action of the line for each that gets stuck."""

_store = Connection.store_each
_log = structlog.get_logger("tocsin.stuck")


def stick_at(word: str) -> None:
    """Have nothing of this kind stored."""

    async def store_each(self: Connection, messages: Sequence[Outgoing]) -> list[int | Exception]:
        if any(word in message.subject.split(".") for message in messages):
            _log.info("stuck", action=STUCK)
            await asyncio.Event().wait()
        return await _store(self, messages)

    Connection.store_each = store_each  # type: ignore[method-assign]


if __name__ == "__main__":
    stick_at(sys.argv.pop(1))
    main()
