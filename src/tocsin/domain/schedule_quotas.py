"""The instants a day that schedules of a namespace name, against its quota of executions.

An instant beyond the quota does not run, but its events are stored. So a schedule that names too many is refused when it is registered.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

from .definition import DefinitionError, DefinitionProblem, JobDefinition, show
from .events import Namespace
from .namespaces import declared_of, namespace_of
from .schedule import ScheduleError, parse


def instants_per_day(definition: JobDefinition, now: datetime) -> int:
    """Return the number of instants that a job has a day, at most.

    A disabled job has none, and neither has a schedule that is over at `now` (UTC). Instants that calendars and
    blackouts leave out count, because to count the others takes long.
    """
    if definition.schedule is None or not definition.enabled:
        return 0
    try:
        schedule = parse(definition.schedule, definition.timezone, dst=definition.dst)
    except ScheduleError:
        return 0  # a stored schedule whose zone is unknown now
    last = schedule.only_instant or schedule.ends_at
    return 0 if last is not None and last < now else schedule.most_per_day


def check_schedule_quotas(
    wanted: Collection[JobDefinition],
    deleted: Collection[str],
    registered: Iterable[JobDefinition],
    namespaces: Iterable[Namespace],
    now: datetime,
) -> None:
    """Refuse schedules that add instants beyond the quota `executions_per_day` of their namespaces.

    The instants of all jobs of a namespace count together, because each job could otherwise name as many as the quota allows. Those
    of paused jobs count too, because no quota is checked when a job is resumed.

    Args:
        wanted: new and changed definitions.
        deleted: names of jobs that are deleted.
        registered: the definitions of all registered jobs.
        namespaces: the declared namespaces.
        now: the time (UTC).

    Raises:
        DefinitionError: with a problem for each such namespace.
    """
    limits = {each.name: each.executions_per_day for each in namespaces if each.executions_per_day is not None}
    gained = Counter({each.name: instants_per_day(each, now) for each in wanted if declared_of(each.name, limits)})
    if not any(gained.values()):
        return
    named = Counter[str]()
    for definition in registered:
        namespace = declared_of(definition.name, limits)
        if namespace is None:
            continue
        number = instants_per_day(definition, now)
        named[namespace] += number
        if definition.name in gained or definition.name in deleted:
            gained[definition.name] -= number
    problems = [
        _problem(wanted, gained, namespace, named[namespace], limits[namespace])
        for namespace, growth in sorted(_by_namespace(gained).items())
        if growth > 0 and named[namespace] + growth > limits[namespace]
    ]
    if problems:
        raise DefinitionError(*problems)


def _by_namespace(gained: Mapping[str, int]) -> Mapping[str, int]:
    growth = Counter[str]()
    for name, number in gained.items():
        growth[namespace_of(name) or ""] += number
    return growth


def _problem(
    wanted: Collection[JobDefinition], gained: Mapping[str, int], namespace: str, named: int, limit: int
) -> DefinitionProblem:
    """Return the problem of a namespace, at the job that adds the most instants."""
    own = {name: number for name, number in gained.items() if namespace_of(name) == namespace}
    name = max(sorted(own), key=own.__getitem__)
    [definition] = (each for each in wanted if each.name == name)
    return DefinitionProblem(
        f"namespace `{namespace}` may begin {limit:,} executions a day (executions_per_day); its schedules name {named:,} instants a day, "
        f"and would name {sum(own.values()):,} more, of which this job adds {own[name]:,}: choose a rarer schedule, or let an administrator "
        "raise the quota",
        field="schedule",
        value=show(definition.schedule),
        job=f"job `{name}`",
        code="schedule-above-quota",
    )
