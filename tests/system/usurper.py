"""Tocsin with stages that always lead, as after a pause that outlasted the lease.

python -m tests.system.usurper run ticker
"""

from typing import Final

import structlog

from tocsin.adapters.nats.log.commit_log import NatsCommitLog
from tocsin.bootstrap.leading import Leading
from tocsin.cli import main
from tocsin.engine.leader_election import LeaderElection
from tocsin.ports.commit_log import CommitRefused

REFUSED: Final = "usurper-refused"
"""The action of the line for each commit that the log refused."""

_append = NatsCommitLog.append
_log = structlog.get_logger("tocsin.usurper")


def usurp() -> None:
    """Lead regardless of leases and terms."""

    async def append(self: NatsCommitLog, partition: int, body: bytes, *, expect: int) -> int:
        try:
            return await _append(self, partition, body, expect=expect)
        except CommitRefused:
            _log.info("refused", action=REFUSED)
            raise

    NatsCommitLog.append = append  # type: ignore[method-assign]
    Leading.leases = lambda *_: None  # type: ignore[method-assign,assignment]
    LeaderElection.is_leading = property(lambda _: True)  # type: ignore[assignment,method-assign]


if __name__ == "__main__":
    usurp()
    main()
