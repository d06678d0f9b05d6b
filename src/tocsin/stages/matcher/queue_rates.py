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
from ...ports import Clock, EntryWrite, OutdatedState, Projections
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
        granted = {name: min(numbers[name], self._available(name)) for name in rated}
        outdated = await self._store({name: number for name, number in granted.items() if number})
        return granted | dict.fromkeys(outdated, 0)

    async def _store(self, taken: Mapping[Rated, int]) -> list[Rated]:
        """Take tokens of buckets; return the buckets that another matcher changed."""
        now = self._clock.now().timestamp()
        known = {name: self._used.pop(name) for name in taken}  # read them again, unless they are stored
        used = {name: self._bucket(name).used(known[name][0], now, number) for name, number in taken.items()}
        writes = [_entry(name, used_until, now, expect=known[name][1]) for name, used_until in used.items()]
        results = await self._projections.write(Bucket.QUEUES, writes)
        outdated: list[Rated] = []
        for (name, used_until), written in zip(used.items(), results, strict=True):
            if isinstance(written.error, OutdatedState):
                outdated.append(name)
                _log.info("another matcher took tokens", action="rate-outdated", rated=str(name))
            elif written.error is not None:
                raise written.error
            else:
                self._used[name] = used_until, written.sequences[0]
        return outdated

    def _available(self, name: Rated) -> int:
        return self._bucket(name).available(self._used[name][0], self._clock.now().timestamp())

    def _bucket(self, name: Rated) -> TokenBucket:
        return name.bucket if isinstance(name, RateGroup) else self._rates[name]

    def _is_gone(self, name: Rated, now: float) -> bool:
        """Return whether the known entry of a group is past its lifetime."""
        used_until, revision = self._used[name]
        return isinstance(name, RateGroup) and revision > 0 and used_until + LIFETIME_S <= now

    async def _read(self, names: Collection[Rated]) -> None:
        """Read the entries that are not known.

        A bucket without an entry was not used lately, and is full.
        """
        if len(self._used) > MAX_KNOWN:
            self._used.clear()
        now = self._clock.now().timestamp()
        missing = [name for name in names if name not in self._used or self._is_gone(name, now)]
        if not missing:
            return
        entries = await self._projections.get_each(Bucket.QUEUES, [*map(_key, missing)])
        for name, entry in zip(missing, entries, strict=True):
            used_until, revision = (0.0, 0) if entry is None else (_read(entry[0]), entry[1])
            self._used[name] = self._bucket(name).credible(used_until, now), revision


def _entry(name: Rated, used_until: float, now: float, *, expect: int) -> EntryWrite:
    lifetime = used_until - now + LIFETIME_S if isinstance(name, RateGroup) else None
    return EntryWrite(_key(name), msgspec.json.encode(_Used(used_until)), expect, lifetime)


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
    return {name: queue.bucket for name, queue in queues.items() if queue.bucket is not None}
