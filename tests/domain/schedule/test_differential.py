"""The engine against a brute-force oracle, croniter and cronsim, over random expressions, zones and moments."""

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import islice

from croniter import CroniterError, croniter
from cronsim import CronSim, CronSimError
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.properties import examples
from tocsin.domain.schedule import Schedule, ScheduleError, parse
from tocsin.domain.schedule.explain import known_to_differ

from . import strategies as random
from .oracle import Oracle

HOUR = timedelta(hours=1)


def read(expression: str, timezone: str = "UTC") -> Schedule:
    """The schedule; an expression that never fires is no example."""
    try:
        return parse(expression, timezone)
    except ScheduleError as error:
        assume("never" not in error.problem)
        raise


def fires(schedule: Schedule, after: datetime, until: datetime) -> list[datetime]:
    occurrences = schedule.occurrences(after, until, anchor=after)
    return [occurrence.at for occurrence in occurrences if occurrence.skipped_local is None]


def skipped(schedule: Schedule, after: datetime, until: datetime) -> list[tuple[datetime, datetime]]:
    occurrences = schedule.occurrences(after, until, anchor=after)
    return [(found.at, found.skipped_local) for found in occurrences if found.skipped_local is not None]


@given(random.five_fields, random.zones, random.moments)
@settings(max_examples=examples(60), deadline=None)
def test_day_agrees_with_the_oracle_by_minutes(expression: str, timezone: str, after: datetime) -> None:
    schedule, oracle = read(expression, timezone), Oracle(expression, timezone)
    until = after + 30 * HOUR
    assert fires(schedule, after, until) == oracle.fires(after, until)


@given(random.six_fields, random.zones, random.moments)
@settings(max_examples=examples(40), deadline=None)
def test_hour_agrees_with_the_oracle_by_seconds(expression: str, timezone: str, after: datetime) -> None:
    schedule, oracle = read(expression, timezone), Oracle(expression, timezone)
    until = after + HOUR
    assert fires(schedule, after, until) == oracle.fires(after, until)


# A change of the clocks of each kind, in UTC: forward and back, by half an hour, an hour, two hours, a whole day.
CHANGES = [
    ("America/New_York", datetime(2026, 3, 8, 7, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 11, 1, 6, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 10, 3, 15, 30, tzinfo=UTC)),
    ("Antarctica/Troll", datetime(2026, 3, 29, 1, tzinfo=UTC)),
    ("Antarctica/Troll", datetime(2026, 10, 25, 1, tzinfo=UTC)),
    ("America/Santiago", datetime(2026, 4, 5, 3, tzinfo=UTC)),
    ("America/Santiago", datetime(2026, 9, 6, 4, tzinfo=UTC)),
    ("Europe/Dublin", datetime(2026, 3, 29, 1, tzinfo=UTC)),
    ("Europe/Dublin", datetime(2026, 10, 25, 1, tzinfo=UTC)),
    ("Pacific/Apia", datetime(2011, 12, 30, 10, tzinfo=UTC)),
]


@given(
    st.builds(lambda minute, hour: f"{minute} {hour} * * *", random.minutes, random.hours),
    st.sampled_from(CHANGES),
    st.timedeltas(-3 * HOUR, HOUR),
    st.timedeltas(HOUR, 4 * HOUR),
)
@settings(max_examples=examples(80), deadline=None)
@example("*/7 * * * *", CHANGES[0], -HOUR, 2 * HOUR)
@example("30 9 * * *", CHANGES[-1], -HOUR, 30 * HOUR)
def test_clock_change_agrees_with_the_oracle(
    expression: str, change: tuple[str, datetime], earlier: timedelta, length: timedelta
) -> None:
    timezone, at = change
    after, until = at + earlier, at + earlier + length
    schedule, oracle = parse(expression, timezone), Oracle(expression, timezone)
    assert fires(schedule, after, until) == oracle.fires(after, until)
    assert skipped(schedule, after, until) == oracle.skipped(after, until)


@given(random.expressions, random.moments)
@settings(max_examples=examples(150), deadline=None)
def test_croniter_agrees_except_for_known_differences(expression: str, after: datetime) -> None:
    schedule, theirs = read(expression), list[datetime]()
    assume(not known_to_differ(expression))
    with suppress(CroniterError):
        walk = croniter(
            expression, after.replace(tzinfo=None), datetime, second_at_beginning=len(expression.split()) == 6
        )
        theirs = [walk.get_next().replace(tzinfo=UTC) for _ in range(5)]
    assert list(islice(_walk(schedule, after), len(theirs))) == theirs


@given(random.expressions, random.moments)
@settings(max_examples=examples(150), deadline=None)
def test_cronsim_agrees_except_for_known_differences(expression: str, after: datetime) -> None:
    *_, month_days, _, week_days = expression.split()
    # To cronsim every field that begins with a star is unrestricted, stepped or not, and one that holds all values is
    # not.
    assume("*" in (month_days, week_days) or not (month_days.startswith("*") or week_days.startswith("*")))
    # So is a list that holds a star somewhere, to us alone.
    assume(",*" not in month_days + week_days)
    # n/step goes on to 7 there, so that Sunday may come twice into the count; here it ends with Saturday, as * does.
    assume(not re.search(r"(^|,)\d/", week_days))
    # 5-5/2 goes on to the end of the field there, as 5/2 does.
    assume(not re.search(r"\b(\w+)-\1/", expression))
    schedule, theirs = read(expression), list[datetime]()
    with suppress(CronSimError, StopIteration):  # no W, no ranges over the end, and it gives up after 50 years
        walk = CronSim(expression, after.replace(microsecond=0))
        for _ in range(5):
            theirs.append(next(walk))
    assert list(islice(_walk(schedule, after), len(theirs))) == theirs


def _walk(schedule: Schedule, after: datetime) -> Iterator[datetime]:
    at = schedule.next_after(after, anchor=after)
    while at is not None:
        yield at
        at = schedule.next_after(at, anchor=after)
