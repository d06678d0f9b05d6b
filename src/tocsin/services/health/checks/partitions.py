"""Check whether jobs that run on shards find their shards in the shard map."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from ....domain.agent import AgentState
from ....domain.definition import JobDefinition
from ....domain.definition.partition import shown
from ....domain.events import ShardState
from ....domain.ownership import EVERY_SHARD
from ....domain.shard_map import active
from ....domain.text import counted
from ...agents import AgentRegistry
from ...shards import ShardMap, ShardMaps, owners_of, without_owner
from ..findings import MAX_EXAMPLES, CheckContext, Finding, bad, ok, warn

MAX_LISTED: Final = 100
"""Shards in the details of a finding."""


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
