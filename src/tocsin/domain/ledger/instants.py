"""The instants that the schedules of a ledger name."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import groupby, islice
from typing import Final

from ..events import Due, Passed, PassedReason
from ..schedule import DstPolicy, Occurrence, Schedule, parse
from .state import Ledger, Regime, Timetable


def next_fire_time(state: Ledger, after: datetime) -> datetime | None:
    """The next instant that will fire if nothing changes; None: paused, disabled, or there is none (CRON-07, CRON-28)."""
    timetable = state.timetable
    if timetable is None or timetable.schedule is None or state.is_paused or not timetable.enabled:
        return None
    return schedule_of(timetable).next_after(after, anchor=anchor_of(state, state.regimes[-1]))


def next_instant(state: Ledger, after: datetime) -> datetime | None:
    """When there will be something to decide next: an instant that fires, passes, or does not exist in its zone."""
    timetable, current = state.timetable, state.current
    if current is not None and current.since > after:
        return current.since  # until then another definition was in force, and what that named is to be decided too
    if timetable is None or current is None or timetable.schedule is None:
        return None
    floor = max(after, state.watermark) if state.watermark else after
    anchor = anchor_of(state, current)
    schedule = schedule_of(timetable)
    fires = schedule.next_after(floor, anchor=anchor)
    if fires is None:
        return None
    return next((occurrence.at for occurrence in schedule.occurrences(floor, fires, anchor=anchor)), fires)


def undecided_occurrences(state: Ledger, now: datetime) -> Iterator[tuple[Regime, Occurrence]]:
    """What lies between the watermark and `now`, oldest first, each with the regime that it falls under."""
    ends = (*(regime.since for regime in state.regimes[1:]), now)
    for regime, end in zip(state.regimes, ends, strict=True):
        known = state.definitions.get(regime.definition)
        if known is None or known.timetable.schedule is None:
            continue
        start = max(state.watermark, regime.since) if state.watermark else regime.since
        schedule = schedule_of(known.timetable)
        for occurrence in schedule.occurrences(start, min(end, now), anchor=anchor_of(state, regime)):
            yield regime, occurrence


def schedule_of(timetable: Timetable) -> Schedule:
    """The schedule of a definition that has one."""
    return _parsed(timetable.schedule or "", timetable.timezone, timetable.dst)


@lru_cache(maxsize=2**17)  # a tick asks for the same schedules again and again: as many as jobs may be registered
def _parsed(text: str, timezone: str, dst: DstPolicy | None) -> Schedule:
    return parse(text, timezone, dst=dst)


def anchor_of(state: Ledger, regime: Regime) -> datetime:
    """`@every` counts from the last trigger, else from the registration (ojs-cron §4.1)."""
    if state.last_fired is not None:
        return state.last_fired
    known = state.definitions.get(regime.definition)
    return known.since if known else regime.since


PUNCTUALITY: Final = timedelta(seconds=2)
"""An instant not older than this fires in its own right; an older one was missed, and the catch-up policy decides."""
MAX_INSTANTS_PER_DECISION: Final = 1_000
"""Instants that one decision covers; a longer absence is worked off in several."""


def decide_instants(state: Ledger, now: datetime, *, allowance: int = MAX_INSTANTS_PER_DECISION) -> list[Due | Passed]:
    """What became of the instants between the watermark and `now` (UTC), oldest first.

    At most `MAX_INSTANTS_PER_DECISION` instants are decided; ask again until the answer is empty. At most `allowance` of them fire: beyond
    that something is out of hand, a clock or a schedule, and what is left passes as `throttled`.
    """
    undecided = list(islice(undecided_occurrences(state, now), MAX_INSTANTS_PER_DECISION + 1))
    more = len(undecided) > MAX_INSTANTS_PER_DECISION
    if more:
        # What falls on one instant is decided at once: the first of two facts would move the watermark past the second.
        beyond = undecided[MAX_INSTANTS_PER_DECISION][1].at
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


def _verdicts(
    state: Ledger, undecided: Sequence[tuple[Regime, Occurrence]], now: datetime, *, more: bool, allowance: int
) -> list[PassedReason | None]:
    """Why each occurrence does not fire; None: it fires."""
    verdicts = [_refusal(state, regime, occurrence, now) for regime, occurrence in undecided]
    fireable = [i for i, verdict in enumerate(verdicts) if verdict is None]
    late = [i for i in fireable if now - undecided[i][1].at > PUNCTUALITY]
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
    return schedule_of(timetable).count(last.at, now, anchor=anchor_of(state, state.regimes[-1]))


def _refusal(state: Ledger, regime: Regime, occurrence: Occurrence, now: datetime) -> PassedReason | None:
    """Why an occurrence cannot fire, whatever came before and after it."""
    timetable = state.definitions[regime.definition].timetable
    if regime.paused or not timetable.enabled:
        return "paused"
    if occurrence.skipped_local is not None:
        return "dst_skip"
    age = (now - occurrence.at).total_seconds()
    if age <= PUNCTUALITY.total_seconds():
        return None
    if not _still_holds(state, timetable):
        return "superseded"
    if timetable.starting_deadline is not None and age > timetable.starting_deadline:
        return "missed"
    return "missed" if timetable.catch_up == "all" and age > timetable.catch_up_max_age else None


def _still_holds(state: Ledger, timetable: Timetable) -> bool:
    """Whether what is in force now names the same instants, and would let them fire: a deploy loses no catch-up."""
    now = state.timetable
    return now is not None and now.has_same_instants_as(timetable) and now.enabled and not state.is_paused


def _due(state: Ledger, regime: Regime, occurrence: Occurrence, now: datetime) -> Due:
    late = now - occurrence.at > PUNCTUALITY
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
