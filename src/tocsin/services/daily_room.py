"""The room that daily quotas leave for jobs, triggers and decisions (ADR 97).

A decision on a job, a queue, an agent or a silence is an event of the ledger. Its size is counted before the event is stored, and apart
from executions. So a fault can only make the quota `bytes_per_day` smaller.
"""

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from .. import subjects, telemetry
from ..domain import daily_use
from ..domain.daily_use import DailyUse, Need
from ..domain.errors import TocsinError
from ..domain.events import Message, Namespace
from ..domain.namespaces import RESERVED, namespace_of
from ..ports import Clock, Projections, SequenceConflict
from ..subjects import Bucket
from .documents import Recent, Take
from .namespaces import NamespaceMap, use_of


class DailyQuotaUsed(TocsinError):
    """A namespace has used up a quota of the day."""

    code = "namespace-quota"

    def __init__(self, namespace: str, reason: str, now: datetime) -> None:
        super().__init__(
            f"namespace `{namespace}` has no room for {reason}. Send it again tomorrow (UTC), or let an administrator raise the quota"
        )
        tomorrow = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
        self.retry_after_s = math.ceil((tomorrow - now).total_seconds())
        """Seconds until the next day."""

    @classmethod
    def of_jobs(cls, quota: Namespace, use: DailyUse, wanted: int, now: datetime) -> "DailyQuotaUsed":
        limits = {"executions_per_day": use.executions, "bytes_per_day": use.bytes}
        given = [
            f"{name} {most:,}, of which {used:,} are used"
            for name, used in limits.items()
            if (most := getattr(quota, name)) is not None
        ]
        return cls(quota.name, f"{wanted:,} more today: {'; '.join(given)}", now)

    @classmethod
    def of_changes(cls, quota: Namespace, use: DailyUse, size: int, now: datetime) -> "DailyQuotaUsed":
        reason = (
            f"changes of {size:,} bytes today: bytes_per_day {quota.bytes_per_day:,}, of which changes used {use.bytes:,}. "
            "Jobs can still be paused and deleted"
        )
        return cls(quota.name, reason, now)


async def without_room(
    namespaces: Recent[NamespaceMap], projections: Projections, clock: Clock, jobs: Iterable[str]
) -> dict[str, DailyQuotaUsed]:
    """Return the namespaces without room for all of their jobs, by name.

    The planner counts an execution when it begins, so requests of the same moment may go beyond a quota together.
    """
    wanted = Counter(name for name in map(namespace_of, jobs) if name is not None and name not in RESERVED)
    full: dict[str, DailyQuotaUsed] = {}
    if not wanted:
        return full
    now = clock.now()
    for quota in (await namespaces.newest()).namespaces:
        number = wanted[quota.name]
        if not number or not daily_use.has_daily_quota(quota):
            continue
        use = await use_of(projections, quota.name, now)
        if not use.fits(Need(number, number), quota):  # the bytes are not known yet, and are more
            full[quota.name] = DailyQuotaUsed.of_jobs(quota, use, number, now)
    return full


TRIES: Final = 20
"""Tries to count while other processes count for the namespace."""

_log = telemetry.get_logger("tocsin.operator")


class ChangeRoom:
    """Counts the decisions of one process."""

    def __init__(self, namespaces: Recent[NamespaceMap], projections: Projections, clock: Clock) -> None:
        self._namespaces = namespaces
        self._projections = projections
        self._clock = clock
        self._turns = defaultdict[str, asyncio.Lock](asyncio.Lock)

    def of(self, namespace: str | None, *, is_refused: bool = True) -> Take:
        """Return a function that takes the room for decisions in a namespace.

        None: the default namespace, which has no quota. `is_refused`: False counts decisions and refuses none. It is for decisions that each follow a
        decision that could be refused.
        """
        return partial(self._take, namespace, is_refused=is_refused)

    def of_name(self, name: str, *, is_refused: bool = True) -> Take:
        """Return a function that takes the room for decisions on a job or a queue."""
        return self.of(namespace_of(name), is_refused=is_refused)

    def of_caller(self, namespaces: Sequence[str] | None, *, is_refused: bool = True) -> Take:
        """Return a function that takes the room for decisions of a caller in its namespaces.

        If a namespace has no room before the first counts, the decisions count in none. None: the caller is bound to none.
        """

        async def take(facts: Sequence[Message]) -> None:
            await self._take_all(dict.fromkeys(namespaces or (), facts), is_refused=is_refused)

        return take

    async def take_each(self, facts: Iterable[tuple[str, Message]]) -> None:
        """Take the room for events that belong to jobs or queues of some names.

        If a namespace has no room, the events count in none.

        Raises:
            DailyQuotaUsed: a namespace has no room for all of its events.
        """
        of_namespace = defaultdict[str | None, list[Message]](list)
        for name, fact in facts:
            of_namespace[namespace_of(name)].append(fact)
        await self._take_all(of_namespace, is_refused=True)

    async def _take_all(self, of_namespace: Mapping[str | None, Sequence[Message]], *, is_refused: bool) -> None:
        if is_refused and len(of_namespace) > 1:  # else the count checks it
            for namespace, facts in of_namespace.items():
                await self._check(namespace, facts)
        for namespace, facts in of_namespace.items():
            await self._take(namespace, facts, is_refused=is_refused)

    async def _check(self, namespace: str | None, facts: Sequence[Message]) -> None:
        if (quota := await self._quota(namespace)) is not None:
            await self._use(quota, _size(facts), self._clock.now(), is_refused=True)

    async def _use(self, quota: Namespace, size: int, now: datetime, *, is_refused: bool) -> tuple[DailyUse, int]:
        entry = await self._projections.get(Bucket.QUEUES, subjects.changed_bytes_key(quota.name))
        use = daily_use.read(entry and entry[0], now)
        if is_refused and not use.fits(Need(0, size), quota):
            raise DailyQuotaUsed.of_changes(quota, use, size, now)
        return use, entry[1] if entry else 0

    async def _quota(self, namespace: str | None) -> Namespace | None:
        if namespace is None or namespace in RESERVED:
            return None
        quota = (await self._namespaces.newest()).get(namespace)
        return None if quota is None or quota.bytes_per_day is None else quota

    async def _take(self, namespace: str | None, facts: Sequence[Message], *, is_refused: bool) -> None:
        quota = await self._quota(namespace)
        if not facts or quota is None:
            return
        size = _size(facts)
        key, now = subjects.changed_bytes_key(quota.name), self._clock.now()
        async with self._turns[quota.name]:
            for _ in range(TRIES):
                use, expect = await self._use(quota, size, now, is_refused=is_refused)
                try:
                    value = daily_use.encode(use.plus(Need(0, size)))
                    await self._projections.put(Bucket.QUEUES, key, value, expect=expect, ttl=daily_use.LIFETIME_S)
                except SequenceConflict:
                    continue
                return
        if not is_refused:
            _log.warning("change not counted; others were faster", action="changes-not-counted", namespace=namespace)
            return
        raise SequenceConflict(
            f"cannot count a change in namespace {namespace!r}: others were faster {TRIES} times. Try again."
        )


def _size(facts: Sequence[Message]) -> int:
    return sum(len(fact.encode()) for fact in facts)
