"""Queries of the history: filters, order, limit and cursor (hip-62, API Endpoints).

A cursor names the place of a page's last row in the order of the list. The next page begins after that place, not after a
number of rows, so rows that arrive meanwhile cause no gap and no repetition, as long as the sort key of a row does not
change. A scheduled time never changes.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Final, Generic, Literal, Self, TypeAlias, TypeVar

from pydantic import ConfigDict, TypeAdapter

from ..domain.definition import show
from ..domain.errors import TocsinError
from ..domain.execution_counts import PERIOD
from ..domain.execution_record import Status

ExecutionSort: TypeAlias = Literal["newest", "oldest", "last-started", "first-started", "longest", "shortest"]
"""By scheduled time, start or duration; the last two leave out executions without a start or duration."""

DeadLetterSort: TypeAlias = Literal["newest", "oldest"]
"""By last attempt."""

USUAL_LIMIT: Final = 50
MAX_LIMIT: Final = 10_000
MAX_NOTIFICATIONS: Final = 1_000
MAX_DIGITS: Final = 18

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_SECOND: Final = timedelta(seconds=1)
_NOTHING: Final = timedelta()
_CURSOR: Final[TypeAdapter[tuple[str, int, str]]] = TypeAdapter(
    tuple[str, int, str], config=ConfigDict(defer_build=True)
)


class InvalidQuery(TocsinError, ValueError):
    """A field of a query is invalid."""

    code = "invalid-query"

    def __init__(self, field: str, value: object, reason: str) -> None:
        super().__init__(f"`{field}` is {show(value)}: {reason}")
        self.field = field
        self.value = value
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Page(Generic[T_co]):
    """Rows, and the `cursor` of the page after them; None: this is the last page."""

    rows: Sequence[T_co]
    cursor: str | None = None
    places: Sequence["Place"] = ()
    """Of dead letters, the place of each row. A list that was read over HTTP has none."""


@dataclass(frozen=True, slots=True)
class Place:
    """A row in a list. `key`: microseconds since 1970, or milliseconds."""

    sort: str
    key: int
    id: str

    @classmethod
    def read(cls, cursor: str, sort: str) -> Self:
        """Return the place that a cursor names.

        Raises:
            InvalidQuery: the text is not a cursor, or belongs to a list with another order.
        """
        try:
            place = cls(*_CURSOR.validate_json(urlsafe_b64decode(cursor.encode() + b"==")))
        except ValueError:
            place = None
        if place is None or not _FIRST_KEY <= place.key <= _LAST_KEY or "\0" in place.id:  # no list has such a row
            raise InvalidQuery("cursor", cursor, "not a cursor: use the cursor of the page before")
        if place.sort != sort:
            raise InvalidQuery("cursor", cursor, f"it belongs to a list sorted by `{place.sort}`, not by `{sort}`")
        return place

    @property
    def cursor(self) -> str:
        """The cursor that names this place."""
        return urlsafe_b64encode(_CURSOR.dump_json((self.sort, self.key, self.id))).decode().rstrip("=")

    @property
    def time(self) -> datetime:
        """The key of a list that is sorted by time, as a time (UTC)."""
        return _EPOCH + self.key * _MICROSECOND


def microseconds(time: datetime) -> int:
    """Return the key of a time: microseconds since 1970."""
    return (time - _EPOCH) // _MICROSECOND


_FIRST_KEY: Final = microseconds(datetime.min.replace(tzinfo=UTC))
_LAST_KEY: Final = microseconds(datetime.max.replace(tzinfo=UTC))


def in_utc(field: str, time: datetime) -> datetime:
    """Return a time (aware) in UTC.

    Raises:
        InvalidQuery: it is before the year 1 or after the year 9999 in UTC.
    """
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise InvalidQuery(field, time.isoformat(), "must be from the year 1 to the year 9999 in UTC") from None


def require_year(field: str, time: datetime, year: int) -> None:
    """Refuse a year from which a schedule cannot be searched.

    Later instants pass the last date that Python knows.

    Raises:
        InvalidQuery: `year`, that of the time, is before 1970 or after 2999.
    """
    if not 1970 <= year <= 2999:  # noqa: PLR2004 - the reason names both
        raise InvalidQuery(field, time.isoformat(), "its year must be from 1970 to 2999")


@dataclass(frozen=True, slots=True, kw_only=True)
class _ListQuery:
    """Fields that all lists have: a time range, a text, the order and the page."""

    job: str | None = None
    since: datetime | None = None
    """Earliest time (aware): scheduled time of executions, last attempt of dead letters."""
    until: datetime | None = None
    """Time (aware) before which it must be."""
    error: str | None = None
    """Text that the last error contains, ignoring case."""
    id_prefix: str | None = None
    """Beginning of the id."""
    sort: str = "newest"
    cursor: str | None = None
    """`Page.cursor` of the page before."""
    limit: int = USUAL_LIMIT
    namespaces: tuple[str, ...] | None = None
    """The namespaces of the jobs; None: all jobs. Cursors then name no row of others, and no row of others fills a page."""

    def __post_init__(self) -> None:
        """Validate the fields."""
        if not 1 <= self.limit <= MAX_LIMIT:
            raise InvalidQuery("limit", self.limit, f"must be between 1 and {MAX_LIMIT:,}")
        for field, time in (("since", self.since), ("until", self.until)):
            if time is not None and time.tzinfo is None:
                raise InvalidQuery(field, time.isoformat(), "must have an offset from UTC")
            if time is not None:
                in_utc(field, time)
        if self.since is not None and self.until is not None and self.until <= self.since:
            raise InvalidQuery("until", self.until.isoformat(), f"must be later than `since`, {self.since.isoformat()}")
        _ = self.place

    @property
    def place(self) -> Place | None:
        """The place of the row before the page; None: the page is the first."""
        return None if self.cursor is None else Place.read(self.cursor, self.sort)

    def parameters(self) -> dict[str, str | int | bool]:
        """Return the fields that are set, as query parameters of a URL.

        The server limits a list to the namespaces of its caller, so they are no parameter.
        """
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "namespaces"}
        return {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in values.items()
            if value is not None
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionQuery(_ListQuery):
    """A query for executions. A field that is None filters nothing."""

    status: Status | None = None
    trigger: str | None = None
    tag: str | None = None
    """Tag of the job."""
    occurrence: str | None = None
    """The id under which the executions were fanned out."""
    sort: ExecutionSort = "newest"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterQuery(_ListQuery):
    """A query for dead letters. A field that is None filters nothing."""

    unresolved: bool = False
    pattern: str | None = None
    """The pattern of the last error (`domain.error_pattern`)."""
    sort: DeadLetterSort = "newest"


@dataclass(frozen=True, slots=True, kw_only=True)
class CountQuery:
    """The executions of a job in [since, until), counted in spans of `width`.

    Spans begin at multiples of `width` since 1970. `width` is a whole number of seconds below `PERIOD`, or a multiple of it. In the second case, `since` and `until` are
    multiples of `PERIOD`.

    Raises:
        InvalidQuery: a field is invalid.
    """

    job: str
    since: datetime
    until: datetime
    width: timedelta

    def __post_init__(self) -> None:
        """Validate the fields."""
        grain = PERIOD if self.width >= PERIOD else _SECOND
        if self.width <= _NOTHING or self.width % grain:
            raise InvalidQuery("width", str(self.width), f"must be a multiple of {grain}")
        if not self.since < self.until:
            raise InvalidQuery("until", self.until.isoformat(), f"must be later than `since`, {self.since.isoformat()}")
        for field, time in (("since", self.since), ("until", self.until)):
            if self.is_wide and (in_utc(field, time) - _EPOCH) % PERIOD:
                raise InvalidQuery(field, time.isoformat(), f"must be a multiple of {PERIOD}")

    @property
    def is_wide(self) -> bool:
        """Return whether kept counts answer the query; else it counts the rows."""
        return self.width >= PERIOD


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationQuery:
    """A query for a page of notifications.

    Raises:
        InvalidQuery: a field is invalid.
    """

    failed: bool = False
    """Only notifications that a receiver did not accept."""
    cursor: str | None = None
    """`Page.cursor` of the page before: the page has notifications that were stored before this sequence."""
    limit: int = USUAL_LIMIT

    def __post_init__(self) -> None:
        """Validate the fields."""
        if not 1 <= self.limit <= MAX_NOTIFICATIONS:
            raise InvalidQuery("limit", self.limit, f"must be between 1 and {MAX_NOTIFICATIONS:,}")
        text = self.cursor
        if text is not None and not (len(text) <= MAX_DIGITS and text.isascii() and text.isdigit()):
            raise InvalidQuery("cursor", text, "must be the cursor of a page before")

    @property
    def before(self) -> int | None:
        """The sequence before which the page's notifications were stored; None: no limit."""
        return None if self.cursor is None else int(self.cursor)


EVERY_EXECUTION: Final = ExecutionQuery()
EVERY_DEAD_LETTER: Final = DeadLetterQuery()

Query = TypeVar("Query", ExecutionQuery, DeadLetterQuery, NotificationQuery)


async def every(list_page: Callable[[Query], Awaitable[Page[T]]], query: Query) -> AsyncIterator[T]:
    """Yield every row from the query's page on, requesting page after page."""
    cursor = query.cursor
    while True:
        page = await list_page(replace(query, cursor=cursor))
        for row in page.rows:
            yield row
        if page.cursor is None:
            return
        cursor = page.cursor
