"""Jobs that need a quorum of servers (scratchbird, Job Classes)."""

from collections.abc import Iterable
from typing import Final

from ...domain.definition import QUORUM_REPLICAS, DefinitionError, DefinitionProblem, JobDefinition, show
from ...ports import EventLog
from ...subjects import DECISION_STREAMS

NEEDED: Final = "QUORUM_REQUIRED"


async def check_quorum(definitions: Iterable[JobDefinition], log: EventLog) -> None:
    """Refuse jobs that need a quorum unless enough servers keep the ledger and the log.

    A server acknowledges an event of such streams after a majority of their servers has it.

    Raises:
        DefinitionError: a stream has too few replicas.
        LogUnavailable: the log did not answer.
    """
    names = [definition.name for definition in definitions if definition.job_class == NEEDED]
    if not names:
        return
    numbers = {stream: await log.replicas(stream) for stream in DECISION_STREAMS}
    few = [f"{stream} has {number}" for stream, number in numbers.items() if number < QUORUM_REPLICAS]
    if few:
        reason = (
            f"needs at least {QUORUM_REPLICAS} replicas of {' and '.join(DECISION_STREAMS)}, and {', '.join(few)}: run "
            f"{QUORUM_REPLICAS} servers as a cluster, set `replicas: {QUORUM_REPLICAS}`, and run `tocsin init`; or leave "
            "`job_class` out"
        )
        raise DefinitionError(
            *(
                DefinitionProblem(
                    reason, field="job_class", value=show(NEEDED), job=f"job `{name}`", code="too-few-replicas"
                )
                for name in names
            )
        )
