"""Events of an execution that waits for acknowledgements of agents."""

from typing import Literal, TypeAlias

from .execution import ExecutionFact
from .message import Sequence

QuorumOutcome: TypeAlias = Literal["reached", "no_quorum", "queue_full"]


class Proposed(ExecutionFact):
    """An execution was proposed to agents, which must acknowledge it before it starts.

    The agent keeper stores this, and sends the proposal to each of these agents. If too few acknowledge in time, it stores the next proposal.
    """

    type: Literal["proposed"] = "proposed"
    """The type of the event."""
    attempt: int
    """The number of the proposal, counted from 1."""
    agents: tuple[str, ...] = ()
    """The processes that it names, as `<name>.<id>`: enabled agents that may run one of the steps."""
    needed: int
    """The acknowledgements that it needs: those of the definition, and at least a majority of these agents."""


class Acknowledged(ExecutionFact):
    """An agent acknowledged a proposal.

    So its process ran, was enabled, and had the function of a step. The agent keeper stores this once for each agent that the proposal names.
    """

    type: Literal["acknowledged"] = "acknowledged"
    """The type of the event."""
    attempt: int
    """The number of the proposal."""
    proposal: Sequence
    """The sequence of the proposal, which the agent repeated."""
    name: str
    """The name of the agent."""
    agent_id: str
    """The id of its process."""


class QuorumSettled(ExecutionFact):
    """An execution waits for acknowledgements no longer.

    The agent keeper stores this. The lock keeper then admits or skips the execution.
    """

    type: Literal["quorum-settled"] = "quorum-settled"
    """The type of the event."""
    outcome: QuorumOutcome
    """`reached`: it may run. `no_quorum`: too few agents acknowledged the last proposal. `queue_full`: as many executions of its job
    as may wait did so already."""
    attempt: int = 0
    """The number of the last proposal; absent: there was none."""
