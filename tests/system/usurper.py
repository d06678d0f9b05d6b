"""Tocsin with tickers that always lead, as after a pause that outlasted the lease.

python -m tests.system.usurper run ticker
"""

from collections.abc import Sequence
from typing import Final

import structlog

from tocsin.adapters.nats.log.event_log import NatsEventLog
from tocsin.cli import main
from tocsin.domain.events import Message
from tocsin.engine.leader_election import LeaderElection
from tocsin.ports import SequenceConflict, Write, Written

REFUSED: Final = "usurper-refused"
"""The action of the line for each fact that the log refused."""

_append = NatsEventLog.append
_write = NatsEventLog.write
_log = structlog.get_logger("tocsin.usurper")


def usurp() -> None:
    """Lead regardless of the lease."""

    async def append(self: NatsEventLog, fact: Message, *, expect: int) -> int:
        try:
            return await _append(self, fact, expect=expect)
        except SequenceConflict:
            _log.info("refused", action=REFUSED)
            raise

    async def write(self: NatsEventLog, writes: Sequence[Write]) -> list[Written]:
        written = await _write(self, writes)
        for result in written:
            if isinstance(result.error, SequenceConflict):
                _log.info("refused", action=REFUSED)
        return written

    NatsEventLog.append = append  # type: ignore[method-assign]
    NatsEventLog.write = write  # type: ignore[method-assign]
    LeaderElection.is_leading = property(lambda _: True)  # type: ignore[assignment,method-assign]


if __name__ == "__main__":
    usurp()
    main()
