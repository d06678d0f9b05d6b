"""Checks of definitions against other jobs, transports of queues, and shards.

A check raises `DefinitionError` with a problem for each definition that it refuses.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence

from ...domain import execution_plan, shard_map
from ...domain.commit import MAX_CALL_BYTES
from ...domain.definition import (
    LEADER_ONLY,
    QUORUM_REPLICAS,
    QUORUM_REQUIRED,
    DefinitionError,
    DefinitionProblem,
    EventTrigger,
    JobDefinition,
    fans_out,
    show,
    upstream_jobs,
)
from ...domain.definition.builtin_work import PREFIX, is_builtin
from ...domain.event_trigger import started_by, webhooks_of
from ...domain.ledger import Ledger
from ...domain.secret_reference import refers_to_secrets
from ...ports import EventLog
from ...settings.triggers import bucket_place, stream_of
from ..shards import ShardMaps
from .dependencies import MaySee, all_visible, follow, refuse_circle, shown
from .job import Job


async def check_class(definitions: Iterable[JobDefinition], log: EventLog, bridged: Collection[str]) -> None:
    """Refuse jobs whose class needs what the installation does not have.

    A server acknowledges an event of streams with three replicas after a majority of their servers has it. `bridged`: the
    queues of executors outside, which are no agents, so that none of them can be the executor leader or acknowledge anything.
    """
    special = [definition for definition in definitions if definition.job_class != "LOCAL_SAFE"]
    needy = [definition for definition in special if definition.job_class == QUORUM_REQUIRED]
    few = await _few_replicas(log) if needy else ""
    problems = [
        *(_problem(definition, few, "too-few-replicas") for definition in needy if few),
        *_of_agents(special, frozenset(bridged)),
    ]
    if problems:
        raise DefinitionError(*problems)


async def _few_replicas(log: EventLog) -> str:
    """Return why a job that needs a quorum cannot be registered; empty: it can."""
    if (number := await log.replicas()) >= QUORUM_REPLICAS:
        return ""
    return (
        f"needs at least {QUORUM_REPLICAS} replicas of the log, and it has {number}: run "
        f"{QUORUM_REPLICAS} servers as a cluster, set `replicas: {QUORUM_REPLICAS}`, and run `tocsin init`; or leave "
        "`job_class` out"
    )


def _of_agents(definitions: Iterable[JobDefinition], bridged: frozenset[str]) -> Iterator[DefinitionProblem]:
    for definition in definitions:
        queues = {step.queue for step in definition.steps() if step.queue is not None} & bridged
        if definition.job_class == LEADER_ONLY and queues:
            reason = (
                f"queue `{min(queues)}` is for executors outside, of which none can be the executor leader: use a queue whose "
                "transport is matched"
            )
            yield _problem(definition, reason, "exclusive-fields")
        if definition.acknowledgements is not None and queues:
            reason = (
                f"queue `{min(queues)}` is for executors outside, which are no agents and acknowledge nothing: use a queue whose "
                "transport is matched, or leave `acknowledgements` out"
            )
            yield _problem(definition, reason, "exclusive-fields")


def _problem(definition: JobDefinition, reason: str, code: str) -> DefinitionProblem:
    return DefinitionProblem(
        reason, field="job_class", value=show(definition.job_class), job=f"job `{definition.name}`", code=code
    )


async def check_partitions(definitions: Collection[JobDefinition], log: EventLog) -> None:
    """Refuse jobs on shards that the newest map does not have.

    Refuse any job with a partition while no shard is active.
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
            reason = f"{await shown(job.name, (), may_see)} depends on this job, and a dependency is the last run of a job: run on a single shard"
            problem = DefinitionProblem(reason, job=f"job `{min(met)}`", field="partition", code="not-supported")
            raise DefinitionError(problem)


def check_sizes(definitions: Iterable[JobDefinition]) -> None:
    """Refuse jobs whose executions might not fit a decision.

    Each step of a plan repeats the job's retry policy, and may have a copy of the trigger's input.
    """
    sizes = {each.name: execution_plan.largest_message_bytes(each) for each in definitions}
    problems = [
        DefinitionProblem(
            f"the plan of an execution, with a trigger's input, may need {size:,} bytes, and a decision holds at most "
            f"{MAX_CALL_BYTES:,}: divide the job, or keep large data in a store and refer to it",
            job=f"job `{name}`",
            code="too-large",
        )
        for name, size in sizes.items()
        if size > MAX_CALL_BYTES
    ]
    if problems:
        raise DefinitionError(*problems)


def check_transports(definitions: Iterable[JobDefinition], bridged: Collection[str]) -> None:
    """Refuse built-in functions, bindings and secrets in the queues `bridged` of executors outside.

    A secret would be stored in the stream of their tasks, which each of them reads.
    """
    problems = [
        DefinitionProblem(
            "the executors of a queue with `transport: mq` know no bindings: name a queue that workers of the SDK read, or "
            "give the step an `input`",
            job=f"job `{definition.name}`",
            field="bind",
            step=step.name,
            code="no-binding-worker",
        )
        for definition in definitions
        for step in definition.dag
        if step.bind is not None and (step.queue or definition.queue) in bridged
    ]
    problems += [
        DefinitionProblem(
            f"the executors of a queue with `transport: mq` cannot run `{step.function.removeprefix(PREFIX)}`: "
            "name a queue that workers of the SDK read",
            job=f"job `{definition.name}`",
            field="queue",
            step=step.name if definition.dag else None,
            value=f"`{queue}`",
            code="no-builtin-worker",
        )
        for definition in definitions
        for step in definition.steps()
        if is_builtin(step.function) and (queue := step.queue or definition.queue) in bridged
    ]
    problems += [
        DefinitionProblem(
            f"the executors of queue `{queue}` (`transport: mq`) get no secrets, because their tasks are stored: let them read "
            "their own, name a queue that workers of the SDK read, or write $${ for a literal ${",
            job=f"job `{definition.name}`",
            field=field,
            step=step.name if definition.dag else None,
            code="secret-reference-not-allowed",
        )
        for definition in definitions
        for step in definition.steps()
        if (queue := step.queue or definition.queue) in bridged
        for field, value in (("input", step.input), ("args", step.args))
        if value and refers_to_secrets(value)
    ]
    if problems:
        raise DefinitionError(*problems)


async def check_trigger_circles(
    definitions: Mapping[str, JobDefinition],
    load: Callable[[Sequence[str]], Awaitable[Sequence[Ledger]]],
    may_see: MaySee,
) -> None:
    """Refuse definitions with triggers that would start each other in a circle.

    `load` and `may_see`: as for `check_dependencies`. The event listener starts nothing for a circle that two registrations at the same
    moment close.
    """
    graph: dict[str, Sequence[str]] = {
        name: started_by(definition) for name, definition in definitions.items() if definition.triggers
    }
    await follow(graph, definitions, load, started_by)
    what = "jobs would start each other in a circle, and never stop"
    await refuse_circle(graph, definitions, may_see, "triggers", what)


def outside_stream(trigger: EventTrigger, opened: Mapping[str, Sequence[str]]) -> str | None:
    """Return the stream of a program that a trigger hears.

    None: its source is a job or a webhook, or not exactly one stream is open for it. `opened`: as for `stream_of`.
    """
    place = bucket_place(trigger)
    return stream_of(trigger, opened) if place is None else place[0]


async def check_webhook_paths(
    definitions: Mapping[str, JobDefinition],
    list_jobs: Callable[[], Awaitable[Sequence[Job]]],
    may_see: MaySee,
) -> None:
    """Refuse webhooks with the path of another job, also of a paused or disabled job.

    The API refuses all requests to a path that two registrations at the same moment give to two jobs.

    Raises:
        DefinitionError: names the other job, unless the caller may not see it.
    """
    if not any(trigger.webhook for definition in definitions.values() for trigger in definition.triggers):
        return
    stored = [job.definition for job in await list_jobs() if job.name not in definitions]
    taken = {path: definition.name for definition in stored for path in webhooks_of(definition)}
    for name, definition in sorted(definitions.items()):
        for number, trigger in enumerate(definition.triggers):
            if trigger.webhook is None:
                continue
            other = taken.setdefault(trigger.webhook, name)
            if other != name:
                reason = f"{await shown(other, definitions, may_see)} has this path already: choose another path"
                problem = DefinitionProblem(
                    reason,
                    job=f"job `{name}`",
                    field=f"triggers[{number}].webhook",
                    value=f"`{trigger.webhook}`",
                    code="duplicate-trigger",
                )
                raise DefinitionError(problem)
