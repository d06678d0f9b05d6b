"""Implementation of `ports.History` in Redis."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, Generic, TypeVar, cast

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from ...domain.events import Message, Recorded
from ...domain.execution_record import Status
from ...domain.namespaces import is_within
from ...domain.text import error_pattern
from ...domain.totals import Total
from ...ports import (
    DeadLetterRow,
    Duration,
    Encoded,
    ExecutionCount,
    ExecutionRow,
    HistoryIncomplete,
    HistoryTooNew,
    HistoryUnavailable,
    HistoryUrlInvalid,
    JobRow,
    PassedSpan,
)
from ...ports.queries import (
    EVERY_DEAD_LETTER,
    EVERY_EXECUTION,
    CountQuery,
    DeadLetterQuery,
    ExecutionQuery,
    Page,
    Place,
    every,
    microseconds,
)
from ...subjects import Stream
from ..history import without_credentials
from ..history.rows import plain
from . import batch_writer, counts, keys, totals
from .batch_writer import BatchWriter
from .keys import Hash, dead_letter_row, execution_row, job_row, read_each
from .summaries import RedisSummaries

T = TypeVar("T")

CHUNK: Final = 200
"""The least number of members in one request."""
FEW: Final = 1_000
"""Up to this number, ids with a prefix are looked up by name."""
_SCORED_ALIKE: Final = frozenset({keys.EXECUTIONS, keys.DEAD_LETTERS})
"""The orders whose scores the sets of conditions share."""
_INTERSECTION_LIFETIME_S: Final = 60
"""The lifetime of an intersection if its reader dies."""


@dataclass(frozen=True)
class Pages(Generic[T]):
    """The set that sorts a list of rows, its conditions, and the conversion to rows."""

    sort: str
    order: str
    narrowed_by: Sequence[str]
    is_downwards: bool
    bounds: tuple[str, str]
    """The least and the greatest score, inclusive."""
    ids: str
    """The set of all ids in alphabetical order."""
    id_prefix: str | None
    key: Callable[[str], str]
    is_wanted: Callable[[Hash], bool]
    row: Callable[[Hash], T]


async def page(client: Redis, listing: Pages[T], place: Place | None, limit: int) -> Page[T]:
    entries: list[tuple[Place, T]] = []
    async with _opened_set(client, listing) as source:
        async for members in _members(client, source, listing, place, limit + 1):
            entries += [row async for row in _rows(client, listing, members)]
            if len(entries) > limit:
                break
    rows, places = [row for _, row in entries[:limit]], tuple(place for place, _ in entries[:limit])
    return Page(rows, places[-1].cursor if len(entries) > limit else None, places)


async def count(client: Redis, listing: Pages[T], *, is_exact: bool) -> int:
    """Return the number of rows; `is_exact`: the sets express all conditions."""
    async with _opened_set(client, listing) as source:
        if is_exact:
            return int(await client.zcount(source, *listing.bounds))
        total = 0
        async for members in _members(client, source, listing, None, CHUNK):
            total += len([row async for row in _rows(client, listing, members)])
        return total


@asynccontextmanager
async def _opened_set(client: Redis, listing: Pages[T]) -> AsyncIterator[str]:
    """Yield the key of the set to read, with the list's order and conditions."""
    ids = await _ids_with_prefix(client, listing)
    if ids is None and not listing.narrowed_by:
        yield listing.order
    elif ids is None and len(listing.narrowed_by) == 1 and listing.order in _SCORED_ALIKE:
        yield listing.narrowed_by[0]
    else:
        intersection, matching_ids = (f"{keys.ROOT}:tmp:{secrets.token_hex(8)}:{part}" for part in ("made", "meant"))
        async with client.pipeline(transaction=True) as making:
            if ids:
                making.zadd(matching_ids, dict.fromkeys(ids, 0))
                making.expire(matching_ids, _INTERSECTION_LIFETIME_S)
            narrowed_by = (*listing.narrowed_by, *(() if ids is None else (matching_ids,)))
            making.zinterstore(intersection, {listing.order: 1, **dict.fromkeys(narrowed_by, 0)})
            making.expire(intersection, _INTERSECTION_LIFETIME_S)
            await making.execute()
        try:
            yield intersection
        finally:
            await client.delete(intersection, matching_ids)


async def _ids_with_prefix(client: Redis, listing: Pages[T]) -> Sequence[str] | None:
    """Return the ids with the requested prefix; None: too many, or no prefix is requested."""
    if listing.id_prefix is None:
        return None
    bounds = f"[{listing.id_prefix}", f"({listing.id_prefix}\U0010ffff"
    ids = cast("list[str]", await client.zrangebylex(listing.ids, *bounds, 0, FEW + 1))
    return ids if len(ids) <= FEW else None


async def _members(
    client: Redis, source: str, listing: Pages[T], place: Place | None, at_once: int
) -> AsyncIterator[Sequence[Place]]:
    """Yield chunks of a set's members after a place, in order."""
    size = max(at_once, CHUNK)
    least, most = listing.bounds
    while True:
        # Start at the score of the last member, because others may have the same score.
        if place is not None:
            least, most = (least, str(place.key)) if listing.is_downwards else (str(place.key), most)
        fetch: Callable[..., Awaitable[object]] = (
            client.zrevrangebyscore if listing.is_downwards else client.zrangebyscore
        )
        bounds = (most, least) if listing.is_downwards else (least, most)
        pairs = cast("list[tuple[str, float]]", await fetch(source, *bounds, 0, size, withscores=True))
        members = [Place(listing.sort, int(score), name) for name, score in pairs]
        following = [
            member for member in members if place is None or _is_after(member, place, is_downwards=listing.is_downwards)
        ]
        if following:
            yield following
            place = following[-1]
        if len(pairs) < size:
            return
        if not following:
            size *= 2  # more members than requested have the same score


def _is_after(member: Place, place: Place, *, is_downwards: bool) -> bool:
    position, limit = (member.key, member.id), (place.key, place.id)
    return position < limit if is_downwards else position > limit


async def _rows(client: Redis, listing: Pages[T], members: Sequence[Place]) -> AsyncIterator[tuple[Place, T]]:
    ids = [member.id for member in members]
    hashes = await read_each(client, ids, lambda reading, name: reading.hgetall(listing.key(name)))
    for member, stored in zip(members, hashes, strict=True):
        if stored and listing.is_wanted(stored):
            yield member, listing.row(stored)


SCHEMA: Final = 1
"""The version of the keys' meaning."""

EMPTYING: Final = -1
"""The offset of a history that is being emptied."""

OPEN: Final[tuple[Status, ...]] = ("pending", "running")
"""The statuses of executions that have not ended."""

TIMEOUT_S: Final = 10.0
"""The time limit for a connection and for a reply."""

_ORDERS: Final = {
    "newest": (keys.EXECUTIONS, True),
    "oldest": (keys.EXECUTIONS, False),
    "last-started": (keys.STARTED, True),
    "first-started": (keys.STARTED, False),
    "longest": (keys.DURATION, True),
    "shortest": (keys.DURATION, False),
}


class RedisHistory:
    """The history of a Redis client. A method may also raise `redis.exceptions.RedisError`."""

    def __init__(self, client: Redis, *, installation: str = "") -> None:
        self._client = client
        self._installation = installation
        self._recording = BatchWriter(client, installation)
        self.summaries = RedisSummaries(client, self.dead_letters, installation)
        """See `ports.History`."""

    async def offset(self, stream: Stream) -> int:
        """Return the place, or raise `HistoryIncomplete` while the history is being emptied."""
        place = int(await self._client.get(keys.place(self._installation, stream)) or 0)
        if place == EMPTYING:
            raise HistoryIncomplete(
                "the history is being emptied; if that was interrupted, run `tocsin history rebuild` again"
            )
        return place

    async def record(
        self,
        stream: Stream,
        messages: Sequence[Recorded[Message]],
        *,
        after: int,
        upto: int,
        opens: bool = True,
        encoded: Sequence[Encoded] = (),  # noqa: ARG002 - memory is too dear for events, which the log and its archive have
    ) -> None:
        await self._recording.record(stream, messages, after=after, upto=upto, opens=opens)

    async def executions(self, query: ExecutionQuery = EVERY_EXECUTION) -> Page[ExecutionRow]:
        return await page(self._client, _executions(query), query.place, query.limit)

    async def count(self, query: ExecutionQuery = EVERY_EXECUTION) -> int:
        # A count needs no order.
        is_exact = query.error is None and query.id_prefix is None and query.namespaces is None
        return await count(self._client, _executions(query, order=(keys.EXECUTIONS, True)), is_exact=is_exact)

    async def execution(self, execution_id: str) -> ExecutionRow | None:
        stored = cast("Hash", await self._client.hgetall(keys.execution(execution_id)))
        return execution_row(stored) if stored else None

    async def dead_letters(self, query: DeadLetterQuery = EVERY_DEAD_LETTER) -> Page[DeadLetterRow]:
        return await page(self._client, _dead_letters(query), query.place, query.limit)

    async def counts(self, query: CountQuery) -> Sequence[ExecutionCount]:
        matching = ExecutionQuery(job=query.job, since=query.since, until=query.until, limit=counts.AT_ONCE)
        if not query.is_wide:
            return await counts.counted_rows(every(self.executions, matching), query.width)
        ended = await counts.kept_counts(self._client, query)
        for status in OPEN:
            rows = every(self.executions, replace(matching, status=status))
            ended += await counts.counted_rows(rows, query.width)
        return ended

    async def passed(self, job: str, since: datetime, until: datetime, *, limit: int) -> Sequence[PassedSpan]:
        return await counts.passed(self._client, job, since, until, limit=limit)

    async def durations(
        self, job: str, spans: Sequence[tuple[datetime, datetime]], *, limit: int
    ) -> Sequence[Sequence[Duration]]:
        return await counts.durations(self._client, job, spans, limit=limit)

    async def jobs(self) -> Sequence[JobRow]:
        stored = cast("Hash", await self._client.hgetall(keys.JOBS))
        return [job_row(text) for _, text in sorted(stored.items())]

    async def totals(self) -> Mapping[Total, int] | None:
        return await totals.read(self._client, self._installation)

    async def expire(self, now: datetime, *, after: timedelta) -> int:
        return await batch_writer.expire(self._client, now=now, after=after)

    async def forget(self) -> None:
        """See `ports.History`. The offsets of other installations in the same database are removed too."""
        own_places = [keys.place(self._installation, stream) for stream in Stream]
        other_places = [key async for key in self._client.scan_iter(match=f"{keys.ROOT}:place:*")]
        places = {*own_places, *other_places}
        await totals.keep_places(self._client, places)
        await self._client.mset(dict.fromkeys(places, EMPTYING))  # from here on, no recorder can write
        async for key in self._client.scan_iter(match=f"{keys.ROOT}:*", count=1_000):
            if key not in places and key not in {keys.SCHEMA, keys.FORMER_PLACES}:
                await self._client.unlink(key)
        await self._client.delete(*places)


@asynccontextmanager
async def open_history(url: str, *, installation: str = "", max_connections: int = 10) -> AsyncIterator[RedisHistory]:
    """Open the history in the Redis of a URL, for the duration of the context."""
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            decode_responses=True,
            max_connections=max_connections,
            timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            socket_timeout=TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError as error:
        raise HistoryUrlInvalid(f"`database.url` cannot be read: {error}") from None
    client = Redis(connection_pool=pool)
    try:
        await _check(client, url)
        yield RedisHistory(client, installation=installation)
    finally:
        await client.aclose()
        await pool.aclose()


async def _check(client: Redis, url: str) -> None:
    try:
        await client.set(keys.SCHEMA, SCHEMA, nx=True)
        schema = int(await client.get(keys.SCHEMA) or SCHEMA)
    except (RedisError, OSError, ValueError) as error:
        raise HistoryUnavailable(
            f"`database.url` is {without_credentials(url)}, and the history cannot use it: {error}"
        ) from None
    if schema > SCHEMA:
        raise HistoryTooNew(
            f"`database.url` is {without_credentials(url)}, and a newer version of Tocsin has written it: its schema is {schema}, "
            f"and this version knows {SCHEMA} at most. There is no downgrade: run the newer version, or use another "
            "database, which is filled from the log"
        )


def _executions(query: ExecutionQuery, *, order: tuple[str, bool] | None = None) -> Pages[ExecutionRow]:
    scored_by, is_downwards = order or _ORDERS[query.sort]
    narrowed_by = [
        keys.executions_by(field, value)
        for field in ("job", "status", "trigger", "tag", "occurrence")
        if (value := getattr(query, field)) is not None
    ]
    if query.error is not None:
        narrowed_by.append(keys.WITH_ERROR)
    is_bounded = scored_by == keys.EXECUTIONS

    def is_wanted(stored: Hash) -> bool:
        if not _matches(query, stored, "error", "execution_id"):
            return False
        at = datetime.fromisoformat(stored["scheduled_time"])
        return is_bounded or not ((query.since and at < query.since) or (query.until and at >= query.until))

    return Pages(
        sort=query.sort,
        order=scored_by,
        narrowed_by=narrowed_by,
        is_downwards=is_downwards,
        bounds=_bounds(query) if is_bounded else ("-inf", "+inf"),
        ids=keys.EXECUTION_IDS,
        id_prefix=query.id_prefix,
        key=keys.execution,
        is_wanted=is_wanted,
        row=execution_row,
    )


def _dead_letters(query: DeadLetterQuery) -> Pages[DeadLetterRow]:
    narrowed_by = [] if query.job is None else [keys.dead_letters_of(query.job)]
    if query.unresolved:
        narrowed_by.append(keys.UNRESOLVED)
    return Pages(
        sort=query.sort,
        order=keys.DEAD_LETTERS,
        narrowed_by=narrowed_by,
        is_downwards=query.sort == "newest",
        bounds=_bounds(query),
        ids=keys.DEAD_LETTER_IDS,
        id_prefix=query.id_prefix,
        key=keys.dead_letter,
        is_wanted=lambda stored: (
            (query.pattern is None or error_pattern(stored.get("last_error", "")) == plain(query.pattern))
            and _matches(query, stored, "last_error", "id")
        ),
        row=dead_letter_row,
    )


def _matches(query: ExecutionQuery | DeadLetterQuery, stored: Hash, error: str, name: str) -> bool:
    """Return whether a row matches the conditions that no set can express."""
    has_error = query.error is None or query.error.lower() in stored.get(error, "").lower()
    if query.namespaces is not None and not is_within(stored["job_name"], query.namespaces):
        return False
    return has_error and stored[name].startswith(query.id_prefix or "")


def _bounds(query: ExecutionQuery | DeadLetterQuery) -> tuple[str, str]:
    least = "-inf" if query.since is None else str(microseconds(query.since))
    return least, "+inf" if query.until is None else str(microseconds(query.until) - 1)
