"""The slow truth: the rules of `ojs-cron` 3 and 5, written as plainly as possible and without any cleverness.

It shares no code with the calendar: it has its own reading of expressions, takes the zone from `zoneinfo`, and walks
through time second by second (or minute by minute, where nothing can happen in between).
"""

from calendar import monthrange
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from importlib.resources import files
from zoneinfo import ZoneInfo

MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
DAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]


@cache
def zone(name: str) -> ZoneInfo:
    """The zone of the tzdata package: the machine may have an older release."""
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as data:
        return ZoneInfo.from_file(data, key=name)


def _number(text: str) -> int:
    if text.upper() in MONTHS:
        return MONTHS.index(text.upper()) + 1
    return DAYS.index(text.upper()) if text.upper() in DAYS else int(text)


def _item_values(item: str, low: int, high: int) -> set[int]:
    body, _, step = item.partition("/")
    size = high - low + 1
    if body == "*":
        first, last = low, high
    elif "-" in body:
        first, last = (_number(end) for end in body.split("-"))
    else:
        first = _number(body)
        last = high if step else first
    if (low, high) == (0, 6) and first == 7:  # Sunday
        first, last = 0, 0 if last == 7 else last
    if last < first:
        last += size
    return {(value - low) % size + low for value in range(first, last + 1, int(step or 1))}


def field_matches(field: str, value: int, low: int, high: int) -> bool:
    return any(value in _item_values(item, low, high) for item in field.split(","))


def _is_working_day(day: date) -> bool:
    return day.isoweekday() <= 5


def _nearest_working_day(day: date) -> date:
    for distance in range(3):
        for candidate in (day - timedelta(days=distance), day + timedelta(days=distance)):
            if candidate.month == day.month and _is_working_day(candidate):
                return candidate
    raise AssertionError


def month_day_matches(field: str, day: date) -> bool:
    length = monthrange(day.year, day.month)[1]
    for item in field.upper().split(","):
        if item == "L":
            hit = day.day == length
        elif item == "LW":
            hit = day == _nearest_working_day(day.replace(day=length))
        elif item.endswith("W"):
            hit = int(item[:-1]) <= length and day == _nearest_working_day(day.replace(day=int(item[:-1])))
        else:
            hit = day.day in _item_values(item, 1, 31)
        if hit:
            return True
    return False


def week_day_matches(field: str, day: date) -> bool:
    weekday, length = day.isoweekday() % 7, monthrange(day.year, day.month)[1]
    for item in field.upper().split(","):
        if "#" in item:
            name, n = item.split("#")
            hit = _number(name) % 7 == weekday and (day.day - 1) // 7 + 1 == int(n)
        elif item.endswith("L"):
            hit = _number(item[:-1]) % 7 == weekday and day.day + 7 > length
        else:
            hit = weekday in _item_values(item, 0, 6)
        if hit:
            return True
    return False


@dataclass
class Oracle:
    """One expression in one zone."""

    expression: str
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        fields = self.expression.split()
        self.second, self.minute, self.hour, self.month_days, self.month, self.week_days = (
            fields if len(fields) == 6 else ["0", *fields]
        )
        self.zone = zone(self.timezone)

    def day_matches(self, day: date) -> bool:
        if not field_matches(self.month, day.month, 1, 12):
            return False
        free_month, free_week = (
            any(item in {"*", "*/1"} for item in field.split(",")) for field in (self.month_days, self.week_days)
        )
        in_month, in_week = month_day_matches(self.month_days, day), week_day_matches(self.week_days, day)
        if free_month or free_week:
            return in_month and in_week
        return in_month or in_week

    def matches(self, wall: datetime) -> bool:
        return (
            field_matches(self.second, wall.second, 0, 59)
            and field_matches(self.minute, wall.minute, 0, 59)
            and field_matches(self.hour, wall.hour, 0, 23)
            and self.day_matches(wall.date())
        )

    def fires(self, after: datetime, until: datetime) -> list[datetime]:
        """Yield every instant in (after, until] that fires, by testing each."""
        step = timedelta(seconds=1 if self.second != "0" else 60)
        at = after.replace(second=0, microsecond=0) if self.second == "0" else after.replace(microsecond=0)
        found = []
        while at <= until:
            local = at.astimezone(self.zone)
            # `fold` is 1 where the wall showed this time before: it has fired then.
            if at > after and local.fold == 0 and self.matches(local.replace(tzinfo=None)):
                found.append(at)
            at += step
        return found

    def skipped(self, after: datetime, until: datetime) -> list[tuple[datetime, datetime]]:
        """Every wall time that does not exist, with its instant by the old offset, in (after, until]."""
        return [(at, wall) for at, wall in self._gaps(after, until) if after < at <= until and self.matches(wall)]

    def _gaps(self, after: datetime, until: datetime) -> Iterator[tuple[datetime, datetime]]:
        step = timedelta(seconds=1 if self.second != "0" else 60)
        wall = (after - timedelta(days=2)).replace(tzinfo=None, second=0, microsecond=0)
        while wall <= until.replace(tzinfo=None) + timedelta(days=2):
            # A nonexistent wall time comes back as another time; with fold=0 it is read with the old offset.
            at = wall.replace(tzinfo=self.zone).astimezone(UTC)
            if at.astimezone(self.zone).replace(tzinfo=None) != wall:
                yield at, wall
            wall += step
