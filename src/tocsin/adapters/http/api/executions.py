"""`/v1/executions`: what ran, one run in every detail, and ending one (hip-62, API Endpoints).

Lists come from the history, a moment behind; one execution is folded from its facts as they are now.
"""

from datetime import datetime
from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from ....domain import execution, history
from ....domain.access import Permission, Principal
from ....domain.dead_letter import attempts_of
from ....domain.definition import Text
from ....domain.events import Actor, Attempt, Completed, Failed
from ....domain.history import Status
from ....ports import ExecutionRow
from ....ports.queries import ExecutionQuery, ExecutionSort
from ....services.operations.cancellation import cancel
from ....services.operations.errors import NotFound
from ....services.operations.lookup import ExecutionMatch, find
from ..auth.security import Canceller, Reader, actor, forbidden
from ..middleware.idempotency import IdempotentRoute
from .dependencies import Components, Here, Reason
from .events import StoredFact
from .jobs import ChangeRequest
from .problems import documented

router = APIRouter(prefix="/v1/executions", tags=["executions"], route_class=IdempotentRoute)

ExecutionId: TypeAlias = Annotated[
    str, Path(description="The execution's id.", pattern=r"^[A-Za-z0-9][A-Za-z0-9\-]*$", max_length=64)
]


class ExecutionFilters(BaseModel):
    """Which executions, in which order."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    job: Text | None = None
    status: Status | None = None
    trigger: Text | None = None
    tag: Text | None = None
    """Only those of jobs with this tag."""
    since: datetime | None = None
    """Scheduled then or later."""
    until: datetime | None = None
    """Scheduled before that."""
    error: Text | None = None
    """A text that their last error contains."""
    id_prefix: Text | None = None
    sort: ExecutionSort = "newest"
    cursor: Text | None = None
    """`next` of the page before."""
    limit: int = Field(default=50, ge=1, le=1_000)


class ExecutionList(BaseModel):
    """A page of executions; `next` is the cursor of the one behind it."""

    executions: list[ExecutionRow]
    next: str | None = None


class ExecutionStep(BaseModel):
    """One step as it is now."""

    status: Status
    attempt: int
    started_at: datetime | None = None
    ended_at: datetime | None = None
    next_attempt_at: datetime | None = None
    error: str | None = None
    result: Any = None


class ExecutionDetails(BaseModel):
    """One execution as its facts tell it at this moment."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    execution_id: str
    job_name: str
    status: Status
    trigger: str
    scheduled_time: datetime
    started_at: datetime
    completed_at: datetime | None
    duration_ms: int | None
    attempt: int
    worker: str | None
    error: str | None
    by: Actor | None = None
    """Who asked for it, if somebody did."""
    definition: int | None = None
    """The sequence of the definition that it runs by."""
    fence: int | None = None
    """The fencing token of its lock, if it holds one."""
    result: Any = None
    """What the last step to end came to."""
    steps: dict[str, ExecutionStep]
    attempts: list[Attempt]

    @classmethod
    def of(cls, found: ExecutionMatch) -> "ExecutionDetails":
        """Fold the facts."""
        record = history.fold({}, found.facts)[found.execution_id]
        state = execution.fold(found.facts)
        asked = state.requested
        steps = {
            name: ExecutionStep(
                status=step.status,
                attempt=step.attempt,
                started_at=step.started_at,
                ended_at=step.ended_at,
                next_attempt_at=state.steps[name].next_attempt_at if name in state.steps else None,
                error=step.error,
                result=state.steps[name].result if name in state.steps else None,
            )
            for name, step in record.steps.items()
        }
        return cls(
            execution_id=record.execution_id,
            job_name=record.job,
            status=record.status,
            trigger=record.trigger,
            scheduled_time=record.scheduled_time,
            started_at=record.started_at,
            completed_at=record.completed_at,
            duration_ms=record.duration_ms,
            attempt=record.attempt,
            worker=record.worker,
            error=record.error,
            by=asked.by if asked else None,
            definition=asked.plan.definition if asked else None,
            fence=state.fence,
            result=next((f.message.result for f in found.facts if isinstance(f.message, Completed | Failed)), None),
            steps=steps,
            attempts=list(attempts_of(found.facts)),
        )


class ExecutionFacts(BaseModel):
    """The facts of one execution, the newest of each subject, oldest first."""

    execution_id: str
    job_name: str
    facts: list[StoredFact]


class Ended(BaseModel):
    """What became of a request to end an execution; `changed`: this very request did."""

    job: str
    execution_id: str
    status: str
    changed: bool


@router.get("", operation_id="listExecutions")
async def list_executions(here: Here, caller: Reader, filters: Annotated[ExecutionFilters, Query()]) -> ExecutionList:
    """List executions; a page may hold fewer than `limit` where some are not for the caller to see."""
    page = await here.history.executions(ExecutionQuery(**filters.model_dump()))
    rows = [row for row in page.rows if await here.sight.reaches(caller, row.job_name)]
    return ExecutionList(executions=rows, next=page.cursor)


@router.get("/{id}", operation_id="getExecution", responses=documented(404))
async def get_execution(here: Here, caller: Reader, id: ExecutionId) -> ExecutionDetails:  # noqa: A002 - as the path has it
    """Show one execution: its steps, its attempts, how it stands."""
    return ExecutionDetails.of(await _found(here, caller, id))


@router.get("/{id}/events", operation_id="getExecutionEvents", responses=documented(404))
async def get_execution_events(here: Here, caller: Reader, id: ExecutionId) -> ExecutionFacts:  # noqa: A002 - as the path has it
    """The facts of one execution."""
    found = await _found(here, caller, id)
    facts = [StoredFact.of(recorded) for recorded in found.facts]
    return ExecutionFacts(execution_id=found.execution_id, job_name=found.job, facts=facts)


@router.post("/{id}/cancel", operation_id="cancelExecution", responses=documented(404, 409))
async def cancel_execution(
    here: Here,
    caller: Canceller,
    id: ExecutionId,  # noqa: A002 - as the path has it
    asked: ChangeRequest | None = None,
    reason: Reason = None,
) -> Ended:
    """End an execution, whether it is planned, waits for its lock, or runs. One that is over stays as it is."""
    found = await _found(here, caller, id)
    if not await here.sight.permits(caller, Permission.CANCEL, found.job):
        raise forbidden(caller, Permission.CANCEL)
    why = (asked.reason if asked else None) or reason
    done = await cancel(here.log, id, by=actor(caller), reason=why, job=found.job)
    return Ended(job=done.job, execution_id=done.execution_id, status=done.status.value, changed=done.changed)


async def _found(here: Components, caller: Principal, given: str) -> ExecutionMatch:
    found = await find(here.log, given, stored=here.stored)
    if not await here.sight.reaches(caller, found.job):
        raise NotFound(f"no execution has the id {given!r}")
    return found
