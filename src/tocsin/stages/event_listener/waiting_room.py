"""The room that events may take among the executions of a job that wait.

A job that lets executions wait has a limit for them, and skips an execution beyond it. Events fill one half of it and then wait in
their stream, so that none is skipped and other triggers of the job find the other half free.

The waiting list of a lock is in the fold. It shows a request only after the planner and the lock keeper decided on it, which they do in
order. So after a number of requests no more are stored until the last has been decided. Executions that wait for other jobs or for
agents are in no list: the process remembers those that it requested, and looks whether they still wait.

Only messages of other programs wait. The archive would stop before an end of an execution that waits, the stream of all webhooks would fill with
those of one job, and a bucket forgets its changes. The executions of a batch, of a window, and on shards are not known from the request. All these
are requested at once.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, TypeVar

import msgspec

from ... import telemetry
from ...domain.definition import EventTrigger, JobDefinition
from ...domain.execution import Status
from ...engine.broken_keys import BrokenKey
from ...engine.fold import Fold
from ...engine.kinds import execution_state
from ...engine.locks import lock_state
from ...engine.step import Ref, Scope
from ...ports import Clock

T = TypeVar("T")

UNSEEN: Final = 256
"""Requests of a job that may be stored between two looks."""
CURRENT_S: Final = 10.0
"""How long a look counts."""
DECIDED_WITHIN_S: Final = 60.0
"""After this time nothing waits for the decision on a request any more: it may have no execution."""
EXAMINED: Final = 256
"""Executions that a look examines, of those that may wait for other jobs or for agents."""
FIRST_PAUSE_S: Final = 0.02
"""The pause after a look that found no room; each further pause is twice as long."""
MAX_PAUSE_S: Final = 2.0
REPORT_S: Final = 60.0
"""How often it is logged that the events of a job wait."""

_log = telemetry.get_logger("tocsin.event_listener")


class WaitingRule(msgspec.Struct, frozen=True):
    """The number of executions of a job that events may let wait."""

    most: int
    for_lock: bool
    before_lock: bool
    """Whether they may wait for other jobs or for agents."""

    @classmethod
    def of(cls, definition: JobDefinition, trigger: EventTrigger) -> "WaitingRule | None":
        """Return the rule of a trigger; None: its executions or its events never wait."""
        is_combined = trigger.debounce is not None or trigger.batch is not None
        if trigger.nats is None or is_combined or definition.partition is not None:
            return None
        for_lock = definition.overlap_policy == "enqueue"
        before_lock = bool(definition.depends_on) or definition.acknowledgements is not None
        if not for_lock and not before_lock:
            return None
        return cls(max(1, definition.max_waiting // 2), for_lock, before_lock)


@dataclass(slots=True)
class _Job:
    looking: asyncio.Lock = field(default_factory=asyncio.Lock)
    room: int = 0
    """The requests that may be stored until the next look."""
    looked_at: float = float("-inf")
    last: tuple[str, float] | None = None
    """The execution of the last request, and when it was stored (monotonic)."""
    held: dict[str, float] = field(default_factory=dict)
    """Executions that may wait for other jobs or for agents, and when they were requested."""
    reported_at: float = float("-inf")
    pause: float = FIRST_PAUSE_S


class WaitingRoom:
    """Says how many executions of a job events may start."""

    def __init__(self, clock: Clock, fold: Callable[[], Fold]) -> None:
        self._fold = fold
        self._clock = clock
        self._jobs: dict[str, _Job] = {}

    async def room(self, job: str, rule: WaitingRule) -> int:
        """Return how many may start now; 0, after a pause: none before some have begun."""
        known = self._jobs.setdefault(job, _Job())
        async with known.looking:
            now = self._clock.monotonic()
            if known.room <= 0 or now - known.looked_at >= CURRENT_S:
                known.room, known.looked_at = self._look(job, known, rule, now), now
            pause = known.pause
            known.pause = FIRST_PAUSE_S if known.room > 0 else min(2 * pause, MAX_PAUSE_S)
        if known.room > 0:
            return known.room
        await self._clock.sleep(pause)
        return 0

    def requested(self, job: str, rule: WaitingRule, execution_ids: Iterable[str]) -> None:
        """Note executions whose requests were stored."""
        known, now = self._jobs.setdefault(job, _Job()), self._clock.monotonic()
        for execution_id in execution_ids:
            known.room, known.last = known.room - 1, (execution_id, now)
            if rule.before_lock:
                known.held.setdefault(execution_id, now)

    def forget_all_but(self, jobs: Collection[str]) -> None:
        """Forget the jobs that have no trigger in force."""
        self._jobs = {job: known for job, known in self._jobs.items() if job in jobs}

    def _look(self, job: str, known: _Job, rule: WaitingRule, now: float) -> int:
        if self._is_undecided(job, known, rule, now):
            return 0
        self._settle(job, known, now)
        lock = self._state(lock_state(job)) if rule.for_lock else None
        taken = len(known.held) + (0 if lock is None else len(lock.waiting) - lock.waiting.yielding)
        if taken >= rule.most and now - known.reported_at >= REPORT_S:
            known.reported_at = now
            _log.warning("many executions wait; events wait in their stream", action="no-room", job=job, waiting=taken)
        return max(0, min(rule.most - taken, UNSEEN))

    def _is_undecided(self, job: str, known: _Job, rule: WaitingRule, now: float) -> bool:
        """Return whether a stage has yet to decide on the last request."""
        if known.last is None or now - known.last[1] >= DECIDED_WITHIN_S:
            return False
        execution_id = known.last[0]
        state = self._state(execution_state(job, execution_id))
        if state is None:
            return False
        if state.status is not Status.PLANNED or state.is_held or not rule.for_lock:
            return state.status is Status.UNKNOWN
        lock = self._state(lock_state(job))
        return lock is not None and lock.holder != execution_id and not lock.has_waiter(execution_id)

    def _settle(self, job: str, known: _Job, now: float) -> None:
        """Forget executions that wait for other jobs or agents no longer.

        Of many executions, the next look examines others.
        """
        names = [*islice(known.held, EXAMINED)]
        for name in names:
            state = self._state(execution_state(job, name))
            requested_at = known.held.pop(name)
            is_new = now - requested_at < DECIDED_WITHIN_S
            if state is not None and (state.is_held or (state.status is Status.UNKNOWN and is_new)):
                known.held[name] = requested_at

    def _state(self, ref: Ref[T]) -> T | None:
        """Return the state of a scope; None: an event of it cannot be applied."""
        try:
            return self._fold().state(ref.kind, ref.key) if isinstance(ref.kind, Scope) else None
        except BrokenKey:
            return None  # a later version may have stored the event; nothing is known then, and no message is kept
