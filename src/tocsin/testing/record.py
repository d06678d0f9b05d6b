"""The log of a simulation, folded as it grows."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeAlias

from .. import subjects
from ..adapters.files import load
from ..adapters.memory.commit_log import InMemoryCommitLog
from ..client.outcome import Outcome, outcome_of
from ..domain import history, ledger
from ..domain.commit import FIRST_KEY, FIRST_PARTITION, LogHead, Seal
from ..domain.definition import JobDefinition
from ..domain.events import LedgerFact, Message, Passed, PassedReason, Recorded
from ..domain.execution_record import ExecutionRecord
from ..domain.ledger import Ledger
from ..domain.schedule import Schedule, ScheduleError
from ..engine.commit_writer import Chain
from ..engine.ledger_reader import FACTS
from ..services.operations.lookup import ExecutionMatch
from ..settings.triggers import Triggers
from ..subjects import RECORDED, Stream

_STORED_ONE_BY_ONE: Final = frozenset({"paused", "dst_skip"})
"""The reasons for which each instant is in the event."""
_OF_LEDGERS: Final = subjects.any_of(FACTS)
_OF_EXECUTIONS: Final = subjects.any_of(RECORDED[Stream.LOG])
_ENDED: Final = frozenset({"completed", "failed", "cancelled", "skipped"})

Definitions: TypeAlias = Iterable[JobDefinition | str | Path]
"""Definitions, and files of them."""
STREAM: Final = "EVENTS"
"""The stream of messages for triggers that name no stream."""


def opened_by(definitions: Iterable[JobDefinition], given: Triggers) -> Triggers:
    """Return the settings of triggers, which open the subjects of jobs if they open none."""
    if given.streams or given.subjects:
        return given
    streams: dict[str, tuple[str, ...]] = {}
    for definition in definitions:
        for trigger in definition.triggers:
            if trigger.nats is not None:
                stream = trigger.stream or STREAM
                streams[stream] = (*streams.get(stream, ()), trigger.nats)
    return given.model_copy(update={"streams": streams})


def read(definitions: Definitions) -> tuple[JobDefinition, ...]:
    """Return definitions, and read the files among them."""
    found: list[JobDefinition] = []
    for each in definitions:
        found += [each] if isinstance(each, JobDefinition) else load(each)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Skip:
    """An instant that did not run, and the reason, such as `overlap_skip`, `paused` or `missed`."""

    at: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class PassedSpan:
    """Time (after, until] of a job, whose instants passed for one reason."""

    job: str
    reason: PassedReason
    after: datetime
    until: datetime
    schedule: Schedule
    anchor: datetime

    def instants(self) -> Iterator[datetime]:
        """Yield the instants that passed."""
        if self.reason == "excluded":
            return self.schedule.excluded_instants(self.after, self.until, anchor=self.anchor)
        return (each.at for each in self.schedule.occurrences(self.after, self.until, anchor=self.anchor) if each.fires)


class Record:
    """Folds the events that the stages stored."""

    def __init__(self, log: InMemoryCommitLog, seal: Seal) -> None:
        self._log = log
        self._chain = Chain(seal, LogHead(FIRST_KEY))
        self._ledgers = defaultdict[str, Ledger](Ledger)
        self._next: dict[str, datetime] = {}
        self._open: set[str] = set()
        self.executions: dict[str, ExecutionRecord] = {}
        """Every execution by its id, in the order of its first event."""
        self._facts = defaultdict[str, list[Recorded[Message]]](list)
        self.passed: list[Passed] = []
        self._spans: list[PassedSpan] = []

    def read(self) -> None:
        """Fold the new events."""
        changed = dict[str, None]()
        for recorded in self._new():
            if isinstance(fact := recorded.message, LedgerFact):
                self._take_of_ledger(fact, recorded)
                changed[fact.job] = None
                continue
            for id_, record in history.fold(self.executions, (recorded,)).items():
                self.executions[id_] = record
                self._facts[id_].append(recorded)
                (self._open.discard if record.status in _ENDED else self._open.add)(id_)
        for job in changed:
            self._schedule(job)

    def _take_of_ledger(self, fact: LedgerFact, recorded: Recorded[Message]) -> None:
        state = self._ledgers[fact.job]
        if isinstance(fact, Passed):
            self.passed.append(fact)
            if fact.reason not in _STORED_ONE_BY_ONE:
                self._note(state, fact)
        self._ledgers[fact.job] = ledger.evolve(state, recorded)

    def passed_together(self, job: str) -> dict[datetime, str]:
        """Return the reasons of the instants of a job that are stored as spans."""
        return {at: span.reason for span in self._spans if span.job == job for at in span.instants()}

    def outcome(self, execution_id: str) -> Outcome:
        """Return the outcome of an execution, as a client reads it."""
        job = self.executions[execution_id].job
        return outcome_of(ExecutionMatch(job, execution_id, tuple(self._facts[execution_id])))

    @property
    def is_open(self) -> bool:
        """Whether an execution is not over."""
        return bool(self._open)

    def knows(self, job: str) -> bool:
        """Whether a job was ever registered, or an execution names it."""
        return job in self._ledgers or any(each.job == job for each in self.executions.values())

    def next_instant(self) -> datetime | None:
        """Return when the ticker has to decide next (UTC); None: never."""
        return min(self._next.values(), default=None)

    def _note(self, state: Ledger, fact: Passed) -> None:
        """Note a span of instants that an event stores together."""
        regime = next(each for each in state.regimes if each.definition == fact.definition)
        schedule = ledger.schedule_of(state.definitions[fact.definition].timetable)
        after = max(fact.start, regime.since)
        anchor = ledger.anchor_of(state, regime)
        self._spans.append(PassedSpan(fact.job, fact.reason, after, fact.until, schedule, anchor))

    def _schedule(self, job: str) -> None:
        state = self._ledgers[job]
        since = state.current.since if state.current else datetime.max.replace(tzinfo=UTC)
        try:
            # After a change, earlier time may be undecided; the ticker has no instant to wait for in it.
            at = ledger.next_instant(state, since)
        except ScheduleError:
            at = None
        if at is None:
            self._next.pop(job, None)
        else:
            self._next[job] = at

    def _new(self) -> Iterator[Recorded[Message]]:
        for stored in self._log.after(FIRST_PARTITION, self._chain.head.sequence):
            if (commit := self._chain.take(stored)) is None:
                continue
            for number, event in enumerate(commit.events, commit.first):
                if _OF_LEDGERS(event.subject) or _OF_EXECUTIONS(event.subject):
                    message = subjects.decode(event.subject, bytes(event.body))
                    yield Recorded(message, event.subject, number, commit.at)
