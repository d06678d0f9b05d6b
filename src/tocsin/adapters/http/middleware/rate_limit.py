"""How often somebody may ask: a token bucket for each identity, in Redis where all copies share one, else in memory."""

from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from ....ports import Clock
from ....settings import Settings
from ...extras import require_extra

if TYPE_CHECKING:
    from redis.asyncio import Redis

_CAPACITY: Final = 100_000

_log = structlog.get_logger("tocsin.http")


class RateLimit(Protocol):
    """Counts requests."""

    async def take(self, who: str) -> float:
        """Take one request from somebody's bucket; seconds after which there is one again, 0: it was taken."""
        ...


class Unlimited:
    """Implements `RateLimit`: everybody may, always."""

    async def take(self, who: str) -> float:
        """Granted."""
        _ = who
        return 0.0


class MemoryRateLimit:
    """Implements `RateLimit` for this copy alone."""

    def __init__(self, clock: Clock, *, rate: float, burst: int) -> None:
        """`rate` requests a second, `burst` at once."""
        self._clock = clock
        self._rate = rate
        self._burst = burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # who -> (left, as of)

    async def take(self, who: str) -> float:
        """See `RateLimit`."""
        now = self._clock.monotonic()
        left, at = self._buckets.pop(who, (float(self._burst), now))
        left = min(self._burst, left + (now - at) * self._rate)
        wait = 0.0 if left >= 1 else (1 - left) / self._rate
        self._buckets[who] = (left - 1 if left >= 1 else left), now
        if len(self._buckets) > _CAPACITY:
            self._buckets.popitem(last=False)
        return wait


class RedisRateLimit:
    """Implements `RateLimit` for all copies together; while Redis does not answer each counts for itself."""

    def __init__(self, redis: "Redis", fallback: RateLimit, *, prefix: str, rate: float, burst: int) -> None:
        """`prefix` keeps installations apart that share a Redis."""
        from redis.exceptions import RedisError  # noqa: PLC0415 - Redis belongs to an extra

        self._errors = (RedisError, OSError)
        self._take = redis.register_script(_TAKE)
        self._fallback = fallback
        self._prefix = prefix
        self._rate = rate
        self._burst = burst

    async def take(self, who: str) -> float:
        """See `RateLimit`."""
        try:
            wait = await self._take(keys=[f"{self._prefix}:rate:{who}"], args=[self._rate, self._burst])
        except self._errors as error:
            _log.warning("Redis does not answer: counting alone", action="rate-limit-alone", error=repr(error))
            return await self._fallback.take(who)
        return float(wait)


@asynccontextmanager
async def rate_limit(settings: Settings, clock: Clock) -> AsyncIterator[RateLimit]:
    """What the settings ask for."""
    if settings.server.rate is None:
        yield Unlimited()
        return
    rate, burst = settings.server.rate, settings.server.burst
    alone = MemoryRateLimit(clock, rate=rate, burst=burst)
    if settings.redis.url is None:
        yield alone
        return
    require_extra("`redis.url`", "redis")
    from redis.asyncio import Redis  # noqa: PLC0415 - it belongs to an extra

    async with Redis.from_url(settings.redis.url, socket_timeout=1, socket_connect_timeout=1) as redis:
        yield RedisRateLimit(redis, alone, prefix=settings.root, rate=rate, burst=burst)


_TAKE: Final = """
local rate, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local kept = redis.call('HMGET', KEYS[1], 'left', 'at')
local left, at = tonumber(kept[1]) or burst, tonumber(kept[2]) or now
left = math.min(burst, left + math.max(0, now - at) * rate)
local wait = 0
if left >= 1 then left = left - 1 else wait = (1 - left) / rate end
redis.call('HSET', KEYS[1], 'left', tostring(left), 'at', tostring(now))
redis.call('PEXPIRE', KEYS[1], math.ceil(burst / rate * 1000) + 1000)
return tostring(wait)
"""
