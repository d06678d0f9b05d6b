"""The rates of queues, and of groups of tasks.

Their use is in the KV bucket `queues`, where the next leader finds it.
"""

from collections.abc import Collection, Mapping
from hashlib import blake2b
from typing import Final, TypeAlias

import msgspec

from ... import telemetry
from ...domain.open_task import RateGroup
from ...domain.token_bucket import TokenBucket
from ...ports import Clock, OutdatedState, Projections
from ...settings import Queue
from ...subjects import Bucket, rate_key, start_rate_key

_log = telemetry.get_logger("tocsin.matcher")


class _Used(msgspec.Struct):
    used_until: float
    """Seconds since 1970."""


MAX_KNOWN: Final = 10_000
"""The number of buckets in memory; then they are read again."""
LIFETIME_S: Final = 60.0
"""How long the entry of a group is kept after its bucket is full, in which state it says nothing."""

Rated: TypeAlias = str | RateGroup
"""A queue, or a group of tasks."""


class QueueRates:
    """Takes tokens before tasks start, by compare-and-set: two leaders never take the same token."""

    def __init__(self, projections: Projections, clock: Clock, rates: Mapping[str, TokenBucket]) -> None:
        self._projections = projections
        self._clock = clock
        self._rates = rates
        self._used: dict[Rated, tuple[float, int]] = {}
        """The instant of each bucket, and the revision of its entry."""

    def forget(self) -> None:
        """Read the entries again before the next use."""
        self._used.clear()

    async def room(self) -> dict[str, int]:
        """Return the number of tasks that may start now, by queue.

        Raises:
            LogUnavailable: an entry cannot be read.
        """
        await self._read(self._rates)
        return {queue: self._available(queue) for queue in self._rates}

    async def room_of(self, groups: Collection[RateGroup]) -> dict[RateGroup, int]:
        """Return the number of tasks that may start now, by group.

        Raises:
            LogUnavailable: an entry cannot be read.
        """
        await self._read(groups)
        return {group: self._available(group) for group in groups}

    async def take(self, numbers: Mapping[Rated, int]) -> dict[Rated, int]:
        """Take tokens for tasks that start now; return how many may start.

        Only groups, and queues with a rate, are in the answer.

        Raises:
            LogUnavailable: it is unknown whether tokens are taken. They are then lost.
        """
        rated = [name for name in numbers if isinstance(name, RateGroup) or name in self._rates]
        await self._read(rated)
        granted: dict[Rated, int] = {}
        for name in rated:
            granted[name] = min(numbers[name], self._available(name))
            if granted[name] and not await self._take(name, granted[name]):
                granted[name] = 0
        return granted

    async def _take(self, name: Rated, number: int) -> bool:
        """Take tokens of a bucket; return whether they are taken."""
        bucket, now = self._bucket(name), self._clock.now().timestamp()
        used_until, revision = self._used.pop(name)  # read it again, unless it is stored
        used_until = bucket.used(used_until, now, number)
        lifetime = used_until - now + LIFETIME_S if isinstance(name, RateGroup) else None
        body = msgspec.json.encode(_Used(used_until))
        try:
            revision = await self._projections.put(Bucket.QUEUES, _key(name), body, expect=revision, ttl=lifetime)
        except OutdatedState:
            _log.info("another matcher took tokens", action="rate-outdated", rated=str(name))
            return False
        self._used[name] = used_until, revision
        return True

    def _available(self, name: Rated) -> int:
        return self._bucket(name).available(self._used[name][0], self._clock.now().timestamp())

    def _bucket(self, name: Rated) -> TokenBucket:
        return name.bucket if isinstance(name, RateGroup) else self._rates[name]

    async def _read(self, names: Collection[Rated]) -> None:
        """Read the entries that are not known.

        A bucket without an entry was not used lately, and is full.
        """
        if len(self._used) > MAX_KNOWN:
            self._used.clear()
        missing = [name for name in names if name not in self._used]
        if not missing:
            return
        now = self._clock.now().timestamp()
        entries = await self._projections.get_each(Bucket.QUEUES, [*map(_key, missing)])
        for name, entry in zip(missing, entries, strict=True):
            used_until, revision = (0.0, 0) if entry is None else (_read(entry[0]), entry[1])
            self._used[name] = self._bucket(name).credible(used_until, now), revision


def _key(name: Rated) -> str:
    if isinstance(name, str):
        return rate_key(name)
    bucket = name.bucket
    text = f"{bucket.limit} {bucket.per} {bucket.burst} {name.key}"
    return start_rate_key(blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest())


def _read(body: bytes) -> float:
    """Return the instant in an entry; an unreadable entry counts as an empty bucket."""
    try:
        return msgspec.json.decode(body, type=_Used).used_until
    except msgspec.MsgspecError:
        return float("inf")


def rates_of(queues: Mapping[str, Queue]) -> dict[str, TokenBucket]:
    """Return the rates of queues that have one."""
    return {
        name: TokenBucket(queue.rate.limit, queue.rate.per, queue.rate.burst or queue.rate.limit)
        for name, queue in queues.items()
        if queue.rate is not None
    }
