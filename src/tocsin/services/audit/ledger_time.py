"""The ledger is complete (I2): each instant is in exactly one `due` or `passed`.

The instants are recomputed from the definitions in force, without the calendar of the ticker (`enumerator`). From the decisions a
timeline takes only their reach, and the last firing, from which `@every` counts. Memory: for each job, the definitions that govern
undecided time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import NamedTuple

from ...domain.definition import JobDefinition
from ...domain.events import Defined, DefinitionFact, Deleted, Due, Message, Passed, Paused, Recorded, Resumed
from ...domain.events.ledger import in_force_since
from . import check
from .check import Check, Debt, Proof, Taken, on
from .enumerator import instants, interval_of


class Named(NamedTuple):
    """A named instant: a firing, or a local time that does not exist."""

    at: datetime
    is_skipped: bool
    """Whether it is a local time that does not exist."""
    excluded: int
    """The number of instants for which it stands, which calendars exclude; 0: none excludes it."""
    paused: bool
    definition: int

    @property
    def fires(self) -> bool:
        return not self.is_skipped and not self.excluded


@dataclass(slots=True)
class Regime:
    """The definition in force from `since` on.

    `anchors`: the possible starts of its intervals, the likeliest first.
    """

    since: datetime
    definition: int
    rule: JobDefinition | None
    paused: bool
    registered: datetime
    anchors: list[datetime]


@dataclass(slots=True)
class Timeline:
    """A job's undecided time: its definitions, and the last decision."""

    job: str
    regimes: list[Regime] = field(default_factory=list)
    definitions: dict[int, tuple[datetime, JobDefinition]] = field(default_factory=dict)
    """By sequence: the start of its intervals, and the definition."""
    watermark: datetime | None = None
    last_fired: datetime | None = None
    newest: int = 0
    """The sequence of the newest event on the definition."""

    @property
    def begin(self) -> datetime | None:
        return self.watermark or (self.regimes[0].since if self.regimes else None)

    def govern(self, recorded: Recorded[DefinitionFact]) -> bool:
        """Change the definition in force; return False if it names an unknown definition."""
        fact, at = recorded.message, in_force_since(recorded)
        self.newest = recorded.sequence
        sequence, paused = 0, False
        match fact:
            case Defined():
                sequence, paused = recorded.sequence, fact.paused
                self.definitions[sequence] = self._start(at, fact), fact.definition
            case Paused() | Resumed():
                sequence, paused = fact.definition, isinstance(fact, Paused)
            case Deleted():
                pass
        since, rule = self.definitions.get(sequence, (at, None))
        registered = self._registered(recorded)
        anchor = self.last_fired if self.last_fired is not None and self.last_fired > registered else since
        self.regimes.append(Regime(at, sequence, rule, paused, registered, [anchor]))
        self._forget()
        return rule is not None or not sequence

    def _registered(self, recorded: Recorded[DefinitionFact]) -> datetime:
        """Return the time of the registration to which a definition event belongs.

        A deletion ends the registration before. Of a log that is read in part, the event itself names it.
        """
        before = self.regimes[-1] if self.regimes else None
        if before is None:
            return getattr(recorded.message, "created_at", None) or in_force_since(recorded)
        return before.registered if before.definition else in_force_since(recorded)

    def _start(self, time: datetime, fact: Defined) -> datetime:
        """Return the start of the intervals of a definition until the job fires.

        An update that keeps the interval keeps its start. Of a log that is read in part, the event itself names it.
        """
        if not self.regimes:
            return fact.anchor or time
        before = self.definitions.get(self.regimes[-1].definition)
        interval = interval_of(fact.definition.schedule)
        is_kept = before is not None and interval is not None and interval_of(before[1].schedule) == interval
        return before[0] if before is not None and is_kept else time

    def decide(self, upto: datetime, *, fired: bool) -> None:
        if fired:
            self.last_fired = upto
            for regime in self.regimes:
                # The ticker may have counted from here, or from the last firing before its decision.
                if regime.since < upto:
                    regime.anchors = [upto]
                elif regime.registered < upto:
                    regime.anchors = [upto, *regime.anchors]
        self.watermark = upto if self.watermark is None else max(self.watermark, upto)
        self._forget()

    def named(self, upto: datetime, limit: int) -> Sequence[Sequence[Named]]:
        """Return the instants named from the last decision up to `upto`, at most `limit`.

        There is one result for each possible start of the intervals.
        """
        rules = ((regime, regime.rule) for regime in self.regimes if regime.rule is not None)
        most = max((len(regime.anchors) for regime, rule in rules if interval_of(rule.schedule)), default=1)
        return [list(islice(self._named(upto, anchor), limit)) for anchor in range(most)]

    def _named(self, upto: datetime, anchor: int) -> Iterator[Named]:
        if not self.regimes:
            return  # the stream lost the definition
        ends = (*(regime.since for regime in self.regimes[1:]), upto)
        for regime, end in zip(self.regimes, ends, strict=True):
            rule = regime.rule
            if rule is None or rule.schedule is None:
                continue
            start = max(self.watermark, regime.since) if self.watermark else regime.since
            origin = regime.anchors[min(anchor, len(regime.anchors) - 1)]
            paused = regime.paused or not rule.enabled
            for (at, is_skipped), excluded in instants(rule, start, min(end, upto), origin):
                yield Named(at, is_skipped, excluded, paused and not excluded, regime.definition)

    def _forget(self) -> None:
        if self.watermark is None:
            return
        while len(self.regimes) > 1 and self.regimes[1].since <= self.watermark:
            del self.regimes[0]
        definitions = {regime.definition for regime in self.regimes}
        for sequence in self.definitions.keys() - definitions:
            del self.definitions[sequence]


COUNTED: int = 1_000
"""Largest count of undecided instants of one job; more are "1,000 or more"."""


class LedgerTime(Check):
    """Follows the time of every job."""

    def __init__(self, since: datetime | None = None) -> None:
        super().__init__(since)
        self._jobs: dict[str, Timeline] = {}
        self._last: dict[str, Recorded[Message]] = {}
        self.horizon: datetime | None = None
        """The time up to which instants should be decided (UTC); set before `debts`."""
        self.remarks: dict[str, str] = {}

    @property
    def count(self) -> int:
        return len(self._jobs)

    @on(Defined, Paused, Resumed, Deleted)
    def _govern(self, recorded: Recorded[DefinitionFact]) -> Taken:
        fact = recorded.message
        timeline = self._jobs.setdefault(fact.job, Timeline(fact.job))
        before, is_start = timeline.newest, bool(timeline.newest) or self._since is None
        if is_start and fact.previous != before:
            reason = f"it says that it follows fact {fact.previous} on the definition, and it follows {before}"
            yield check.violation("I2", check.job(fact.job), reason, recorded)
        earliest = max(filter(None, (timeline.watermark, *(regime.since for regime in timeline.regimes))), default=None)
        if fact.since is not None and (fact.since > recorded.time or (earliest is not None and fact.since < earliest)):
            reason = f"it is in force from {fact.since.isoformat()}, which is decided, or later than the event"
            yield check.violation("I2", check.job(fact.job), reason, recorded)
        if not timeline.govern(recorded) and is_start:
            yield check.violation("I2", check.job(fact.job), "it names a definition that is not there", recorded)
        self._last[fact.job] = recorded

    @on(Due)
    def _due(self, recorded: Recorded[Due]) -> Taken:
        due = recorded.message
        yield from self._decided(recorded, due.job, due.scheduled_time, fired=True)

    @on(Passed)
    def _passed(self, recorded: Recorded[Passed]) -> Taken:
        fact = recorded.message
        begin = self._jobs[fact.job].begin if fact.job in self._jobs else None
        if begin is not None and fact.start != begin and not self._is_first(fact.job):
            reason = f"its span begins at {fact.start.isoformat()}, and {begin.isoformat()} is how far time was decided"
            yield check.violation("I2", check.job(fact.job), reason, recorded)
        yield from self._decided(recorded, fact.job, fact.until, fired=False)

    def _decided(self, recorded: Recorded[Due | Passed], job: str, upto: datetime, *, fired: bool) -> Taken:
        timeline = self._jobs.setdefault(job, Timeline(job))
        if not timeline.regimes and self._since is None:
            yield check.violation("I2", check.job(job), "no definition was ever in force", recorded)
        elif timeline.watermark is not None and upto <= timeline.watermark:
            reason = f"decided again: all up to {timeline.watermark.isoformat()} was"
            yield check.violation("I2", check.job(job), reason, recorded)
        elif not self._is_first(job):
            yield from self._compared(timeline, recorded, upto)
        timeline.decide(upto, fired=fired)
        self._last[job] = recorded

    def _compared(self, timeline: Timeline, recorded: Recorded[Due | Passed], upto: datetime) -> Taken:
        """Return the violation of a decision under the likeliest count of intervals."""
        fact = recorded.message
        limit = 1 + max(COUNTED, fact.count if isinstance(fact, Passed) else 0)
        violations = [[*_wrong(recorded, instants)] for instants in self._named(timeline, upto, limit)]
        if violations and all(violations):
            before = self._last.get(timeline.job)
            entity, facts = check.job(timeline.job), (recorded,) if before is None else (before, recorded)
            yield from (check.violation("I2", entity, reason, *facts) for reason in violations[0])

    def _named(self, timeline: Timeline, upto: datetime, limit: int) -> Sequence[Sequence[Named]]:
        try:
            return timeline.named(upto, limit)
        except ValueError as error:
            reason = str(error).partition("\n")[0]
            self.remarks[timeline.job] = f"{check.job(timeline.job)}: its instants cannot be recomputed: {reason}"
            return ()

    def _is_first(self, job: str) -> bool:
        """Whether this is the first decision of a job, with nothing to judge it by."""
        return self._since is not None and self._jobs[job].watermark is None

    def debts(self) -> Iterator[Debt]:
        if self.horizon is None:
            return
        for job, timeline in self._jobs.items():
            if self._is_first(job):
                continue
            ways = self._named(timeline, self.horizon, COUNTED)
            undecided = [*min(ways, key=len, default=())]
            if undecided and undecided[-1].excluded:
                undecided.pop()  # its day may still have others, which are decided together
            if undecided:
                first, number = undecided[0].at, len({instants.at for instants in undecided})
                reason = f"{_counted(number)} not decided yet, the first at {first.isoformat()}"
                yield Debt("I2", check.job(job), reason, first, facts=(Proof.of(self._last[job]),))


def _wrong(recorded: Recorded[Due | Passed], named: Sequence[Named]) -> Iterator[str]:
    fact = recorded.message
    if {instant.definition for instant in named} - {fact.definition}:
        definitions = sorted({instant.definition for instant in named} - {fact.definition})
        yield f"it goes by definition {fact.definition}, and {', '.join(map(str, definitions))} was in force"
    if isinstance(fact, Due):
        yield from _wrong_due(fact, named)
    else:
        yield from _wrong_passed(fact, named)


def _wrong_due(fact: Due, named: Sequence[Named]) -> Iterator[str]:
    at = fact.scheduled_time
    if forgotten := [instant.at for instant in named if instant.at != at]:
        yield f"{_counted(len(forgotten))} never decided, the first at {forgotten[0].isoformat()}"
    if not any(instant.fires and instant.at == at for instant in named):
        yield "it fired, and no definition in force named that instant"
    if any(instant.paused for instant in named if instant.at == at):
        yield "it fired while the job was paused or disabled"
    if fact.dst_skip != any(instant.is_skipped and instant.at == at for instant in named):
        yield "a local time that does not exist falls there, or does not, and it says otherwise"


def _wrong_passed(fact: Passed, named: Sequence[Named]) -> Iterator[str]:
    # A nonexistent local time may fall on an instant that passes for another reason; it is listed, and not counted.
    instants = [instant for instant in named if not instant.is_skipped or fact.reason in {"paused", "dst_skip"}]
    number = sum(instant.excluded or 1 for instant in instants)
    if fact.count != number:
        yield f"{fact.count:,} passed, and {_counted(number)} named"
    elif not named or named[-1].at != fact.until:
        yield f"its span ends at {fact.until.isoformat()}, which is no instant that was named"
    paused = sum(instant.paused for instant in named)
    if paused != (len(named) if fact.reason == "paused" else 0):
        yield f"they passed as {fact.reason!r}, and {paused} of {len(named)} were paused or disabled"
    elif fact.reason == "dst_skip" and any(instant.fires for instant in named):
        yield "they passed as local times that do not exist, and some do"
    counted = [instant for instant in named if not instant.is_skipped]
    excluded = sum(bool(instant.excluded) for instant in counted)
    if excluded != (len(counted) if fact.reason == "excluded" else 0):
        yield f"they passed as {fact.reason!r}, and {excluded} of {len(counted)} were excluded"
    expected = [instant.at for instant in named if fact.reason == "paused" or instant.is_skipped]
    if [*fact.scheduled_times] != expected:
        yield "the public events name other instants"


def _counted(number: int) -> str:
    many = f"{number:,}{' or more' * (number >= COUNTED)}"
    return f"{many} instant was" if number == 1 else f"{many} instants were"
