"""The quotas of namespaces that a registration may exceed."""

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter

from ...domain.definition import JobDefinition
from ...domain.events import Namespace
from ...domain.namespaces import SEPARATOR, check_job_quotas, declared_of, is_within
from ...domain.schedule_quotas import check_schedule_quotas, gained_instants, instants_per_day
from .job import Change, Job
from .registered_jobs import YIELD_EVERY

_AFTER_SEPARATOR = chr(ord(SEPARATOR) + 1)


def has_quota(job: str, declared: Collection[Namespace]) -> bool:
    """Return whether a registration of a job may exceed a quota of its namespace."""
    return is_within(
        job, {each.name for each in declared if each.max_jobs is not None or each.executions_per_day is not None}
    )


async def check_quotas(
    declared: Collection[Namespace],
    changes: Iterable[Change],
    jobs: Callable[[], Awaitable[Sequence[Job]]],
    now: datetime,
) -> None:
    """Refuse changes beyond the quotas of their namespaces.

    `jobs` lists all registered jobs, sorted by name. It is called if a namespace grows, and only the jobs of such namespaces are read.
    Registrations at the same moment do not see each other, and each may add its jobs and schedules.

    Raises:
        DefinitionError: with a problem for each such namespace.
    """
    changes = [each for each in changes if each.verb != "unchanged"]
    new = [each.job for each in changes if each.verb == "create"]
    max_jobs = {each.name: each.max_jobs for each in declared if each.max_jobs is not None}
    per_day = {each.name: each.executions_per_day for each in declared if each.executions_per_day is not None}
    wanted = {each.job: each.definition for each in changes if each.verb != "delete" and is_within(each.job, per_day)}
    before = [
        each.before.definition
        for each in changes
        if each.before.definition is not None and is_within(each.job, per_day)
    ]
    gained = gained_instants(await _instants(wanted.values(), now), await _instants(before, now))
    counted = {declared_of(name, max_jobs) for name in new} - {None}
    if not counted and not gained:
        return
    registered = await jobs()
    if counted:
        deleted = [each.job for each in changes if each.verb == "delete"]
        check_job_quotas(new, deleted, {each: len(_within(registered, each)) for each in counted if each}, max_jobs)
    named = {}
    for namespace in gained:
        instants = await _instants((job.definition for job in _within(registered, namespace)), now)
        named[namespace] = sum(instants.values())
    check_schedule_quotas(wanted, gained, named, per_day)


def _within(jobs: Sequence[Job], namespace: str) -> Sequence[Job]:
    """Return the jobs of a namespace, which are neighbours in the sorted `jobs`."""
    first, end = (
        bisect_left(jobs, namespace + border, key=attrgetter("name")) for border in (SEPARATOR, _AFTER_SEPARATOR)
    )
    return jobs[first:end]


async def _instants(definitions: Iterable[JobDefinition], now: datetime) -> Mapping[str, int]:
    instants = {}
    for number, definition in enumerate(definitions, 1):
        instants[definition.name] = instants_per_day(definition, now)
        if number % YIELD_EVERY == 0:
            await asyncio.sleep(0)  # other tasks run
    return instants
