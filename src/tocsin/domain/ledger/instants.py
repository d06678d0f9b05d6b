"""The instants of a ledger's schedules, and the decisions on them."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import groupby, islice
from typing import Final, Literal

from ..events import Due, Passed, PassedReason
from ..schedule import Occurrence, Schedule, TimezoneDatabase, parse, timezone_database
from .state import Ledger, Regime, Timetable, fired_since

SEARCHES: Final = 2**16
"""Searches of schedules that are remembered. The jobs of a schedule share them."""
_FAR: Final = datetime(9998, 1, 1, tzinfo=UTC)
"""Later than all instants that are searched."""


def next_fire_time(state: Ledger, after: datetime) -> datetime | None:
    """Return the next instant that fires if nothing changes (CRON-07, CRON-28).

    None: the job is paused, disabled, or has no further instant.
    """
    timetable = state.timetable
    if timetable is None or timetable.schedule is None or state.is_paused or not timetable.enabled:
        return None
    return schedule_of(timetable).next_after(after, anchor=anchor_of(state, state.regimes[-1]))


def fire_times(state: Ledger, after: datetime) -> Iterator[datetime]:
    """Yield the instants after `after` (UTC) that fire if nothing changes."""
    while (at := next_fire_time(state, after)) is not None:
        yield at
        after = at


def count_fire_times(state: Ledger, after: datetime, until: datetime, most: int) -> int:
    """Count the instants in (after, until] that `next_fire_time` would return, up to `most`."""
    first = next_fire_time(state, after)
    timetable = state.timetable
    if first is None or first > until or timetable is None:
        return 0
    return schedule_of(timetable).count(after, until, anchor=anchor_of(state, state.regimes[-1]), most=most)


def next_instant(state: Ledger, after: datetime) -> datetime | None:
    """Return the next time at which an instant fires, passes, or does not exist."""
    timetable, current = state.timetable, state.current
    if current is not None and current.since > after:
        return current.since  # another definition was in force before, and its instants still need a decision
    if timetable is None or current is None or timetable.schedule is None:
        return None
    if (dropped := drop_time(timetable, state.last_fired)) is not None:
        return dropped
    floor = max(after, state.watermark) if state.watermark else after
    return _first(schedule_of(timetable), floor, anchor_of(state, current))[0]


def drop_time(timetable: Timetable, last_fired: datetime | None) -> datetime | None:
    """Return the instant whose firing completed a job that is to be deleted."""
    if timetable.on_completion != "drop" or last_fired is None or timetable.schedule is None:
        return None
    schedule = schedule_of(timetable)
    if schedule.ends_at is None:
        return last_fired if schedule.only_instant == last_fired else None
    return last_fired if schedule.next_after(last_fired, anchor=last_fired) is None else None


def is_over(timetable: Timetable, since: datetime, watermark: datetime | None, anchor: datetime) -> bool:
    """Return whether the last instant, counted from `anchor`, is decided or before `since`."""
    if timetable.schedule is None:
        return False
    schedule = schedule_of(timetable)
    if schedule.only_instant is None and schedule.ends_at is None:
        return False
    return schedule.next_after(max(since, watermark or since), anchor=anchor) is None


def schedule_type(timetable: Timetable | None) -> Literal["ONE_TIME", "RECURRING"] | None:
    """Return whether a timetable fires once or again (scratchbird §3.1); None: it has no schedule."""
    if timetable is None or timetable.schedule is None:
        return None
    return "RECURRING" if schedule_of(timetable).only_instant is None else "ONE_TIME"


def undecided_occurrences(state: Ledger, now: datetime) -> Iterator[tuple[Regime, Occurrence]]:
    """Yield the occurrences between the watermark and `now`, oldest first, with their regimes."""
    ends = (*(regime.since for regime in state.regimes[1:]), now)
    for regime, end in zip(state.regimes, ends, strict=False):  # without a regime, there is no end
        known = state.definitions.get(regime.definition)
        if known is None or known.timetable.schedule is None:
            continue
        start = max(state.watermark, regime.since) if state.watermark else regime.since
        schedule, until, anchor = schedule_of(known.timetable), min(end, now), anchor_of(state, regime)
        for occurrence in _occurrences(schedule, start, until, anchor):
            yield regime, occurrence


def _occurrences(schedule: Schedule, after: datetime, until: datetime, anchor: datetime) -> Iterator[Occurrence]:
    """Yield the occurrences in (after, until].

    Usually this is a single occurrence, which the last search found. The search for the next proves that there is no second, and is
    remembered for the next call.
    """
    if schedule.interval is None:
        first, fires = _first(schedule, after, anchor)
        if first is not None and fires:
            if first > until:
                return
            second, fires = _first(schedule, first, anchor)
            if second is not None and fires and second > until:
                yield Occurrence(first)
                return
    yield from schedule.occurrences(after, until, anchor=anchor)


def _first(schedule: Schedule, after: datetime, anchor: datetime) -> tuple[datetime | None, bool]:
    """Return the first time after `after` that needs a decision, and whether it only fires.

    None: the schedule does not fire any more.
    """
    if schedule.interval is not None:  # each job counts from its own anchor, and the search is short
        return _search(schedule, after, anchor)
    return _remembered(schedule, after, timezone_database())


@lru_cache(SEARCHES)
def _remembered(schedule: Schedule, after: datetime, _: TimezoneDatabase) -> tuple[datetime | None, bool]:
    return _search(schedule, after, after)


def _search(schedule: Schedule, after: datetime, anchor: datetime) -> tuple[datetime | None, bool]:
    at = schedule.next_after(after, anchor=anchor)
    if at is None and schedule.days is None:
        return None, False
    if at is not None and not schedule.may_skip(after, at) and schedule.is_open(after, at):
        return at, True
    occurrences = schedule.occurrences(after, at or _FAR, anchor=anchor)
    return next((occurrence.at for occurrence in occurrences), at), False


def schedule_of(timetable: Timetable) -> Schedule:
    return parse(timetable.schedule or "", timetable.timezone, dst=timetable.dst, days=timetable.days)


def anchor_of(state: Ledger, regime: Regime) -> datetime:
    """Return the time from which `@every` counts (ojs-cron §4.1).

    This is the last trigger since the job was registered. If there was none, it is the definition that set the interval.
    """
    known = state.definitions.get(regime.definition)
    if known is None:
        return regime.since
    return fired_since(known.created_at or known.since, state.last_fired) or known.anchor or known.since


PUNCTUALITY: Final = timedelta(seconds=2)
"""The age up to which an instant fires normally; the catch-up policy decides on older instants."""
MAX_INSTANTS_PER_DECISION: Final = 1_000
"""Maximum number of instants in a decision; a longer absence takes several calls."""


def decide_instants(state: Ledger, now: datetime, *, shards: int = 0) -> list[Due | Passed]:
    """Decide on the instants between the watermark and `now` (UTC), oldest first.

    One call decides at most `MAX_INSTANTS_PER_DECISION` instants; call again until it returns nothing.
    `shards`: the version of the newest shard map; 0: no map.
    """
    undecided = list(islice(undecided_occurrences(state, now), MAX_INSTANTS_PER_DECISION + 1))
    is_partial = len(undecided) > MAX_INSTANTS_PER_DECISION
    if is_partial:
        # Decide everything on one instant in one call. The first of two events would move the watermark past the
        # second.
        beyond = undecided[MAX_INSTANTS_PER_DECISION][1].at
        undecided = [(regime, occurrence) for regime, occurrence in undecided if occurrence.at < beyond]
    verdicts = _verdicts(state, undecided, now, more=is_partial)
    firing = {o.at for verdict, (_, o) in zip(verdicts, undecided, strict=True) if verdict is None}
    facts: list[Due | Passed] = []
    start = state.watermark or (state.regimes[0].since if state.regimes else now)
    reasons = _riding(verdicts, undecided)
    for (reason, regime), group in groupby(zip(reasons, undecided, strict=True), key=lambda v: (v[0], v[1][0])):
        occurrences = [occurrence for _, (_, occurrence) in group]
        if reason is None:
            facts += (_due(state, regime, occurrence, now, shards) for occurrence in occurrences)
        elif alone := [o for o in occurrences if reason != "dst_skip" or o.at not in firing]:
            facts.append(_passed(state, regime, alone, reason, start))
        start = occurrences[-1].at
    return _with_skipped_times(facts, undecided)


def _riding(
    verdicts: Sequence[PassedReason | None], undecided: Sequence[tuple[Regime, Occurrence]]
) -> list[PassedReason | None]:
    """Return the reasons, joining skipped local times to the passing instants they fall on."""
    reasons: list[PassedReason | None] = []
    for i, verdict in enumerate(verdicts):
        falls_on = bool(i) and undecided[i - 1][1].at == undecided[i][1].at
        reasons.append((reasons[-1] or verdict) if verdict == "dst_skip" and falls_on else verdict)
    return reasons


def _with_skipped_times(
    facts: list[Due | Passed], undecided: Sequence[tuple[Regime, Occurrence]]
) -> list[Due | Passed]:
    """Mark each `due` event on whose instant a skipped local time falls.

    Two events for one instant are not safe: the first moves the watermark to the instant, and a crash between them
    would lose the second.
    """
    skipped = {occurrence.at for _, occurrence in undecided if occurrence.skipped_local is not None}
    return [
        fact.model_copy(update={"dst_skip": True}) if isinstance(fact, Due) and fact.scheduled_time in skipped else fact
        for fact in facts
    ]


def _verdicts(
    state: Ledger, undecided: Sequence[tuple[Regime, Occurrence]], now: datetime, *, more: bool
) -> list[PassedReason | None]:
    """Return the reason why each occurrence does not fire; None: it fires."""
    verdicts: list[PassedReason | None] = [
        "excluded" if occurrence.excluded else _refusal(state, regime, occurrence, now)
        for regime, occurrence in undecided
    ]
    fireable = [i for i, verdict in enumerate(verdicts) if verdict is None]
    late = [i for i in fireable if now - undecided[i][1].at > PUNCTUALITY]
    if late and (timetable := state.timetable) is not None:
        # If an instant is due now, no catch-up fires beside it (ojs-cron §7.3: at most one).
        newest = {"all": timetable.catch_up_limit, "once": int(len(late) == len(fireable))}.get(timetable.catch_up, 0)
        if more:
            anchor = anchor_of(state, state.regimes[-1])
            newest = max(0, newest - schedule_of(timetable).count(undecided[-1][1].at, now, anchor=anchor))
        for i in late[: max(0, len(late) - newest)]:
            verdicts[i] = "missed"
    return verdicts


def _refusal(state: Ledger, regime: Regime, occurrence: Occurrence, now: datetime) -> PassedReason | None:
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
    """Return whether the timetable in force has the same instants and lets them fire.

    A deployment that changes something else therefore loses no catch-up.
    """
    now = state.timetable
    return now is not None and now.has_same_instants_as(timetable) and now.enabled and not state.is_paused


def _due(state: Ledger, regime: Regime, occurrence: Occurrence, now: datetime, shards: int) -> Due:
    late = now - occurrence.at > PUNCTUALITY
    version = shards if state.definitions[regime.definition].timetable.is_divided else 0
    return Due(job=state.job, scheduled_time=occurrence.at, definition=regime.definition, catch_up=late, shards=version)


def _passed(
    state: Ledger, regime: Regime, occurrences: list[Occurrence], reason: PassedReason, start: datetime
) -> Passed:
    is_announced = reason in {"paused", "dst_skip"}
    instants = occurrences if is_announced else [o for o in occurrences if o.skipped_local is not None]
    riding = 0 if is_announced else len(instants)
    return Passed(
        job=state.job,
        start=start,
        until=occurrences[-1].at,
        reason=reason,
        count=sum(occurrence.excluded or 1 for occurrence in occurrences) - riding,
        definition=regime.definition,
        scheduled_times=tuple(o.at for o in instants),
    )
