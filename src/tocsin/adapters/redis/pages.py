"""Pages of rows from sorted sets."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Generic, TypeVar, cast

from redis.asyncio import Redis

from ...ports.queries import Page, Place
from . import keys
from .keys import Hash, read_each

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
    """A list of rows.

    The set that sorts it, the sets of its conditions, and the conversion of members to rows.
    """

    sort: str
    order: str
    narrowed_by: Sequence[str]
    is_downwards: bool
    least: int | None
    most: int | None
    """Inclusive bounds of the score."""
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
    """Return the number of rows in a list.

    `is_exact`: the sets express all conditions, so no row has to be read.
    """
    async with _opened_set(client, listing) as source:
        if is_exact:
            bounds = _bound(listing.least, "-inf"), _bound(listing.most, "+inf")
            return int(await client.zcount(source, *bounds))
        total = 0
        async for members in _members(client, source, listing, None, CHUNK):
            total += len([row async for row in _rows(client, listing, members)])
        return total


@asynccontextmanager
async def _opened_set(client: Redis, listing: Pages[T]) -> AsyncIterator[str]:
    """Yield the key of the set to read.

    It has the order of the list, and only members that meet all conditions which sets express.
    """
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
    """Return the ids with the requested prefix if they are few.

    None if they are many or no prefix is requested.
    """
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
    least, most = _bound(listing.least, "-inf"), _bound(listing.most, "+inf")
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


def _bound(score: int | None, unbounded: str) -> str:
    return unbounded if score is None else str(score)
