"""The calendar against croniter and cronsim, over random expressions and moments; `tests/services/audit/test_enumerator.py` has zones."""

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice

from croniter import CroniterError, croniter
from cronsim import CronSim, CronSimError
from hypothesis import assume, given, settings

from tests.properties import examples
from tocsin.domain.schedule import Schedule, ScheduleError, parse
from tocsin.domain.schedule.explain import known_to_differ

from . import strategies as random


def read(expression: str, timezone: str = "UTC") -> Schedule:
    """The schedule; an expression that never fires is no example."""
    try:
        return parse(expression, timezone)
    except ScheduleError as error:
        assume("never" not in error.problem)
        raise


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
