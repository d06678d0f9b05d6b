"""The instants that the schedules of a ledger name."""

from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache

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
