"""The log as a server keeps it: its timers are late, or come twice; its replicas lag."""

from datetime import datetime
from functools import partial
from random import Random

from typing_extensions import override

from tocsin import subjects
from tocsin.domain.events import LeaseTimer, Message, Recorded, Timer
from tocsin.subjects import Bucket, Stream
from tocsin.testing import InMemoryEventLog, InMemoryProjections

from .clock import ServerClock
from .network import Network

MOST_BEHIND = 12
"""Messages that a replica lacks, at most."""


class SimulatedServer(InMemoryEventLog):
    """The in-memory log, with a server's weaknesses."""

    def __init__(self, clock: ServerClock, network: Network) -> None:
        """Empty streams."""
        super().__init__(clock)
        self._network = network
        self.leases: dict[LeaseTimer, list[tuple[datetime, datetime]]] = {}
        """Of each claim under a lease, when its timer was set (UTC), and until when."""

    @override
    async def delay(self, timer: Timer, *, until: datetime, scope: str, expect: int) -> None:
        await super().delay(timer, until=until, scope=scope, expect=expect)
        if isinstance(timer, LeaseTimer):
            claim = timer.model_copy(update={"ends_attempt": False})
            self.leases.setdefault(claim, []).append((self.clock.now(), until))

    @override
    def _fire(self, schedule: str, sequence: int, target: str, body: bytes) -> None:
        network = self._network
        fire = partial(self._publish, schedule, sequence, target, body)
        chance, faults = network.chance, network.faults
        if chance.random() < faults.double_timer:
            self.clock.after(chance.uniform(0.0, 3.0), fire)
        if chance.random() < faults.late_timer:
            self.clock.after(chance.uniform(0.0, 5.0), fire)
        else:
            fire()

    def _publish(self, schedule: str, sequence: int, target: str, body: bytes) -> None:
        self._network.trace.note(self._network.loop.time(), "server", f"publishes {target}")
        super()._fire(schedule, sequence, target, body)

    # --- what a replica that lags answers ----------------------------------------------------------------------------

    def behind(self, stream: Stream, chance: Random) -> int:
        """The last sequence that some replica has."""
        return self._streams[stream].last_sequence - chance.randint(1, MOST_BEHIND)

    def load_upto(self, scope: str, upto: int) -> list[Recorded[Message]]:
        """`load`, as it was."""
        newest = {recorded.subject: recorded for recorded in self.read_upto(scope, upto)}
        return sorted(newest.values(), key=lambda recorded: recorded.sequence)

    def last_upto(self, subject: str, upto: int) -> Recorded[Message] | None:
        """`last`, as it was."""
        found = self.read_upto(subject, upto)
        return found[-1] if found else None

    def read_upto(self, subject: str, upto: int, *, after: int = 0, limit: int = 1_000) -> list[Recorded[Message]]:
        """`read`, as it was."""
        entries = self._streams[subjects.stream_of(subject)].matching((subject,), after)[:limit]
        return [entry.recorded() for entry in entries if entry.sequence <= upto]


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
        """Whether there is a mark in place of a key: each removal leaves one, even where there was nothing."""
        return (bucket, key) in self._removed
