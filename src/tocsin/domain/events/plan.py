"""The plan of an execution, and the tree of a workflow."""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import msgspec

from ..definition import DEFAULT_MAX_DEATHS, DEFAULT_MAX_WAITING, Concurrency, JobClass, JobDependency, RetryPolicy
from .message import Json, OwnMessage, Sequence, StartRate

WorkflowKind: TypeAlias = Literal["chain", "group", "batch", "dag"]
"""How the members of a node run: one after another, together, together with callbacks, or by their dependencies."""


class WorkflowNode(OwnMessage, frozen=True, kw_only=True):
    """A chain, group, batch or DAG of a workflow."""

    key: str
    """The name by which another node names it; that of the outermost node is empty."""
    kind: WorkflowKind
    """How its members run."""
    members: tuple[str, ...]
    """The names of its steps and the keys of its nodes, in their order."""
    on_complete: str | None = None
    """The step of a batch that runs after all members ended; absent: none."""
    on_success: str | None = None
    """The step of a batch that runs after all members completed; absent: none."""
    on_failure: str | None = None
    """The step of a batch that runs after all members ended, if one failed; absent: none."""
    fails_with_members: bool = False
    """True: the batch fails if a member failed, also if its callbacks completed."""
    name: str | None = None
    """The name that the client gave; absent: none."""
    id: str | None = None
    """The id that the client gave to a nested node; absent: none."""


class Workflow(OwnMessage, frozen=True, kw_only=True):
    """The order in which the steps of an execution run.

    It decides when a step is ready. The dependencies of the steps show the graph, and say which results a step receives.
    """

    nodes: tuple[WorkflowNode, ...]
    """The nodes; the first is the outermost."""
    names_steps: bool = False
    """True: the client named each step with its dependencies (ojs-http-binding §14), and reads the workflow in this form."""


class StepMeta(OwnMessage, frozen=True, kw_only=True):
    """Metadata that only the tasks of one step carry."""

    step: str
    meta: dict[str, Json]
    """The metadata."""


class PlannedStep(OwnMessage, frozen=True, kw_only=True):
    """A step of a plan, with every default resolved."""

    name: str
    """The name of the step, unique within the job."""
    function: str
    """The function that a worker runs."""
    builtin: dict[str, Json] | None = None
    """The specification of a built-in function, from the definition alone; absent: the function is not built in."""
    depends_on: tuple[str, ...] = ()
    """The steps that must complete first."""
    timeout: float
    """The time limit of an attempt, in seconds."""
    queue: str = "default"
    """The queue that receives the tasks of this step."""
    priority: int = 0
    """The priority of the tasks of this step in their queue."""
    input: dict[str, Json] | None = None
    """The input of this step; absent: the input of the plan."""
    args: tuple[Json, ...] | None = None
    """The positional arguments of this step; absent: those of the plan."""
    bind: dict[str, Json] | None = None
    """The sources of the handler's arguments by parameter; absent: it gets the input and the positional arguments."""
    retry: RetryPolicy = RetryPolicy()
    """The retry policy of the step."""
    meta: dict[str, Json] | None = None
    """Metadata that only the tasks of this step carry, beside that of the plan; absent: none."""


class QuorumRule(OwnMessage, frozen=True, kw_only=True):
    """The acknowledgements of agents that an execution needs (scratchbird, QUORUM_REQUIRED)."""

    acknowledgements: int
    """The least number of agents that must acknowledge it."""
    timeout: float
    """Seconds for which a proposal waits for them."""
    max_attempts: int
    """The number of proposals after which the execution is skipped."""


class Plan(OwnMessage, frozen=True, kw_only=True):
    """The work of an execution.

    It is taken once from the definition in force, so that a later edit does not change a running execution.
    """

    definition: Sequence
    """The sequence of the definition in the job's ledger; 0: the job is not registered."""
    steps: tuple[PlannedStep, ...]
    """The steps, in the order of the definition."""
    input: dict[str, Json] = {}
    """The input of the execution."""
    args: tuple[Json, ...] = ()
    """The positional arguments of the execution."""
    overlap_policy: Literal["skip", "allow", "cancel_previous", "enqueue"] = "skip"
    """The rule for an execution while another execution holds the lock."""
    max_waiting: int = DEFAULT_MAX_WAITING
    """The number of executions of the job that may wait for its lock."""
    concurrency: Concurrency | None = None
    """The limit of the job's tasks that workers may have at a time; absent: unlimited."""
    rate: StartRate | None = None
    """The rate at which its tasks and others start; absent: unlimited."""
    job_class: JobClass = "LOCAL_SAFE"
    """The class of the job. Only the executor leader gets the tasks of `LEADER_ONLY`."""
    quorum: QuorumRule | None = None
    """The acknowledgements that the execution needs before it may start; absent: none."""
    depends_on: tuple[JobDependency, ...] = ()
    """The jobs whose last run in a window must end before the execution may start."""
    dependency_timeout: float | None = None
    """Seconds for which the execution waits for these jobs; absent: it waits for none."""
    dead_letter: bool = False
    """True: a failure of the execution produces a dead letter."""
    max_deaths: int = DEFAULT_MAX_DEATHS
    """The number of workers that may be lost with a task of one step before the step fails."""
    execution_timeout: float | None = None
    """Seconds that the whole execution may take after its admission; absent: unlimited."""
    cron_expression: str | None = None
    timezone: str = "UTC"
    tags: tuple[str, ...] = ()
    """The tags of the job."""
    meta: dict[str, Json] = {}
    """Metadata of the job, which every task carries.

    The name and the instant of an occurrence are not here, so that all occurrences share one plan.
    """
    start_at: datetime | None = None
    """The time (UTC) before which no task is dispatched."""
    start_delay: float | None = None
    """The seconds of `start_at` that were drawn from the job's `jitter`; absent: none."""
    expires_at: datetime | None = None
    """The time (UTC) from which on no task is dispatched any more (ojs-core §5.5)."""
    shard: str | None = None
    """The shard on which the execution runs; absent: the job is not divided."""
    occurrence: str | None = None
    """The id under which the execution and those of other shards were fanned out; absent: it stands for itself."""
    job_uuid: str | None = None
    """The id of the job's registration (scratchbird, `job_uuid`); absent: no step runs SQL, or the job is not registered."""
    workflow: Workflow | None = None
    """The workflow that decides when a step is ready; absent: the dependencies of the steps do."""


if not TYPE_CHECKING:
    StoredPlan = Annotated[msgspec.Raw, Plan]
else:
    StoredPlan: TypeAlias = Plan
"""A plan in an event. Many events repeat one plan, so that equal plans are read once."""
