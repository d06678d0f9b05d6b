"""Displays of the fold in KV: held locks and the daily use of namespaces.

The locks follow hip-62, Distributed Locking.

No decision depends on them. The process that leads a stage writes its display about once a second, so a lock that is held for less than a second
costs no message, and a failed write is made again.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import Final

import msgspec

from .. import subjects, telemetry
from ..domain import daily_use, lock
from ..domain.daily_use import DailyUse
from ..domain.events import Acquired, Message, Recorded, Skipped, Terminal
from ..domain.execution import Execution
from ..domain.lock import Lock
from ..domain.text import utc_text
from ..ports import Clock, EventLog, LogUnavailable, Projections
from ..subjects import Bucket, Stream
from .commit_loop import HasLoop
from .daily_quotas import use_scope
from .stage import attempted

INTERVAL_S: Final = 1.0
"""Time between two updates of a display, and before a follower goes on after an outage."""
ROUND_S: Final = 10.0
"""Time between two reads of all shown locks; the shortest lifetime of an entry is six times as long."""
_PREFIX: Final = subjects.lock_key("")
_DOTS: Final = 2
"""In the scope of a lock; the scope of a shard's lock has more."""
_FILTERS: Final = (
    subjects.acquisitions(subjects.ANY),
    subjects.LOCKED_COMPLETIONS,
    *(subjects.filter_for(f"execution.{end}") for end in ("failed", "cancelled", "skipped")),
)

_log = telemetry.get_logger("tocsin.stages")


async def news(
    log: EventLog, stream: Stream, filters: Sequence[str], clock: Clock, begin: Callable[[], None] = lambda: None
) -> AsyncGenerator[Recorded[Message], None]:
    """Yield the messages that are stored from now on, also after outages.

    `begin` is called before the first message, once it is known which messages are new.
    """
    after: int | None = None
    while True:
        try:
            if after is None:
                after = await log.end(stream)
                begin()
            async with aclosing(log.follow(stream, *filters, after=after)) as batches:
                async for batch in batches:
                    for recorded in batch.messages:
                        yield recorded
                    after = max(after, batch.upto)
        except LogUnavailable as error:
            _log.info("messages wait for JetStream", action="log-unavailable", filters=filters, error=str(error))
        await clock.sleep(INTERVAL_S)


async def _keep(view: HasLoop, stage: str, clock: Clock, show: Callable[[], Awaitable[None]]) -> None:
    """Update a display until cancelled, while this process leads a stage."""
    while True:
        await clock.sleep(INTERVAL_S)
        if view.loop.leads(stage):
            await attempted(show, _log, "display not written; retrying", "not-shown", stage=stage)


class DailyUseDisplay:
    """Shows the daily use of namespaces in the bucket `queues`."""

    def __init__(self, view: HasLoop, stage: str, projections: Projections, clock: Clock) -> None:
        """`stage`: the stage whose leader writes."""
        self._view = view
        self._stage = stage
        self._projections = projections
        self._clock = clock
        self._shown: dict[str, DailyUse] = {}

    async def run(self) -> None:
        """Show until cancelled."""
        await _keep(self._view, self._stage, self._clock, self.show)

    async def show(self) -> None:
        """Write each use that is not shown yet."""
        fold = self._view.loop.fold
        for namespace in sorted(fold.quotas):
            use = fold.states.get(use_scope(namespace))
            if use is not None and use != self._shown.get(namespace):
                key, value = subjects.daily_use_key(namespace), daily_use.encode(use)
                await self._projections.put(Bucket.QUEUES, key, value, ttl=daily_use.LIFETIME_S)
                self._shown[namespace] = use


class _Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A shown lock; it ends by itself `ttl` seconds after it was written."""

    execution_id: str
    acquired_at: str
    ttl: float
    renewed_at: str | None = None

    def is_ending(self, now: datetime) -> bool:
        """Return whether less than half of its lifetime is left."""
        return now - datetime.fromisoformat(self.renewed_at or self.acquired_at) >= timedelta(seconds=self.ttl) / 2


class LockDisplay:
    """Shows the held locks of jobs in the bucket `locks`.

    Locks of shards have no entry.

    It follows the stored events. An execution that is retried, or that waits for a worker, may live longer than its entry, which is renewed then.
    """

    def __init__(self, view: HasLoop, stage: str, log: EventLog, projections: Projections, clock: Clock) -> None:
        """`stage`: the stage whose leader writes."""
        self._view = view
        self._stage = stage
        self._log = log
        self._projections = projections
        self._clock = clock
        self._held: dict[str, _Entry] = {}
        self._changed: set[str] = set()
        """The jobs whose locks have changed since the last update."""
        self._shown: dict[str, str] = {}
        """The shown holder of each lock, as this process knows it."""
        self._read_at: datetime | None = None
        """The time of the last read of all entries (UTC)."""

    async def run(self) -> None:
        """Show until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow())
            group.create_task(_keep(self._view, self._stage, self._clock, self.show))

    async def _follow(self) -> None:
        async for recorded in news(self._log, Stream.LOG, _FILTERS, self._clock, self.begin):
            self.take(recorded)

    def begin(self) -> None:
        """Take the locks that the fold holds."""
        fold = self._view.loop.fold
        for scope, held in fold.states.items():
            if not isinstance(held, Lock) or held.holder is None or scope.count(".") != _DOTS:
                continue
            holder = f"execution.{scope.split('.')[1]}.{held.holder}.>"
            state = fold.states.get(holder)
            if isinstance(state, Execution) and state.requested is not None and not state.is_over:
                since = next((r.time for r in fold.events[holder] if r.sequence > held.fence), self._clock.now())
                ttl = lock.ttl(state.requested)
                self._held[state.requested.job] = _Entry(held.holder, utc_text(since), ttl)

    def take(self, recorded: Recorded[Message]) -> None:
        """Take a stored event."""
        message = recorded.message
        if isinstance(message, Acquired):
            self._held[message.job] = _Entry(message.execution_id, utc_text(recorded.time), message.ttl)
            self._changed.add(message.job)
        elif isinstance(message, Terminal | Skipped):
            held = self._held.get(message.job)
            if held is not None and held.execution_id == message.execution_id:
                del self._held[message.job]
                self._changed.add(message.job)

    async def show(self) -> None:
        """Write the locks that changed; look at all entries from time to time."""
        now = self._clock.now()
        if self._read_at is None or now - self._read_at >= timedelta(seconds=ROUND_S):
            await self._look(now)
        changed, self._changed = self._changed, set()
        for job in sorted(changed):
            held = self._held.get(job)
            if (held and held.execution_id) != self._shown.get(job):
                await self._write(job, held)

    async def _look(self, now: datetime) -> None:
        """Read all entries: another process may have left or ended some."""
        self._read_at, self._shown = None, {}
        for key, body in (await self._projections.entries(Bucket.LOCKS)).items():
            try:
                entry = msgspec.json.decode(body, type=_Entry)
                is_ending = entry.is_ending(now)
            except (msgspec.MsgspecError, ValueError, TypeError):
                continue  # another program wrote it
            job = subjects.name(key.removeprefix(_PREFIX))
            self._shown[job] = entry.execution_id
            held = self._held.get(job)
            if is_ending and held is not None and held.execution_id == entry.execution_id:
                await self._write(job, msgspec.structs.replace(entry, renewed_at=utc_text(now)))
        self._changed.update(self._held, self._shown)
        self._read_at = now

    async def _write(self, job: str, entry: _Entry | None) -> None:
        try:
            if entry is None:
                await self._projections.remove(Bucket.LOCKS, subjects.lock_key(job))
                self._shown.pop(job, None)
            else:
                value = msgspec.json.encode(entry)
                await self._projections.put(Bucket.LOCKS, subjects.lock_key(job), value, ttl=entry.ttl)
                self._shown[job] = entry.execution_id
        except Exception:
            self._read_at = None  # the next update looks at all entries
            raise
