"""Request rates: a token bucket for each identity, shared through Redis or kept in memory."""

from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from .... import telemetry
from ....ports import Clock
from ....settings import Settings
from ...extras import require_extra

if TYPE_CHECKING:
    from redis.asyncio import Redis

MAX_BUCKETS: Final = 100_000
"""Buckets in memory. The least recently used is dropped first, and its identity starts again with a full bucket."""

_log = telemetry.get_logger("tocsin.http")


class Allowance(NamedTuple):
    """The state of a bucket after a request."""

    wait: float
    """Seconds until the request is permitted; 0: it is."""
    limit: int
    """Requests that a full bucket permits at once."""
    left: int
    """Requests that are permitted now."""
    until_next: float
    """Seconds until one more request is permitted; 0: it is now."""

    @classmethod
    def of(cls, wait: float, tokens: float, *, rate: float, burst: int) -> "Allowance":
        """Return the state of a bucket with `tokens` left."""
        return cls(wait, burst, int(tokens), max(0.0, (1 - tokens) / rate))


class MemoryRateLimit:
    """Counts the requests of this copy by identity."""

    def __init__(self, clock: Clock, *, rate: float, burst: int) -> None:
        """Permit `rate` requests per second on average, and `burst` at once."""
        self._clock = clock
        self._rate = rate
        self._burst = burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # key -> (tokens left, time)

    async def take(self, key: str, cost: int = 1) -> Allowance:
        """Take a token from a bucket; a request may take several."""
        now = self._clock.monotonic()
        tokens, at = self._buckets.pop(key, (float(self._burst), now))
        tokens = min(self._burst, tokens + (now - at) * self._rate)
        wait = 0.0 if tokens >= cost else (cost - tokens) / self._rate
        tokens = tokens - cost if tokens >= cost else tokens
        self._buckets[key] = tokens, now
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        return Allowance.of(wait, tokens, rate=self._rate, burst=self._burst)


class RedisRateLimit:
    """Counts the requests of all copies; without Redis each copy counts its own requests."""

    def __init__(self, redis: "Redis", fallback: MemoryRateLimit, *, prefix: str, rate: float, burst: int) -> None:
        """Begin keys with `prefix`, which separates installations that share a Redis."""
        from redis.exceptions import RedisError  # noqa: PLC0415 - Redis belongs to an extra

        self._errors = (RedisError, OSError)
        self._take = redis.register_script(_TAKE)
        self._fallback = fallback
        self._prefix = prefix
        self._rate = rate
        self._burst = burst

    async def take(self, key: str) -> Allowance:
        try:
            wait, left = await self._take(keys=[f"{self._prefix}:rate:{key}"], args=[self._rate, self._burst])
        except self._errors as error:
            _log.warning(
                "Redis unavailable; counting requests in this copy", action="rate-limit-alone", error=repr(error)
            )
            return await self._fallback.take(key)
        return Allowance.of(float(wait), float(left), rate=self._rate, burst=self._burst)


RateLimit: TypeAlias = MemoryRateLimit | RedisRateLimit


@asynccontextmanager
async def rate_limit(settings: Settings, clock: Clock) -> AsyncIterator[RateLimit | None]:
    """Yield the limit of the settings; None: requests are not limited."""
    if settings.server.rate is None:
        yield None
        return
    rate, burst = settings.server.rate, settings.server.burst
    local = MemoryRateLimit(clock, rate=rate, burst=burst)
    if settings.redis.url is None:
        yield local
        return
    require_extra("`redis.url`", "redis")
    from redis.asyncio import Redis  # noqa: PLC0415 - it belongs to an extra

    async with Redis.from_url(settings.redis.url, socket_timeout=1, socket_connect_timeout=1) as redis:
        yield RedisRateLimit(redis, local, prefix=settings.root, rate=rate, burst=burst)


_TAKE: Final = """
local rate, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
-- refill the bucket since its last use
local kept = redis.call('HMGET', KEYS[1], 'left', 'at')
local left, at = tonumber(kept[1]) or burst, tonumber(kept[2]) or now
left = math.min(burst, left + math.max(0, now - at) * rate)
-- take a token, or compute the wait
local wait = 0
if left >= 1 then left = left - 1 else wait = (1 - left) / rate end
redis.call('HSET', KEYS[1], 'left', tostring(left), 'at', tostring(now))
-- a full bucket does not need a key
redis.call('PEXPIRE', KEYS[1], math.ceil(burst / rate * 1000) + 1000)
return {tostring(wait), tostring(left)}
"""
