"""`/ojs/v1/workflows`: create, show, cancel and retry workflows (ojs-workflows §8, §9.6, §11)."""

from typing import Any, Final

from fastapi import Request, Response
from pydantic import JsonValue

from .... import subjects
from ....domain import execution
from ....domain.access import Permission, Principal
from ....domain.definition import size_of
from ....domain.events import Enqueued, Requested, Workflow, WorkflowNode, newest_of
from ....domain.execution import MAX_UPSTREAM_BYTES, Execution, Status
from ....domain.execution.workflow import Outcome, Walk, callbacks, parents, result
from ....services.operations import dead_letters, event_waiter, execution_requests, lookup
from ....services.operations.errors import NotAnId, NotFound
from ....services.operations.lookup import ExecutionMatch
from ..api.dependencies import Components, Here, Traceparent
from ..api.problems import Problem
from ..auth.security import HistoryReader, Replayer, Triggerer, actor, forbidden
from ..auth.visibility import Run
from ..middleware.idempotency import IdempotentRoute, request_name
from . import envelope, job_view, jobs, protocol, workflow_envelope
from .dead_letters import begun
from .job_view import Facts, Json, instant
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
    shown = answer(facts or expected)
    if response.status_code == 200 and not caller.may(Permission.HISTORY):  # noqa: PLR2004 - it exists
        shown["workflow"] = {field: shown[field] for field in SUMMARY}
    return shown


@router.get("/{id}", operation_id="getWorkflow")
async def show(here: Here, caller: HistoryReader, workflow_id: Id) -> dict[str, Any]:
    """Show a workflow with the state and the result of each job."""
    match = await _visible_match(here, caller, workflow_id)
    return answer(match.facts)


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
    states = [step["state"] for step in jobs_of(match.facts)]
    return answer(
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
    return answer(events)


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


_STATES: Final = {
    Status.UNKNOWN: "pending",
    Status.ADMITTED: "running",
    Status.COMPLETED: "completed",
    Status.FAILED: "failed",
    Status.CANCELLED: "cancelled",
}
_STEP_STATES: Final = {
    "pending": "waiting",
    "available": "pending",
    "retryable": "pending",
    "active": "active",
    "completed": "completed",
    "discarded": "failed",
    "cancelled": "cancelled",
}
"""State of a job -> state of a step (ojs-workflows §4.4)."""
_OUTCOMES: Final = {Outcome.OPEN: "running", Outcome.COMPLETED: "completed", Outcome.FAILED: "failed"}
SUMMARY: Final = ("id", "type", "name", "state", "metadata")
"""Fields that an answer has beside `workflow` too, where the official JavaScript SDK reads them."""


def answer(facts: Facts, **more: object) -> Json:
    """Return an execution as a workflow."""
    shown = {**_View(facts).show(), **more}
    return {"workflow": shown, **{field: shown[field] for field in SUMMARY}}


def jobs_of(facts: Facts) -> list[Json]:
    """Return the jobs of a workflow, with callbacks, as its steps show them."""
    view = _View(facts)
    return [view.step(name) for name in view.planned]


def parent_results(state: Execution, step: str) -> Json:
    """Return the fields on the results of the jobs before a job (ojs-workflows §7).

    They are in the order of these jobs. Together they have at most `MAX_UPSTREAM_BYTES`. The oldest beyond that are null, and `parent_results_left_out` names them.
    """
    tree = job_view.workflow_of(state.request.plan)
    if tree is None:
        return {}
    planned = {step.name: step for step in state.request.plan.steps}
    members = parents(tree, planned, step)
    results: list[JsonValue] = [result(tree, state.steps, name) for name in members]
    size, left_out = 0, list[int]()
    for index in reversed(range(len(results))):
        size += size_of(results[index])
        if size > MAX_UPSTREAM_BYTES:
            results[index] = None
            left_out.insert(0, index)
    return {"parent_results": results, **({"parent_results_left_out": left_out} if left_out else {})}


class _View:
    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.state = execution.fold(facts)
        tree = job_view.workflow_of(self.state.request.plan)
        if tree is None:
            raise LookupError("the execution is no workflow")
        self.tree: Workflow = tree
        self.nodes = {node.key: node for node in tree.nodes}
        self.planned = {step.name: step for step in self.state.request.plan.steps}
        self.jobs = {name: job_view.job(facts, step=name, state=self.state) for name in self.planned}
        self.walk = Walk(tree, self.planned, self.state.steps)
        self.callbacks = {step: kind for node in tree.nodes for kind, step in callbacks(node).items()}

    def show(self) -> Json:
        root = self.tree.nodes[0]
        noun = "jobs" if root.kind in {"group", "batch"} else "steps"
        completed = sum(self.walk.outcomes.get(name) is Outcome.COMPLETED for name in root.members)
        metadata = self._metadata(root)
        return {
            "id": self.state.request.execution_id,
            "type": root.kind,
            "name": root.name,
            "state": _STATES[self.state.status],
            **({} if self.state.request.replay_of is None else {"retry_of": self.state.request.replay_of}),
            f"{noun}_total": len(root.members),
            f"{noun}_completed": completed,
            **self._members(root),
            "created_at": metadata["created_at"],
            **{field: metadata[field] for field in ("completed_at", "cancelled_at") if field in metadata},
            "metadata": metadata,
        }

    def _members(self, node: WorkflowNode) -> Json:
        if self.tree.names_steps:
            steps = [{**self._entry(name), "id": name} for name in self.planned]
            return {"steps": [{"index": index, **step} for index, step in enumerate(steps)]}
        members = [{"index": index, **self._entry(name)} for index, name in enumerate(node.members)]
        called = {kind: self._entry(name) for kind, name in callbacks(node).items()}
        return {"steps" if node.kind == "chain" else "jobs": members, **({"callbacks": called} if called else {})}

    def _entry(self, name: str) -> Json:
        node = self.nodes.get(name)
        return self.step(name) if node is None else self._nested(node)

    def _nested(self, node: WorkflowNode) -> Json:
        outcome = self.walk.outcomes.get(node.key)
        state = "waiting" if outcome is None else _OUTCOMES[outcome]
        if self.state.is_over and state in {"waiting", "running"}:
            state = "cancelled"
        given = {"id": node.id, "name": node.name}
        return {
            "type": node.kind,
            **{field: value for field, value in given.items() if value is not None},
            "state": state,
            **self._members(node),
        }

    def step(self, name: str) -> Json:
        job = self.jobs[name]
        state = _STEP_STATES[job["state"]]
        is_enqueued = self.state.steps[name].attempt > 0
        extra = {"depends_on": list(self.planned[name].depends_on)} if self.tree.names_steps else {}
        fields = ("attempt", "result", "error", "started_at", "completed_at", "cancelled_at", "next_attempt_at")
        return {
            "type": job["type"],
            "state": state,
            "job_id": job["id"] if is_enqueued else None,
            "queue": job["queue"],
            **extra,
            **{field: job[field] for field in fields if field in job},
        }

    def _metadata(self, root: WorkflowNode) -> Json:
        requested = newest_of(self.facts, Requested)
        counted = [job for name, job in self.jobs.items() if name not in self.callbacks]
        started = [job["started_at"] for job in self.jobs.values() if "started_at" in job]
        created = self.facts[0].time if requested is None else requested.time
        ended = {Status.CANCELLED: "cancelled_at"}.get(self.state.status, "completed_at")
        failures = [self._failure(name, job) for name, job in self.jobs.items() if job["state"] == "discarded"]
        metadata: Json = {
            "created_at": instant(created),
            **({"started_at": min(started)} if started else {}),
            **({ended: instant(self.facts[-1].time)} if self.state.is_over else {}),
            "job_count": len(counted),
            "completed_count": sum(job["state"] == "completed" for job in counted),
            "failed_count": sum(job["state"] == "discarded" for job in counted),
        }
        if failures:
            metadata |= {"failed_job_ids": [failure["job_id"] for failure in failures], "errors": failures}
        if root.kind == "chain":
            failed = [i for i, name in enumerate(root.members) if self.walk.outcomes.get(name) is Outcome.FAILED]
            metadata |= {"failed_step_index": failed[0]} if failed else {}
        return metadata

    def _failure(self, name: str, job: Json) -> Json:
        error = job.get("error") or {"code": "unknown", "message": "", "attempt": job["attempt"]}
        callback = {"callback": self.callbacks[name]} if name in self.callbacks else {}
        return {"job_id": job["id"], **callback, **error}
