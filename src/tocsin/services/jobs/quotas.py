"""The quotas of namespaces that a registration may exceed."""

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Final

from ...domain.definition import DefinitionError, DefinitionProblem, JobDefinition, show
from ...domain.events import Namespace
from ...domain.ledger import Ledger
from ...domain.namespaces import SEPARATOR, check_job_quotas, declared_of, is_within, namespace_of
from ...domain.schedule import ScheduleError, parse
from ...engine.ledger_reader import LedgerReader
from .job import Change, Job

_AFTER_SEPARATOR = chr(ord(SEPARATOR) + 1)
YIELD_EVERY: Final = 200
"""Jobs of a list after which other tasks run."""
MAX_CHANGED: Final = 1_000
"""Jobs that are changed in the last list; with more, the list is made again."""


class RegisteredJobs:
    """Lists the jobs from their ledgers.

    A job whose ledger did not change is the same object as in the last list.
    """

    def __init__(self, ledgers: LedgerReader) -> None:
        self._ledgers = ledgers
        self._states: Mapping[str, tuple[Ledger, int]] = {}
        """The ledgers that the last list was made from."""
        self._jobs: tuple[Job, ...] = ()
        self.by_name: dict[str, Job] = {}
        self._turn = asyncio.Lock()

    async def jobs(self) -> tuple[Job, ...]:
        """Return every registered job, sorted by name, no older than this call."""
        states = await self._ledgers.load_all()
        async with self._turn:  # calls that read the same ledgers share a list, and so the objects in it
            last = self._states
            if states is last:
                return self._jobs
            changed = [name for name, state in states.items() if last.get(name) is not state]
            new = sum(name not in last for name in changed)
            if len(changed) > MAX_CHANGED or len(states) != len(last) + new:
                return await self._list(states)
            self._states, self._jobs = states, self._change({name: Job.of(states[name][0]) for name in changed})
            return self._jobs

    def _change(self, changed: Mapping[str, Job | None]) -> tuple[Job, ...]:
        """Change some jobs of the last list; None: the job was deleted."""
        listed = list(self._jobs)
        for name, job in changed.items():
            place = bisect_left(listed, name, key=attrgetter("name"))
            before = self.by_name.pop(name, None)
            listed[place : place + (before is not None)] = [] if job is None else [job]
            if job is not None:
                self.by_name[name] = job
        return tuple(listed)

    async def _list(self, states: Mapping[str, tuple[Ledger, int]]) -> tuple[Job, ...]:
        known, jobs = self.by_name, dict[str, Job]()
        for number, (name, (state, _)) in enumerate(sorted(states.items()), 1):
            before = known.get(name)
            job = before if before is not None and before.ledger is state else Job.of(state)
            if job is not None:
                jobs[name] = job
            if number % YIELD_EVERY == 0:
                await asyncio.sleep(0)  # other tasks run
        self._states, self._jobs, self.by_name = states, tuple(jobs.values()), jobs
        return self._jobs


# An instant beyond the quota does not run, but its events are stored. So a schedule that names too many is refused when it is registered.
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

    `wanted`: the instants of each new or changed job; `before`: the instants of changed or deleted definitions.
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

    `gained`: the instants a day that jobs gain, by namespace that grows, and `named`: the instants a day that schedules of these namespaces name now.
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
