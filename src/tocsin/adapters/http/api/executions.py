"""`/v1/executions`: list, show and cancel executions (hip-62, API Endpoints)."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any, Final, TypeAlias

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field, JsonValue

from ....domain import execution, history, trace_context
from ....domain.access import Permission, Principal
from ....domain.dead_letter import attempts_of
from ....domain.definition import Text
from ....domain.events import Actor, Attempt, Completed, EventReference, Failed, FannedOut, Recorded
from ....domain.execution import WaitsFor
from ....domain.execution_record import Status
from ....domain.ledger import JobNotFound
from ....domain.quorum import Standing
from ....ports import ExecutionRow
from ....ports.queries import ExecutionQuery, ExecutionSort
from ....services.hold_ups import HoldUp
from ....services.operations.errors import NotFound
from ....services.operations.execution_output import (
    MAX_LINES,
    ExecutionOutput,
    Progress,
    output_if_readable,
    read_output,
)
from ....services.operations.execution_requests import Cancellation, cancel
from ....services.operations.lookup import ExecutionMatch, FanOut, fanned_out, find, read_fan_out
from ..auth.security import Canceller, HistoryReader, actor
from ..auth.visibility import Run
from ..middleware.idempotency import IdempotentRoute
from .dependencies import Cause, Components, Here, shown_as
from .events import StoredFact
from .problems import documented

router = APIRouter(prefix="/v1/executions", tags=["executions"], route_class=IdempotentRoute)

ExecutionId: TypeAlias = Annotated[
    str, Path(description="The execution's id.", pattern=r"^[A-Za-z0-9][A-Za-z0-9\-]*$", max_length=64)
]


_OF_NO_RUN: Final[dict[str, Any]] = dict.fromkeys(("started_at", "waits_for", "completed_at", "duration_ms", "worker"))


class ExecutionFilters(BaseModel, extra="forbid", use_attribute_docstrings=True):
    """Filters and order of a list of executions."""

    job: Text | None = None
    status: Status | None = None
    trigger: Text | None = None
    tag: Text | None = None
    """Return executions of jobs with this tag only."""
    occurrence: Text | None = None
    """Return the executions on shards that were fanned out under this id."""
    since: datetime | None = None
    """The earliest scheduled time."""
    until: datetime | None = None
    """The scheduled time is before this instant."""
    error: Text | None = None
    """Text that the last error contains."""
    id_prefix: Text | None = None
    sort: ExecutionSort = "newest"
    cursor: Text | None = None
    """`next` of the previous page."""
    limit: int = Field(default=50, ge=1, le=1_000)


class ExecutionList(BaseModel):
    """A page of executions; `next` is the cursor of the following page."""

    executions: list[ExecutionRow]
    next: str | None = None


class ExecutionStep(BaseModel):
    """The current state of a step."""

    status: Status
    queue: str | None = None
    function: str | None = None
    attempt: int
    started_at: datetime | None = None
    ended_at: datetime | None = None
    next_attempt_at: datetime | None = None
    error: str | None = None
    result: Any = None
    worker: str | None = None
    """The worker that last claimed an attempt of the step."""
    duration_ms: int | None = None
    progress: Progress | None = None
    """What the step's handler reported last, for as long as it is kept."""


class ExecutionDetails(BaseModel, use_attribute_docstrings=True):
    """The current state of an execution, folded from its events."""

    execution_id: str
    job_name: str
    status: Status
    trigger: str
    scheduled_time: datetime
    event: EventReference | None = None
    """The event that started it, the first of a batch or the last of a debounced key; null: none did."""
    started_at: datetime | None
    """The first start of a step; null: no worker has started one."""
    waits_for: WaitsFor | None
    """What a pending execution waits for: runs of other jobs, acknowledgements, its job's lock, a worker, or the end of a delay."""
    acknowledgements: Standing | None = None
    """The acknowledgements of agents, if it waits for them."""
    held_up_by: list[HoldUp]
    """What holds back its tasks that wait for a worker; a task that only waits its turn is left out."""
    completed_at: datetime | None
    duration_ms: int | None
    attempt: int
    worker: str | None
    error: str | None
    by: Actor | None = None
    """The caller that requested it, if a caller did."""
    definition: int | None = None
    """The sequence of the definition that it runs."""
    fence: int | None = None
    """The number of its lock, if it holds the lock. The fencing tokens of its tasks are higher."""
    input: dict[str, JsonValue] | None = None
    """Its input; null: it is an occurrence that fanned out, or the log no longer has its request."""
    args: list[JsonValue] | None = None
    """Its positional arguments; null: as for `input`."""
    result: Any = None
    """The result of the last step to end."""
    steps: dict[str, ExecutionStep]
    attempts: list[Attempt]
    shard: str | None = None
    """The shard on which it runs; null: its job is not divided."""
    occurrence_id: str | None = None
    """The id under which it and those of other shards were fanned out."""
    start_at: datetime | None = None
    """The time before which it does not start: its own, or by the jitter of its job."""
    start_delay_ms: int | None = None
    """The milliseconds by which the jitter of its job delayed its start; null: none."""
    fan_out: FanOut | None = None
    """The executions on the shards, of an occurrence that fanned out. `status` is then the state of all together."""
    trace_id: str | None = None
    """The trace of the execution; null: it has none."""
    trace_url: str | None = None
    """The page of the trace (`server.trace_url`), if the trace is exported."""
    permitted: list[Permission] = []
    """What the caller may do: `cancel` the execution, and `trigger` its job."""

    @classmethod
    def of_fan_out(cls, fanned: Recorded[FannedOut], fan_out: FanOut) -> "ExecutionDetails":
        fact = fanned.message
        return shown_as(
            cls,
            fact,
            job_name=fact.job,
            status=fan_out.status,
            **_OF_NO_RUN,
            held_up_by=[],
            attempt=max((run.attempt for run in fan_out.runs), default=0),
            error=next((run.error for run in fan_out.runs if run.error), None),
            steps={},
            attempts=[],
            fan_out=fan_out,
        )

    @classmethod
    def of(
        cls,
        match: ExecutionMatch,
        progress: Mapping[str, Progress] | None = None,
        hold_ups: Sequence[HoldUp] = (),
        trace_link: Callable[[str], str | None] = lambda _: None,
    ) -> "ExecutionDetails":
        """Fold the events of an execution; `trace_link` returns the page of a trace."""
        record = history.fold({}, match.facts)[match.execution_id]
        state = execution.fold(match.facts)
        requested = state.requested
        planned = {step.name: step for step in requested.plan.steps} if requested else {}
        steps = {
            name: shown_as(
                ExecutionStep,
                step,
                queue=planned[name].queue if name in planned else None,
                function=planned[name].function if name in planned else None,
                next_attempt_at=state.steps[name].next_attempt_at if name in state.steps else None,
                result=state.steps[name].result if name in state.steps else None,
                progress=(progress or {}).get(name),
            )
            for name, step in record.steps.items()
        }
        trace = trace_context.parse(requested.traceparent) if requested else None
        return shown_as(
            cls,
            record,
            job_name=record.job,
            started_at=record.shown_start,
            waits_for=match.waits_for,
            acknowledgements=execution.acknowledgements(state),
            held_up_by=list(hold_ups),
            event=requested.event if requested else None,
            by=requested.by if requested else None,
            definition=requested.plan.definition if requested else None,
            fence=state.fence,
            input=requested.plan.input if requested else None,
            args=list(requested.plan.args) if requested else None,
            result=next((f.message.result for f in match.facts if isinstance(f.message, Completed | Failed)), None),
            steps=steps,
            attempts=list(attempts_of(match.facts)),
            trace_id=None if trace is None else trace.trace_id,
            trace_url=trace_link(trace.trace_id) if trace and (trace.is_sampled or record.status == "failed") else None,
            start_at=requested.plan.start_at if requested else None,
        )


class ExecutionFacts(BaseModel, use_attribute_docstrings=True):
    """The events of an execution, the newest of each subject, oldest first."""

    execution_id: str
    job_name: str
    facts: list[StoredFact]
    expected: StoredFact | None = None
    """The event that would begin the execution now, if it is requested and not planned yet. It is not stored: its `sequence` is 0."""


@router.get("", operation_id="listExecutions")
async def list_executions(
    here: Here, caller: HistoryReader, filters: Annotated[ExecutionFilters, Query()]
) -> ExecutionList:
    """List executions.

    A page has fewer than `limit` rows if the caller may not see some of them.
    """
    page = await here.history.executions(ExecutionQuery(**filters.model_dump(), namespaces=caller.reached))
    rows = [row for row in page.rows if await here.visibility.may_see_run(caller, Run.of(row))]
    return ExecutionList(executions=rows, next=page.cursor)


@router.get("/{id}", operation_id="getExecution", responses=documented(404))
async def get_execution(here: Here, caller: HistoryReader, id: ExecutionId) -> ExecutionDetails:
    """Show an execution: its state, its steps and its attempts.

    The id of an occurrence that fanned out shows the executions on its shards.
    """
    match = await _visible_match(here, caller, id)
    fanned, fan_out = fanned_out(match), await read_fan_out(here.log, match)
    if fanned is not None and fan_out is not None:
        details = ExecutionDetails.of_fan_out(fanned, fan_out)
    else:
        output = await output_if_readable(read_output(here.log, match, limit=1))
        hold_ups = await here.hold_ups(caller).of(match.facts)
        details = ExecutionDetails.of(match, output.progress, hold_ups, here.settings.server.trace_link)
    details.permitted = await _permitted(here, caller, match)
    return details


@router.get("/{id}/logs", operation_id="getExecutionLogs", responses=documented(404))
async def get_execution_logs(
    here: Here,
    caller: HistoryReader,
    id: ExecutionId,
    after: Annotated[
        int, Query(ge=0, lt=2**63, description="`next` of the answer before; 0: from the first line.")
    ] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_LINES)] = MAX_LINES,
) -> ExecutionOutput:
    """List the lines that the handlers of an execution logged.

    To follow an execution, ask again with `after` until `is_over`.
    """
    match = await _visible_match(here, caller, id)
    return await read_output(here.log, match, after=after, limit=limit, stored=here.stored)


@router.get("/{id}/events", operation_id="getExecutionEvents", responses=documented(404))
async def get_execution_events(here: Here, caller: HistoryReader, id: ExecutionId) -> ExecutionFacts:
    """List the events of an execution."""
    match = await _visible_match(here, caller, id)
    facts = [StoredFact.of(recorded) for recorded in match.events]
    expected = None if match.is_planned else StoredFact.of(match.facts[0])
    return ExecutionFacts(execution_id=match.execution_id, job_name=match.job, facts=facts, expected=expected)


@router.post("/{id}/cancel", operation_id="cancelExecution", responses=documented(404, 409))
async def cancel_execution(here: Here, caller: Canceller, id: ExecutionId, cause: Cause) -> Cancellation:
    """Cancel an execution that is planned, waits for its lock, or runs.

    An execution that has ended does not change. The id of an occurrence that fanned out cancels the executions on all its shards.
    """
    match = await _visible_match(here, caller, id)
    await here.visibility.require(caller, Permission.CANCEL, Run.of(match))
    return await cancel(here.log, id, by=actor(caller), reason=cause, job=match.job)


async def _permitted(here: Components, caller: Principal, match: ExecutionMatch) -> list[Permission]:
    permitted = list[Permission]()
    if await here.visibility.may_see_run(caller, Run.of(match), Permission.CANCEL):
        permitted.append(Permission.CANCEL)
    with suppress(JobNotFound):
        if caller.may_with(Permission.TRIGGER, await here.registry.job(match.job)):
            permitted.append(Permission.TRIGGER)
    return permitted


async def _visible_match(here: Components, caller: Principal, given: str) -> ExecutionMatch:
    match = await find(here.log, given)
    if not await here.visibility.may_see_run(caller, Run.of(match)):
        raise NotFound(f"no execution has the id {given!r}")
    return match
