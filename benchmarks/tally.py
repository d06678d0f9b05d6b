"""Counts of a process's requests to the log, and of appends that another writer won."""

from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from contextvars import ContextVar
from typing import TypeVar

from tocsin.adapters.nats.client.connection import Connection
from tocsin.adapters.nats.client.names import Names
from tocsin.adapters.nats.log.event_log import NatsEventLog
from tocsin.adapters.nats.log.leader_lag import ReceivedMarks
from tocsin.domain.events import Message, Recorded
from tocsin.ports import Loaded, SequenceConflict, Write, Written

READS = "reads"
REFUSED = "refused"
T = TypeVar("T")
_IN_WRITE: ContextVar[bool] = ContextVar("_IN_WRITE", default=False)
"""Whether `write` counts the refusals, because it may or may not use the other methods."""


class TalliedLog(NatsEventLog):
    """An event log that counts read requests and appends refused by their guard."""

    def __init__(self, connection: Connection, names: Names, marks: ReceivedMarks | None = None) -> None:
        """Start with empty counters; `marks` are those of the process."""
        super().__init__(connection, names, marks=marks)
        self.tally: Counter[str] = Counter({READS: 0, REFUSED: 0})

    async def append(self, fact: Message, *, expect: int) -> int:
        """See `ports.EventLog`, as for all methods below."""
        try:
            return await super().append(fact, expect=expect)
        except SequenceConflict:
            self._refused()
            raise

    async def write(self, writes: Sequence[Write]) -> list[Written]:
        """Count every refused write."""
        token = _IN_WRITE.set(True)
        try:
            written = await super().write(writes)
        finally:
            _IN_WRITE.reset(token)
        self.tally[REFUSED] += sum(isinstance(result.error, SequenceConflict) for result in written)
        return written

    async def load(self, scope: str, *, after: int = 0) -> list[Recorded[Message]]:
        """Count one read."""
        return await self._read(super().load(scope, after=after))

    async def load_each(self, *scopes: str, after: Mapping[str, int] | None = None) -> Loaded:
        """Count one read for all scopes."""
        return await self._read(super().load_each(*scopes, after=after))

    async def tail(self, scope: str) -> int:
        """Count one read."""
        return await self._read(super().tail(scope))

    async def last(self, subject: str) -> Recorded[Message] | None:
        """Count one read."""
        return await self._read(super().last(subject))

    async def get(self, subject: str, sequence: int) -> Recorded[Message] | None:
        """Count one read."""
        return await self._read(super().get(subject, sequence))

    async def read(
        self, subject: str, *, after: int = 0, limit: int = 1_000, confirm: bool = False
    ) -> list[Recorded[Message]]:
        """Count one read."""
        return await self._read(super().read(subject, after=after, limit=limit, confirm=confirm))

    def _refused(self) -> None:
        if not _IN_WRITE.get():
            self.tally[REFUSED] += 1

    async def _read(self, reading: Awaitable[T]) -> T:
        self.tally[READS] += 1
        return await reading
