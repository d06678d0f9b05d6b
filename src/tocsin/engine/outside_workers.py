"""Workers that do not register, as the KV bucket `agents` shows them.

A worker over HTTP exists for Tocsin only while it fetches or holds a task, and an executor of hip-62's queue only when it answers.
The process that hears them writes an entry for each, at most every few seconds, and again while it hears the worker. So several
processes may hear and write one worker, none must lead, and a reader sees by its time that a worker is silent.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from .. import telemetry
from ..domain.agent import MAX_FUNCTIONS, MAX_HELD, MAX_QUEUES, SILENCE, AgentRecord, AgentState, OutsideKind
from ..domain.text import printable
from ..ports import Clock, LogUnavailable, OutdatedState, Projections
from ..subjects import Bucket, outside_key

MAX_WORKERS: Final = 500
MAX_OF_IDENTITY: Final = 100
"""The number of workers of one identity, so that its invented names leave room for others."""
INTERVAL_S: Final = 2.0
"""The least time between two rounds of writes."""
AT_ONCE: Final = 100
"""The number of entries in a round of writes."""
CHANGE_INTERVAL_S: Final = 5.0
"""The least time between two entries of a worker."""
REFRESH_S: Final = 15.0
"""Time after which an unchanged entry of a worker that is heard is written again."""
KEPT_S: Final = 3_600.0
"""The life of an entry after it was written."""
MAX_NAME: Final = 255

_log = telemetry.get_logger("tocsin.stages")


@dataclass(frozen=True, slots=True)
class OutsideName:
    """The identity of a worker, which is proven, and its own name, which is not."""

    identity: str
    worker: str = ""

    @property
    def token(self) -> str:
        """A digest of both, as one token."""
        text = f"{len(self.identity)}:{self.identity}{self.worker}".encode("utf-8", "surrogatepass")
        return hashlib.sha256(text).hexdigest()[:16]


@dataclass(slots=True)
class _Worker:
    heard_at: float
    """Seconds of the monotonic clock, as all times here."""
    queues: dict[str, float] = field(default_factory=dict)
    """When each was last heard."""
    functions: dict[str, float] = field(default_factory=dict)
    shown: AgentRecord | None = None
    shown_at: float = float("-inf")


class OutsideWorkers:
    """The workers of one kind that this process heard."""

    def __init__(
        self,
        kind: OutsideKind,
        projections: Projections,
        clock: Clock,
        state_of: Callable[[OutsideName], AgentState] = lambda _: AgentState.ENABLED,
    ) -> None:
        """`state_of` returns what operators let a worker do."""
        self._kind: OutsideKind = kind
        self._state_of = state_of
        self._projections = projections
        self._clock = clock
        self._silence = SILENCE[kind].total_seconds()
        self._workers: dict[OutsideName, _Worker] = {}
        self._of_identity: Counter[str] = Counter()
        self._round_at = float("-inf")
        self._cleared_at = float("-inf")
        self._removed: list[str] = []

    def hear(self, name: OutsideName, queues: Iterable[str], functions: Iterable[str]) -> None:
        """Note that a worker was heard, unless there are too many."""
        now = self._clock.monotonic()
        worker = self._workers.get(name)
        if worker is None:
            if not self._has_room(name.identity, now):
                return
            worker = self._workers[name] = _Worker(now)
            self._of_identity[name.identity] += 1
        worker.heard_at = now
        _note(worker.queues, queues, now, MAX_QUEUES)
        _note(worker.functions, functions, now, MAX_FUNCTIONS)

    def knows(self, name: OutsideName) -> bool:
        """Return whether a worker was heard."""
        return name in self._workers

    @property
    def is_due(self) -> bool:
        """Whether `show` would look at the workers now."""
        return self._clock.monotonic() - self._round_at >= INTERVAL_S

    async def show(self, held: Mapping[OutsideName, Sequence[str]] | None = None) -> None:
        """Write the entries that changed or grow old; `held`: the tasks that workers hold."""
        if not self.is_due:
            return
        self._round_at = now = self._clock.monotonic()
        try:
            while self._removed:
                await self._projections.remove(Bucket.AGENTS, self._removed[-1])
                self._removed.pop()
            number = 0
            for name, worker in tuple(self._workers.items()):
                if number < AT_ONCE and await self._write(name, worker, (held or {}).get(name, ()), now):
                    number += 1
        except (LogUnavailable, OutdatedState) as error:
            _log.info("workers not shown in the bucket", action="workers-not-shown", error=str(error))

    async def _write(self, name: OutsideName, worker: _Worker, held: Sequence[str], now: float) -> bool:
        """Write the entry of a worker if it is due; return whether it was."""
        record = self._record(name, worker, held, now)
        if worker.shown is not None:
            age = now - worker.shown_at
            is_same = record == worker.shown.model_copy(update={"heard_at": record.heard_at})
            is_refreshed = worker.heard_at > worker.shown_at and age >= REFRESH_S
            if age < CHANGE_INTERVAL_S or (is_same and not is_refreshed):
                return False
        body = record.model_dump_json().encode()
        await self._projections.put(Bucket.AGENTS, outside_key(self._kind, name.token), body, ttl=KEPT_S)
        worker.shown, worker.shown_at = record, now
        return True

    def _record(self, name: OutsideName, worker: _Worker, held: Sequence[str], now: float) -> AgentRecord:
        heard_at = self._clock.now() - timedelta(seconds=now - worker.heard_at)
        since = worker.shown.since if worker.shown is not None else heard_at
        return AgentRecord(
            name=printable(name.worker or name.identity)[:MAX_NAME],
            agent_id=name.token,
            kind=self._kind,
            identity=printable(name.identity)[:MAX_NAME] or None,
            state=self._state_of(name),
            since=since,
            heard_at=heard_at,
            queues=self._lately(worker.queues, worker),
            functions=self._lately(worker.functions, worker),
            held=sorted(held)[:MAX_HELD],
        )

    def _lately(self, times: Mapping[str, float], worker: _Worker) -> list[str]:
        """Return what a worker named not long before it was last heard."""
        return sorted(name for name, at in times.items() if worker.heard_at - at < self._silence)

    def _has_room(self, identity: str, now: float) -> bool:
        """Return whether another worker can be kept; silent workers make room."""
        if len(self._workers) < MAX_WORKERS and self._of_identity[identity] < MAX_OF_IDENTITY:
            return True
        if now - self._cleared_at < INTERVAL_S:
            return False
        self._cleared_at = now
        for name, worker in tuple(self._workers.items()):
            if now - worker.heard_at >= self._silence:
                del self._workers[name]
                self._of_identity[name.identity] -= 1
                self._removed.append(outside_key(self._kind, name.token))
        self._of_identity = +self._of_identity
        del self._removed[:-MAX_WORKERS]  # the others end by their lifetime
        return len(self._workers) < MAX_WORKERS and self._of_identity[identity] < MAX_OF_IDENTITY


def _note(times: dict[str, float], names: Iterable[str], now: float, most: int) -> None:
    """Note when names were heard; the oldest make room."""
    for name in names:
        times.pop(name, None)
        times[name] = now
    while len(times) > most:
        del times[next(iter(times))]
