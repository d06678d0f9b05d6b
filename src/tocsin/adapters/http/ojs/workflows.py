"""`/ojs/v1/workflows`: create, show, cancel and retry workflows of the Open Job Spec (ojs-workflows §11)."""

from typing import Any, Final

from fastapi import Request, Response

from .... import subjects
from ....domain import execution
from ....domain.access import Permission, Principal
from ....domain.events import Enqueued
from ....domain.execution import Status
from ....services.operations import dead_letters, event_waiter, execution_requests, lookup
from ....services.operations.errors import NotAnId, NotFound
from ....services.operations.lookup import ExecutionMatch
from ..api.dependencies import Components, Here, Traceparent
from ..api.problems import Problem
from ..auth.security import HistoryReader, Replayer, Triggerer, actor, forbidden
from ..auth.visibility import Run
from ..middleware.idempotency import IdempotentRoute, request_name
from . import envelope, job_view, jobs, protocol, workflow_envelope, workflow_view
from .dead_letters import begun
from .jobs import check_room
from .protocol import Body, Id, ojs_router

router = ojs_router("/ojs/v1/workflows", 404, 409, 413, route_class=IdempotentRoute)
_ARRAY: Final = {"type": "array", "items": {"type": "object"}}
_BODY: Final[dict[str, Any]] = {
    "type": {"type": "string", "enum": ["chain", "group", "batch"]},
    "id": {"type": "string"},
    "name": {"type": "string"},
    "steps": _ARRAY,
    "jobs": _ARRAY,
    "callbacks": {"type": "object"},
    "options": {"type": "object"},
}


@router.post("", status_code=201, operation_id="createWorkflow", openapi_extra=protocol.body_schema(**_BODY))
async def create(
    here: Here, caller: Triggerer, request: Request, body: Body, response: Response, traceparent: Traceparent = None
) -> dict[str, Any]:
    """Create and start a workflow.

    A repeated request with the same id returns the workflow that exists, with 200.
    """
    [execution_id], is_retried = jobs.made_ids(here, request)
    fresh = () if is_retried else (execution_id,)
    defaults = await jobs.defaults(here, traceparent)
    read = workflow_envelope.read(body, execution_id, defaults, actor(caller))
    wish = envelope.within(caller, read, defaults, execution_id)
    try:
        await check_room(here, wish)
    except Problem:
        if not await execution_requests.taken(here.log, [wish], fresh=fresh):
            raise
    try:
        [facts] = await execution_requests.enqueue(here.log, wish, arrivals=here.arrivals, fresh=fresh)
    except execution_requests.Duplicate:
        try:
            facts = (await _visible_match(here, caller, wish.execution_id)).facts
        except Problem:
            raise _taken(wish) from None
        response.status_code = 200
    expected = jobs.expected(here, wish)
    if facts and execution.fold(facts).request.plan != execution.fold(expected).request.plan:
        raise _taken(wish)
    response.headers["Location"] = f"/ojs/v1/workflows/{wish.execution_id}"
    shown = workflow_view.answer(facts or expected)
    if response.status_code == 200 and not caller.may(Permission.HISTORY):  # noqa: PLR2004 - it exists
        shown["workflow"] = {field: shown[field] for field in workflow_view.SUMMARY}
    return shown


@router.get("/{id}", operation_id="getWorkflow")
async def show(here: Here, caller: HistoryReader, workflow_id: Id) -> dict[str, Any]:
    """Show a workflow with the state and the result of each job."""
    match = await _visible_match(here, caller, workflow_id)
    return workflow_view.answer(match.facts)


@router.delete("/{id}", operation_id="cancelWorkflow")
async def cancel(here: Here, caller: Triggerer, workflow_id: Id) -> dict[str, Any]:
    """Cancel a workflow that has not ended, with all its jobs that have not ended."""
    match = await _visible_match(here, caller, workflow_id)
    await here.visibility.require(caller, Permission.CANCEL, Run.of(match))
    outcome = await execution_requests.cancel(
        here.log, match.execution_id, job=match.job, by=actor(caller), reason="by OJS client"
    )
    if not outcome.changed:
        raise Problem(409, "conflict", f"workflow {workflow_id} cannot be cancelled: it is {outcome.status}")
    match = await lookup.find(here.log, workflow_id, job=match.job)
    states = [step["state"] for step in workflow_view.jobs_of(match.facts)]
    return workflow_view.answer(
        match.facts,
        steps_cancelled=states.count("cancelled"),
        steps_already_completed=states.count("completed"),
    )


@router.post("/{id}/retry", status_code=201, operation_id="retryWorkflow")
async def retry(here: Here, caller: Replayer, request: Request, workflow_id: Id, response: Response) -> dict[str, Any]:
    """Run the failed part of a workflow again (an extension).

    It is a workflow with an id of its own. Its jobs that completed keep their results. It must have left a dead letter (`options.retry.on_exhaustion`).
    """
    match = await _visible_match(here, caller, workflow_id)
    if not await here.visibility.permits_replay(caller, Run.of(match)):
        raise forbidden(caller, Permission.REPLAY)
    await _check_dead_letter(here, match)
    name = request_name(request)
    replay = await dead_letters.replay(
        here.log,
        match.execution_id,
        job=match.job,
        by=actor(caller),
        reason="retried by OJS client",
        failed_only=True,
        request=name.name if name else None,
    )
    events = await begun(here, match.job, replay.execution_id or match.execution_id, f"workflow {workflow_id}")
    response.headers["Location"] = f"/ojs/v1/workflows/{replay.execution_id}"
    return workflow_view.answer(events)


async def _check_dead_letter(here: Components, match: ExecutionMatch) -> None:
    """Wait for the dead letter of a workflow, which is stored after its failure."""
    state = execution.fold(match.facts)
    if state.status is not Status.FAILED or not state.request.plan.dead_letter:
        reason = (
            'it left no dead letter; create it with "options": {"retry": {"on_exhaustion": "dead_letter"}}'
            if state.status is Status.FAILED
            else f"it is {state.status}"
        )
        raise Problem(409, "conflict", f"workflow {match.execution_id} cannot be retried: {reason}")
    if not await event_waiter.until(here.log, subjects.dead_letter(match.job, match.execution_id), bool):
        detail = f"the dead letter of workflow {match.execution_id} is not stored yet. Check that the stages run"
        raise Problem(503, "unavailable", detail)


async def _visible_match(here: Components, caller: Principal, workflow_id: str) -> ExecutionMatch:
    missing = Problem(404, "not-found", f"no workflow has the id {workflow_id!r}")
    try:
        match = await lookup.find(here.log, workflow_id)
    except (NotFound, NotAnId):
        raise missing from None
    is_workflow = job_view.is_workflow(execution.fold(match.facts))
    if not is_workflow or not await here.visibility.may_see_run(caller, Run.of(match)):
        raise missing
    return match


def _taken(wish: Enqueued) -> Problem:
    detail = f"another workflow or job has the id {wish.execution_id!r}: send another id, or none"
    return Problem(409, "duplicate", detail, facts={"existing_job_id": wish.execution_id})
