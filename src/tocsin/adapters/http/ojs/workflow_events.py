"""Events of workflows and of their jobs (ojs-workflows, appendix B)."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ....domain.events import (
    Admitted,
    Advanced,
    Cancelled,
    Completed,
    Dispatched,
    Exhausted,
    Failed,
    Failure,
    Message,
    Recorded,
    RetryScheduled,
    Started,
    Workflow,
)
from ....domain.execution.workflow import callbacks, container
from . import workflow_envelope
from .job_events import described, failures, of_job, trace_of
from .job_view import Json


def is_of_workflow(message: Message) -> bool:
    """Return whether an event is of an execution that is a workflow."""
    return str(getattr(message, "job", "")).rpartition(".")[2] == workflow_envelope.JOB  # a namespace may precede it


@dataclass(slots=True)
class WorkflowEvents:
    """Reads the stored events of one workflow, oldest first.

    Without its beginning, the events of its jobs have no type and name of the workflow.
    """

    execution_id: str
    workflow: Workflow | None = None
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
            case Admitted(plan=plan) as admitted:
                self.workflow = plan.workflow
                self.trace = trace_of(admitted.meta, admitted.traceparent)
                self.functions = {step.name: (step.function, step.queue) for step in plan.steps}
                self.total = len(plan.steps)
                yield self._of_workflow("created", job_count=self.total)
            case Dispatched(step=step, attempt=1, function=function, queue=queue, max_attempts=max_attempts):
                self.max_attempts[step] = max_attempts
                self.functions[step] = function, queue
                if (kind := self._callback(step)) is not None:
                    yield self._of_workflow("callback_fired", callback=kind, job_id=self._job_id(step))
                yield self._of_job("job.enqueued", step)
            case Started(step=step, attempt=attempt, worker=worker):
                if self.workflow is not None and not self.started:
                    self.begun_at = fact.time
                    yield self._of_workflow("started", total_steps=self.total)
                self.started[step] = fact.time
                yield self._of_job("job.started", step, attempt=attempt, worker_id=worker)
            case RetryScheduled() as retry:
                for kind, data in failures(retry, self.max_attempts.get(retry.step)):
                    yield self._of_job(kind, retry.step, **data)
            case Advanced() | Exhausted() | Completed() | Failed() | Cancelled():
                yield from self._ended(fact)
            case _:
                pass

    def _ended(self, fact: Recorded[Message]) -> Iterator[tuple[str, str, Json]]:
        end = fact.message
        match end:
            case Advanced(step=step, attempt=attempt) | Completed(step=str(step), attempt=attempt):
                yield from self._job_ended(step, fact.time, attempt=attempt)
            case Failed(step=str(step), attempt=attempt, step_completed=True):
                yield from self._job_ended(step, fact.time, attempt=attempt)
            case (Exhausted(step=step) | Failed(step=str(step), error=Failure())) as failure:
                self.failed = self.failed or step
                yield from self._job_ended(step, fact.time, failure, attempt=failure.attempt)
            case _:
                pass
        match end:
            case Completed():
                yield self._of_workflow("completed", **self._size(), **self._lasted(fact.time))
            case Failed():
                place = {} if self.failed is None else {"failed_step_id": self.failed}
                of_type = {"failed_step_type": self.functions[self.failed][0]} if self.failed in self.functions else {}
                yield self._of_workflow("failed", **place, **of_type, **described(end.first_error))
            case Cancelled():
                yield self._of_workflow("cancelled")
            case _:
                pass

    def _size(self) -> Json:
        return {} if self.workflow is None else {"total_steps": self.total}

    def _lasted(self, at: datetime) -> Json:
        return {} if self.begun_at is None else {"duration_ms": round((at - self.begun_at).total_seconds() * 1000)}

    def _job_ended(
        self,
        step: str,
        at: datetime,
        failure: Exhausted | Failed | None = None,
        **data: Any,  # noqa: ANN401 - JSON
    ) -> Iterator[tuple[str, str, Json]]:
        self.ended += 1
        if step in self.started:
            data["duration_ms"] = round((at - self.started[step]).total_seconds() * 1000)
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
