"""The log as a server keeps it: lagging replicas."""

from dataclasses import dataclass
from random import Random

from typing_extensions import override

from tocsin.adapters.memory.stored_stream import StoredStream
from tocsin.domain.events import Message, Recorded, Started
from tocsin.subjects import Bucket, Stream
from tocsin.testing import InMemoryEventLog, InMemoryProjections

from .clock import ServerClock
from .network import Network

MOST_BEHIND = 12
"""Messages that a replica lacks, at most."""


@dataclass(frozen=True, slots=True)
class SentClaim:
    """A claim that a process sent to the server, which may refuse it."""

    claim: Started
    process: str
    at: float
    """The loop's time."""
    ledger: int | None
    """The sequence up to which its matcher had received decisions of operators; None: not all that were there at its start."""
    log: int
    """The sequence up to which its matcher had received tasks."""


class SimulatedServer(InMemoryEventLog):
    """The in-memory log, with a server's weaknesses."""

    clock: ServerClock

    def __init__(self, clock: ServerClock, network: Network) -> None:
        """Empty streams, which it says three servers keep."""
        super().__init__(clock, replicas=3)
        self._network = network
        self.sent_claims: list[SentClaim] = []

    def replica(self, stream: Stream, chance: Random, *, lags: bool) -> "Replica":
        """Some replica of a stream, as it is at this moment."""
        last = self._streams[stream].last_sequence
        return Replica(self._streams[stream], max(0, last - chance.randint(1, MOST_BEHIND)) if lags else last)


@dataclass(frozen=True, slots=True)
class Replica:
    """A stream as of the sequence `upto`, as one replica knows it."""

    stream: StoredStream
    upto: int

    def last(self, subject: str) -> Recorded[Message] | None:
        """The newest message that matches."""
        found = self.read(subject)
        return found[-1] if found else None

    def get(self, sequence: int) -> Recorded[Message] | None:
        """One message."""
        entry = self.stream.get(sequence) if sequence <= self.upto else None
        return None if entry is None else entry.recorded()

    def read(self, subject: str, *, after: int = 0, limit: int | None = None) -> list[Recorded[Message]]:
        """Return the matching messages."""
        entries = self.stream.matching((subject,), after)
        return [entry.recorded() for entry in entries if entry.sequence <= self.upto][:limit]


class SimulatedBuckets(InMemoryProjections):
    """The in-memory buckets, whose replicas may lag."""

    def __init__(self, clock: ServerClock) -> None:
        """Empty buckets."""
        super().__init__(clock)
        self._before: dict[tuple[Bucket, str], tuple[bytes, int] | None] = {}
        self._removed: set[tuple[Bucket, str]] = set()

    @override
    async def put(
        self, bucket: Bucket, key: str, value: bytes, *, expect: int | None = None, ttl: float | None = None
    ) -> int:
        before = await self.get(bucket, key)
        revision = await super().put(bucket, key, value, expect=expect, ttl=ttl)
        self._before[bucket, key] = before
        return revision

    @override
    async def remove(self, bucket: Bucket, key: str, *, expect: int | None = None) -> None:
        before = await self.get(bucket, key)
        await super().remove(bucket, key, expect=expect)
        self._before[bucket, key] = before
        self._removed.add((bucket, key))

    def get_before(self, bucket: Bucket, key: str) -> tuple[bytes, int] | None:
        """`get`, as it was before the last change."""
        return self._before.get((bucket, key))

    def was_removed(self, bucket: Bucket, key: str) -> bool:
        """Return whether a key has a delete marker; each removal leaves one."""
        return (bucket, key) in self._removed
