"""Totals of the history: the counters of `/metrics`, folded from the log."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from .dead_letter import Letter
from .events import (
    MISSED_REASONS,
    Cancelled,
    Completed,
    ExecutionFact,
    Failed,
    Message,
    Passed,
    Recorded,
    Recovered,
    RetryScheduled,
    Skipped,
)
from .execution_record import OPEN, ExecutionRecord

Kind: TypeAlias = Literal[
    "executions",
    "retries",
    "dead_letters",
    "steps",
    "duration",
    "duration_ms",
    "lateness",
    "lateness_ms",
    "missed",
    "lost",
    "recovered",
    "abandoned",
]
"""What a total counts. `duration` and `lateness` count in buckets; kinds with `_ms` are sums of milliseconds."""

OTHER: Final = "(other)"
"""The name for all names beyond a limit. No job and no step can have it."""
MAX_UNREGISTERED_JOBS: Final = 1_000
"""Names of jobs that were never registered, such as enqueued jobs, that count under their own name."""
MAX_STEPS: Final = 1_000
"""Names of steps of a job that count under their own name: as many as a definition may have."""

BUCKETS_S: Final[Mapping[str, Sequence[float]]] = {
    "duration": (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3_600, 14_400),
    "lateness": (0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 300, 3_600),
}
"""The upper bounds of the buckets of a kind; a last bucket has no bound."""
NO_BOUND: Final = "+Inf"
_LABELS: Final = {kind: (*(f"{bound:g}" for bound in bounds), NO_BOUND) for kind, bounds in BUCKETS_S.items()}

UNREGISTERED: Final = ""
"""The owner of the names of jobs that were never registered. The other owners are jobs, which own the names of their steps."""

_OF_INSTALLATION: Final = frozenset({"executions", "retries", "dead_letters"})
"""The kinds of which the installation has totals beside those of its jobs. They outlive every job."""
_MILLISECOND: Final = timedelta(milliseconds=1)


class Total(NamedTuple):
    """The name of a total.

    `job` is empty if the total belongs to the installation. `label` is a trigger, a step, the upper bound of a bucket, or a reason.
    """

    kind: Kind
    job: str = ""
    label: str = ""
    status: str = ""


@dataclass(slots=True)
class Growth:
    """The growth of totals by a batch of events, before names are limited."""

    of_registered: Counter[Total] = field(default_factory=Counter)
    of_others: Counter[Total] = field(default_factory=Counter)
    """That of jobs that were not registered, as far as their events tell."""

    def of(self, definition: int | None) -> Counter[Total]:
        return self.of_registered if definition else self.of_others

    @property
    def owners(self) -> set[str]:
        """Return the owners whose names `limited` must know."""
        steps = {total.job for totals in (self.of_registered, self.of_others) for total in totals if _is_step(total)}
        return {*steps, OTHER, UNREGISTERED} if self.of_others else steps

    def limited(self, known: Mapping[str, frozenset[str]]) -> tuple[Counter[Total], set[tuple[str, str]]]:
        """Return the growth under limited names, and the new names with their owner.

        `known`: the names of `owners` that count already.
        """
        names = _Names(known)
        grown: Counter[Total] = Counter()
        for total, count in self.of_registered.items():
            grown[names.with_step(total)] += count
        for total, count in self.of_others.items():
            job = total.job and names.name(UNREGISTERED, total.job, MAX_UNREGISTERED_JOBS)
            grown[names.with_step(total._replace(job=job))] += count
        for total, count in list(grown.items()):
            if total.job and total.kind in _OF_INSTALLATION:
                grown[total._replace(job="")] += count
        return grown, names.new


class _Names:
    def __init__(self, known: Mapping[str, frozenset[str]]) -> None:
        self._known = {owner: set(names) for owner, names in known.items()}
        self.new: set[tuple[str, str]] = set()

    def name(self, owner: str, name: str, limit: int) -> str:
        known = self._known.setdefault(owner, set())
        if name not in known:
            if len(known) >= limit:
                return OTHER
            known.add(name)
            self.new.add((owner, name))
        return name

    def with_step(self, total: Total) -> Total:
        return total._replace(label=self.name(total.job, total.label, MAX_STEPS)) if _is_step(total) else total


def _is_step(total: Total) -> bool:
    return total.kind == "steps"


def growth_of_log(
    before: Mapping[str, ExecutionRecord],
    after: Mapping[str, ExecutionRecord],
    messages: Iterable[Recorded[Message]],
    letters: Iterable[Letter],
) -> Growth:
    """Return the growth by a batch of the log.

    `before` and `after`: the records of the changed executions that the history keeps, and `letters`: the dead letters among the
    messages. Of other executions only ends and retries are counted.
    """
    registered, others = Counter[Any](), Counter[Any]()  # of plain tuples, which take less time to make
    for execution_id, record in after.items():
        _count_execution(registered if record.definition else others, before.get(execution_id), record)
    growth = Growth(*(Counter({Total(*key): count for key, count in of.items()}) for of in (registered, others)))
    for letter in letters:
        growth.of(getattr(letter.message, "definition", None))[Total("dead_letters", letter.message.job)] += 1
    facts: Iterable[Any] = (recorded.message for recorded in messages if type(recorded.message) in _COUNTED)
    for fact in facts:
        if (kind := type(fact)) is RetryScheduled:
            retried = _record(after, fact)
            growth.of(None if retried is None else retried.definition)[Total("retries", fact.job)] += 1
        elif (
            kind is not Recovered and _record(after, fact) is None
        ):  # the policy keeps no history, or the id is another job's
            growth.of_others[Total("executions", fact.job, fact.trigger, fact.type)] += 1
        if kind is Recovered:
            growth.of_registered.update([Total("recovered"), *(Total("lost", label=lost.what) for lost in fact.lost)])
        elif kind is Failed and fact.reason == "abandoned":
            growth.of_registered[Total("abandoned")] += 1
    return growth


def _record(records: Mapping[str, ExecutionRecord], fact: ExecutionFact) -> ExecutionRecord | None:
    record = records.get(fact.execution_id)
    return record if record is not None and record.job == fact.job else None


def growth_of_ledger(messages: Iterable[Recorded[Message]]) -> Growth:
    growth = Growth()
    for recorded in messages:
        fact = recorded.message
        if type(fact) is Passed and fact.reason in MISSED_REASONS:
            growth.of_registered[Total("missed", fact.job, fact.reason)] += fact.count
    return growth


def _count_execution(totals: Counter[Any], before: ExecutionRecord | None, record: ExecutionRecord) -> None:
    job, old_steps = record.job, {} if before is None else before.steps
    for name, step in record.steps.items():
        if step.status not in OPEN and ((old := old_steps.get(name)) is None or old.status in OPEN):
            totals["steps", job, name, step.status] += 1
    if record.trigger == "cron" and record.has_started and (before is None or not before.has_started):
        late = (_utc(record.started_at) - _utc(record.scheduled_time)) // _MILLISECOND - (record.start_delay_ms or 0)
        _count_time(totals, "lateness", "lateness_ms", "", max(0, late))
    if record.completed_at is None or (before is not None and before.completed_at is not None):
        return
    totals["executions", job, record.trigger, record.status] += 1
    if (duration := record.duration_ms) is not None:
        _count_time(totals, "duration", "duration_ms", job, duration)


def _count_time(totals: Counter[Any], kind: Kind, sum_kind: Kind, job: str, milliseconds: int) -> None:
    totals[kind, job, bucket(kind, milliseconds / 1_000), ""] += 1
    totals[sum_kind, job, "", ""] += milliseconds


_COUNTED: Final[frozenset[type[Message]]] = frozenset(
    {Completed, Failed, Cancelled, Skipped, RetryScheduled, Recovered}
)


def bucket(kind: Kind, seconds: float) -> str:
    """Return the upper bound of the bucket that counts a time."""
    return _LABELS[kind][bisect_left(BUCKETS_S[kind], seconds)]


def _utc(time: datetime) -> datetime:
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
