"""The calendar of a job: it counts each execution on its local day, however wide the counts are that it reads."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Final, cast
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.services.explain.past import Past, utc
from tests.services.timeline.shown import counts_of, row
from tocsin.domain.execution_counts import PERIOD
from tocsin.ports import ExecutionCount, ExecutionRow, History, PassedSpan
from tocsin.ports.queries import CountQuery
from tocsin.services.calculations import in_place
from tocsin.services.timeline import Window
from tocsin.services.timeline.reader import CalendarDay, read_calendar

HOUR: Final = timedelta(hours=1)
ZONES: Final = {
    "UTC": timedelta(days=1),
    "Asia/Tokyo": 3 * HOUR,
    "Europe/Berlin": HOUR,
    "Asia/Kolkata": HOUR / 2,
    "Australia/Lord_Howe": HOUR / 2,  # its clocks change by half an hour
    "Asia/Kathmandu": HOUR / 4,
}
"""The width of the counts that the days of a year need."""
STATUSES: Final = ("completed", "failed", "skipped", "cancelled")


class Counted:
    """A history that counts the executions of one job, and keeps the widths that were requested."""

    def __init__(self, rows: Sequence[ExecutionRow]) -> None:
        self._rows = rows
        self.widths: list[timedelta] = []

    async def counts(self, query: CountQuery) -> Sequence[ExecutionCount]:
        self.widths.append(query.width)
        return counts_of([row for row in self._rows if query.since <= row.scheduled_time < query.until], query.width)

    async def passed(self, job: str, since: datetime, until: datetime, *, limit: int) -> Sequence[PassedSpan]:
        _ = job, since, until, limit
        return ()


async def calendar(
    rows: Sequence[ExecutionRow], since: datetime, days: int, zone: str
) -> tuple[list[CalendarDay], list[timedelta]]:
    history = Counted(rows)
    ledger = Past().defined("2026-01-01T00:00").evidence
    window = Window.of(since, since + timedelta(days=days), 100)
    return await read_calendar(cast("History", history), ledger, window, zone, in_place), history.widths


@pytest.mark.parametrize("zone", ZONES)
@settings(max_examples=25, deadline=None)
@given(hours=st.integers(0, 24 * 365), periods=st.lists(st.integers(0, 400 * 288), min_size=1, max_size=60))
async def test_executions_count_on_their_local_day(zone: str, hours: int, periods: list[int]) -> None:
    since = datetime(2026, 1, 2, tzinfo=UTC) + hours * HOUR
    times = [since + place * PERIOD + timedelta(seconds=place % 300) for place in periods]
    rows = [row(at, STATUSES[n % len(STATUSES)], definition=0, execution_id=str(n)) for n, at in enumerate(times)]
    shown, _ = await calendar(rows, since, 399, zone)
    expected = Counter((each.scheduled_time.astimezone(ZoneInfo(zone)).date(), each.status) for each in rows)
    days = {day.day for day in shown}
    counted = {
        (day.day, status): count
        for day in shown
        for status in ("completed", "failed", "skipped")
        if (count := getattr(day, status))
    }
    assert counted == {key: n for key, n in expected.items() if key[0] in days and key[1] != "cancelled"}


@pytest.mark.parametrize("zone", ZONES)
async def test_calendar_reads_few_counts(zone: str) -> None:
    _, widths = await calendar((), utc("2026-01-05T00:00"), 365, zone)
    assert widths == [ZONES[zone]]


async def test_skipped_day_is_empty() -> None:
    """Samoa had no 30 December 2011."""
    first = datetime(2011, 12, 28, 12, tzinfo=UTC)
    rows = [row(first + n * HOUR, "completed", definition=0, execution_id=str(n)) for n in range(72)]
    shown, _ = await calendar(rows, first, 3, "Pacific/Apia")
    assert all(later.day - day.day == timedelta(days=1) for day, later in pairwise(shown))
    expected = Counter(each.scheduled_time.astimezone(ZoneInfo("Pacific/Apia")).date() for each in rows)
    assert {day.day: day.completed for day in shown if day.completed} == expected
    assert date(2011, 12, 30) not in expected
