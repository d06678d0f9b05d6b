"""Checks of the class of a job against the installation (scratchbird, Job Classes)."""

from collections.abc import Collection, Iterable, Iterator

from ...domain.definition import (
    LEADER_ONLY,
    QUORUM_REPLICAS,
    QUORUM_REQUIRED,
    DefinitionError,
    DefinitionProblem,
    JobDefinition,
    show,
)
from ...ports import EventLog
from ...subjects import DECISION_STREAMS


async def check_class(definitions: Iterable[JobDefinition], log: EventLog, bridged: Collection[str]) -> None:
    """Refuse jobs whose class needs what the installation does not have.

    A server acknowledges an event of streams with three replicas after a majority of their servers has it. `bridged`: the
    queues of executors outside, which are no agents, so that none of them can be the executor leader or acknowledge anything.

    Raises:
        DefinitionError: a stream has too few replicas, or a task would go to a queue of executors outside.
        LogUnavailable: the log did not answer.
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
    numbers = {stream: await log.replicas(stream) for stream in DECISION_STREAMS}
    few = [f"{stream} has {number}" for stream, number in numbers.items() if number < QUORUM_REPLICAS]
    if not few:
        return ""
    return (
        f"needs at least {QUORUM_REPLICAS} replicas of {' and '.join(DECISION_STREAMS)}, and {', '.join(few)}: run "
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
