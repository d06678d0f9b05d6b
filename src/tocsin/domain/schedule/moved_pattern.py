"""Wall-clock times that move to the next business day (`shift: next_business_day`)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from .day_rules import LONGEST_SHIFT, OpenDays
from .pattern import DAY, Pattern

_SEARCHED: Final = 400
"""Days that a search looks at beyond the days at which a calendar changes; weekdays and dates repeat after 400 years."""
_REACHES: Final = (40, 400, 15_000)
"""Days before a time in which the last moved time is searched, one after another."""


@dataclass(frozen=True, slots=True)
class MovedPattern:
    """The times of a pattern on closed days, moved to business days.

    Business days that the pattern names have these times already, and are left out.
    """

    pattern: Pattern
    days: OpenDays

    @property
    def stepping(self) -> bool:
        return self.pattern.stepping

    @property
    def per_day(self) -> int:
        return self.pattern.per_day

    def next(self, wall: int) -> int | None:
        """Return the first moved time at or after `wall`."""
        day, second = divmod(wall, DAY)
        for source, target in self._moves(day):
            at = self.pattern.next(source * DAY + (second if target == day else 0))
            if at is not None and at < (source + 1) * DAY:
                return at + (target - source) * DAY
        return None

    def previous(self, wall: int) -> int | None:
        """Return the last moved time at or before `wall`, unless it is decades before."""
        day, second = divmod(wall, DAY)
        for reach in _REACHES:
            last: int | None = None
            for source, target in self._moves(day - reach):
                if target > day:
                    break
                at = self.pattern.previous(source * DAY + (second if target == day else DAY - 1))
                if at is not None and at >= source * DAY:
                    last = at + (target - source) * DAY
            if last is not None:
                return last
        return None

    def count(self, start: int, end: int) -> int:
        total = 0
        for source, target in self._moves(start // DAY):
            if target * DAY >= end:
                break
            back = (target - source) * DAY
            total += self.pattern.count(max(start - back, source * DAY), min(end - back, (source + 1) * DAY))
        return total

    def _moves(self, day: int) -> Iterator[tuple[int, int]]:
        """Yield a closed day for each business day from `day` on to which times move."""
        source = self._closed_from(self.days.first_moved_to(day))
        while source is not None and (target := self.days.next_business(source)) is not None:
            if target - source > LONGEST_SHIFT:
                source = self._closed_from(target - LONGEST_SHIFT)
                continue
            if target >= day and not self._names(target):
                yield source, target
            source = self._closed_from(target)

    def _names(self, day: int) -> bool:
        at = self.pattern.next(day * DAY)
        return at is not None and at < (day + 1) * DAY

    def _closed_from(self, day: int) -> int | None:
        """Return the first closed day from `day` on that the pattern names."""
        for _ in range(_SEARCHED + self.days.size):
            closed = self.days.closed_from(day)
            at = None if closed is None else self.pattern.next(closed * DAY)
            if at is None or closed is None:
                return None
            day = at // DAY
            if self.days.is_closed(day):
                return day
        return None
