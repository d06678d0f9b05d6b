"""The backlog of queues whose tasks the matcher assigns."""

from collections.abc import Sequence

from pydantic import ValidationError

from ...domain.agent import AgentState
from ...domain.task_board import QueueBacklog
from ...ports import EventLog, Projections
from ...subjects import Bucket
from ..agents import AgentRegistry


async def backlogs(projections: Projections) -> dict[str, QueueBacklog]:
    """Return the backlogs by queue, as the leading matcher wrote them a moment ago.

    Raises:
        LogUnavailable: the log did not answer.
    """
    found: dict[str, QueueBacklog] = {}
    for body in (await projections.entries(Bucket.QUEUES)).values():
        try:
            backlog = QueueBacklog.model_validate_json(body)
        except ValidationError:
            continue  # of a newer version
        found[backlog.queue] = backlog
    return found


async def readers(log: EventLog, projections: Projections, queues: Sequence[str]) -> dict[str, int]:
    """Return the number of agents that take tasks of each queue.

    Raises:
        LogUnavailable: the log did not answer.
    """
    agents = [agent for agent in await AgentRegistry(log, projections).agents() if agent.state is AgentState.ENABLED]
    return {queue: sum(queue in agent.queues for agent in agents) for queue in queues}
