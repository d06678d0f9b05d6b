"""Check whether jobs that run on shards find their shards in the shard map."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from ....domain.definition import JobDefinition
from ....domain.definition.partition import shown
from ....domain.events import ShardState
from ....domain.shard_map import active
from ....domain.text import counted
from ...shards import ShardMap, ShardMaps
from ..findings import MAX_EXAMPLES, CheckContext, Finding, bad, ok, warn
from ..status import registrations_of

MAX_LISTED: Final = 100
"""Shards in the details of a finding."""


async def shards(context: CheckContext) -> list[Finding]:
    """Report partitions that find no shard (`no-active-shard`, `shard-not-served`)."""
    enabled = (registration.definition for registration in await registrations_of(context.target))
    jobs = [job for job in enabled if job.enabled and job.partition is not None]
    if not jobs:
        return [ok("no-active-shard", "no job runs on shards")]
    newest = await ShardMaps(context.target.log).newest()
    if not active(newest.shards):
        return [_none_active(jobs)]
    return [ok("no-active-shard", "the shard map has active shards"), _named(jobs, newest)]


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
