"""The totals in Redis: one hash, increased in the transaction of the batch."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, cast

from pydantic_core import from_json
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from ...domain.totals import OTHER, UNREGISTERED, Growth, Total
from ...subjects import Stream
from ..history.rows import RecorderCache, json_text
from . import keys
from .keys import Hash, read_each

_CHUNK: Final = 1_000


async def known_names(client: Redis, growth: Growth, cache: RecorderCache) -> dict[str, frozenset[str]]:
    """Return the names that `growth.limited` must know."""
    known, missing = cache.total_names.recall(growth.owners)
    answers = await read_each(client, missing, lambda reading, owner: reading.smembers(keys.total_names(owner)))
    return known | {owner: frozenset(names) for owner, names in zip(missing, answers, strict=True)}


def add(transaction: Pipeline, growth: Growth, known: Mapping[str, frozenset[str]], cache: RecorderCache) -> None:
    grown, new = growth.limited(known)
    for total, count in grown.items():
        transaction.hincrby(keys.TOTALS, json_text(total), count)
    for owner, name in new:
        transaction.sadd(keys.total_names(owner), name)
    cache.keep_total_names(known, new)


async def read(client: Redis, installation: str) -> dict[Total, int] | None:
    """Return all totals; None: a rebuild has not reached its former place."""
    async with client.pipeline(transaction=True) as reading:
        _read_places(reading, installation)
        reading.hgetall(keys.TOTALS)
        now, former, stored = await reading.execute()
    if not _are_complete(now, former):
        return None
    return {Total(*from_json(name)): int(count) for name, count in stored.items()}


async def are_complete(client: Redis, installation: str) -> bool:
    """Return whether a rebuild, if there was any, has reached its former place."""
    async with client.pipeline(transaction=True) as reading:
        _read_places(reading, installation)
        return _are_complete(*await reading.execute())


def _read_places(reading: Pipeline, installation: str) -> None:
    places = [keys.place(installation, stream) for stream in Stream]
    reading.mget(places)
    reading.hmget(keys.FORMER_PLACES, places)


def _are_complete(now: Sequence[str | None], former: Sequence[str | None]) -> bool:
    return all(int(place or 0) >= int(before or 0) for place, before in zip(now, former, strict=True))


async def forget_jobs(client: Redis) -> None:
    """Remove the totals of jobs that are neither registered nor in the history."""
    stored = cast("Hash", await client.hgetall(keys.TOTALS))
    names: dict[str, list[str]] = {}
    for name in stored:
        names.setdefault(Total(*from_json(name)).job, []).append(name)
    jobs = cast("Hash", await client.hgetall(keys.JOBS))
    registered = {name for name, text in jobs.items() if from_json(text)["state"] != "DELETED"}
    candidates = sorted(names.keys() - registered - {"", OTHER})
    for start in range(0, len(candidates), _CHUNK):
        await _forget(client, candidates[start : start + _CHUNK], names)


async def _forget(client: Redis, candidates: list[str], names: dict[str, list[str]]) -> None:
    is_used = await read_each(
        client,
        candidates,
        lambda reading, job: reading.exists(keys.executions_by("job", job), keys.dead_letters_of(job)),
    )
    gone = [job for job, used in zip(candidates, is_used, strict=True) if not used]
    if gone:
        async with client.pipeline(transaction=True) as removing:
            removing.hdel(keys.TOTALS, *(name for job in gone for name in names[job]))
            removing.hdel(keys.LAST_RUNS, *gone)
            removing.unlink(*map(keys.total_names, gone))
            removing.srem(keys.total_names(UNREGISTERED), *gone)
            await removing.execute()


async def keep_places(client: Redis, places: Iterable[str]) -> None:
    """Keep the places of the history before it is emptied."""
    for place in places:
        before = int(await client.hget(keys.FORMER_PLACES, place) or 0)
        await client.hset(keys.FORMER_PLACES, place, str(max(before, int(await client.get(place) or 0))))
