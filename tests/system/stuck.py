"""Tocsin in a process that never gets an answer to a commit with one kind of event, and so cannot finish.

    python -m tests.system.stuck KIND [tocsin's own arguments]

KIND is a token of the event's subject, for example `dispatched`.
"""

import asyncio
import re
import sys
from typing import Final

import structlog

from tocsin.adapters.nats.log.commit_log import NatsCommitLog
from tocsin.cli import main

STUCK: Final = "stuck"
"""The action of the line for each that gets stuck."""

_append = NatsCommitLog.append
_log = structlog.get_logger("tocsin.stuck")


def stick_at(kind: str) -> None:
    """Have no event of this kind stored."""

    async def append(self: NatsCommitLog, partition: int, body: bytes, *, expect: int) -> int:
        if re.search(rf'\.{kind}[."]'.encode(), body):
            _log.info("stuck", action=STUCK)
            await asyncio.Event().wait()
        return await _append(self, partition, body, expect=expect)

    NatsCommitLog.append = append  # type: ignore[method-assign]


if __name__ == "__main__":
    stick_at(sys.argv.pop(1))
    main()
