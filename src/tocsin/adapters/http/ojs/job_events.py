"""Events of jobs (ojs-events §4.1), and of workflows (ojs-workflows, appendix B)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from ....domain import events
from ....domain.events import Failure, JobState, Message, Recorded
from ....domain.execution.workflow import callbacks, container
from ....domain.trace_context import parse
from . import workflow_envelope
from .job_view import Json, about_of, instant

STATES: Final[dict[str, JobState]] = {
    "job.scheduled": "scheduled",
    "job.enqueued": "available",
    "job.started": "active",
    "job.completed": "completed",
    "job.retrying": "retryable",
    "job.discarded": "discarded",
    "job.expired": "discarded",
    "job.cancelled": "cancelled",
}
"""The state of a job after each event. After `job.failed`, the next event has it."""


def described(error: Failure | None) -> Json:
    """Return an error as a field of an event's data; without an error, no field."""
    if error is None:
        return {}
    shown = error.document(exclude_none=True, exclude={"traceback"})
    return {"error": {"code": error.type, **shown}}


def lasted(since: datetime | None, at: datetime) -> Json:
    """Return the time since a start as a field of an event's data, if known."""
    return {} if since is None else {"duration_ms": round((at - since).total_seconds() * 1000)}


def of_job(kind: str, job_id: str, function: str | None, queue: str | None, **data: Any) -> tuple[str, str, Json]:  # noqa: ANN401 - JSON
    """Return the type, the subject and the data of an event."""
    state = {"state": STATES[kind]} if kind in STATES else {}
    return kind, job_id, {"job_id": job_id, "job_type": function, "queue": queue, **state, **data}


def failures(
    fact: events.RetryScheduled | events.Exhausted | events.Failed, max_attempts: int | None = None
) -> Iterator[tuple[str, Json]]:
    """Yield the types and the data of the events of a failed attempt."""
    error, attempt = described(fact.error), fact.attempt
    failed = {"attempt": attempt, **error}
    match fact:
        case events.RetryScheduled(next_attempt_at=next_attempt_at):
            yield "job.failed", failed
            most = {} if max_attempts is None else {"max_attempts": max_attempts}
            yield "job.retrying", {**failed, **most, "next_retry_at": instant(next_attempt_at)}
        case _:
            if attempt is not None:
                yield "job.failed", failed
            last = {"last_error": error["error"]} if error else {}
            yield "job.discarded", {**failed, "total_attempts": attempt or 0, **last}


@dataclass(slots=True)
class JobEvents:
    """Reads the stored events of one execution, oldest first.

    Without its beginning, the events have what its task says. It keeps no arguments, since a list has readers of many executions.
    """

    id: str | None = None
    function: str | None = None
    queue: str | None = None
    max_attempts: int | None = None
    requested_at: datetime | None = None
    expires_at: datetime | None = None
    started: datetime | None = None
    trace: Json = field(default_factory=dict)
    is_admitted: bool = False
    is_enqueued: bool = False

    def take(self, fact: Recorded[Message]) -> Iterable[tuple[str, str, Json]]:
        """Yield the type, the subject and the data of the events of a stored event."""
        message = fact.message
        match message:
            case events.Admitted(plan=plan):
                first = plan.steps[0]
                self.is_admitted = True
                self.id = _id_of(plan.meta)
                self.function, self.queue, self.max_attempts = first.function, first.queue, first.retry.max_attempts
                self.requested_at, self.expires_at = fact.time, plan.expires_at
                self.trace = trace_of(message.meta, message.traceparent)
                self.is_enqueued = plan.start_at is None  # otherwise it is enqueued when it is due
                if plan.start_at is None:
                    yield self._of(message, "job.enqueued", priority=first.priority)
                else:
                    at = instant(plan.start_at)
                    yield self._of(message, "job.scheduled", scheduled_at=at, priority=first.priority)
            case events.Dispatched():
                self.id = self.id if self.is_admitted else _id_of(message.meta)
                self.function, self.queue, self.max_attempts = message.function, message.queue, message.max_attempts
                self.trace = self.trace or trace_of(message.meta, message.traceparent)
                if not self.is_enqueued and self.is_admitted:
                    yield self._of(message, "job.enqueued", priority=message.priority)
                self.is_enqueued = True
            case events.Started():
                self.started, self.is_enqueued = fact.time, True
                yield self._of(message, "job.started", attempt=message.attempt, worker_id=message.worker)
            case events.RetryScheduled() | events.Exhausted():
                for kind, data in failures(message, self.max_attempts):
                    if kind != "job.discarded":  # the execution goes on
                        yield self._of(message, kind, **data, **lasted(self.started, fact.time))
            case events.Completed() | events.Failed() | events.Cancelled():
                yield from self._ended(message, fact.time)
            case _:
                pass

    def _ended(
        self, end: events.Completed | events.Failed | events.Cancelled, at: datetime
    ) -> Iterator[tuple[str, str, Json]]:
        duration = lasted(self.started, at)
        match end:
            case events.Completed():
                yield self._of(end, "job.completed", attempt=end.attempt, **duration)
            case events.Failed():
                if end.reason == "expired":
                    yield self._of(end, "job.expired", expired_at=instant(at), **self._lifetime())
                for kind, data in failures(end):
                    yield self._of(end, kind, **data, **duration)
            case events.Cancelled():
                yield self._of(end, "job.cancelled", **duration)

    def _of(self, fact: events.ExecutionFact, kind: str, **data: Any) -> tuple[str, str, Json]:  # noqa: ANN401 - JSON
        id_ = self.id or fact.execution_id
        return of_job(kind, id_, self.function, self.queue, job=fact.job, **self.trace, **data)

    def _lifetime(self) -> Json:
        if self.requested_at is None or self.expires_at is None:
            return {}
        ttl = max(0, round((self.expires_at - self.requested_at).total_seconds() * 1000))
        return {"created_at": instant(self.requested_at), "ttl_ms": ttl}


def _id_of(meta: Json) -> str | None:
    own = about_of(meta).get("id")
    return None if own is None else str(own)


def trace_of(meta: Json, traceparent: str | None) -> Json:
    """Return the trace that a job's sender named (ojs-events §9.1)."""
    if isinstance(trace_id := meta.get("trace_id"), str):
        return {"trace_id": trace_id}
    context = parse(traceparent)
    return {} if context is None else {"trace_id": context.trace_id}


def is_of_workflow(message: Message) -> bool:
    """Return whether an event is of an execution that is a workflow."""
    return str(getattr(message, "job", "")).rpartition(".")[2] == workflow_envelope.JOB  # a namespace may precede it


@dataclass(slots=True)
class WorkflowEvents:
    """Reads the stored events of one workflow, oldest first.

    Without its beginning, the events of its jobs have no type and name of the workflow.
    """

    execution_id: str
    workflow: events.Workflow | None = None
    functions: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The type and the queue of each job."""
    started: dict[str, datetime] = field(default_factory=dict)
    max_attempts: dict[str, int] = field(default_factory=dict)
    trace: Json = field(default_factory=dict)
    total: int = 0
    ended: int = 0
    begun_at: datetime | None = None
    failed: str | None = None

    def take(self, fact: Recorded[Message]) -> Iterator[tuple[str, str, Json]]:
        """Yield the type, the subject and the data of the events of a stored event."""
        match fact.message:
            case events.Admitted(plan=plan) as admitted:
                self.workflow = plan.workflow
                self.trace = trace_of(admitted.meta, admitted.traceparent)
                self.functions = {step.name: (step.function, step.queue) for step in plan.steps}
                self.total = len(plan.steps)
                yield self._of_workflow("created", job_count=self.total)
            case events.Dispatched(step=step, attempt=1, function=function, queue=queue, max_attempts=max_attempts):
                self.max_attempts[step] = max_attempts
                self.functions[step] = function, queue
                if (kind := self._callback(step)) is not None:
                    yield self._of_workflow("callback_fired", callback=kind, job_id=self._job_id(step))
                yield self._of_job("job.enqueued", step)
            case events.Started(step=step, attempt=attempt, worker=worker):
                if self.workflow is not None and not self.started:
                    self.begun_at = fact.time
                    yield self._of_workflow("started", total_steps=self.total)
                self.started[step] = fact.time
                yield self._of_job("job.started", step, attempt=attempt, worker_id=worker)
            case events.RetryScheduled() as retry:
                for kind, data in failures(retry, self.max_attempts.get(retry.step)):
                    yield self._of_job(kind, retry.step, **data)
            case events.Advanced() | events.Exhausted() | events.Completed() | events.Failed() | events.Cancelled():
                yield from self._ended(fact)
            case _:
                pass

    def _ended(self, fact: Recorded[Message]) -> Iterator[tuple[str, str, Json]]:
        end = fact.message
        match end:
            case events.Advanced(step=step, attempt=attempt) | events.Completed(step=str(step), attempt=attempt):
                yield from self._job_ended(step, fact.time, attempt=attempt)
            case events.Failed(step=str(step), attempt=attempt, step_completed=True):
                yield from self._job_ended(step, fact.time, attempt=attempt)
            case (events.Exhausted(step=step) | events.Failed(step=str(step), error=Failure())) as failure:
                self.failed = self.failed or step
                yield from self._job_ended(step, fact.time, failure, attempt=failure.attempt)
            case _:
                pass
        match end:
            case events.Completed():
                size = {} if self.workflow is None else {"total_steps": self.total}
                yield self._of_workflow("completed", **size, **lasted(self.begun_at, fact.time))
            case events.Failed():
                place = {} if self.failed is None else {"failed_step_id": self.failed}
                of_type = {"failed_step_type": self.functions[self.failed][0]} if self.failed in self.functions else {}
                yield self._of_workflow("failed", **place, **of_type, **described(end.first_error))
            case events.Cancelled():
                yield self._of_workflow("cancelled")
            case _:
                pass

    def _job_ended(
        self,
        step: str,
        at: datetime,
        failure: events.Exhausted | events.Failed | None = None,
        **data: Any,  # noqa: ANN401 - JSON
    ) -> Iterator[tuple[str, str, Json]]:
        self.ended += 1
        data |= lasted(self.started.get(step), at)
        if failure is None:
            yield self._of_job("job.completed", step, **data)
        else:
            for kind, of_failure in failures(failure):
                yield self._of_job(kind, step, **{**data, **of_failure})
            data |= described(failure.error)
        node = None if self.workflow is None else container(self.workflow, step)
        if node is None or step not in node.members:
            return
        noun = "job" if node.kind in {"group", "batch"} else "step"
        verb = "completed" if failure is None else "failed"
        place = {f"{noun}_index": node.members.index(step), f"{noun}_type": self.functions.get(step, ("", ""))[0]}
        if noun == "step":
            remaining = len(node.members) - node.members.index(step) - 1
            place |= {"step_id": step, "remaining_steps": remaining, "steps_remaining": self.total - self.ended}
        yield self._of_workflow(f"{noun}_{verb}", **place, job_id=self._job_id(step), **data)

    def _of_job(self, kind: str, step: str, **data: Any) -> tuple[str, str, Json]:  # noqa: ANN401 - JSON
        function, queue = self.functions.get(step, (None, None))
        return of_job(kind, self._job_id(step), function, queue, workflow_id=self.execution_id, **self.trace, **data)

    def _of_workflow(self, kind: str, **data: Any) -> tuple[str, str, Json]:  # noqa: ANN401 - JSON
        root = None if self.workflow is None else self.workflow.nodes[0]
        known = {} if root is None else {"workflow_type": root.kind, "workflow_name": root.name}
        return f"workflow.{kind}", self.execution_id, {"workflow_id": self.execution_id, **known, **data}

    def _callback(self, step: str) -> str | None:
        nodes = () if self.workflow is None else self.workflow.nodes
        return next((kind for node in nodes for kind, name in callbacks(node).items() if name == step), None)

    def _job_id(self, step: str) -> str:
        return f"{self.execution_id}:{step}"
