"""The order in which waiting messages and deadlines are decided.

Classes have shares; publishers and their jobs take turns.

A long queue of a class does not delay the others: every class has a share of the decisions, and the others get its unused share. Inside a
class publishers take turns, and the jobs of a publisher within its own; the messages of a job keep their order. No deadline, trigger or enqueue of a
job comes before a change of the job that was requested earlier.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Final

from .. import subjects
from ..subjects import Stream
from .causes import DeadlineCause, MessageCause
from .fold import EVENTS


class Kind(IntEnum):
    """The classes; the first goes first if two have their turn."""

    REPORTS = 0
    """Reports, and events of other processes."""
    TIMES = 1
    """Instants and other deadlines."""
    OPERATORS = 2
    """Requests of operators about jobs and executions: definitions, pauses, cancels."""
    RUNS = 3
    """Triggers, enqueues and backfills."""


SHARES: Final = {Kind.REPORTS: 4, Kind.TIMES: 2, Kind.OPERATORS: 1, Kind.RUNS: 1}
"""Decisions of each class among eight, if all classes wait."""
_STRIDES: Final = [sum(SHARES.values()) / SHARES[kind] for kind in Kind]
_REPORTING: Final = frozenset({EVENTS, Stream.REPORTS.value})
_RUNS: Final = frozenset({"trigger", "enqueue"})


def kind_of(source: str, subject: str) -> Kind:
    """Return the class of a message of a source."""
    if source in _REPORTING:
        return Kind.REPORTS
    first = subjects.request_subject(subject).partition(".")[0]
    return Kind.RUNS if first in _RUNS else Kind.OPERATORS


class _Queue:
    """The waiting messages of a class."""

    def __init__(self) -> None:
        self.publishers: OrderedDict[str, OrderedDict[str, deque[MessageCause]]] = OrderedDict()

    def add(self, call: MessageCause) -> None:
        publisher, job = subjects.turn_of(call.recorded.subject)
        self.publishers.setdefault(publisher, OrderedDict()).setdefault(job, deque()).append(call)

    def put_back(self, call: MessageCause) -> None:
        """Add a message before all others."""
        publisher, job = subjects.turn_of(call.recorded.subject)
        jobs = self.publishers.setdefault(publisher, OrderedDict())
        jobs.setdefault(job, deque()).appendleft(call)
        jobs.move_to_end(job, last=False)
        self.publishers.move_to_end(publisher, last=False)

    def first(self) -> MessageCause:
        """Return the message that has its turn."""
        jobs = next(iter(self.publishers.values()))
        return next(iter(jobs.values()))[0]

    def take(self) -> MessageCause:
        """Remove and return the message that has its turn."""
        publisher, jobs = self.publishers.popitem(last=False)
        job, calls = jobs.popitem(last=False)
        call = calls.popleft()
        if calls:
            jobs[job] = calls
        if jobs:
            self.publishers[publisher] = jobs
        return call

    def take_until(self, turn: tuple[str, str], is_last: Callable[[MessageCause], bool]) -> list[MessageCause]:
        """Remove and return the messages of a publisher's job as long as they fit."""
        publisher, job = turn
        jobs = self.publishers[publisher]
        calls = list(jobs[job])
        until = max((index for index, call in enumerate(calls, 1) if is_last(call)), default=0)
        jobs[job] = deque(calls[until:])
        if not jobs[job]:
            del jobs[job]
        if not jobs:
            del self.publishers[publisher]
        return calls[:until]

    def __iter__(self) -> Iterator[MessageCause]:
        return (call for jobs in self.publishers.values() for calls in jobs.values() for call in calls)


class Turns:
    """Messages that wait for their decision."""

    def __init__(self) -> None:
        self._queues = [_Queue() for _ in Kind]
        self._each = list(zip(Kind, self._queues, strict=True))
        self._due = [0.0 for _ in Kind]
        """When the next turn of each class is, in decisions."""
        self._now = 0.0
        self._had = [False for _ in Kind]
        """Whether each class had something at the last turn."""
        self._changes: dict[str, Counter[tuple[str, str]]] = {}
        """The number of changes that wait in turns, by job and turn."""
        self._first: deque[MessageCause] = deque()
        """The messages before all turns."""

    def add(self, call: MessageCause) -> None:
        """Add a message after the other messages of its job."""
        self._count(call, 1)
        self._queue_of(call).add(call)

    def put_back(self, calls: Iterable[MessageCause]) -> None:
        """Add undone messages again, in their order, before all others of their jobs."""
        for call in reversed(list(calls)):
            self._count(call, 1)
            self._queue_of(call).put_back(call)

    def next(
        self, due: Callable[[], DeadlineCause | None], *, is_reading: bool = False
    ) -> MessageCause | DeadlineCause | None:
        """Return the next cause, and remove it if it is a message; None: nothing waits.

        `due` returns a deadline that is due. While `is_reading`, no deadline and no run is decided, because older requests may follow.
        """
        if self._first:
            return self._taken(self._first.popleft())
        deadline = None if is_reading else due()
        if (kind := self._next_kind(deadline, is_reading=is_reading)) is None:
            return None
        if kind is Kind.TIMES:
            assert deadline is not None  # noqa: S101 - it is the reason for this turn
            if self._changes and self._bring_forward(subjects.job_of(deadline.scope)):
                return self._taken(self._first.popleft())
            return deadline
        queue = self._queues[kind]
        is_about_job = self._changes and kind is not Kind.REPORTS and not _is_change(call := queue.first())
        if is_about_job and self._bring_forward(_job_of(call), call.recorded.time):
            return self._taken(self._first.popleft())
        return self._taken(queue.take())

    def _next_kind(self, deadline: DeadlineCause | None, *, is_reading: bool) -> Kind | None:
        best: Kind | None = None
        had, due = self._had, self._due
        for kind, queue in self._each:
            has = deadline is not None if kind is Kind.TIMES else bool(queue.publishers)
            if is_reading and kind is Kind.RUNS:
                has = False
            if has and not had[kind]:  # a class that had nothing saved nothing up
                due[kind] = max(due[kind], self._now)
            had[kind] = has
            if has and (best is None or due[kind] < due[best]):
                best = kind
        if best is not None:
            self._now = due[best]
            due[best] += _STRIDES[best]
        return best

    def bring_forward(self, key: tuple[str, str], limit: int) -> None:
        """Let the oldest messages of a stage and source go first.

        The position then has fewer ranges.
        """
        calls = sorted((call for call in self if call.key == key), key=lambda call: call.place)[:limit]
        chosen = set(map(id, calls))
        for queue in self._queues:
            for publisher, jobs in list(queue.publishers.items()):
                for job, waiting in list(jobs.items()):
                    jobs[job] = deque(call for call in waiting if id(call) not in chosen)
                    if not jobs[job]:
                        del jobs[job]
                if not jobs:
                    del queue.publishers[publisher]
        self._first = deque([*calls, *(call for call in self._first if id(call) not in chosen)])

    def remove(self, stages: Iterable[str]) -> list[MessageCause]:
        """Remove and return the messages of some stages."""
        removed, calls, stages = list[MessageCause](), list(self), frozenset(stages)
        for queue in self._queues:
            queue.publishers.clear()
        self._changes.clear()
        self._first.clear()
        for call in calls:
            if call.by in stages:
                removed.append(call)
            else:
                self.add(call)
        return removed

    def __iter__(self) -> Iterator[MessageCause]:
        yield from self._first
        for queue in self._queues:
            yield from queue

    def _queue_of(self, call: MessageCause) -> _Queue:
        return self._queues[kind_of(call.source, call.recorded.subject)]

    def _taken(self, call: MessageCause) -> MessageCause:
        self._count(call, -1)
        return call

    def _count(self, call: MessageCause, change: int) -> None:
        if call.source == Stream.REQUESTS and _is_change(call):
            counts = self._changes.setdefault(_job_of(call), Counter())
            counts[subjects.turn_of(call.recorded.subject)] += change
            if not +counts:
                del self._changes[_job_of(call)]

    def _bring_forward(self, job: str, before: datetime | None = None) -> bool:
        """Let the changes of a job that were requested before a time go first."""
        for turn in list(self._changes.get(job, ())):
            self._first.extend(
                self._queues[Kind.OPERATORS].take_until(
                    turn, lambda call: _is_change(call) and (before is None or call.recorded.time <= before)
                )
            )
        return bool(self._first)


AWAITED_FOR: Final = timedelta(seconds=30)
"""How long a job waits for a change: a registrar that died has a successor sooner."""
MAX_AWAITED: Final = 10_000
"""Changes that a process awaits at most."""


class AwaitedChanges:
    """Changes that the registrar of another process decides, and the messages that come after them."""

    def __init__(self) -> None:
        self._changes: dict[str, dict[int, datetime]] = {}
        """The times (UTC) of requests of changes, by job and sequence, oldest first."""
        self._entries: list[tuple[datetime, str, int]] = []
        """The time (UTC) up to which each change is awaited, with its job and sequence."""
        self._held: dict[str, list[MessageCause]] = {}
        """The messages of each job that wait."""

    @property
    def until(self) -> datetime | None:
        """The time (UTC) up to which the oldest change is awaited; None: none is."""
        return self._entries[0][0] if self._entries else None

    def add(self, job: str, sequence: int, at: datetime, now: datetime) -> None:
        """Await a change of a job, requested at a time (UTC); changes come in order."""
        newest = next(reversed(self._changes.get(job, {})), 0)
        if sequence > newest and len(self._entries) < MAX_AWAITED:
            self._changes.setdefault(job, {})[sequence] = at
            self._entries.append((now + AWAITED_FOR, job, sequence))

    def is_before(self, job: str, at: datetime) -> bool:
        """Return whether a change of a job was requested up to a time (UTC)."""
        return any(requested <= at for requested in self._changes.get(job, {}).values())

    def holds(self, job: str, call: MessageCause) -> bool:
        """Hold a message after a change of its job; return whether the message is held."""
        changes = self._changes.get(job, {})
        is_request = call.source == Stream.REQUESTS  # which has an order
        is_newer = (
            next(iter(changes), call.place) < call.place if is_request else self.is_before(job, call.recorded.time)
        )
        if is_newer:
            self._held.setdefault(job, []).append(call)
        return is_newer

    def release(self) -> list[MessageCause]:
        """Return the messages that wait, in order; they wait no more."""
        return self._released(list(self._held))

    def end(self, is_over: Callable[[int, datetime], bool] = lambda *_: True) -> list[MessageCause]:
        """Forget changes by their sequences and ends (UTC).

        Return the messages of their jobs, in order.
        """
        over = [entry for entry in self._entries if is_over(entry[2], entry[0])]
        if over:
            gone = set(over)
            self._entries = [entry for entry in self._entries if entry not in gone]
        for _, job, sequence in over:
            del self._changes[job][sequence]
            if not self._changes[job]:
                del self._changes[job]
        return self._released([job for _, job, _ in over])

    def _released(self, jobs: Iterable[str]) -> list[MessageCause]:
        calls = (call for job in jobs for call in self._held.pop(job, ()))
        return sorted(calls, key=lambda call: (call.source, call.place))


def _is_change(call: MessageCause) -> bool:
    return subjects.is_change(call.recorded.subject)


def _job_of(call: MessageCause) -> str:
    return subjects.job_of(call.recorded.subject)
