"""What is asked of the history: which rows, in which order, how many, and from where on (hip-62, API Endpoints).

A list is read page by page. Each page names the place of its last row, and the next one holds what comes behind that row in
the order of the list, not behind a number of rows: rows that arrive meanwhile shift nothing, and no row comes twice or is
left out, as long as what the list is sorted by does not change (a scheduled time never does).
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, Generic, Literal, Self, TypeAlias, TypeVar

from pydantic import TypeAdapter, ValidationError

from ..domain.definition import show
from ..domain.errors import TocsinError
from ..domain.history import Status

ExecutionSort: TypeAlias = Literal["newest", "oldest", "last-started", "first-started", "longest", "shortest"]
"""By scheduled time, by start, by duration; the last two leave out executions that have none (yet)."""

DeadLetterSort: TypeAlias = Literal["newest", "oldest"]
"""By last attempt."""

USUAL_LIMIT: Final = 50
MAX_LIMIT: Final = 10_000

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_CURSOR: Final[TypeAdapter[tuple[str, int, str]]] = TypeAdapter(tuple[str, int, str])


class InvalidQuery(TocsinError, ValueError):
    """A list cannot be asked for like this; `field` says what is wrong with the question."""

    code = "invalid-query"

    def __init__(self, field: str, value: object, reason: str) -> None:
        super().__init__(f"`{field}` is {show(value)}: {reason}")
        self.field = field


@dataclass(frozen=True, slots=True)
class Page(Generic[T_co]):
    """Some rows, and the `cursor` with which a query gets the next ones; None: there are no more."""

    rows: Sequence[T_co]
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """A row's place in a list: what the list is sorted by (microseconds since 1970, or milliseconds), then the id."""

    sort: str
    key: int
    id: str

    @classmethod
    def read(cls, cursor: str, sort: str) -> Self:
        """The place that a cursor names.

        Raises:
            InvalidQuery: it is no cursor, or that of a list with another order.
        """
        try:
            place = cls(*_CURSOR.validate_json(urlsafe_b64decode(cursor.encode() + b"==")))
        except (ValueError, ValidationError):
            raise InvalidQuery("cursor", cursor, "no cursor that a list gave") from None
        if place.sort != sort:
            raise InvalidQuery("cursor", cursor, f"it belongs to a list sorted by `{place.sort}`, not by `{sort}`")
        return place

    @property
    def cursor(self) -> str:
        """As a page hands it out."""
        return urlsafe_b64encode(_CURSOR.dump_json((self.sort, self.key, self.id))).decode().rstrip("=")

    @property
    def time(self) -> datetime:
        """The key of a list that is sorted by time (UTC)."""
        return _EPOCH + self.key * _MICROSECOND


def microseconds(time: datetime) -> int:
    """The key of a time: microseconds since 1970."""
    return (time - _EPOCH) // _MICROSECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionQuery:
    """Which executions. What is None filters nothing.

    Raises:
        InvalidQuery: a field makes no sense.
    """

    job: str | None = None
    status: Status | None = None
    trigger: str | None = None
    tag: str | None = None
    since: datetime | None = None
    """Scheduled then or later (aware)."""
    until: datetime | None = None
    """Scheduled before that (aware)."""
    error: str | None = None
    """A text that their last error contains, capital or small."""
    id_prefix: str | None = None
    """What their id begins with."""
    sort: ExecutionSort = "newest"
    cursor: str | None = None
    limit: int = USUAL_LIMIT

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        _check(self)

    @property
    def place(self) -> Place | None:
        """Behind which row the page begins."""
        return None if self.cursor is None else Place.read(self.cursor, self.sort)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterQuery:
    """Which dead letters. What is None filters nothing.

    Raises:
        InvalidQuery: a field makes no sense.
    """

    job: str | None = None
    unresolved: bool = False
    since: datetime | None = None
    """Last attempted then or later (aware)."""
    until: datetime | None = None
    """Last attempted before that (aware)."""
    error: str | None = None
    """A text that their last error contains, capital or small."""
    id_prefix: str | None = None
    """What their id begins with."""
    sort: DeadLetterSort = "newest"
    cursor: str | None = None
    limit: int = USUAL_LIMIT

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        _check(self)

    @property
    def place(self) -> Place | None:
        """Behind which row the page begins."""
        return None if self.cursor is None else Place.read(self.cursor, self.sort)


def _check(query: ExecutionQuery | DeadLetterQuery) -> None:
    if not 1 <= query.limit <= MAX_LIMIT:
        raise InvalidQuery("limit", query.limit, f"must be between 1 and {MAX_LIMIT:,}")
    for field, time in (("since", query.since), ("until", query.until)):
        if time is not None and time.tzinfo is None:
            raise InvalidQuery(field, time.isoformat(), "must say its offset from UTC")
    if query.since is not None and query.until is not None and query.until <= query.since:
        raise InvalidQuery("until", query.until.isoformat(), f"must be later than `since`, {query.since.isoformat()}")
    _ = query.place


EVERY_EXECUTION: Final = ExecutionQuery()
EVERY_DEAD_LETTER: Final = DeadLetterQuery()

Query = TypeVar("Query", ExecutionQuery, DeadLetterQuery)


async def every(ask: Callable[[Query], Awaitable[Page[T]]], query: Query) -> AsyncIterator[T]:
    """Every row from the query's page on, asked for page by page."""
    cursor = query.cursor
    while True:
        page = await ask(replace(query, cursor=cursor))
        for row in page.rows:
            yield row
        if page.cursor is None:
            return
        cursor = page.cursor
