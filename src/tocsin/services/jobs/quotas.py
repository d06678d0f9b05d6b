"""The quotas of namespaces that a registration may exceed."""

from collections.abc import Awaitable, Callable, Collection
from datetime import datetime

from ...domain.definition import JobDefinition
from ...domain.events import Namespace
from ...domain.namespaces import check_job_quotas, is_within
from ...domain.schedule_quotas import check_schedule_quotas
from .job import Job


async def check_quotas(
    declared: Collection[Namespace],
    wanted: Collection[JobDefinition],
    deleted: Collection[str],
    jobs: Callable[[], Awaitable[Collection[Job]]],
    now: datetime,
) -> None:
    """Refuse new and changed definitions beyond the quotas of their namespaces.

    `jobs` lists all registered jobs. Registrations at the same moment do not see each other, and each may add its jobs and schedules.

    Raises:
        DefinitionError: with a problem for each such namespace.
    """
    limited = {each.name for each in declared if each.max_jobs is not None or each.executions_per_day is not None}
    if not any(is_within(definition.name, limited) for definition in wanted):
        return
    registered = {job.name: job.definition for job in await jobs() if is_within(job.name, limited)}
    new = [definition.name for definition in wanted if definition.name not in registered]
    check_job_quotas(new, deleted, registered, declared)
    check_schedule_quotas(wanted, deleted, registered.values(), declared, now)
