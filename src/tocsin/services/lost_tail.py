"""The end of a log of commits with a lost tail.

A restore or a server lost the tail. Numbers begin above all numbers that were ever given.

The commit `restored {from, to}` may leave a gap in the numbers, and no other may. So lost claims and fences are not given again, and readers know
from which event on the events that they have seen are no longer true.
"""

from datetime import timedelta
from typing import Final

import msgspec

from ..archive.log_archive import LogArchive, commits_of
from ..domain.commit import RESTORED, CommitEvent, LogHead, Restoration, Seal
from ..domain.errors import TocsinError
from ..engine.commit_writer import Chain, CommitWriter
from ..ports import Clock
from ..ports.commit_log import CommitLog, stored_bodies

GAP_PER_SECOND: Final = 10_000
"""Numbers that are left out for each second since the end of the log: about the most that stages store."""
LEAST_GAP: Final = 1_000_000
MOST_GAP: Final = 100_000_000
WRITER: Final = "restore"


class LogMovedOn(TocsinError):
    """A process stored a commit while the end of the log was repaired."""

    code = "log-moved-on"


def gap(since: timedelta) -> int:
    """Return how many sequences or numbers are left out after the last known.

    `since`: the time since the last.
    """
    return min(max(LEAST_GAP, int(since.total_seconds() * GAP_PER_SECOND)), MOST_GAP)


class LogEnd:
    """The end of the log of one partition, for a command while no stage runs."""

    def __init__(self, log: CommitLog, partition: int, seal: Seal, key: str, archive: LogArchive, clock: Clock) -> None:
        """`log`: with its archive. `key`: the id of the key of the first commit."""
        self._log = log
        self._partition = partition
        self._seal = seal
        self._key = key
        self._archive = archive
        self._clock = clock

    async def find(self) -> LogHead:
        """Read the log from the end of its archive, and return its end."""
        state, _ = await self._archive.state()
        head = LogHead(self._key)
        async for segment in self._archive.back(commits_of(self._partition), state):
            head = segment.head or head
            break
        chain = Chain(self._seal, head)
        async for body in stored_bodies(self._log, self._partition, after=head.sequence):
            chain.take(body)
        return chain.head

    async def restore(self, head: LogHead, *, at_least: int = 0) -> Restoration:
        """Store the commit after which numbers begin above all given numbers.

        Return the numbers that were left out.

        `head`: the end of the log. `at_least`: a number that was given.

        Raises:
            LogMovedOn: another process stored a commit.
        """
        now = max(self._clock.now(), head.at)
        since = now - head.at if head.number else timedelta()
        lost = Restoration(head.number, max(head.number, at_least) + gap(since))
        event = CommitEvent(RESTORED, "", "@", msgspec.Raw(msgspec.json.encode(lost)))
        draft = self._seal.write(head, writer=WRITER, at=now, taken={}, events=[event], first=lost.to + 1)
        writer = CommitWriter(self._log, self._partition, Chain(self._seal, head), self._clock)
        if (await writer.append(draft)).sequence is None:
            raise LogMovedOn("another process stored a commit. Stop all stages, workers and APIs, and try again.")
        return lost
