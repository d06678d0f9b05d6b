"""The rates of queues.

Their use is in the KV bucket `queues`, where the next leader finds it.
"""

from collections.abc import Mapping

import msgspec

from ... import telemetry
from ...domain.token_bucket import TokenBucket
from ...ports import Clock, OutdatedState, Projections
from ...settings import Queue
from ...subjects import Bucket, rate_key

_log = telemetry.get_logger("tocsin.matcher")


class _Used(msgspec.Struct):
    used_until: float
    """Seconds since 1970."""


class QueueRates:
    """Takes tokens before tasks start, by compare-and-set: two leaders never take the same token."""

    def __init__(self, projections: Projections, clock: Clock, rates: Mapping[str, TokenBucket]) -> None:
        self._projections = projections
        self._clock = clock
        self._rates = rates
        self._used: dict[str, tuple[float, int]] = {}
        """The instant of each queue's bucket, and the revision of its entry."""

    def forget(self) -> None:
        """Read the entries again before the next use."""
        self._used.clear()

    async def room(self) -> dict[str, int]:
        """Return the number of tasks that may start now, by queue.

        Raises:
            LogUnavailable: an entry cannot be read.
        """
        now = self._clock.now().timestamp()
        return {queue: rate.available((await self._entry(queue))[0], now) for queue, rate in self._rates.items()}

    async def take(self, numbers: Mapping[str, int]) -> dict[str, int]:
        """Take tokens for tasks that start now; return how many may start.

        Only queues with a rate are in the answer.

        Raises:
            LogUnavailable: it is unknown whether tokens are taken. They are then lost.
        """
        granted: dict[str, int] = {}
        now = self._clock.now().timestamp()
        for queue in numbers.keys() & self._rates.keys():
            rate = self._rates[queue]
            used_until, revision = await self._entry(queue)
            granted[queue] = min(numbers[queue], rate.available(used_until, now))
            if not granted[queue]:
                continue
            del self._used[queue]  # read it again, unless it is stored
            used_until = rate.used(used_until, now, granted[queue])
            body = msgspec.json.encode(_Used(used_until))
            try:
                revision = await self._projections.put(Bucket.QUEUES, rate_key(queue), body, expect=revision)
            except OutdatedState:
                granted[queue] = 0
                _log.info("another matcher took tokens", action="rate-outdated", queue=queue)
            else:
                self._used[queue] = used_until, revision
        return granted

    async def _entry(self, queue: str) -> tuple[float, int]:
        """Return what is used of a queue's rate, and the revision of its entry.

        A queue without an entry had no rate before, and its bucket is full.
        """
        if queue not in self._used:
            entry = await self._projections.get(Bucket.QUEUES, rate_key(queue))
            now = self._clock.now().timestamp()
            known = (0.0, 0) if entry is None else (_read(entry[0]), entry[1])
            self._used[queue] = self._rates[queue].credible(known[0], now), known[1]
        return self._used[queue]


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
