"""The room that daily quotas of namespaces leave for pushed jobs and triggers."""

import math
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from ..domain import daily_use
from ..domain.daily_use import DailyUse, Need
from ..domain.errors import TocsinError
from ..domain.events import Namespace
from ..domain.namespaces import RESERVED, namespace_of
from ..ports import Clock, EventLog, Projections
from .documents import Recent
from .namespaces import NamespaceMap, Namespaces, use_of


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


async def require_room(namespaces: Recent[NamespaceMap], projections: Projections, clock: Clock, job: str) -> None:
    """Refuse a trigger beyond a daily quota of the job's namespace.

    Raises:
        DailyQuotaUsed: there is no room for an execution.
    """
    namespace = namespace_of(job)
    if namespace is None or namespace in RESERVED:
        return
    quota = (await namespaces.newest()).get(namespace)
    if quota is None or not daily_use.has_daily_quota(quota):
        return
    now = clock.now()
    use = await use_of(projections, namespace, now)
    if not use.fits(Need(1, 1), quota):
        raise DailyQuotaUsed.of_jobs(quota, use, 1, now)


async def without_room(
    log: EventLog, projections: Projections, clock: Clock, jobs: Iterable[str]
) -> dict[str, DailyQuotaUsed]:
    """Return the namespaces without room for all of their jobs, by name.

    The planner counts an execution when it begins, so requests of the same moment may go beyond a quota together.
    """
    wanted = Counter(name for name in map(namespace_of, jobs) if name is not None and name not in RESERVED)
    full: dict[str, DailyQuotaUsed] = {}
    if not wanted:
        return full
    now = clock.now()
    for quota in (await Namespaces(log).newest()).namespaces:
        number = wanted[quota.name]
        if not number or not daily_use.has_daily_quota(quota):
            continue
        use = await use_of(projections, quota.name, now)
        if not use.fits(Need(number, number), quota):  # the bytes are not known yet, and are more
            full[quota.name] = DailyQuotaUsed.of_jobs(quota, use, number, now)
    return full
