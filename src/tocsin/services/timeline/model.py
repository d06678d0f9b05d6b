"""The values of a timeline, and the time that it shows."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, Self, TypeAlias

from ...domain.execution_counts import PERIOD
from ...domain.replay import NotFired
from ...ports.queries import InvalidQuery, in_utc, require_year

MarkDecision: TypeAlias = Literal[
    "pending",  # it fired, and its execution has this status
    "running",
    "completed",
    "failed",
    "cancelled",
    "skipped",
    "fired",  # it fired, and the history has no execution of it
    NotFired,
    "trigger",  # an execution that the schedule did not request
]
"""The decision on an instant, as `why` gives it; of an instant that fired, the status of its execution."""

MAX_DAYS: Final = 3_660
"""The longest time of an answer."""
MAX_BUCKETS: Final = 500
MAX_FINE: Final = timedelta(hours=3)
"""The longest time with buckets below `PERIOD`, for which the history counts rows."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY: Final = timedelta(days=1)
_WIDTHS: Final = (
    *(timedelta(seconds=s) for s in (1, 5, 15, 60)),
    *(timedelta(minutes=m) for m in (5, 15, 30)),
    *(timedelta(hours=h) for h in (1, 3, 6, 12)),
    *(timedelta(days=d) for d in (1, 2, 7, 28, 91, 364)),
)
"""The widths of buckets that a person can read."""


@dataclass(frozen=True, slots=True)
class TimelineMark:
    """An instant and the decision on it, or an execution that something else triggered."""

    at: datetime
    decision: MarkDecision
    """The status of the execution of an instant that fired (`fired`: the history has none), `trigger` for an execution that
    the schedule did not request, and otherwise the verdict of `why`."""
    reason: str | None = None
    """The reason for a skip, a cancellation or a pause; `catch_up`: it fired late; of a `trigger`, what triggered it."""
    execution_id: str | None = None
    status: str | None = None
    """The status of the execution."""
    late_by: float | None = None
    """Seconds from the instant to the decision."""
    count: int = 1
    """Executions on shards with this status, or instants of which only the number is known."""


@dataclass(frozen=True, slots=True)
class TimelineBucket:
    """The marks in [start, end), by decision."""

    start: datetime
    end: datetime
    counts: Mapping[MarkDecision, int]


@dataclass(frozen=True, slots=True)
class Span:
    """A time [start, end)."""

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Window:
    """The time [since, until) of a request, and the most buckets of its answer."""

    since: datetime
    until: datetime
    buckets: int

    @classmethod
    def of(cls, since: datetime, until: datetime, buckets: int) -> Self:
        """Return a window; times without a zone are in UTC.

        Raises:
            InvalidQuery: the time is empty, too long, or outside the calendar.
        """
        begin, end = _checked("since", since), _checked("until", until)
        if not begin < end:
            raise InvalidQuery("until", until.isoformat(), f"must be later than `since`, {since.isoformat()}")
        if end - begin > MAX_DAYS * _DAY:
            raise InvalidQuery("until", until.isoformat(), f"must be at most {MAX_DAYS:,} days after `since`")
        return cls(begin, end, buckets)

    @property
    def width(self) -> timedelta:
        """The smallest legible width of at most `buckets` buckets."""
        days = -(-(self.until - self.since) // _DAY)
        longest = -(-days // max(1, self.buckets - 1)) * _DAY
        widths = (width for width in _WIDTHS if width >= PERIOD or self.until - self.since <= MAX_FINE)
        return next((width for width in widths if len(self._numbers(width)) <= self.buckets), longest)

    def spans(self, width: timedelta) -> tuple[Span, ...]:
        """Return spans of a width that cover the window, at multiples since 1970."""
        return tuple(Span(_EPOCH + n * width, _EPOCH + (n + 1) * width) for n in self._numbers(width))

    def _numbers(self, width: timedelta) -> range:
        return range((self.since - _EPOCH) // width, -(-(self.until - _EPOCH) // width))

    def covered(self, spans: tuple[Span, ...]) -> "Window":
        return replace(self, since=spans[0].start, until=spans[-1].end)


def _checked(field: str, time: datetime) -> datetime:
    at = in_utc(field, time if time.tzinfo else time.replace(tzinfo=UTC))
    require_year(field, time, at.year)
    return at
