"""The engine: the wall-clock times of a cron expression, and the next and previous time.

Wall-clock times are whole seconds since 1970-01-01T00:00:00 on the wall, without a zone. Each field is a bit mask, so a search looks
at four numbers for the time of day and at one number per month for the day. A search over days ends: in a pattern that can match at
all, two matching days are at most 40 years apart (29 February across a year like 2100, on a given weekday).
"""

from dataclasses import dataclass, field
from datetime import MAXYEAR, MINYEAR, date
from typing import Final

from .days import DayRule

DAY: Final = 86_400
_HOUR: Final = 3_600
_MINUTE: Final = 60
_WEEK: Final = 7
_EPOCH: Final = date(1970, 1, 1).toordinal()
_LAST_DAY: Final = date.max.toordinal()
_FIRST: Final = (1 - _EPOCH) * DAY
_LAST: Final = (_LAST_DAY + 1 - _EPOCH) * DAY - 1
_FEBRUARY: Final = 2
_EVERY_MONTH: Final = 0b1_1111_1111_1110
_MONTH_LENGTHS: Final = range(28, 32)
_BUSINESS_DAYS: Final = range(1, 6)
"""Monday to Friday, as the remainder of an ordinal by seven."""
LENGTHS: Final = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def month_length(year: int, month: int) -> int:
    if month != _FEBRUARY or year % 4 or (year % 100 == 0 and year % 400):
        return LENGTHS[month]
    return LENGTHS[month] + 1


def _lowest(mask: int) -> int:
    return (mask & -mask).bit_length() - 1


def _highest(mask: int) -> int:
    return mask.bit_length() - 1


@dataclass(frozen=True, slots=True)
class Pattern:
    """A cron expression, prepared for searching.

    Attributes:
        seconds, minutes, hours, months: bit n is set if the value n matches.
        days: the days of a month that match.
        stepping: second, minute or hour step through values (`*`, a range, a step) instead of naming fixed times.
        earliest, latest: the first and last matching second of a matching day.
    """

    seconds: int
    minutes: int
    hours: int
    days: DayRule
    months: int
    stepping: bool
    earliest: int = field(init=False)
    latest: int = field(init=False)

    def __post_init__(self) -> None:
        hours, minutes, seconds = self.hours, self.minutes, self.seconds
        earliest = _lowest(hours) * _HOUR + _lowest(minutes) * _MINUTE + _lowest(seconds)
        latest = _highest(hours) * _HOUR + _highest(minutes) * _MINUTE + _highest(seconds)
        object.__setattr__(self, "earliest", earliest)
        object.__setattr__(self, "latest", latest)

    @property
    def per_day(self) -> int:
        return self.hours.bit_count() * self.minutes.bit_count() * self.seconds.bit_count()

    @property
    def names_business_days(self) -> bool:
        return self.months == _EVERY_MONTH and all(
            self.days.masks[length][first] >> day & 1
            for length in _MONTH_LENGTHS
            for first in range(_WEEK)
            for day in range(1, length + 1)
            if (first + day - 1) % _WEEK in _BUSINESS_DAYS
        )

    def next(self, wall: int) -> int | None:
        """Return the first matching time at or after `wall`; None beyond the year 9999."""
        day, second = divmod(wall, DAY)
        ordinal = day + _EPOCH
        if not 0 < ordinal <= _LAST_DAY:
            return self.next(_FIRST) if wall < _FIRST else None
        on = date.fromordinal(ordinal)
        year, month, day_of_month = on.year, on.month, on.day
        if self.months >> month & 1:
            first = ordinal - day_of_month + 1
            days_mask = self.days.masks[month_length(year, month)][first % _WEEK] >> day_of_month
            if days_mask & 1:
                time = self._time_from(second)
                if time >= 0:
                    return day * DAY + time
            days_mask >>= 1
            if days_mask:
                return (day + 1 + _lowest(days_mask)) * DAY + self.earliest
        return self._first_from_month(year, month + 1)

    def previous(self, wall: int) -> int | None:
        """Return the last matching time at or before `wall`; None before the year 1."""
        day, second = divmod(wall, DAY)
        ordinal = day + _EPOCH
        if not 0 < ordinal <= _LAST_DAY:
            return self.previous(_LAST) if wall > _LAST else None
        on = date.fromordinal(ordinal)
        days_mask = self._days(on, ordinal) & (2 << on.day) - 1
        if days_mask >> on.day:
            time = self._time_until(second)
            if time >= 0:
                return day * DAY + time
            days_mask ^= 1 << on.day
        if days_mask:
            return (day - on.day + _highest(days_mask)) * DAY + self.latest
        return self._last_until_month(on.year, on.month - 1)

    def count(self, start: int, end: int) -> int:
        """Return the number of matching times in [start, end), multiplying whole days."""
        start, end = max(start, _FIRST), min(end, _LAST + 1)
        if start >= end:
            return 0
        first, begin = divmod(start, DAY)
        last, stop = divmod(end, DAY)
        total = self._count_days(first, last) * self.per_day
        if begin and self._matches_day(first):
            total -= self._times_before(begin)
        if stop and self._matches_day(last):
            total += self._times_before(stop)
        return total

    def _days(self, on: date, ordinal: int) -> int:
        month = on.month
        if not self.months >> month & 1:
            return 0
        return self.days.masks[month_length(on.year, month)][(ordinal - on.day + 1) % _WEEK]

    def _first_from_month(self, year: int, month: int) -> int | None:
        rule, months = self.days, self.months
        while True:
            months_mask = months >> month
            if months_mask:
                month += _lowest(months_mask)
            else:
                year, month = year + 1, _lowest(months)
                if year > MAXYEAR:
                    return None
            length = month_length(year, month)
            if length >= rule.shortest:
                first = date(year, month, 1).toordinal()
                days = rule.masks[length][first % _WEEK]
                if days:
                    return (first - 1 + _lowest(days) - _EPOCH) * DAY + self.earliest
            month += 1

    def _last_until_month(self, year: int, month: int) -> int | None:
        while True:
            months_mask = self.months & (2 << month) - 1
            if months_mask:
                month = _highest(months_mask)
            else:
                year, month = year - 1, _highest(self.months)
                if year < MINYEAR:
                    return None
            length = month_length(year, month)
            if length >= self.days.shortest:
                first = date(year, month, 1).toordinal()
                days = self.days.masks[length][first % _WEEK]
                if days:
                    return (first - 1 + _highest(days) - _EPOCH) * DAY + self.latest
            month -= 1

    def _time_from(self, second: int) -> int:
        """Return the first matching second of a day at or after `second`, or -1."""
        hour, rest = divmod(second, _HOUR)
        hours_mask = self.hours >> hour
        if hours_mask & 1:
            minute, rest = divmod(rest, _MINUTE)
            in_hour = self.minutes >> minute
            if in_hour & 1:
                in_minute = self.seconds >> rest
                if in_minute:
                    return second + _lowest(in_minute)
            in_hour >>= 1
            if in_hour:
                return hour * _HOUR + (minute + 1 + _lowest(in_hour)) * _MINUTE + _lowest(self.seconds)
        hours_mask >>= 1
        if hours_mask:
            hour += 1 + _lowest(hours_mask)
            return hour * _HOUR + _lowest(self.minutes) * _MINUTE + _lowest(self.seconds)
        return -1

    def _time_until(self, second: int) -> int:
        """Return the last matching second of a day at or before `second`, or -1."""
        hour, rest = divmod(second, _HOUR)
        minute, rest = divmod(rest, _MINUTE)
        if self.hours >> hour & 1:
            if self.minutes >> minute & 1:
                in_minute = self.seconds & (2 << rest) - 1
                if in_minute:
                    return second - rest + _highest(in_minute)
            in_hour = self.minutes & (1 << minute) - 1
            if in_hour:
                return hour * _HOUR + _highest(in_hour) * _MINUTE + _highest(self.seconds)
        hours_mask = self.hours & (1 << hour) - 1
        if hours_mask:
            return _highest(hours_mask) * _HOUR + _highest(self.minutes) * _MINUTE + _highest(self.seconds)
        return -1

    def _times_before(self, second: int) -> int:
        hour, rest = divmod(second, _HOUR)
        minute, rest = divmod(rest, _MINUTE)
        per_minute = self.seconds.bit_count()
        total = (self.hours & (1 << hour) - 1).bit_count() * self.minutes.bit_count() * per_minute
        if self.hours >> hour & 1:
            total += (self.minutes & (1 << minute) - 1).bit_count() * per_minute
            if self.minutes >> minute & 1:
                total += (self.seconds & (1 << rest) - 1).bit_count()
        return total

    def _matches_day(self, day: int) -> bool:
        on = date.fromordinal(day + _EPOCH)
        return bool(self._days(on, day + _EPOCH) >> on.day & 1)

    def _count_days(self, start: int, end: int) -> int:
        """Count the matching days in [start, end), in days since 1970, month by month."""
        total, ordinal, stop = 0, start + _EPOCH, end + _EPOCH
        while ordinal < stop:
            on = date.fromordinal(ordinal)
            before = ordinal - on.day
            after_month = before + 1 + month_length(on.year, on.month)
            days = self._days(on, ordinal) >> on.day << on.day & (1 << min(stop, after_month) - before) - 1
            total += days.bit_count()
            ordinal = after_month
        return total
