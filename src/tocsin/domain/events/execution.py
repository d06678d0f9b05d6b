"""Events of an execution: its plan, admission, recovery and end."""

from datetime import datetime
from typing import Any, Final, Literal, Self, TypeAlias

from ..text import utc_text
from .message import (
    OCCURRENCES,
    Actor,
    Failure,
    Json,
    OwnMessage,
    Sequence,
    TriggerKind,
    VersionedMessage,
    constant,
)
from .plan import Plan, StoredPlan
from .triggers import EventReference


class ExecutionFact(VersionedMessage, frozen=True, kw_only=True):
    """An event about one execution."""

    job: str
    execution_id: str
    """The id of the execution (UUIDv7)."""


class Requested(ExecutionFact, frozen=True, kw_only=True):
    """The fields that `planned` and `admitted` share, so that each can be read alone."""

    scheduled_time: datetime
    trigger: TriggerKind
    plan: StoredPlan
    """The work of the execution."""
    by: Actor | None = None
    """The identity that requested the execution; absent: the schedule."""
    catch_up: bool = False
    """True: the occurrence fires late, under the catch-up policy."""
    replay_of: str | None = None
    """The dead letter that is replayed: the id of the failed execution or poison message."""
    failed_only: bool = False
    """True: steps that completed in the execution `replay_of` are adopted, and do not run again."""
    backfill: str | None = None
    """The name of the backfill that this execution belongs to."""
    traceparent: str | None = None
    """The trace that the execution belongs to, as the header of W3C Trace Context; absent: none is made."""
    event: EventReference | None = None
    """The event that started the execution; absent: none did."""

    @property
    def hops(self) -> int:
        """Return the executions that events started one after the other, up to this execution."""
        return 0 if self.event is None else self.event.hops + 1

    @property
    def meta(self) -> dict[str, Json]:
        """Return the metadata of the tasks (`meta_of`)."""
        return meta_of(self.plan, self.job, self.trigger, self.scheduled_time)


def meta_of(plan: Plan, job: str, trigger: TriggerKind, scheduled_time: datetime) -> dict[str, Json]:
    """Return the metadata of an execution's tasks.

    An occurrence also carries the name of its job and its instant (ojs-cron §6.3, CRON-20), and an execution on a shard the shard.
    """
    shard: dict[str, Json] = {} if plan.shard is None else {"shard": plan.shard}
    if trigger not in OCCURRENCES:
        return {**plan.meta, **shard} if shard else plan.meta
    return {**plan.meta, **occurrence_meta(job, scheduled_time), **shard}


def occurrence_meta(job: str, scheduled_time: datetime) -> dict[str, Json]:
    return {"cron_name": job, "cron_triggered_at": utc_text(scheduled_time)}


class Planned(Requested, frozen=True, kw_only=True):
    """An execution was planned.

    The planner stores this for each occurrence or trigger that depends on other jobs, needs acknowledgements of agents, or waits
    for the job's lock.
    """

    type: Literal["planned"] = constant("planned")
    trigger_id: str | None = None
    """The end of the subject of its trigger's `cron.answer`, after the job; absent: no trigger requested it."""


class Admitted(Requested, frozen=True, kw_only=True):
    """An execution may run.

    The planner stores this if no lock is needed or the lock is free; otherwise the lock keeper does once the execution holds it.
    """

    type: Literal["admitted"] = constant("admitted")
    fence: Sequence | None = None
    """The fencing token of the lock; absent: the job uses no lock."""
    recovered_at: datetime | None = None
    """The time (UTC) of the last recovery before the admission, if any."""


DependencySkipReason: TypeAlias = Literal["dependency_missing", "dependency_failed"]
AnnouncedSkipReason: TypeAlias = (
    Literal["overlap_skip", "queue_full", "disabled", "dst_skip", "no_shard", "no_quorum", "namespace_quota"]
    | DependencySkipReason
)
SkipReason: TypeAlias = AnnouncedSkipReason | Literal["refused", "duplicate", "poison"]
DEPENDENCY_SKIPS: Final = frozenset({"dependency_missing", "dependency_failed"})
LOCK_SKIPS: Final = frozenset({"overlap_skip", "queue_full", "no_quorum"}) | DEPENDENCY_SKIPS
"""The reasons of the lock keeper: the execution was planned before."""


class Refusal(OwnMessage, frozen=True, kw_only=True):
    """The error of a request."""

    code: str
    """The code of the error."""
    message: str
    """The text of the error."""


class Skipped(ExecutionFact, frozen=True, kw_only=True):
    """An occurrence does not run, and the execution is over.

    The lock keeper stores this if another execution holds the lock (`overlap_skip`), if too many wait for it (`queue_full`), or
    if the jobs on which it depends did not run in time (`dependency_missing`) or failed (`dependency_failed`). It also does so if
    too few agents acknowledged the execution (`no_quorum`).
    The planner stores it for instants that passed while the job was paused or disabled (`disabled`) or that the clocks
    skipped (`dst_skip`), and if no shard of a divided job is active (`no_shard`). It also stores it for a trigger that the job does
    not accept (`refused`), which then becomes a dead letter, and for an enqueued job whose unique key another job has (`duplicate`).
    It stores it for an occurrence or a trigger beyond a daily quota of the namespace too (`namespace_quota`), and for an occurrence on
    which its decision fails (`poison`), which is a defect.
    """

    type: Literal["skipped"] = constant("skipped")
    reason: SkipReason
    """The reason why the occurrence does not run."""
    scheduled_time: datetime
    """The instant (UTC) of the occurrence."""
    trigger: TriggerKind
    definition: Sequence
    """The sequence of the definition in the job's ledger."""
    cron_expression: str | None = None
    timezone: str = "UTC"
    active_execution_id: str | None = None
    """The execution that holds the lock, or has the unique key."""
    trigger_id: str | None = None
    """The end of the subject of its trigger's `cron.answer`, after the job; absent: no trigger requested it."""
    refusal: Refusal | None = None
    """The error of the trigger; set if the reason is `refused`."""
    traceparent: str | None = None
    """The trace that the execution belongs to, as the header of W3C Trace Context; absent: none is made."""
    shard: str | None = None
    """The shard of the execution."""

    @classmethod
    def of(cls, first: Requested, reason: SkipReason, **more: Any) -> Self:  # noqa: ANN401 - other fields
        """Return the end of an execution by its first event; `more` are other fields."""
        return cls(
            job=first.job,
            execution_id=first.execution_id,
            reason=reason,
            scheduled_time=first.scheduled_time,
            trigger=first.trigger,
            definition=first.plan.definition,
            cron_expression=first.plan.cron_expression,
            timezone=first.plan.timezone,
            trigger_id=first.trigger_id if isinstance(first, Planned) else None,
            **more,
        )

    @property
    def is_announced(self) -> bool:
        """Return whether the skip has a public event.

        A refused trigger, a duplicate, and a job that is not registered have none.
        """
        is_of_job = self.reason != "namespace_quota" or self.definition > 0
        return self.refusal is None and self.reason != "duplicate" and is_of_job


class FannedOut(ExecutionFact, frozen=True, kw_only=True):
    """An occurrence or a trigger became one execution on each of some shards.

    The planner stores this under the id that a single execution would have, before the executions begin. Their ids are made of this id
    and the shard, so that a redelivery begins the same executions. No event follows under this id.
    """

    type: Literal["fanned-out"] = constant("fanned-out")
    scheduled_time: datetime
    trigger: TriggerKind
    """The cause of the executions."""
    definition: Sequence
    """The sequence of the definition in the job's ledger."""
    map: Sequence
    """The version of the shard map: the sequence of its event in the ledger."""
    shards: tuple[str, ...]
    """The shards, sorted."""
    by: Actor | None = None
    """The identity that requested the executions; absent: the schedule."""


QuorumOutcome: TypeAlias = Literal["reached", "no_quorum", "queue_full"]


class Proposed(ExecutionFact, frozen=True, kw_only=True):
    """An execution was proposed to agents, which must acknowledge it before it starts.

    The agent keeper stores this, and sends the proposal to each of these agents. If too few acknowledge in time, it stores the next proposal.
    """

    type: Literal["proposed"] = constant("proposed")
    attempt: int
    """The number of the proposal, counted from 1."""
    agents: tuple[str, ...] = ()
    """The processes that it names, as `<name>.<id>`: enabled agents that may run one of the steps."""
    needed: int
    """The acknowledgements that it needs: those of the definition, and at least a majority of these agents."""


class Acknowledged(ExecutionFact, frozen=True, kw_only=True):
    """An agent acknowledged a proposal.

    So its process ran, was enabled, and had the function of a step. The agent keeper stores this once for each agent that the proposal names.
    """

    type: Literal["acknowledged"] = constant("acknowledged")
    attempt: int
    """The number of the proposal."""
    proposal: Sequence
    """The sequence of the proposal, which the agent repeated."""
    name: str
    """The name of the agent."""
    agent_id: str
    """The id of its process."""


class QuorumSettled(ExecutionFact, frozen=True, kw_only=True):
    """An execution waits for acknowledgements no longer.

    The agent keeper stores this. The lock keeper then admits or skips the execution.
    """

    type: Literal["quorum-settled"] = constant("quorum-settled")
    outcome: QuorumOutcome
    """`reached`: it may run. `no_quorum`: too few agents acknowledged the last proposal. `queue_full`: as many executions of its job
    as may wait did so already."""
    attempt: int = 0
    """The number of the last proposal; absent: there was none."""


class Lost(OwnMessage, frozen=True, kw_only=True):
    """The last event of an execution or step, after which nothing followed."""

    what: Literal["planned", "admitted"]
    """The type of the last event."""
    since: datetime
    """The time (UTC) since which nothing followed."""
    step: str | None = None
    """The step; absent: the execution as a whole."""
    attempt: int | None = None
    """The attempt of the step."""


class Recovered(ExecutionFact, frozen=True, kw_only=True):
    """An execution was lost on its way to a worker and continues.

    The recoverer stores this once the responsible stage has taken the last event and decided nothing.
    """

    type: Literal["recovered"] = constant("recovered")
    recovery: int
    """The number of this recovery, counted from 1."""
    lost: tuple[Lost, ...]
    """Everything that was lost."""
    recovered_at: datetime
    """The time (UTC) of the recovery, by the clock of the recoverer."""


ExhaustedReason: TypeAlias = Literal["attempts", "non_retryable"]


class Terminal(ExecutionFact, frozen=True, kw_only=True):
    """The end of an execution: no event follows.

    It repeats the fields that readers of the end need.
    """

    scheduled_time: datetime
    trigger: TriggerKind
    fence: Sequence | None = None
    """The fencing token of the execution's lock, which is now free."""
    step: str | None = None
    """The step that ended last; absent: the execution was ended as a whole."""
    attempt: int | None = None
    """The attempt of that step."""
    shard: str | None = None
    """The shard of the execution, whose lock is now free."""
    hops: int = 0
    """The executions that events started one after the other, up to this execution; 0: no event started it."""


class Completed(Terminal, frozen=True, kw_only=True):
    """Every step completed, or a workflow did.

    The DAG advancer stores this on the report of the last step. It has no step if the last job of a batch failed, and no callback was due.
    """

    type: Literal["completed"] = constant("completed")
    result: Json = None
    """The result of the last step."""
    cancelled_steps: tuple[str, ...] = ()
    """The steps of a workflow that never ran."""


FailedReason: TypeAlias = ExhaustedReason | Literal["timed_out", "abandoned", "expired", "poison"]


class Failed(Terminal, frozen=True, kw_only=True):
    """An execution failed (hip-62, Job Dependency Graphs).

    The retrier or the DAG advancer stores this when a step is exhausted and no other step can run. It has no step if
    the execution took too long (`timed_out`, by the retrier) or was lost for good (`abandoned`, by the recoverer). The
    lease keeper stores it if no worker started the execution before it expired (`expired`). A stage stores it if its own decision on the
    execution fails (`poison`), which is a defect.
    """

    type: Literal["failed"] = constant("failed")
    step_completed: bool = False
    """True: `step` itself completed, and `error` belongs to the step exhausted before it."""
    error: Failure | None = None
    """The error of the exhausted step, or the reason why the execution was ended."""
    cause: Failure | None = None
    """The error of the step that failed before the callback of `error`; absent: no callback failed last."""
    reason: FailedReason | None = None
    """The reason for the failure."""
    result: Json = None
    """The result of `step`, if it completed."""
    cancelled_steps: tuple[str, ...] = ()
    """The steps that never ran."""
    dead_letter: bool = False
    """True: the failure produces a dead letter."""

    @property
    def first_error(self) -> Failure | None:
        """Return the error for which the execution failed; a failed callback does not hide it."""
        return self.cause or self.error


class Cancelled(Terminal, frozen=True, kw_only=True):
    """A user, the purge of a queue, or the overlap policy `cancel_previous` cancelled an execution.

    The DAG advancer or the API stores this on request, the lock keeper under the overlap policy, and the matcher or the MQ
    bridge after a purge.
    """

    type: Literal["cancelled"] = constant("cancelled")
    by: Actor | None = None
    """The identity that cancelled the execution."""
    reason: str | None = None
    """The reason that the caller gave."""
    purge: Sequence | None = None
    """The sequence of the purge (`purged` of a queue, in the ledger) that cancelled the execution; None: no purge did."""
