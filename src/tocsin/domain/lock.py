"""The lock of a job (hip-62, Distributed Locking; ojs-cron §6).

The state holds the holder, the waiting executions and the fencing token. It is the fold of the lock's scope; the key in
the KV bucket is only a projection. An execution that is over no longer holds the lock, so a release needs no event.

An event names one execution, so its size does not depend on how many wait. The waiting executions are those of the
`queued` events that no `acquired` event followed. Each event names the oldest of these (`oldest`), so that nothing before
it must be read or kept, except for the newest event of each type.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import reduce
from operator import itemgetter
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

import msgspec

from .definition import OverlapPolicy
from .events import COMPENSATING_TRIGGERS, Acquired, LockFact, Message, Queued, Recorded, Requested

K = TypeVar("K", bound=tuple[Any, ...])

CHUNK: Final = 256
"""A chunk of twice this many items is split in two."""
_first: Final = itemgetter(0)
_last: Final = itemgetter(-1)


class SortedItems(Generic[K]):
    """Tuples in ascending order, each of them once.

    The items are in chunks. A change copies one chunk and the list of chunks: a few microseconds for 100,000 items.
    """

    __slots__ = ("_chunks", "_size")

    def __init__(self) -> None:
        self._chunks: tuple[tuple[K, ...], ...] = ()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[K]:
        for chunk in self._chunks:
            yield from chunk

    @property
    def first(self) -> K | None:
        """The least item; None: there are no items."""
        return self._chunks[0][0] if self._chunks else None

    def at_least(self, item: K) -> K | None:
        """Return the least item that is not less than `item`, a possibly shorter tuple."""
        at = bisect_left(self._chunks, item, key=_last)
        if at == len(self._chunks):
            return None
        chunk = self._chunks[at]
        return chunk[bisect_left(chunk, item)]

    def add(self, item: K) -> "SortedItems[K]":
        at = max(bisect_right(self._chunks, item, key=_first) - 1, 0)
        chunk = self._chunks[at] if self._chunks else ()
        place = bisect_left(chunk, item)
        if place < len(chunk) and chunk[place] == item:
            return self
        longer = (*chunk[:place], item, *chunk[place:])
        parts = (longer,) if len(longer) < 2 * CHUNK else (longer[:CHUNK], longer[CHUNK:])
        return self._with(at, parts, self._size + 1)

    def remove(self, item: K) -> "SortedItems[K]":
        """Return the items without one."""
        at = max(bisect_right(self._chunks, item, key=_first) - 1, 0)
        chunk = self._chunks[at] if self._chunks else ()
        place = bisect_left(chunk, item)
        if place == len(chunk) or chunk[place] != item:
            return self
        shorter = (*chunk[:place], *chunk[place + 1 :])
        return self._with(at, (shorter,) if shorter else (), self._size - 1)

    def _with(self, at: int, parts: tuple[tuple[K, ...], ...], size: int) -> "SortedItems[K]":
        changed: SortedItems[K] = SortedItems()
        changed._chunks = (*self._chunks[:at], *parts, *self._chunks[at + 1 :])
        changed._size = size
        return changed


class Waiter(msgspec.Struct, frozen=True):
    """An execution that waits for a lock.

    `scheduled_time` (UTC) is the instant for which it was planned. `yields`: it is a replay or part of a backfill, and
    lets all others go first.
    """

    execution_id: str
    scheduled_time: datetime
    yields: bool = False


class LockQueue(msgspec.Struct, frozen=True):
    """The waiting executions, each with the sequence of its `queued` event.

    Replays and backfills let all others go first. Within each group the earlier scheduled time goes first. A change takes
    a few microseconds, however many wait.
    """

    by_turn: SortedItems[tuple[bool, datetime, str, int]] = msgspec.field(default_factory=SortedItems)
    by_id: SortedItems[tuple[str, int, bool, datetime]] = msgspec.field(default_factory=SortedItems)
    by_arrival: SortedItems[tuple[int, str]] = msgspec.field(default_factory=SortedItems)
    yielding: int = 0
    """The number of replays and parts of backfills."""

    def __len__(self) -> int:
        return len(self.by_turn)

    def __iter__(self) -> Iterator[Waiter]:
        for yields, scheduled_time, execution_id, _ in self.by_turn:
            yield Waiter(execution_id, scheduled_time, yields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LockQueue) and [*self.by_turn] == [*other.by_turn]

    __hash__ = None  # type: ignore[assignment]  # it is compared in tests only

    @property
    def first(self) -> Waiter | None:
        """The execution that acquires the lock next; None: no execution waits."""
        if (turn := self.by_turn.first) is None:
            return None
        yields, scheduled_time, execution_id, _ = turn
        return Waiter(execution_id, scheduled_time, yields)

    @property
    def oldest(self) -> int:
        """The least sequence of the `queued` events; 0: no execution waits."""
        return 0 if (arrival := self.by_arrival.first) is None else arrival[0]

    def add(self, waiter: Waiter, sequence: int) -> "LockQueue":
        """Return the queue with an execution that waits since the event of a sequence."""
        rest, name = self.remove(waiter.execution_id), waiter.execution_id
        return LockQueue(
            rest.by_turn.add((waiter.yields, waiter.scheduled_time, name, sequence)),
            rest.by_id.add((name, sequence, waiter.yields, waiter.scheduled_time)),
            rest.by_arrival.add((sequence, name)),
            rest.yielding + waiter.yields,
        )

    def remove(self, execution_id: str) -> "LockQueue":
        """Return the queue without an execution."""
        if (entry := self.entry(execution_id)) is None:
            return self
        _, sequence, yields, time = entry
        return LockQueue(
            self.by_turn.remove((yields, time, execution_id, sequence)),
            self.by_id.remove(entry),
            self.by_arrival.remove((sequence, execution_id)),
            self.yielding - yields,
        )

    def since(self, oldest: int) -> "LockQueue":
        """Return the queue of the executions that wait since a sequence; 0: the empty queue."""
        if not oldest:
            return EMPTY
        queue = self
        while (arrival := queue.by_arrival.first) is not None and arrival[0] < oldest:
            queue = queue.remove(arrival[1])
        return queue

    def entry(self, execution_id: str) -> tuple[str, int, bool, datetime] | None:
        """Return an execution with the sequence of its event, whether it yields, and its time.

        None: it does not wait.
        """
        # Typed as a whole entry; an entry's first field alone is less than the entry.
        entry = self.by_id.at_least((execution_id,))  # type: ignore[arg-type]
        return entry if entry is not None and entry[0] == execution_id else None


EMPTY: Final = LockQueue()

Overlap: TypeAlias = Literal["cancel_previous", "queue", "queue_full", "overlap_skip"]
"""The decision on an execution whose lock is held: cancel the holder, wait, or skip the execution for one of two reasons."""

SUPERSEDED_BY: Final = "superseded by "
"""The beginning of the reason of a cancellation under `cancel_previous`; the id of the execution follows."""
MAX_YIELDING: Final = 100_000
"""Replays and parts of backfills of a job that may wait for its lock; a backfill has as many instants at most."""
MAX_LATE_EVENTS: Final = 100_000
"""Executions that events started and that may wait beyond `max_waiting`."""
GRACE_S: Final = 60.0
"""Seconds that a lock outlives the time limit of its execution (hip-62)."""


class Lock(msgspec.Struct, frozen=True):
    """The last holder, its fencing token, and the waiting executions.

    `fence` is the sequence of the event by which `holder` acquired the lock; it only grows.
    """

    holder: str | None = None
    fence: int = 0
    waiting: LockQueue = EMPTY

    def has_waiter(self, execution_id: str) -> bool:
        return self.waiting.entry(execution_id) is not None


initial: Final = Lock()


def evolve(state: Lock, recorded: Recorded[Message]) -> Lock:
    """Return the state after an event; events of other kinds change nothing."""
    match recorded.message:
        case Acquired() as fact:
            waiting = state.waiting.remove(fact.execution_id).since(fact.oldest)
            return Lock(fact.execution_id, recorded.sequence, waiting)
        case Queued() as fact:
            waiter = Waiter(fact.execution_id, fact.scheduled_time, fact.yields)
            return Lock(state.holder, state.fence, state.waiting.since(fact.oldest).add(waiter, recorded.sequence))
        case _:
            return state


def fold(facts: Iterable[Recorded[Message]], state: Lock = initial) -> Lock:
    """Return the state after events, oldest first."""
    return reduce(evolve, facts, state)


def first_needed(newest: Sequence[Recorded[Message]]) -> int:
    """Return the sequence from which all events of a lock must be read.

    `newest` holds the newest event of each type. 0: these are enough.
    """
    facts = (recorded.message for recorded in reversed(newest))
    return next((fact.oldest for fact in facts if isinstance(fact, LockFact)), 0)


def acquire(state: Lock, job: str, wanted: Waiter, *, ttl: float, shard: str | None = None) -> list[Acquired]:
    """Acquire a free lock for `ttl` seconds; return nothing if the execution already holds it."""
    if state.holder == wanted.execution_id:
        return []
    return [
        Acquired(
            job=job,
            execution_id=wanted.execution_id,
            shard=shard,
            scheduled_time=wanted.scheduled_time,
            ttl=ttl,
            oldest=state.waiting.remove(wanted.execution_id).oldest,
        )
    ]


def queue(state: Lock, job: str, wanted: Waiter, *, shard: str | None = None) -> list[Queued]:
    """Wait for the lock; return nothing if the execution holds it or already waits."""
    if state.holder == wanted.execution_id or state.has_waiter(wanted.execution_id):
        return []
    return [
        Queued(
            job=job,
            execution_id=wanted.execution_id,
            shard=shard,
            scheduled_time=wanted.scheduled_time,
            yields=wanted.yields,
            oldest=state.waiting.oldest,
        )
    ]


def waiting(wanted: Requested) -> Waiter:
    yields = wanted.trigger in COMPENSATING_TRIGGERS
    return Waiter(execution_id=wanted.execution_id, scheduled_time=wanted.scheduled_time, yields=yields)


def effective_policy(state: Lock, wanted: Requested, active: Requested | None) -> OverlapPolicy:
    """Return the overlap policy for an execution while `active` holds the lock.

    If a replay or a backfill holds the lock, a regular execution neither skips nor cancels it: it waits, in front of
    other replays and backfills. Under `skip`, at most one regular execution waits in this way.
    """
    declared = wanted.plan.overlap_policy
    if active is None or active.trigger not in COMPENSATING_TRIGGERS or wanted.trigger in COMPENSATING_TRIGGERS:
        return declared
    first = state.waiting.first
    if declared == "skip" and first is not None and not first.yields:
        return declared
    return "enqueue"


def overlap(state: Lock, wanted: Requested, active: Requested | None) -> Overlap:
    """Decide on an execution that found the lock held by `active` (ojs-cron §6)."""
    match effective_policy(state, wanted, active):
        case "cancel_previous":
            return "cancel_previous"
        case "enqueue":
            return "queue_full" if is_queue_full(state, wanted) else "queue"
        case _:
            return "overlap_skip"


def is_queue_full(state: Lock, wanted: Requested) -> bool:
    """Return whether too many executions of the same kind wait for the lock already.

    Replays and backfills let all others go first, and take no place of theirs. They have a limit of their own, since
    every publisher of triggers may say that a trigger is a replay.
    """
    queue = state.waiting
    waiting = queue.yielding if wanted.trigger in COMPENSATING_TRIGGERS else len(queue) - queue.yielding
    return waiting >= most_waiting(wanted)


def most_waiting(wanted: Requested) -> int:
    """Return how many executions of its job and kind may wait with an execution.

    The event listener keeps messages in their stream while half as many as `max_waiting` wait. It may see the list late, and keeps no
    other events, so an event that it let through finds room far beyond.
    """
    if wanted.trigger in COMPENSATING_TRIGGERS:
        return MAX_YIELDING
    return wanted.plan.max_waiting + (0 if wanted.event is None else MAX_LATE_EVENTS)


def waits_before_lock(wanted: Requested) -> bool:
    """Return whether an execution waits for other jobs or for agents before its lock.

    The planner must not take a lock for such an execution: it would block others while it waits.
    """
    return bool(wanted.plan.depends_on) or wanted.plan.quorum is not None


def ttl(wanted: Requested) -> float:
    """Return the seconds of the longest path with one attempt of each step, plus grace.

    The jitter of the job delays its start, and counts too.
    """
    finish: dict[str, float] = {}
    # The steps of a plan may be in any order. Repeating until all are known walks the graph without sorting it.
    while len(finish) < len(wanted.plan.steps):
        for step in wanted.plan.steps:
            if all(dependency in finish for dependency in step.depends_on):
                finish[step.name] = step.timeout + max((finish[d] for d in step.depends_on), default=0.0)
    return max(finish.values()) + (wanted.plan.start_delay or 0.0) + GRACE_S
