"""Events of the steps of an execution: tasks, claims, retries and results."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, Literal

from ..hold_up_time import HoldUpCause
from .execution import Admitted, ExecutionFact, ExhaustedReason, Requested, meta_of
from .message import (
    Actor,
    Death,
    Failure,
    Json,
    Message,
    OwnMessage,
    Recorded,
    ReleasedReason,
    Sequence,
    StartRate,
    TriggerKind,
    constant,
)
from .plan import StoredPlan
from .triggers import EventReference


class Admission(OwnMessage, frozen=True, kw_only=True):
    """The fields of an admission that its first task does not have itself."""

    plan: StoredPlan
    """The work of the execution: a single step.

    The input, the arguments and the metadata of the task are only here.
    """
    by: Actor | None = None
    """The identity that requested the execution; absent: the schedule."""
    catch_up: bool = False
    """True: the occurrence fires late, under the catch-up policy."""
    backfill: str | None = None
    """The name of the backfill that this execution belongs to."""
    event: EventReference | None = None
    """The event that started the execution; absent: none did."""


_OF_ADMISSION: Final = tuple(Admission.__struct_fields__)
_admission_of: Final = attrgetter(*_OF_ADMISSION)
_OF_TASK: Final = tuple(
    name for name in Requested.__struct_fields__ if name not in {"v", "failed_only", *_OF_ADMISSION}
)
_task_of: Final = attrgetter(*_OF_TASK)


class TaskLimit(OwnMessage, frozen=True, kw_only=True):
    """A concurrency limit of a task.

    It counts the tasks of the job with the same `key` and `value` together.
    """

    limit: int
    """The greatest number of these tasks that workers may have at a time."""
    key: str | None = None
    """The path to the value; absent: all tasks of the job are counted together."""
    value: str | None = None
    """The value, or its digest if it is long; absent: the task has none."""


class Dispatched(ExecutionFact, frozen=True, kw_only=True):
    """One attempt of a step was dispatched.

    The DAG advancer stores this, and it is also the task that a worker receives. Version 2 also admits the execution. The
    planner or the lock keeper stores it for an execution of a single step that may start at once. Its subject begins
    like that of `admitted`, and a later task of the same attempt does not replace it.
    """

    v: Literal[1, 2] = constant(1)  # type: ignore[assignment]  # the only event of an execution with a second version
    """The version of the format; 2: the event also admits the execution."""
    type: Literal["dispatched"] = constant("dispatched")
    step: str
    attempt: int
    max_attempts: int
    """The number of attempts that the retry policy allows."""
    function: str
    """The function that the worker runs."""
    builtin: dict[str, Json] | None = None
    """The specification of a built-in function, from the definition alone; absent: the function is not built in, or the plan of
    the admission has it."""
    job_uuid: str | None = None
    """The id of the job's registration (scratchbird, `job_uuid`); absent: the job runs no SQL, it is not registered, or the plan of
    the admission has it."""
    queue: str = "default"
    """The queue that delivers the task."""
    priority: int = 0
    """The priority of the task in its queue, from -100 to 100."""
    concurrency: TaskLimit | None = None
    """The concurrency limit of the task; absent: unlimited."""
    rate: StartRate | None = None
    """The rate at which the task and others start; absent: unlimited."""
    resource: str | None = None
    """The resource whose owner alone gets the task; absent: any worker gets it."""
    shard: str | None = None
    """The shard on which the execution runs; absent: the job is not divided."""
    input: dict[str, Json] = {}
    """The input of the function."""
    args: tuple[Json, ...] = ()
    """The positional arguments of the function."""
    bind: dict[str, Json] | None = None
    """The sources of the handler's arguments by parameter; absent: it gets the input and the positional arguments, or the plan of the
    admission has it."""
    upstream: dict[str, Json] = {}
    """The results of the steps that this step depends on, by step."""
    upstream_left_out: tuple[str, ...] = ()
    """The steps whose results are left out because the task would be too large."""
    timeout: float
    """Seconds that the attempt may take."""
    scheduled_time: datetime
    trigger: TriggerKind
    fence: Sequence | None = None
    """The fencing token of the execution's lock; absent: the job uses no lock."""
    token: str
    """The secret of this attempt, which its workers receive. It makes the subjects of their output."""
    replay_of: str | None = None
    """The dead letter that the execution replays."""
    meta: dict[str, Json] = {}
    """Metadata of the job.

    For an occurrence, also the job's name and the scheduled time (ojs-cron §6.3).
    """
    tags: tuple[str, ...] = ()
    """The tags of the job."""
    is_recovery: bool = False
    """True: the execution was lost and recovered (cloacina, recovery context)."""
    original_scheduled_time: datetime | None = None
    """After a recovery: the instant (UTC) of the occurrence."""
    recovery_attempt_time: datetime | None = None
    """After a recovery: the time (UTC) of that recovery."""
    traceparent: str | None = None
    """The trace that the execution belongs to, as the header of W3C Trace Context; absent: none is made."""
    hops: int = 0
    """The executions that events started one after the other, up to this execution; 0: no event started it."""
    deaths: int = 0
    """The number of workers that were lost with a task of the step. After the first, an agent gets no two such tasks at a time."""
    runs_alone: bool = False
    """True: the loss of one more worker ends the step, so that its agent gets no other task."""
    admits: Admission | None = None
    """The admission of the execution; absent in version 1."""

    @property
    def admitted(self) -> Admitted | None:
        """Return the admission as a separate event; None: this is only a task."""
        if self.admits is None:
            return None
        own = dict(zip(_OF_TASK, _task_of(self), strict=True))
        of_admission = dict(zip(_OF_ADMISSION, _admission_of(self.admits), strict=True))
        return Admitted(**own, **of_admission, fence=self.fence, recovered_at=self.recovery_attempt_time)

    @property
    def task(self) -> "Dispatched":
        """Return the task alone, with the plan's tags and copies of its data.

        Messages share plans, and a handler may change its input.
        """
        if self.admits is None:
            return self
        plan = self.admits.plan
        step = plan.steps[0]
        meta = meta_of(plan, self.job, self.trigger, self.scheduled_time)
        return self.changed(
            v=1,
            admits=None,
            input=_own(plan.input if step.input is None else step.input),
            args=_own(plan.args if step.args is None else step.args),
            builtin=step.builtin,
            job_uuid=plan.job_uuid,
            bind=step.bind,
            meta=_own({**meta, **step.meta} if step.meta else meta),
            tags=plan.tags,
        )

    @property
    def recovery_context(self) -> dict[str, Json]:
        """Return the metadata that a worker outside receives of a recovery (cloacina, recovery context).

        It is empty if the execution was never recovered.
        """
        if not self.is_recovery:
            return {}
        fields = {"is_recovery", "original_scheduled_time", "recovery_attempt_time"}
        return self.document(include=fields, exclude_none=True)


def _own(content: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return a copy of JSON that nothing shares; `deepcopy` takes ten times as long."""
    if isinstance(content, dict):
        return {key: _own(value) for key, value in content.items()} if content else {}
    return type(content)(map(_own, content)) if isinstance(content, list | tuple) else content


def admission_of(recorded: Recorded[Message]) -> Recorded[Admitted] | None:
    """Return the admission in a task as a separate event, if it has one.

    Its subject is that of a separate `admitted`.
    """
    message = recorded.message
    if type(message) is not Dispatched or (admitted := message.admitted) is None:
        return None
    subject = ".".join(recorded.subject.split(".", 4)[:4])
    return Recorded(admitted, subject, recorded.sequence, recorded.time, recorded.message_id)


def unfold(facts: Iterable[Recorded[Message]]) -> Iterator[Recorded[Message]]:
    """Yield events, with an admission that is also a task as two events.

    Both have the sequence of the stored event.
    """
    for recorded in facts:
        admission = admission_of(recorded)
        if admission is None or not isinstance(recorded.message, Dispatched):
            yield recorded
        else:
            yield admission
            task = recorded.message.task
            yield Recorded(task, recorded.subject, recorded.sequence, recorded.time, recorded.message_id)


class PastHoldUp(OwnMessage, frozen=True, kw_only=True):
    """The time for which a cause held back a task.

    Several causes may do so at the same time.
    """

    cause: HoldUpCause
    """`job_limit`, `key_limit`, `queue_limit` or `namespace_limit` (concurrency), `queue_rate` or `start_rate`, or `queue_paused`."""
    seconds: float
    """The seconds, as the matcher that assigned the task saw them: without the time before its process began."""


class Started(ExecutionFact, frozen=True, kw_only=True):
    """A worker claimed an attempt.

    The matcher, or the MQ bridge, stores this before the function runs.
    """

    type: Literal["started"] = constant("started")
    step: str
    attempt: int
    delivery: int
    """The number of the delivery, counted from 1; it distinguishes this claim from any other."""
    worker: str
    """The name of the worker."""
    lease: float | None = None
    """Seconds after the last heartbeat until the claim expires.

    Absent: an agent has the claim, and its hold lists keep it.
    """
    agent: str | None = None
    """The id of the agent to which the matcher assigned the task; absent: a worker over HTTP fetched it."""
    holder: str | None = None
    """The identity that fetched the task over HTTP, with its kind; only that identity may answer for it."""
    fetch: str | None = None
    """The id of the request that fetched the task over HTTP, if the matcher answered it."""
    epoch: Sequence | None = None
    """The epoch of the agent as the owner of the task's resource; absent: any worker gets the task."""
    held_up: tuple[PastHoldUp, ...] = ()
    """What held back the task before this claim: limits, rates and pauses; absent: none did."""


class LeaseExtended(ExecutionFact, frozen=True, kw_only=True):
    """A heartbeat of a worker over HTTP extended its lease.

    The retrier stores this on the report of the heartbeat.
    """

    type: Literal["lease-extended"] = constant("lease-extended")
    step: str
    attempt: int
    claim: Sequence
    """The sequence of the `started` event of the claim."""
    until: datetime
    """The time (UTC) at which the lease ends."""


class Released(ExecutionFact, frozen=True, kw_only=True):
    """A claim ended before its attempt did.

    The DAG advancer then dispatches the same attempt again. The retrier stores this when the visibility lease has
    expired or the agent was lost (`lease_over`), and when the agent stopped or did not take the task (`handed_back`). The API
    stores it when a worker over HTTP hands the task back.
    """

    type: Literal["released"] = constant("released")
    step: str
    attempt: int
    delivery: int
    """The delivery number of the claim that ended."""
    task: Sequence
    """The sequence of the task that was claimed."""
    reason: ReleasedReason
    """The reason why the claim ended."""
    deaths: tuple[Death, ...] = ()
    """After `lease_over`: the workers that were lost with a task of the step, up to this loss; oldest first."""


class RetryScheduled(ExecutionFact, frozen=True, kw_only=True):
    """An attempt failed and will be retried.

    The retrier stores this on the report of the failure.
    """

    type: Literal["retry-scheduled"] = constant("retry-scheduled")
    step: str
    attempt: int
    """The number of the attempt that failed, counted from 1."""
    error: Failure
    """The reported error."""
    delay: float
    """Seconds between the failure and the next attempt."""
    next_attempt_at: datetime
    """The time (UTC) at which the next attempt is dispatched."""


class Advanced(ExecutionFact, frozen=True, kw_only=True):
    """A step completed and the execution continues.

    The DAG advancer stores this on the report of success. It also does so for each step that a replay adopts from the failed execution.
    """

    type: Literal["advanced"] = constant("advanced")
    step: str
    attempt: int
    """The number of the attempt that succeeded, counted from 1; 0: no attempt of this execution did."""
    result: Json = None
    """The result that the worker reported."""
    adopted_from: str | None = None
    """The earlier execution that has the result; absent: a worker reported it to this execution."""


class Exhausted(ExecutionFact, frozen=True, kw_only=True):
    """A step failed for good while other steps still run, or a workflow goes on.

    The retrier stores this on the report of the failure.
    """

    type: Literal["exhausted"] = constant("exhausted")
    step: str
    attempt: int
    """The number of the last attempt, counted from 1."""
    error: Failure
    """The error of the last attempt."""
    reason: ExhaustedReason
    """The reason why no attempt follows.

    `attempts`: none is left. `non_retryable`: the error forbids a retry.
    """
