"""Checks of the partition of a job against the shard map (scratchbird, Partition Rules)."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from ...domain import shard_map
from ...domain.definition import DefinitionError, DefinitionProblem, JobDefinition, fans_out, upstream_jobs
from ...ports import EventLog
from ..shards import ShardMaps
from .dependencies import HIDDEN, MaySee, all_visible
from .job import Job


async def check_partitions(definitions: Collection[JobDefinition], log: EventLog) -> None:
    """Refuse jobs on shards that the newest map does not have.

    Refuse any job with a partition while no shard is active.

    Raises:
        DefinitionError: names the shards.
        LogUnavailable: the log did not answer.
    """
    divided = [definition for definition in definitions if definition.partition is not None]
    if not divided:
        return
    shards = (await ShardMaps(log).newest()).shards
    problems = [
        DefinitionProblem(reason, field="partition", job=f"job `{definition.name}`", code="unknown-shard")
        for definition in divided
        if definition.partition is not None and (reason := shard_map.unknown(definition.partition, shards)) is not None
    ]
    if problems:
        raise DefinitionError(*problems)


async def check_dependents(
    definitions: Mapping[str, JobDefinition],
    list_jobs: Callable[[], Awaitable[Sequence[Job]]],
    may_see: MaySee = all_visible,
) -> None:
    """Refuse definitions with several executions for an instant while registered jobs depend on them.

    Raises:
        DefinitionError: names one of these jobs, unless the caller may not see it.
    """
    divided = {name for name, definition in definitions.items() if fans_out(definition)}
    if not divided:
        return
    for job in await list_jobs():
        met = divided & set(upstream_jobs(job.definition.depends_on)) if job.name not in definitions else set[str]()
        if met:
            shown = f"`{job.name}`" if await may_see(job.name) else HIDDEN
            reason = f"{shown} depends on this job, and a dependency is the last run of a job: run on a single shard"
            problem = DefinitionProblem(reason, job=f"job `{min(met)}`", field="partition", code="not-supported")
            raise DefinitionError(problem)
