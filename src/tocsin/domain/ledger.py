"""The ledger of a job: what its schedule was, and what became of each instant that it named.

Time facts tile the job's time without hole or overlap: everything up to the watermark is decided, once and for ever; what
lies between the watermark and now is decided by the definitions that were in force then, which the ledger holds as
*regimes*. So an edit fires nothing of the past, a resume releases no backlog, a clock that steps back re-opens nothing.

Implements ojs-cron §7.3 (CRON-25: at most one catch-up occurrence) and §8.5; cloacina's catch-up policies.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import groupby, islice, pairwise
from typing import Final

from .calendar import DstPolicy, Occurrence, Schedule, parse
from .definition import CatchUp, JobDefinition
from .events import (
    Actor,
    Defined,
    DefinitionFact,
    Deleted,
    Due,
    Message,
    Passed,
    PassedReason,
    Paused,
    Recorded,
    Resumed,
)

PUNCTUAL: Final = timedelta(seconds=2)
"""An instant not older than this fires in its own right; an older one was missed, and the catch-up policy decides."""

AT_ONCE: Final = 1_000
"""Instants that one decision covers; a longer absence is worked off in several."""


class JobNotFound(LookupError):
    """There is no such job (or no more)."""

    def __init__(self, job: str) -> None:
        super().__init__(f"no job is called {job!r}")
        self.job = job


# --- state -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Regime:
    """What holds from `since` on: the definition by its sequence in the ledger (0: deleted), paused or not."""

    since: datetime
    definition: int
    paused: bool
    fact: int
    previous: int


@dataclass(frozen=True, slots=True)
class Timetable:
    """The part of a definition that decides on time."""

    schedule: str | None
    timezone: str
    dst: DstPolicy | None
    enabled: bool
    catch_up: CatchUp
    catch_up_limit: int
    catch_up_max_age: float
    starting_deadline: float | None

    @classmethod
    def of(cls, definition: JobDefinition) -> "Timetable":
        """That of a definition."""
        return cls(*(getattr(definition, name) for name in cls.__slots__))

    def names_the_instants_of(self, other: "Timetable") -> bool:
        """Whether both name the same instants."""
        return (self.schedule, self.timezone, self.dst) == (other.schedule, other.timezone, other.dst)


@dataclass(frozen=True, slots=True)
class Known:
    """A definition that a regime may name: `since` when, what it says of time, and the rest unless that was dropped."""

    since: datetime
    timetable: Timetable
    definition: JobDefinition | None
    created_at: datetime | None = None
    """When the job was registered first; None: at `since`."""
    created_by: str | None = None
    """By whom; None: nobody said."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """A job's ledger. `regimes` are those that govern undecided time; the last of them is in force now."""

    job: str = ""
    regimes: tuple[Regime, ...] = ()
    definitions: Mapping[int, Known] = field(default_factory=dict)
    watermark: datetime | None = None
    last_fired: datetime | None = None

    @property
    def current(self) -> Regime | None:
        """The regime in force now."""
        return self.regimes[-1] if self.regimes else None

    @property
    def definition(self) -> JobDefinition | None:
        """The definition in force now; None: no such job."""
        known = self._known
        return known.definition if known else None

    @property
    def timetable(self) -> Timetable | None:
        """What the definition in force now says of time."""
        known = self._known
        return known.timetable if known else None

    @property
    def created_at(self) -> datetime | None:
        """When the job was registered first (UTC)."""
        known = self._known
        return (known.created_at or known.since) if known else None

    @property
    def created_by(self) -> str | None:
        """The identity of who registered it first, if that was said."""
        known = self._known
        return known.created_by if known else None

    @property
    def _known(self) -> Known | None:
        return self.definitions.get(self.current.definition) if self.current else None

    @property
    def is_paused(self) -> bool:
        """Somebody paused the job."""
        return self.current is not None and self.current.paused


initial: Final = Ledger()


# --- evolve ----------------------------------------------------------------------------------------------------------


def evolve(state: Ledger, recorded: Recorded[Message]) -> Ledger:  # noqa: PLR0911 - one case a fact
    """The state after one more fact. Total, and right for any subset of facts that `missing` finds nothing missing in."""
    fact = recorded.message
    match fact:
        case Defined():
            known = Known(
                recorded.time, Timetable.of(fact.definition), fact.definition, fact.created_at, _creator(fact)
            )
            state = replace(state, definitions={**state.definitions, recorded.sequence: known})
            return _govern(state, recorded, fact, recorded.sequence, paused=fact.paused)
        case Paused():
            return _govern(state, recorded, fact, fact.definition, paused=True)
        case Resumed():
            return _govern(state, recorded, fact, fact.definition, paused=False)
        case Deleted():
            return _govern(state, recorded, fact, 0, paused=False)
        case Due():
            return replace(_decided(state, fact.scheduled_time), job=fact.job, last_fired=fact.scheduled_time)
        case Passed():
            return replace(_decided(state, fact.until), job=fact.job)
        case _:
            return state


def fold(facts: Iterable[Recorded[Message]], state: Ledger = initial) -> Ledger:
    """The state after facts, oldest first."""
    for recorded in facts:
        state = evolve(state, recorded)
    return state


def for_time_only(state: Ledger) -> Ledger:
    """The same without what time needs not: a tenth of the memory, for whoever holds a hundred thousand ledgers."""
    if all(known.definition is None for known in state.definitions.values()):
        return state
    return replace(
        state, definitions={s: Known(known.since, known.timetable, None) for s, known in state.definitions.items()}
    )


def missing(state: Ledger) -> int | None:
    """The sequence of a fact without which undecided time cannot be judged, when only the newest facts were folded."""
    if not state.regimes:
        return None
    first = state.regimes[0]
    if first.previous and (state.watermark is None or first.since > state.watermark):
        return first.previous
    if gap := next((b.previous for a, b in pairwise(state.regimes) if b.previous != a.fact), None):
        return gap
    return next((r.definition for r in state.regimes if r.definition and r.definition not in state.definitions), None)


def _govern(
    state: Ledger, recorded: Recorded[Message], fact: DefinitionFact, definition: int, *, paused: bool
) -> Ledger:
    regime = Regime(recorded.time, definition, paused, recorded.sequence, fact.previous)
    return _trimmed(replace(state, job=fact.job, regimes=(*state.regimes, regime)))


def _creator(fact: Defined) -> str | None:
    is_first = fact.created_at is None
    return fact.by.identity if is_first and fact.by else fact.created_by


def _decided(state: Ledger, upto: datetime) -> Ledger:
    return _trimmed(replace(state, watermark=upto if state.watermark is None else max(state.watermark, upto)))


def _trimmed(state: Ledger) -> Ledger:
    """Forget regimes that ended at or before the watermark, and definitions that no regime names."""
    if state.watermark is None or len(state.regimes) < 2:  # noqa: PLR2004 - nothing has ended
        return state
    mark = state.watermark
    regimes = (*(a for a, b in pairwise(state.regimes) if b.since > mark), state.regimes[-1])
    named = {regime.definition for regime in regimes}
    return replace(state, regimes=regimes, definitions={s: d for s, d in state.definitions.items() if s in named})


# --- decide: definitions ---------------------------------------------------------------------------------------------


def define(
    state: Ledger, definition: JobDefinition, *, by: Actor | None = None, reason: str | None = None
) -> list[Defined]:
    """Register or update (ojs-cron §8.1, CRON-26). Nothing where the definition in force says the same."""
    if state.definition == definition:
        return []
    return [
        Defined(
            job=definition.name,
            definition=definition,
            paused=state.is_paused,
            previous=_previous(state),
            by=by,
            reason=reason,
            created_at=state.created_at,
            created_by=state.created_by,
        )
    ]


def pause(state: Ledger, job: str, *, by: Actor | None = None, reason: str | None = None) -> list[Paused]:
    """Let instants pass without firing.

    Raises:
        JobNotFound: there is no such job.
    """
    current = _existing(state, job)
    if current.paused:
        return []
    return [Paused(job=job, definition=current.definition, previous=current.fact, by=by, reason=reason)]


def resume(state: Ledger, job: str, *, by: Actor | None = None, reason: str | None = None) -> list[Resumed]:
    """Let instants fire again.

    Raises:
        JobNotFound: there is no such job.
    """
    current = _existing(state, job)
    if not current.paused:
        return []
    return [Resumed(job=job, definition=current.definition, previous=current.fact, by=by, reason=reason)]


def delete(state: Ledger, job: str, *, by: Actor | None = None, reason: str | None = None) -> list[Deleted]:
    """Remove the job; what already runs, runs on (ojs-cron §8.4).

    Raises:
        JobNotFound: there is no such job.
    """
    return [Deleted(job=job, previous=_existing(state, job).fact, by=by, reason=reason)]


def _existing(state: Ledger, job: str) -> Regime:
    if state.current is None or not state.current.definition:
        raise JobNotFound(job)
    return state.current


def _previous(state: Ledger) -> int:
    return state.current.fact if state.current else 0


# --- decide: time ----------------------------------------------------------------------------------------------------


def elapse(state: Ledger, now: datetime, *, allowance: int = AT_ONCE) -> list[Due | Passed]:
    """What became of the instants between the watermark and `now` (UTC), oldest first.

    At most `AT_ONCE` instants are decided; ask again until the answer is empty. At most `allowance` of them fire: beyond
    that something is out of hand, a clock or a schedule, and what is left passes as `throttled`.
    """
    undecided = list(islice(_undecided(state, now), AT_ONCE + 1))
    more = len(undecided) > AT_ONCE
    if more:
        # What falls on one instant is decided at once: the first of two facts would move the watermark past the second.
        beyond = undecided[AT_ONCE][1].at
        undecided = [(regime, occurrence) for regime, occurrence in undecided if occurrence.at < beyond]
    verdicts = _verdicts(state, undecided, now, more=more, allowance=allowance)
    firing = {o.at for verdict, (_, o) in zip(verdicts, undecided, strict=True) if verdict is None}
    facts: list[Due | Passed] = []
    start = state.watermark or (state.regimes[0].since if state.regimes else now)
    reasons = _riding(verdicts, undecided)
    for (reason, regime), group in groupby(zip(reasons, undecided, strict=True), key=lambda v: (v[0], v[1][0])):
        occurrences = [occurrence for _, (_, occurrence) in group]
        if reason is None:
            facts += (_due(state, regime, occurrence, now) for occurrence in occurrences)
        elif alone := [o for o in occurrences if reason != "dst_skip" or o.at not in firing]:
            facts.append(_passed(state, regime, alone, reason, start))
        start = occurrences[-1].at
    return _with_skipped_times(facts, undecided)


def _riding(
    verdicts: Sequence[PassedReason | None], undecided: Sequence[tuple[Regime, Occurrence]]
) -> list[PassedReason | None]:
    """Why occurrences pass together: a local time that does not exist goes with an instant that passes and that it falls on."""
    reasons: list[PassedReason | None] = []
    for i, verdict in enumerate(verdicts):
        falls_on = bool(i) and undecided[i - 1][1].at == undecided[i][1].at
        reasons.append((reasons[-1] or verdict) if verdict == "dst_skip" and falls_on else verdict)
    return reasons


def _with_skipped_times(
    facts: list[Due | Passed], undecided: Sequence[tuple[Regime, Occurrence]]
) -> list[Due | Passed]:
    """Have a `due` tell of the local time that does not exist and falls on its very instant.

    Two facts for one instant could not both lie behind the watermark that the first of them moves: a crash between them
    would lose the second.
    """
    skipped = {occurrence.at for _, occurrence in undecided if occurrence.skipped_local is not None}
    return [
        fact.model_copy(update={"dst_skip": True}) if isinstance(fact, Due) and fact.scheduled_time in skipped else fact
        for fact in facts
    ]


def next_fire_time(state: Ledger, after: datetime) -> datetime | None:
    """The next instant that will fire if nothing changes; None: paused, disabled, or there is none (CRON-07, CRON-28)."""
    timetable = state.timetable
    if timetable is None or timetable.schedule is None or state.is_paused or not timetable.enabled:
        return None
    return _schedule(timetable).next_after(after, anchor=_anchor(state, state.regimes[-1]))


def next_instant(state: Ledger, after: datetime) -> datetime | None:
    """When there will be something to decide next: an instant that fires, passes, or does not exist in its zone."""
    timetable, current = state.timetable, state.current
    if current is not None and current.since > after:
        return current.since  # until then another definition was in force, and what that named is to be decided too
    if timetable is None or current is None or timetable.schedule is None:
        return None
    floor = max(after, state.watermark) if state.watermark else after
    anchor = _anchor(state, current)
    schedule = _schedule(timetable)
    fires = schedule.next_after(floor, anchor=anchor)
    if fires is None:
        return None
    return next((occurrence.at for occurrence in schedule.occurrences(floor, fires, anchor=anchor)), fires)


@lru_cache(maxsize=2**17)  # a tick asks for the same schedules again and again: as many as jobs may be registered
def _parsed(text: str, timezone: str, dst: DstPolicy | None) -> Schedule:
    return parse(text, timezone, dst=dst)


def _schedule(timetable: Timetable) -> Schedule:
    return _parsed(timetable.schedule or "", timetable.timezone, timetable.dst)


def _undecided(state: Ledger, now: datetime) -> Iterator[tuple[Regime, Occurrence]]:
    ends = (*(regime.since for regime in state.regimes[1:]), now)
    for regime, end in zip(state.regimes, ends, strict=True):
        known = state.definitions.get(regime.definition)
        if known is None or known.timetable.schedule is None:
            continue
        start = max(state.watermark, regime.since) if state.watermark else regime.since
        schedule = _schedule(known.timetable)
        for occurrence in schedule.occurrences(start, min(end, now), anchor=_anchor(state, regime)):
            yield regime, occurrence


def _verdicts(
    state: Ledger, undecided: Sequence[tuple[Regime, Occurrence]], now: datetime, *, more: bool, allowance: int
) -> list[PassedReason | None]:
    """Why each occurrence does not fire; None: it fires."""
    verdicts = [_refusal(state, regime, occurrence, now) for regime, occurrence in undecided]
    fireable = [i for i, verdict in enumerate(verdicts) if verdict is None]
    late = [i for i in fireable if now - undecided[i][1].at > PUNCTUAL]
    if late:
        timetable = state.timetable
        # An instant that is due now needs no catch-up beside it (ojs-cron §7.3: at most one).
        newest = 0 if timetable is None else _caught_up(timetable, is_due=len(late) < len(fireable))
        newest = max(0, newest - _count_behind(state, undecided[-1][1], now)) if more else newest
        for i in late[: max(0, len(late) - newest)]:
            verdicts[i] = "missed"
    fired = [i for i, verdict in enumerate(verdicts) if verdict is None]
    for i in fired[allowance:]:
        verdicts[i] = "throttled"
    return verdicts


def _caught_up(timetable: Timetable, *, is_due: bool) -> int:
    """How many of the newest missed instants fire all the same."""
    match timetable.catch_up:
        case "all":
            return timetable.catch_up_limit
        case "once":
            return 0 if is_due else 1
        case _:
            return 0


def _count_behind(state: Ledger, last: Occurrence, now: datetime) -> int:
    """How many instants follow the last one that this decision covers."""
    timetable = state.timetable
    if timetable is None or timetable.schedule is None:
        return 0
    return _schedule(timetable).count(last.at, now, anchor=_anchor(state, state.regimes[-1]))


def _refusal(state: Ledger, regime: Regime, occurrence: Occurrence, now: datetime) -> PassedReason | None:
    """Why an occurrence cannot fire, whatever came before and after it."""
    timetable = state.definitions[regime.definition].timetable
    if regime.paused or not timetable.enabled:
        return "paused"
    if occurrence.skipped_local is not None:
        return "dst_skip"
    age = (now - occurrence.at).total_seconds()
    if age <= PUNCTUAL.total_seconds():
        return None
    if not _still_holds(state, timetable):
        return "superseded"
    if timetable.starting_deadline is not None and age > timetable.starting_deadline:
        return "missed"
    return "missed" if timetable.catch_up == "all" and age > timetable.catch_up_max_age else None


def _still_holds(state: Ledger, timetable: Timetable) -> bool:
    """Whether what is in force now names the same instants, and would let them fire: a deploy loses no catch-up."""
    now = state.timetable
    return now is not None and now.names_the_instants_of(timetable) and now.enabled and not state.is_paused


def _due(state: Ledger, regime: Regime, occurrence: Occurrence, now: datetime) -> Due:
    late = now - occurrence.at > PUNCTUAL
    return Due(job=state.job, scheduled_time=occurrence.at, definition=regime.definition, catch_up=late)


def _passed(
    state: Ledger, regime: Regime, occurrences: list[Occurrence], reason: PassedReason, start: datetime
) -> Passed:
    told = occurrences if reason in {"paused", "dst_skip"} else [o for o in occurrences if o.skipped_local is not None]
    riding = 0 if reason in {"paused", "dst_skip"} else len(told)
    return Passed(
        job=state.job,
        start=start,
        until=occurrences[-1].at,
        reason=reason,
        count=len(occurrences) - riding,
        definition=regime.definition,
        scheduled_times=tuple(o.at for o in told),
    )


def _anchor(state: Ledger, regime: Regime) -> datetime:
    """`@every` counts from the last trigger, else from the registration (ojs-cron §4.1)."""
    if state.last_fired is not None:
        return state.last_fired
    known = state.definitions.get(regime.definition)
    return known.since if known else regime.since
