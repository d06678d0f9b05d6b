"""The replay of a ledger: the decisions on each instant under a definition.

The ledger's own functions decide. The replay only says when: at the time of the recorded decision if the log has one for the
instant, at the end of an absence of the ticker that contains it, and otherwise as soon after the instant as usual.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Final, NamedTuple, TypeAlias, cast

from msgspec.structs import replace

from .. import ledger
from ..definition import JobDefinition
from ..events import Defined, DefinitionFact, Deleted, Due, Message, Passed, Paused, Recorded, Resumed
from ..events.ledger import in_force_since
from ..ledger import PUNCTUALITY, JobNotFound, Ledger
from ..ledger.instants import undecided_occurrences
from ..replay import Decision, Gap, last_instant
from .runs import Moment, RecordedJob, median_of

IsSpent: TypeAlias = Callable[[], bool]

TICKER: Final = "ticker"
"""The identity under which the ticker deletes a job whose last instant has fired."""
CANDIDATE: Final = 2**60
"""The sequence of a definition that was not recorded; no stream reaches it."""
_NEVER: Final = 2**61


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision of the ticker, and when it was stored."""

    fact: Decision
    stored: datetime
    definition: JobDefinition | None = None


@dataclass(slots=True)
class TimeReplay:
    """The decisions on the time of one job in a window, made again.

    Attributes:
        definition: the definition to try; None: the recorded definitions.
        since, until: the window, without its beginning.
        absences: the times in which no ticker led, in order.
    """

    recorded: RecordedJob
    definition: JobDefinition | None
    since: datetime
    until: datetime
    absences: Sequence[Gap] = ()
    decided: list[Decided] = field(default_factory=list)
    _state: Ledger = ledger.initial
    _when: "_DecisionTimes" = field(init=False)
    _changes: list[Recorded[DefinitionFact]] = field(init=False)

    def __post_init__(self) -> None:
        self._when = _DecisionTimes.of(self.recorded, self.since, self.absences)
        if self.until > self.recorded.past.now:
            self._when.undecided_from = None  # in the future a ticker leads again
        self._state = self.recorded.start
        changes = [each for each in self.recorded.changes if each.time <= self.until and not _is_of_ticker(each)]
        if self.definition is not None:  # no record says which of its instants precede a change
            changes = [replace(change, time=in_force_since(change)) for change in changes]
            self._state = ledger.fold((change for change in changes if change.time <= self.since), self._state)
            changes = [change for change in changes if change.time > self.since]
        self._changes = changes[::-1]
        exists = self._state.current is not None and self._state.current.definition
        is_new = not exists and not any(isinstance(change.message, Defined) for change in self._changes)
        if self.definition is not None and (exists or is_new):
            self._evolve(ledger.define(self._state, self.definition), Moment(self.since, CANDIDATE))

    def advance(self, is_spent: IsSpent) -> bool:
        """Decide until the window ends (true), or the effort is spent (false)."""
        while not is_spent():
            change = self._changes[-1] if self._changes else None
            at = self._first_undecided(self.until if change is None else change.time)
            moment = None if at is None else self._when.of_instant(at)
            if change is not None and (moment is None or Moment(change.time, change.sequence) < moment):
                self._apply(self._changes.pop())
            elif at is None or moment is None or moment.time > self.until:
                return True
            else:
                self._decide(at, moment)
        return False

    def _first_undecided(self, horizon: datetime) -> datetime | None:
        """Return the first instant up to `horizon` that needs a decision."""
        state = self._state
        if len(state.regimes) == 1 and state.watermark is not None and state.regimes[0].since <= state.watermark:
            at = ledger.next_instant(state, state.watermark)
            return at if at is None or at <= horizon else None
        return next((o.at for _, o in undecided_occurrences(state, horizon)), None)

    def _decide(self, at: datetime, moment: Moment) -> None:
        now = self._when.now_of(at, moment)
        facts = ledger.decide_instants(self._state, now)
        known = self._state.definitions
        for fact in facts:
            rule = known[fact.definition].definition if fact.definition in known else None
            self.decided.append(Decided(fact, self._when.stored(fact, moment.time), rule))
        self._evolve(facts, moment)
        self._evolve(ledger.complete(self._state), moment)

    def _apply(self, change: Recorded[DefinitionFact]) -> None:
        if self.definition is None:
            self._state = ledger.evolve(self._state, change)
            return
        moment = Moment(change.time, change.sequence)
        try:
            self._evolve(self._again(change.message), moment)
        except JobNotFound:
            return  # under the other definition the job was deleted before

    def _again(self, fact: DefinitionFact) -> Sequence[Message]:
        job, state = self.recorded.job, self._state
        match fact:
            case Paused():
                return ledger.pause(state, job)
            case Resumed():
                return ledger.resume(state, job)
            case Deleted():
                return ledger.delete(state, job)
            case _:
                return ledger.define(state, self.definition) if self.definition is not None else ()

    def _evolve(self, facts: Sequence[Message], moment: Moment) -> None:
        for fact in facts:
            self._state = ledger.evolve(self._state, Recorded(fact, "", moment.sequence, moment.time))


class _Late(NamedTuple):
    """Instants from `first` on that were decided late, at `decided`."""

    first: datetime
    decided: Moment


@dataclass(slots=True)
class _DecisionTimes:
    """The moments at which the ticker decides on instants. No unrecorded decision comes before `not_before`."""

    not_before: datetime
    known: dict[datetime, Moment] = field(default_factory=dict)
    """The recorded moments, by the first instant of a decision."""
    punctual: set[datetime] = field(default_factory=set)
    """The recorded instants that fired in time."""
    times: dict[tuple[str, datetime], datetime] = field(default_factory=dict)
    """When recorded decisions were stored, by type and last instant."""
    late: list[_Late] = field(default_factory=list)
    absences: Sequence[Gap] = ()
    undecided_from: datetime | None = None
    """The first instant on which no decision was recorded."""
    delay: timedelta = timedelta()

    @classmethod
    def of(cls, recorded: RecordedJob, not_before: datetime, absences: Sequence[Gap]) -> "_DecisionTimes":
        times = cls(not_before, absences=absences)
        delays: list[timedelta] = []
        for first, decision in _first_instants(recorded):
            if decision is None:
                times.undecided_from = first
                continue
            moment = Moment(decision.time, decision.sequence)
            times.known.setdefault(first, moment)
            times.times[_key(decision.message)] = decision.time
            is_late = decision.time - first > PUNCTUALITY
            if isinstance(decision.message, Due) and not decision.message.catch_up:
                times.punctual.add(first)
            elif is_late:
                times.late.append(_Late(first, moment))
            if not is_late:
                delays.append(decision.time - first)
        times.late.sort()
        if delays:
            times.delay = max(timedelta(), median_of(delays))
        return times

    def of_instant(self, at: datetime) -> Moment | None:
        """Return when the ticker decides on an instant; None: not in the recorded past."""
        if (moment := self.known.get(at)) is not None:
            return moment
        if self.undecided_from is not None and at >= self.undecided_from:
            return None
        place = bisect_right(self.late, at, key=lambda late: late.first) - 1
        if place >= 0 and at <= self.late[place].decided.time:
            return self.late[place].decided
        for absence in self.absences:
            if (absence.start is None or absence.start < at) and (absence.end is None or at <= absence.end):
                return None if absence.end is None else Moment(absence.end, _NEVER)
        return Moment(max(at + self.delay, self.not_before), _NEVER)

    def now_of(self, at: datetime, moment: Moment) -> datetime:
        """Return the time by which the ticker judged the age of an instant.

        A recorded instant that fired in time was judged in time, even if the log stored the decision later. Its decision replays no
        later instant: each of them has its own.
        """
        return at if at in self.punctual else max(moment.time, at)

    def stored(self, fact: Decision, otherwise: datetime) -> datetime:
        """Return when a decision was stored, if the log has the same, or `otherwise`."""
        return max(otherwise, self.times.get(_key(fact), otherwise))


def _first_instants(recorded: RecordedJob) -> Iterator[tuple[datetime, Recorded[Decision] | None]]:
    """Yield the decisions of a job with the first instant that each is about.

    The last pair has an instant without a decision, if there is one.
    """
    state = recorded.start
    for fact in recorded.facts:
        if fact.time <= recorded.runs.since:
            continue
        match fact.message:
            case Due() as due:
                yield due.scheduled_time, cast("Recorded[Decision]", fact)
            case Passed() as passed:
                first = next((o.at for _, o in undecided_occurrences(state, passed.until)), passed.until)
                yield first, cast("Recorded[Decision]", fact)
            case _:
                pass
        state = ledger.evolve(state, fact)
    for _, undecided in islice(undecided_occurrences(state, recorded.past.now), 1):
        yield undecided.at, None


def _key(fact: Decision) -> tuple[str, datetime]:
    return fact.type, last_instant(fact)


def _is_of_ticker(change: Recorded[DefinitionFact]) -> bool:
    by = change.message.by
    return isinstance(change.message, Deleted) and by is not None and by.identity == TICKER and by.kind is None
