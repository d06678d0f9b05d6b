"""The past of a job: definitions in force, decisions on instants, and leaders."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from itertools import pairwise
from typing import Final, Literal, TypeAlias

from .definition import JobDefinition
from .events import (
    Defined,
    DefinitionFact,
    Deleted,
    Due,
    Passed,
    Paused,
    Recorded,
    in_force_since,
)
from .ledger import JobNotFound, Timetable, schedule_of
from .log_events import LeaderChange
from .schedule import Occurrence, Schedule

INSTANT: Final = timedelta(microseconds=1)
Decision: TypeAlias = Due | Passed
NotFired: TypeAlias = Literal[
    "paused",  # the job was paused
    "disabled",  # its definition disabled it
    "no-such-local-time",  # the clocks of its zone skipped it that day
    "missed",  # no ticker led when it was due, and the catch-up policy let it pass
    "superseded",  # it was missed, and the schedule in force since then does not name it
    "poison",  # the decision on it failed, which is a defect of Tocsin
    "excluded",  # a calendar or a blackout of the job excludes it
    "undecided",  # it is due, and not decided yet
    "future",  # it will fire unless something changes
    "future-paused",  # it would fire if the job were not paused
    "future-disabled",  # it would fire if the definition did not disable it
]
Verdict: TypeAlias = Literal[
    "fired",  # it was due, and became an execution
    NotFired,
    "not-scheduled",  # the schedule does not name it
    "on-demand",  # the job had no schedule
    "unaccounted",  # it should have been decided, and was not: a broken promise
    "future-excluded",  # a calendar or a blackout of the job excludes it
    "before-the-job",  # the job did not exist yet
    "after-deletion",  # the job was deleted before
]


@dataclass(frozen=True, slots=True)
class InForce:
    """A definition while it is in force; `until`: None: it still is."""

    fact: Recorded[DefinitionFact]
    until: datetime | None
    definition: JobDefinition | None
    """None: the job is deleted, or the definition is out of reach."""
    sequence: int
    anchor: datetime
    """The start of its intervals until the job fires."""
    paused: bool
    registered: Recorded[DefinitionFact]
    """The event that registered the name; a deletion ends the registration."""

    @property
    def since(self) -> datetime:
        return in_force_since(self.fact)

    @property
    def silence(self) -> Literal["paused", "disabled"] | None:
        if self.paused:
            return "paused"
        return "disabled" if self.definition is not None and not self.definition.enabled else None

    @property
    def future(self) -> NotFired:
        """The verdict on instants that are not due yet."""
        return "future" if self.silence is None else "future-paused" if self.paused else "future-disabled"

    @property
    def schedule(self) -> Schedule | None:
        rule = self.definition
        return None if rule is None or rule.schedule is None else schedule_of(Timetable.of(rule))


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time [start, end) of a single definition, whose instants have the same verdict."""

    start: datetime
    end: datetime
    verdict: NotFired | None
    """None: the instants fired, or passed without a pause: each has its own decision."""
    schedule: Schedule
    anchor: datetime
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which no ticker led.

    It lasts from the last sign of the previous leader to the start of the next leader (None: not yet).
    """

    start: datetime | None
    end: datetime | None
    before: str | None = None
    after: str | None = None


@dataclass(frozen=True)
class Past:
    """The events of a job, each kind oldest first.

    Attributes:
        definitions: all events on its definition.
        decisions: the decisions on its time, at least from a while before the instants of interest until after them.
        leadership: the leaders, as far as recorded.
        now: the time up to which all of this is known (UTC).
        seen: the sequences of the definitions that the caller sees; None: all.
    """

    job: str
    definitions: Sequence[Recorded[DefinitionFact]]
    decisions: Sequence[Recorded[Decision]]
    leadership: Sequence[LeaderChange]
    now: datetime
    seen: Collection[int] | None = None

    @cached_property
    def regimes(self) -> list[InForce]:
        """Return the definitions in force, oldest first; raise JobNotFound if there are none."""
        if not self.definitions:
            raise JobNotFound(self.job)
        regimes: list[InForce] = []
        known: dict[int, tuple[datetime, JobDefinition]] = {}
        registered: Recorded[DefinitionFact] | None = None
        ends = [*(in_force_since(later) for _, later in pairwise(self.definitions)), None]
        for recorded, until in zip(self.definitions, ends, strict=True):
            fact, since, registered = recorded.message, in_force_since(recorded), registered or recorded
            sequence: int = getattr(fact, "definition", 0) if not isinstance(fact, Defined) else recorded.sequence
            if isinstance(fact, Defined):
                known[sequence] = fact.anchor or since, fact.definition
            anchor, definition = known.get(sequence, (since, None))
            paused = fact.paused if isinstance(fact, Defined) else isinstance(fact, Paused)
            regimes.append(InForce(recorded, until, definition, sequence, anchor, paused, registered))
            if isinstance(fact, Deleted):
                registered = None
        return regimes

    @cached_property
    def decided_until(self) -> datetime | None:
        return max((last_instant(decision.message) for decision in self.decisions), default=None)

    @cached_property
    def _shown(self) -> frozenset[int]:
        """The sequences of the definition events that the caller sees."""
        shown, is_shown = set[int](), False
        for regime in self.regimes:
            is_shown = is_shown if regime.definition is None else self.seen is None or regime.sequence in self.seen
            if is_shown:
                shown.add(regime.fact.sequence)
        return frozenset(shown)

    def is_seen(self, regime: InForce) -> bool:
        """Return whether the caller sees a definition, or the deletion of a seen definition."""
        return regime.fact.sequence in self._shown

    def has_seen(self, definition: int | None) -> bool:
        """Return whether the caller sees the executions of a definition.

        0: the job was not registered; None: unknown.
        """
        if self.seen is None or definition == 0:
            return True
        if definition is None:
            return all(regime.sequence in self.seen for regime in self.regimes if regime.definition is not None)
        return definition in self.seen

    def definition(self, sequence: int) -> JobDefinition | None:
        """Return the definition of an event; None: the caller sees no such definition."""
        regimes = (regime for regime in self.regimes if regime.fact.sequence == sequence == regime.sequence)
        return next((regime.definition for regime in regimes if self.is_seen(regime)), None)

    @property
    def timezone(self) -> str:
        """Return the zone of the newest definition that the caller sees."""
        seen = (regime.definition for regime in reversed(self.regimes) if self.is_seen(regime))
        return next((definition.timezone for definition in seen if definition), "UTC")

    def without_hidden(self, seen: Collection[int]) -> "Past":
        """Return the past without earlier registrations of which the caller sees no definition."""
        newest = self.regimes[-1].registered
        parts = {regime.registered.sequence for regime in self.regimes if regime.fact.sequence in seen}
        hidden = {
            regime.fact.sequence
            for regime in self.regimes
            if regime.registered is not newest and regime.registered.sequence not in parts
        }
        return replace(
            self,
            definitions=[recorded for recorded in self.definitions if recorded.sequence not in hidden],
            decisions=[recorded for recorded in self.decisions if recorded.message.definition not in hidden],
        )

    def with_decisions(self, decisions: Iterable[Recorded[Decision]]) -> "Past":
        known = {decision.sequence: decision for decision in (*self.decisions, *decisions)}
        return replace(self, decisions=[known[sequence] for sequence in sorted(known)])

    def regime_at(self, at: datetime, *, before: int | None = None) -> InForce | None:
        """Return the last definition that began before an instant.

        A definition does not govern decisions that were stored before it. `before`: the sequence of the decision on the instant, if it is known.
        """
        if before is None:
            on = (decision.sequence for decision in self.decisions if last_instant(decision.message) >= at)
            before = next(on, None)
        for regime in reversed(self.regimes):
            if regime.since < at and (before is None or regime.fact.sequence < before):
                return regime
        return None

    def began(self, regime: InForce) -> InForce:
        """Return the definition that began a pause or a disabling, through edits in between."""
        first = regime
        for earlier in reversed(self.regimes[: self.regimes.index(regime)] if regime.silence else ()):
            if earlier.definition is None or (earlier.definition.enabled and not regime.paused):
                break
            if regime.paused and not earlier.paused:
                break
            first = earlier
        return first

    def anchor(self, regime: InForce, at: datetime) -> datetime:
        """Return the start of intervals: any firing, counted back to before `at`."""
        schedule, since = regime.schedule, regime.since
        if schedule is None or schedule.interval is None:
            return regime.anchor
        fired = [decision.message for decision in self.decisions if isinstance(decision.message, Due)]
        own = next((due.scheduled_time for due in fired if due.definition == regime.sequence), None)
        times = (due.scheduled_time for due in fired)
        before = max((time for time in times if in_force_since(regime.registered) < time <= since), default=None)
        origin, first = own or before or regime.anchor, min(at, since)
        if origin < first:
            return origin
        return origin - ((origin - first) // schedule.interval + 1) * schedule.interval

    def latest(self) -> datetime | None:
        """Return the latest instant (UTC) up to now that the newest registration named, or None."""
        for regime in reversed(self.regimes):
            schedule, since = regime.schedule, regime.since
            if regime.registered is not self.regimes[-1].registered:
                return None
            if schedule is None or since >= self.now:
                continue
            until = min(self.now, regime.until or self.now)
            instant = schedule.latest_until(until, after=since, anchor=self.anchor(regime, until))
            if instant is not None:
                return instant
        return None

    def decision(self, occurrence: Occurrence) -> Recorded[Decision] | None:
        """Return the decision on an occurrence."""
        for decision in self.decisions:
            match decision.message:
                case Due(scheduled_time=at, dst_skip=leaves_out) if at == occurrence.at:
                    if occurrence.skipped_local is None or leaves_out:
                        return decision
                case Passed(start=start, until=until) if start < occurrence.at <= until:
                    return decision
                case _:
                    pass
        return None

    def verdict(self, regime: InForce, occurrence: Occurrence, decision: Recorded[Decision] | None) -> Verdict:
        """Return the verdict on an occurrence of a definition."""
        if decision is not None:
            return "no-such-local-time" if occurrence.skipped_local is not None else verdict_of(decision, regime)
        if occurrence.at > self.now:
            if occurrence.excluded:
                return "future-excluded"
            return "no-such-local-time" if occurrence.skipped_local is not None else regime.future
        if self.decided_until is not None and self.decided_until >= occurrence.at:
            return "unaccounted"
        return "excluded" if occurrence.excluded else "undecided"  # exclusions are recorded at the end of their day

    def stretches(self, since: datetime, until: datetime) -> Iterator[Stretch]:
        """Yield the parts of [since, until) with a schedule that the caller sees, oldest first."""
        for regime in self.regimes:
            schedule = regime.schedule
            if schedule is None or not self.is_seen(regime):
                continue
            # An instant at the very time of an event belongs to the definition before it.
            begin = max(since, regime.since + INSTANT)
            end = until if regime.until is None else min(until, regime.until + INSTANT)
            decided, present = (self.decided_until or regime.since) + INSTANT, self.now + INSTANT
            parts: tuple[tuple[datetime, datetime, NotFired | None], ...] = (
                (begin, min(end, decided), regime.silence),
                (max(begin, decided), min(end, present), "undecided"),
                (max(begin, decided, present), end, regime.future),
            )
            for start, stop, verdict in parts:
                if start < stop:
                    anchor = self.anchor(regime, start)
                    yield Stretch(start, stop, verdict, schedule, anchor, self.reason_of(regime))

    def reason_of(self, regime: InForce) -> str | None:
        """Return the reason of a pause or a disabling."""
        return self.began(regime).fact.message.reason if regime.silence else None

    def gap_around(self, at: datetime, decided: datetime | None) -> Gap | None:
        """Return the gap that contains an instant decided at `decided` (None: not yet).

        None means that a ticker led, or that no event shows a gap.
        """
        for gap in gaps(change for change in self.leadership if decided is None or change.at <= decided):
            if gap.end is None:
                return gap if decided is None else None
            if (gap.start is None or gap.start < at) and at <= gap.end:
                return gap
        return None


def verdict_of(decision: Recorded[Decision], regime: InForce) -> Literal["fired", NotFired]:
    """Return the verdict of a decision on an instant of a definition."""
    fact = decision.message
    if isinstance(fact, Due):
        return "fired"
    if fact.reason == "paused":
        return regime.silence or "disabled"
    return "no-such-local-time" if fact.reason == "dst_skip" else fact.reason


def last_instant(fact: Decision) -> datetime:
    return fact.scheduled_time if isinstance(fact, Due) else fact.until


def gaps(leadership: Iterable[LeaderChange]) -> Iterator[Gap]:
    """Yield the time before each leader, and after the last if its end is recorded."""
    sign: datetime | None = None
    holder: str | None = None
    is_led = True
    for change in leadership:
        is_led = change.begins
        if not is_led:
            sign = change.at
            continue
        last_seen = max((at for at in (sign, change.last_sign) if at is not None), default=None)
        yield Gap(last_seen, change.at, holder, change.holder)
        sign, holder = max(change.at, last_seen or change.at), change.holder
    if not is_led:
        yield Gap(sign, None, holder)
