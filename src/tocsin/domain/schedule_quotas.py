"""The instants a day that schedules of a namespace name, against its quota of executions.

An instant beyond the quota does not run, but its events are stored. So a schedule that names too many is refused when it is registered.
"""

from collections import Counter
from collections.abc import Mapping
from datetime import datetime

from .definition import DefinitionError, DefinitionProblem, JobDefinition, show
from .namespaces import namespace_of
from .schedule import ScheduleError, parse


def instants_per_day(definition: JobDefinition, now: datetime) -> int:
    """Return the number of instants that a job has a day, at most.

    A disabled job has none, and neither has a schedule that is over at `now` (UTC). A schedule that fires once has none,
    because it would count on all other days, too. Instants that calendars and blackouts leave out count, because to
    count the others takes long.
    """
    if definition.schedule is None or not definition.enabled:
        return 0
    try:
        schedule = parse(definition.schedule, definition.timezone, dst=definition.dst)
    except ScheduleError:
        return 0  # a stored schedule whose zone is unknown now
    return 0 if schedule.ends_at is not None and schedule.ends_at < now else schedule.most_per_day


def gained_instants(wanted: Mapping[str, int], before: Mapping[str, int]) -> Mapping[str, Mapping[str, int]]:
    """Return the instants a day that jobs gain, by namespace, if the namespace gains any.

    Args:
        wanted: the instants of each new or changed job.
        before: the instants of the definitions that are changed or deleted.
    """
    gained: dict[str, Counter[str]] = {}
    for name in {**wanted, **before}:
        jobs = gained.setdefault(namespace_of(name) or "", Counter())
        jobs[name] = wanted.get(name, 0) - before.get(name, 0)
    return {namespace: jobs for namespace, jobs in gained.items() if sum(jobs.values()) > 0}


def check_schedule_quotas(
    wanted: Mapping[str, JobDefinition],
    gained: Mapping[str, Mapping[str, int]],
    named: Mapping[str, int],
    limits: Mapping[str, int],
) -> None:
    """Refuse schedules that add instants beyond the quota `executions_per_day` of their namespaces.

    The instants of all jobs of a namespace count together, because each job could otherwise name as many as the quota allows. Those
    of paused jobs count too, because no quota is checked when a job is resumed.

    Args:
        wanted: new and changed definitions by job.
        gained: the instants a day that jobs gain, by namespace that grows.
        named: the instants a day that schedules of these namespaces name now.
        limits: the quotas by namespace.

    Raises:
        DefinitionError: with a problem for each such namespace.
    """
    problems = [
        _problem(wanted, jobs, namespace, named[namespace], limits[namespace])
        for namespace, jobs in sorted(gained.items())
        if named[namespace] + sum(jobs.values()) > limits[namespace]
    ]
    if problems:
        raise DefinitionError(*problems)


def _problem(
    wanted: Mapping[str, JobDefinition], gained: Mapping[str, int], namespace: str, named: int, limit: int
) -> DefinitionProblem:
    """Return the problem of a namespace, at the job that adds the most instants."""
    name = max(sorted(gained), key=gained.__getitem__)
    return DefinitionProblem(
        f"namespace `{namespace}` may begin {limit:,} executions a day (executions_per_day); its schedules name {named:,} instants a day, "
        f"and would name {sum(gained.values()):,} more, of which this job adds {gained[name]:,}: choose a rarer schedule, or let an administrator "
        "raise the quota",
        field="schedule",
        value=show(wanted[name].schedule),
        job=f"job `{name}`",
        code="schedule-above-quota",
    )
