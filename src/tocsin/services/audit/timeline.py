"""The instants that a job's definitions named while they were in force.

They are recomputed with the calendar alone. From the decisions it takes only their reach, and the last firing, from which `@every`
counts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice

from ...domain.definition import JobDefinition
from ...domain.events import Defined, DefinitionFact, Deleted, Paused, Recorded, Resumed
from ...domain.schedule import ScheduleError, parse


@dataclass(frozen=True, slots=True)
class Named:
    """A named instant: a firing, or a local time that does not exist."""

    at: datetime
    fires: bool
    paused: bool
    definition: int


@dataclass(slots=True)
class Regime:
    """The definition in force from `since` on.

    `anchors`: the possible starts of its intervals, the likeliest first.
    """

    since: datetime
    definition: int
    rule: JobDefinition | None
    paused: bool
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
        """Set the start of undecided time."""
        return self.watermark or (self.regimes[0].since if self.regimes else None)

    def govern(self, recorded: Recorded[DefinitionFact]) -> bool:
        """Change the definition in force; return False if it names an unknown definition."""
        fact = recorded.message
        self.newest = recorded.sequence
        sequence, paused = 0, False
        match fact:
            case Defined():
                sequence, paused = recorded.sequence, fact.paused
                self.definitions[sequence] = self._start(recorded.time, fact), fact.definition
            case Paused() | Resumed():
                sequence, paused = fact.definition, isinstance(fact, Paused)
            case Deleted():
                pass
        since, rule = self.definitions.get(sequence, (recorded.time, None))
        self.regimes.append(Regime(recorded.time, sequence, rule, paused, [self.last_fired or since]))
        self._forget()
        return rule is not None or not sequence

    def _start(self, time: datetime, fact: Defined) -> datetime:
        """Return the start of the intervals of a definition until the job fires.

        An update that keeps the interval keeps its start. Of a log that is read in part, the event itself names it.
        """
        if not self.regimes:
            return fact.anchor or time
        before = self.definitions.get(self.regimes[-1].definition)
        interval = _interval(fact.definition)
        is_kept = before is not None and interval is not None and _interval(before[1]) == interval
        return before[0] if before is not None and is_kept else time

    def decide(self, upto: datetime, *, fired: bool) -> None:
        """Mark all time up to an instant as decided."""
        if fired:
            self.last_fired = upto
            for regime in self.regimes:
                # The ticker may have counted from here, or from the last firing before its decision.
                is_in_force = regime.since < upto
                regime.anchors = [upto] if is_in_force else [upto, *regime.anchors]
        self.watermark = upto if self.watermark is None else max(self.watermark, upto)
        self._forget()

    def named(self, upto: datetime, limit: int) -> Sequence[Sequence[Named]]:
        """Return the instants named from the last decision up to `upto`, at most `limit`.

        There is one result for each possible start of the intervals.
        """
        most = max((len(regime.anchors) for regime in self.regimes if _counts(regime)), default=1)
        return [list(islice(self._named(upto, anchor), limit)) for anchor in range(most)]

    def _named(self, upto: datetime, anchor: int) -> Iterator[Named]:
        ends = (*(regime.since for regime in self.regimes[1:]), upto)
        for regime, end in zip(self.regimes, ends, strict=True):
            rule = regime.rule
            if rule is None or rule.schedule is None:
                continue
            start = max(self.watermark, regime.since) if self.watermark else regime.since
            schedule = parse(rule.schedule, rule.timezone, dst=rule.dst)
            origin = regime.anchors[min(anchor, len(regime.anchors) - 1)]
            paused = regime.paused or not rule.enabled
            for occurrence in schedule.occurrences(start, min(end, upto), anchor=origin):
                yield Named(occurrence.at, occurrence.skipped_local is None, paused, regime.definition)

    def _forget(self) -> None:
        """Drop definitions that govern only decided time."""
        if self.watermark is None:
            return
        while len(self.regimes) > 1 and self.regimes[1].since <= self.watermark:
            del self.regimes[0]
        named = {regime.definition for regime in self.regimes}
        for sequence in self.definitions.keys() - named:
            del self.definitions[sequence]


def _interval(rule: JobDefinition) -> timedelta | None:
    try:
        return parse(rule.schedule, rule.timezone, dst=rule.dst).interval if rule.schedule else None
    except ScheduleError:
        return None


def _counts(regime: Regime) -> bool:
    """Return whether the start of the intervals matters to a regime."""
    return regime.rule is not None and (regime.rule.schedule or "").lstrip().lower().startswith("@every")
