"""`/ojs/v1/workers`: workers in any language fetch tasks and report (ojs-worker-protocol, ojs-http-binding §10)."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import JsonValue
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from .... import telemetry
from ....domain import execution
from ....domain.access import Permission, Principal
from ....domain.agent import Mode
from ....domain.definition import size_of
from ....domain.definition.fields import json_problem, storable
from ....domain.events import Failure
from ....domain.execution import Phase
from ....domain.task_fetch import MAX_COUNT, MAX_LEASE_S, MAX_QUEUES, MAX_WAIT_S, MAX_WORKER_ID_LENGTH, Lease
from ....domain.trace_context import context_in
from ....ports import LogUnavailable, OutdatedState
from ....services.operations import lookup, task_fetches, worker_answers
from ....services.operations.checkpoints import last_heartbeat
from ....services.operations.errors import NotAnId, NotFound
from ....services.operations.errors import OperationError as NotPossible
from ....services.operations.lookup import ExecutionMatch
from ....services.operations.task_fetches import Held, Holder
from ....services.operations.worker_answers import Answered
from ..api.dependencies import Components, Here, parts_of, until_disconnect
from ..api.problems import FieldError, Problem
from ..auth.security import TaskWorker, permitted_to, refusal
from . import envelope, job_view, protocol, queues, workflows
from .protocol import Body, OjsResponse, ojs_router, read_object, refused

PREFIX: Final = "/ojs/v1/workers"
MAX_TRIES: Final = 5
MAX_MESSAGE_LENGTH: Final = 4_096
"""The number of characters of an error's message that are stored, from its beginning."""
MAX_NAME_LENGTH: Final = 255
MAX_TRACEBACK_LENGTH: Final = 8_192
"""The number of characters of a backtrace that are stored, up to its end."""
MAX_DETAILS_BYTES: Final = 16_384
DIRECTIVES: Final[Mapping[Mode, str]] = {"enabled": "running", "disabled": "quiet", "draining": "terminate"}
_ID: Final = {"type": "string"}

router = ojs_router(PREFIX, 404, 409, 413)
_log = telemetry.get_logger("tocsin.http")


def completed(job_id: str, held: Held, found: Answered) -> dict[str, Any]:
    """Return the progress of a job after it was reported as completed."""
    _require_in_time(job_id, held, found)
    state, step = execution.fold(found.facts), held.claim.message.step
    shown = job_view.progress(found.facts, state, step)
    if state.steps[step].phase is Phase.COMPLETED and not job_view.is_workflow(state):
        shown["state"] = "completed"  # also if other steps continue
    return shown


def _require_in_time(job_id: str, held: Held, found: Answered) -> None:
    if found.is_overtaken:
        state = job_view.job(found.facts, job_id=job_id, step=held.claim.message.step)["state"]
        raise Problem(409, "conflict", f"the report on job {job_id} came too late; the job is now {state}")


def returned(job_id: str, held: Held, found: ExecutionMatch) -> dict[str, Any]:
    """Return the progress of a job after it was returned to its queue."""
    shown = job_view.job(found.facts, job_id=job_id, step=held.claim.message.step)
    reported = ("state", "attempt", "max_attempts", "next_attempt_at", "retry_delay_ms", "completed_at", "discarded_at")
    return {name: shown[name] for name in reported if name in shown}


async def of_operators(here: Components, holder: Holder) -> str:
    """Return the state that operators decided on; `running` if it cannot be read."""
    try:
        mode = await here.agents.mode_over_http(holder.identity, holder.worker)
    except LogUnavailable as error:
        _log.warning("decision on a worker not read", action="no-directive", worker=holder.worker, error=str(error))
        return DIRECTIVES["enabled"]
    return DIRECTIVES[mode]


def of_suite(here: Components, held: Held) -> str | None:
    """Return the directive of the conformance suite; elsewhere a client could stop workers."""
    if here.reset is None:
        return None
    options = job_view.about_of(held.state.request.plan.meta).get("options")
    metadata = options.get("metadata") if isinstance(options, dict) else None
    directive = metadata.get("test_directive") if isinstance(metadata, dict) else None
    return directive if directive in {"quiet", "terminate"} else None


@router.post(
    "/fetch",
    operation_id="fetchJobs",
    openapi_extra=protocol.body_schema(
        "queues",
        queues={"type": "array", "items": _ID},
        count={"type": "integer", "minimum": 1, "maximum": MAX_COUNT},
        worker_id=_ID,
        visibility_timeout_ms={"type": "integer", "minimum": 1},
        wait_ms={"type": "integer", "minimum": 0, "description": "How long to wait for the first job (an extension)."},
    ),
)
async def fetch(here: Here, caller: TaskWorker, body: Body, request: Request) -> dict[str, Any]:
    """Fetch jobs, those of the first queue first.

    An answer without jobs has `warnings` (an extension) on queues that do not exist yet, on ten of them at most.
    """
    fetching = _fetched(here, caller, body)
    holder, claims, answer = await (until_disconnect(request, fetching) if body.get("wait_ms") else fetching)
    # A client that leaves after the answer is sent keeps its jobs until their leases end.
    if claims and await request.is_disconnected():
        here.fetches.hand_back(holder, claims)
        raise ClientDisconnect
    return answer


async def _fetched(
    here: Components, caller: Principal, body: dict[str, Any]
) -> tuple[Holder, Sequence[Held], dict[str, Any]]:
    names = body.get("queues")
    if not isinstance(names, list) or not names or not all(map(envelope.is_queue, names)):
        raise refused("queues", "must be an array of at least one queue's name")
    if len(names) > MAX_QUEUES:
        raise refused("queues", f"must name at most {MAX_QUEUES} queues")
    for name in dict.fromkeys(names):
        if not caller.may_fetch_from(name):
            bound = ", ".join(map(repr, caller.binding.queues)) or "none"
            raise refusal(f"this token does not permit to fetch from the queue {name!r}; its queues are: {bound}")
        if not here.settings.is_matched(name):
            right = f"must name queues whose transport is `matched`; that of {name!r} is `mq`"
            wrong = FieldError(field="queues", right=right)
            raise Problem(409, "queue-not-matched", f"`queues` {right}", (wrong,))
    count = body.get("count") or 1
    if not isinstance(count, int) or not 1 <= count <= MAX_COUNT:
        raise refused("count", f"must be an integer from 1 to {MAX_COUNT}")
    holder = holder_of(caller, body)
    lease = Lease(here.settings.worker.lease, _seconds(body, "visibility_timeout_ms"))
    wait = min(_seconds(body, "wait_ms") or 0.0, MAX_WAIT_S)
    claims = await here.fetches.take(
        list(dict.fromkeys(names)), functions=caller.functions, limit=count, holder=holder, lease=lease, wait=wait
    )
    try:
        checkpoints = await asyncio.gather(*(_last_checkpoint(here, held) for held in claims))
    except BaseException:  # also if the caller has left
        here.fetches.hand_back(holder, claims)
        raise
    jobs = [_shown(held, checkpoint) for held, checkpoint in zip(claims, checkpoints, strict=True)]
    for held in claims:
        here.queue_names.learn(held.task.message.queue)
    answer: dict[str, Any] = {"jobs": jobs}
    if not jobs and (warnings := await queues.warnings(here, caller, dict.fromkeys(names))):
        answer["warnings"] = warnings
    return holder, claims, answer


async def _last_checkpoint(here: Here, held: Held) -> JsonValue:
    task, tokens = held.task.message, held.found.tokens
    deliveries = held.claim.message.delivery
    return await last_heartbeat(here.log, task, deliveries, lambda attempt: tokens.get((task.step, attempt)))


@router.post(
    "/ack", operation_id="ackJob", openapi_extra=protocol.body_schema("job_id", job_id=_ID, worker_id=_ID, result={})
)
async def ack(here: Here, caller: TaskWorker, body: Body) -> dict[str, Any]:
    """Report that a job completed."""
    job_id = _job_of(body)
    claim = await held_of(here, job_id, holder_of(caller, body))
    result = body.get("result")
    facts = await worker_answers.complete(here.log, claim, result, key=here.report_key, arrivals=here.arrivals)
    return {"acknowledged": True, "id": job_id, "job_id": job_id, **completed(job_id, claim, facts)}


@router.post(
    "/nack",
    operation_id="nackJob",
    openapi_extra=protocol.body_schema(
        "job_id", job_id=_ID, worker_id=_ID, error={"type": "object"}, requeue={"type": "boolean"}
    ),
)
async def nack(here: Here, caller: TaskWorker, body: Body) -> dict[str, Any]:
    """Report that a job failed, or with `requeue` return it to its queue."""
    job_id = _job_of(body)
    holder = holder_of(caller, body)
    if body.get("requeue") is True:
        claim = await _changed(here, job_id, holder, partial(task_fetches.hand_back, here.log), is_same=True)
        progress = returned(job_id, claim, await job_view.find(here.log, job_id))
    else:
        claim = await held_of(here, job_id, holder)
        error = _failure(body)
        facts = await worker_answers.fail(here.log, claim, error, key=here.report_key, arrivals=here.arrivals)
        _require_in_time(job_id, claim, facts)
        progress = returned(job_id, claim, facts)
    return {"acknowledged": True, "id": job_id, "job_id": job_id, **progress}


@router.post(
    "/heartbeat",
    operation_id="beat",
    openapi_extra=protocol.body_schema(
        worker_id=_ID, active_jobs={"type": "array", "items": _ID}, visibility_timeout_ms={"type": "integer"}
    ),
)
async def heartbeat(here: Here, caller: TaskWorker, body: Body) -> dict[str, Any]:
    """Extend the leases of a worker's jobs, and name the jobs it lost.

    `state` is what operators let the worker do: `quiet` if it is disabled, and `terminate` if it drains.
    """
    active = body.get("active_jobs", body.get("active_job_ids", []))
    ids = active if isinstance(active, list) else body.get("active_job_ids", [])
    if not isinstance(ids, list) or not all(isinstance(id_, str) for id_ in ids) or len(ids) > 10 * MAX_COUNT:
        raise refused("active_jobs", "must be an array of job ids")
    holder = holder_of(caller, body)
    asked = _seconds(body, "visibility_timeout_ms")
    extend = partial(worker_answers.extend, here.log, key=here.report_key, asked=asked)
    extended, lost = list[str](), list[str]()
    directive: str | None = None
    for id_ in ids:
        try:
            claim = await _changed(here, id_, holder, extend)
        except (Problem, NotFound, NotAnId, NotPossible, OutdatedState):
            lost.append(id_)
        else:
            extended.append(id_)
            directive = of_suite(here, claim) or directive
    return {
        "state": directive or await of_operators(here, holder),  # after the leases, which end soon
        "jobs_extended": extended,
        "jobs_lost": lost,
        "server_time": job_view.instant(here.clock.now()),
    }


def _shown(held: Held, checkpoint: JsonValue) -> dict[str, Any]:
    claim = held.claim.message
    shown = job_view.job(held.found.facts, step=claim.step, state=held.state)
    results = workflows.parent_results(held.state, claim.step)
    if not results and len(held.state.steps) > 1:
        shown["id"] = f"{shown['id']}:{claim.step}"
    task = held.task.message
    context = context_in(task.execution_id, task.traceparent, "process", task.step, task.attempt, claim.delivery)
    traced = {} if context is None else {"traceparent": context.traceparent}
    return {
        **shown,
        **traced,
        "meta": {**traced, **shown["meta"], **task.recovery_context},
        "state": "active",
        "args": list(task.args),
        **({"input": task.input} if task.input else {}),
        **({} if task.bind is None else {"bind": task.bind}),
        **({"parent_results": task.upstream} if task.upstream else {}),
        **results,
        "fence": held.claim.sequence,
        **({"last_checkpoint": checkpoint} if checkpoint is not None else {}),
    }


async def held_of(
    here: Components, job_id: str, holder: Holder, *, exactly: bool = False, known: ExecutionMatch | None = None
) -> Held:
    """Return the lease that a worker answers for; `known`: the execution, if it was read."""
    step = job_id.partition(":")[2] or None

    async def reaches(match: ExecutionMatch) -> bool:
        """Return whether the token includes the step, or any step if none is named."""
        requested = execution.fold(match.facts).requested
        steps = () if requested is None else requested.plan.steps
        return any(holder.may_run(each.queue, each.function) for each in steps if step in {None, each.name})

    job, why = known or await job_view.find(here.log, job_id, sees=reaches), ""
    if not await reaches(job):  # a retry may be in another queue
        raise job_view.unknown(job_id)
    for _ in range(MAX_TRIES):
        try:
            claim = task_fetches.held_of(job, step=step, holder=holder, exactly=exactly)
        except NotPossible as error:
            claim, why = None, str(error)
        if claim is not None:
            return claim
        if known is None and await lookup.is_newest(here.log, job):
            break
        # stale read from a lagging replica, or the job changed just now
        job, why, known = await job_view.find(here.log, job_id), "", None
    if not why:
        why = f"job {job_id} is not active, but {job_view.job(job.facts, job_id=job_id, step=step)['state']}"
    raise Problem(409, "conflict", why)


async def held_if_active(here: Components, job_id: str, holder: Holder) -> Held | None:
    """Return the lease that a worker reports on; None: the job is not active."""
    try:
        return await held_of(here, job_id, holder)
    except Problem:
        job = await job_view.find(here.log, job_id)
        if job_view.job(job.facts, step=job_id.partition(":")[2] or None)["state"] == "active":
            raise
        return None


async def _changed(
    here: Components, job_id: str, holder: Holder, change: Callable[[Held], Awaitable[object]], *, is_same: bool = False
) -> Held:
    """Change a lease, which another worker of the identity may not hold.

    An event of another step does not end it. `is_same`: a lease that the worker took meanwhile is not changed.
    """
    tries, claim = 1, None
    while True:
        held = await held_of(here, job_id, holder, exactly=True)
        if is_same and held.claim.sequence != (claim or held.claim.sequence):
            raise Problem(409, "conflict", f"the lease of job {job_id} ended, and the job was fetched again")
        claim = held.claim.sequence
        try:
            await change(held)
            return held
        except OutdatedState:
            if tries == MAX_TRIES:
                raise
        tries += 1


def _failure(body: dict[str, Any]) -> Failure:
    error = body.get("error")
    if not isinstance(error, dict):
        raise refused("error", "must be an object with `code` and `message`")
    details = error.get("details")
    code, message = error.get("code"), error.get("message", "")
    if not isinstance(message, str) or not isinstance(code, str | None) or not isinstance(details, dict | None):
        raise refused("error", "must be an object: `code` and `message` are strings, `details` is an object")
    backtrace = error.get("backtrace")
    kinds = (error.get("type"), (details or {}).get("error_class"), code, "handler_error")
    return Failure(
        type=storable(next(kind for kind in kinds if isinstance(kind, str) and kind)[:MAX_NAME_LENGTH]),
        message=storable(message[:MAX_MESSAGE_LENGTH]),
        traceback=storable(backtrace[-MAX_TRACEBACK_LENGTH:]) if isinstance(backtrace, str) else None,
        retryable=error.get("retryable") is not False,
        code=None if code is None else storable(code[:MAX_NAME_LENGTH]),
        details=_bounded(details),
    )


def _bounded(details: dict[str, Any] | None) -> dict[str, Any] | None:
    if problem := json_problem(details):
        return {"left_out": problem}
    if details is None or (size := size_of(details)) <= MAX_DETAILS_BYTES:
        return details
    return {"left_out": f"{size:,} bytes, more than {MAX_DETAILS_BYTES:,}"}


def _job_of(body: dict[str, Any]) -> str:
    value = body.get("job_id")
    if not isinstance(value, str) or not value:
        raise refused("job_id", "must be the id of a job")
    return value


def holder_of(caller: Principal, body: dict[str, Any]) -> Holder:
    worker = body.get("worker_id") or ""
    if not isinstance(worker, str) or len(worker) > MAX_WORKER_ID_LENGTH:
        raise refused("worker_id", f"must be a string of at most {MAX_WORKER_ID_LENGTH} characters")
    return Holder(caller.full_name, worker, caller.may_run)


def _seconds(body: dict[str, Any], name: str) -> float | None:
    """Return a field in milliseconds as seconds; None: it is absent or 0."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1000 * MAX_LEASE_S:
        raise refused(name, "must be a number of milliseconds, at most a year")
    return value / 1000 or None


Handler: TypeAlias = Callable[..., Coroutine[Any, Any, dict[str, Any]]]

DIRECT: Final[Mapping[str, Handler]] = {
    f"{PREFIX}/{handle.__name__}": handle for handle in (fetch, ack, nack, heartbeat)
}
"""Path of a POST request -> its handler, as the routes declare it."""
_ROUTES: Final = {route.path: route for route in router.routes if isinstance(route, APIRoute)}


@dataclass(frozen=True, slots=True)
class FastRoutes:
    """Answer the requests in `DIRECT` without FastAPI's routing, and pass the others on.

    Every job needs them. FastAPI would search its routes and resolve a graph of dependencies, which takes longer than the handler.
    The handlers stay routes of the application, which documents them and answers other methods.
    """

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handle = DIRECT.get(scope["path"]) if scope["method"] == "POST" else None
        if handle is None:
            await self.app(scope, receive, send)
            return
        scope["route"] = _ROUTES[scope["path"]]  # as FastAPI has it; `Latency` reads it
        request = Request(scope, receive)
        caller = await permitted_to(request, Permission.WORK)
        body = await read_object(request)
        of_request = {"request": request} if handle is fetch else {}
        answer = await handle(parts_of(request), caller, body, **of_request)
        await OjsResponse(answer)(scope, receive, send)
