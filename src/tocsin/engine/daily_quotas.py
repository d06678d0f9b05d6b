"""The daily quotas of namespaces, for the planner (ADR 97).

An execution is counted before it begins, in an entry of the bucket `queues`. Its revision guards the count, so planners together never
exceed a quota. One write counts all executions of a batch that wait for their place. After a crash between the count and the beginning, a
redelivered input is counted again, so a crash can only make the quota smaller, by one batch.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple, TypeAlias

from .. import subjects
from ..domain import daily_use
from ..domain.daily_use import DailyUse, Need
from ..domain.events import Admitted, Namespace, NamespacesDefined, Planned, Skipped, newest_of
from ..domain.execution import Status
from ..domain.namespaces import RESERVED, namespace_of
from ..subjects import Bucket
from .kinds import ENTRY, execution_state
from .step import Put, Reading, Sources, States, Step, again

RECENT: Final = timedelta(seconds=1)
"""The age up to which quotas are used that were read before."""
COUNTED_AT_ONCE: Final = 256
"""Executions in a single write."""
REMEMBERED: Final = 10_000
"""Executions that are remembered as counted, and those that wait for their place, in each process."""

First: TypeAlias = Planned | Admitted


async def _quotas(sources: Sources, keys: Sequence[None]) -> Mapping[None, Mapping[str, Namespace]]:
    newest = newest_of(await sources.log.load(subjects.namespaces()), NamespacesDefined)
    declared = () if newest is None else newest.message.namespaces
    limited = {each.name: each for each in declared if daily_use.has_daily_quota(each)}
    return dict.fromkeys(keys, limited)


QUOTAS: Final = Reading("daily quotas", _quotas)
"""The namespaces with a daily quota, by name. The key is None. The read may be stale, so a change may count a moment later."""


class Counted(NamedTuple):
    """A signal: executions were counted."""

    namespace: str
    execution_ids: tuple[str, ...]


class DailyQuotas:
    """Counts the executions of a planner process."""

    def __init__(self) -> None:
        self._quotas: Mapping[str, Namespace] = {}
        self._read_at: datetime | None = None
        self._counted: OrderedDict[str, None] = OrderedDict()
        self._waiting: dict[str, dict[str, Need]] = {}
        """The executions that wait for their place, by namespace."""

    def take_signal(self, counted: Counted) -> None:
        """Remember executions that were counted."""
        waiting = self._waiting.get(counted.namespace, {})
        for execution_id in counted.execution_ids:
            waiting.pop(execution_id, None)
            self._counted[execution_id] = None
        while len(self._counted) > REMEMBERED:
            self._counted.popitem(last=False)

    def limit(self, first: First, states: States, now: datetime, number: int = 1) -> First | Skipped | Step:
        """Return the beginning of an execution within the quotas of its namespace.

        Beyond them, it is skipped. A step counts it first, and decides again. `number`: the executions that it becomes, one on each shard.
        """
        return self._count(first, states, now, number, runs_anyway=False)

    def count(self, first: First, states: States, now: datetime) -> First | Skipped | Step:
        """Return the beginning of an execution that runs in any case, once it is counted."""
        return self._count(first, states, now, 1, runs_anyway=True)

    def _count(
        self, first: First, states: States, now: datetime, number: int, *, runs_anyway: bool
    ) -> First | Skipped | Step:
        namespace = namespace_of(first.job)
        if namespace is None or namespace in RESERVED:
            return first
        quota = self._quotas_in_force(states, now).get(namespace)
        if quota is None:
            return first
        waiting = self._waiting.setdefault(namespace, {})
        ref = ENTRY((Bucket.QUEUES, subjects.daily_use_key(namespace)))
        later_ref = None if quota.bytes_per_day is None else ENTRY((Bucket.QUEUES, subjects.later_bytes_key(namespace)))
        state = states(execution_state(first.job, first.execution_id))
        if first.execution_id in self._counted or state.status is not Status.UNKNOWN:
            waiting.pop(first.execution_id, None)
            return first
        entry = states(ref)
        use, need = daily_use.read(entry and entry[0], now), daily_use.need_of(first, number, quota)
        stored = None if later_ref is None else states(later_ref)
        later = daily_use.later_bytes(stored and stored[0], now)
        if not runs_anyway and not use.fits(need, quota, later=later):
            waiting.pop(first.execution_id, None)
            return Skipped.of(first, "namespace_quota")
        use, counted = _with_others(use.plus(need), first.execution_id, waiting, quota, later)
        if len(waiting) < REMEMBERED:
            waiting[first.execution_id] = need
        put = Put(ref, daily_use.encode(use), ttl=daily_use.LIFETIME_S)
        return again(put, signals=(Counted(namespace, counted),))

    def _quotas_in_force(self, states: States, now: datetime) -> Mapping[str, Namespace]:
        if self._read_at is None or abs(now - self._read_at) > RECENT:
            self._quotas, self._read_at = states(QUOTAS(None)), now
        return self._quotas


def _with_others(
    use: DailyUse, own: str, waiting: Mapping[str, Need], quota: Namespace, later: int
) -> tuple[DailyUse, tuple[str, ...]]:
    """Count other executions that wait, as far as there is room."""
    counted = [own]
    for execution_id, need in waiting.items():
        if len(counted) == COUNTED_AT_ONCE or not use.fits(need, quota, later=later):
            break
        if execution_id != own:
            use = use.plus(need)
            counted.append(execution_id)
    return use, tuple(counted)
