"""Check the references of definitions: other jobs, shards and calendars."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from ....domain.agent import AgentState
from ....domain.definition import JobDefinition, upstream_jobs
from ....domain.definition.partition import shown
from ....domain.dependency import may_follow
from ....domain.events import ShardState
from ....domain.namespaces import referenced_jobs
from ....domain.ownership import EVERY_SHARD
from ....domain.schedule import calendar_warnings
from ....domain.shard_map import active
from ....domain.text import counted
from ...agents import AgentRegistry
from ...jobs.dependencies import find_circle, path_of
from ...shards import ShardMap, ShardMaps, owners_of, without_owner
from ..findings import MAX_EXAMPLES, CheckContext, Finding, bad, ok, warn

CODE: Final = "dependency-cycle"
HIDDEN: Final = "dependency-hidden"
MAX_LISTED: Final = 100
"""Jobs or shards in the details of a finding."""
MAX_CALENDARS: Final = 10
"""Jobs that a finding about calendars names."""


async def circles(context: CheckContext) -> Finding:
    """Report jobs that wait for each other in a circle (`dependency-cycle`).

    A registration refuses such a circle, but two at the same moment may close one.
    """
    definitions = (registration.definition for registration in await context.registrations())
    graph = {job.name: upstream_jobs(job.depends_on) for job in definitions if job.depends_on}
    paths, jobs = list[str](), list[str]()
    while len(paths) < MAX_EXAMPLES and (walk := find_circle(graph)):
        paths.append(path_of(walk))
        jobs += walk[1:]
        graph = {name: upstream for name, upstream in graph.items() if name not in walk}
    if not paths:
        return ok(CODE, "no jobs wait for each other in a circle")
    return bad(
        CODE,
        f"{counted(len(jobs), 'job')} wait for each other in a circle: {'; '.join(paths)}",
        means="each execution waits until its `dependency_timeout`, and is skipped as `dependency_missing`",
        do="remove a dependency of one of them from `depends_on`, and run `tocsin jobs apply`",
        jobs=[*jobs[:MAX_LISTED]],
    )


async def hidden(context: CheckContext) -> Finding:
    """Report jobs that follow a job which the viewers in force hide from them (`dependency-hidden`)."""
    jobs = {registration.definition.name: registration for registration in await context.registrations()}
    pairs = [
        (name, followed)
        for name, job in jobs.items()
        for _, followed in referenced_jobs(job.definition)
        if followed in jobs and not may_follow(job, jobs[followed])
    ]
    if not pairs:
        return ok(HIDDEN, "no job depends on a job that is hidden from it, or is started by its ends")
    names = sorted({name for name, _ in pairs})
    examples = ", ".join(f"{name} ({followed})" for name, followed in pairs[:MAX_EXAMPLES])
    return warn(
        HIDDEN,
        f"{counted(len(names), 'job')} follow a job whose `viewers` lack their creator or owner: {examples}",
        means="an execution that depends on it is skipped as `dependency_missing` at its `dependency_timeout`, and its ends start none",
        do="add the creator and the owner to its `viewers`, or remove the dependency or the trigger, and run `tocsin jobs apply`",
        jobs=[*names[:MAX_LISTED]],
    )


async def shards(context: CheckContext) -> list[Finding]:
    """Report partitions that find no shard (`no-active-shard`, `shard-not-served`)."""
    enabled = (registration.definition for registration in await context.registrations())
    jobs = [job for job in enabled if job.enabled and job.partition is not None]
    if not jobs:
        return [ok("no-active-shard", "no job runs on shards")]
    newest = await ShardMaps(context.target.log).newest()
    if not active(newest.shards):
        return [_none_active(jobs)]
    return [ok("no-active-shard", "the shard map has active shards"), _named(jobs, newest)]


async def owners(context: CheckContext) -> list[Finding]:
    """Report shards without an agent that may own them, and unknown ids (`shard-without-owner`, `shard-unknown`)."""
    target = context.target
    newest = await ShardMaps(target.log).newest()
    agents = [agent for agent in await AgentRegistry(target.log, target.projections).agents() if agent.shards]
    missing = without_owner(newest, await owners_of(target.log), agents)
    declared = {shard for agent in agents if agent.state is AgentState.ENABLED for shard in agent.shards}
    unknown = sorted(declared - {EVERY_SHARD} - {shard.shard_id for shard in newest.shards})
    return [
        bad(
            "shard-without-owner",
            f"{counted(len(missing), 'shard')} without an enabled agent that declares it and may own it: {shown(missing)}",
            means="tasks of these shards wait; other workers do not get them, because an agent declared the shards before",
            do="start a worker that declares them (`Worker(shards=[…])`, `tocsin worker --shard ID`) and, if grants limit its shards, "
            "let it own them: `tocsin agents allow NAME --shard ID`",
            shards=[*missing[:MAX_LISTED]],
        )
        if missing
        else ok("shard-without-owner", "each shard that was declared has an agent that may own it"),
        warn(
            "shard-unknown",
            f"agents declare {counted(len(unknown), 'shard')} that the shard map does not have: {shown(unknown)}",
            means="these ids are ignored",
            do="add the shards with `tocsin shards apply`, or correct the shards of the workers",
            shards=[*unknown[:MAX_LISTED]],
        )
        if unknown
        else ok("shard-unknown", "the shard map has the shards that agents declare"),
    ]


def _none_active(jobs: Iterable[JobDefinition]) -> Finding:
    names = sorted(job.name for job in jobs)
    return bad(
        "no-active-shard",
        f"{counted(len(names), 'job')} on shards ({shown(names)}), and the shard map has no active shard",
        means="each of their occurrences is skipped with the reason `no_shard`",
        do="make a shard active with `tocsin shards apply`",
        jobs=[*names[:MAX_LISTED]],
    )


def _named(jobs: Iterable[JobDefinition], newest: ShardMap) -> Finding:
    served = {shard.shard_id for shard in newest.shards if shard.state is not ShardState.DISABLED}
    missing: dict[str, list[str]] = defaultdict(list)
    for job in jobs:
        for shard_id in job.partition.named if job.partition is not None else ():
            if shard_id not in served:
                missing[shard_id].append(job.name)
    if not missing:
        return ok("shard-not-served", "the shard map has the shards of all jobs, and none of them is disabled")
    examples = (
        f"`{shard_id}` (jobs {shown(sorted(missing[shard_id]))})" for shard_id in sorted(missing)[:MAX_EXAMPLES]
    )
    return warn(
        "shard-not-served",
        f"{counted(len(missing), 'shard')} of jobs missing from the shard map, or disabled: {', '.join(examples)}",
        means="these jobs do not run there",
        do="add the shards with `tocsin shards apply`, or correct `partition` of the jobs",
        shards=[*sorted(missing)[:MAX_LISTED]],
    )


async def calendars(context: CheckContext) -> Finding:
    """Report jobs with a calendar that ends soon, or has ended (`calendar-ends`)."""
    today = context.now.date()
    found: dict[str, str] = {}
    for registration in await context.registrations():
        definition = registration.definition
        if definition.enabled and (warnings := calendar_warnings(definition.day_rules, today)):
            found[definition.name] = warnings[0]
    if not found:
        return ok("calendar-ends", "the calendars of all jobs are known for the next weeks")
    jobs = sorted(found)[:MAX_CALENDARS]
    others = f" and {len(found) - MAX_CALENDARS} more" if len(found) > MAX_CALENDARS else ""
    return warn(
        "calendar-ends",
        f"calendars of {len(found)} jobs end: {'; '.join(f'`{job}`: {found[job]}' for job in jobs)}{others}",
        means="after its last known day a calendar has no days: `exclude` lets jobs fire, and `only` lets none fire",
        do="run `tocsin jobs apply` again, which looks calendars of countries and files up; add days to the others, or a later `until`",
        jobs=list(jobs),
    )
