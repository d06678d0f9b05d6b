"""`/ojs/v1/workers`: workers in any language fetch tasks and report (ojs-worker-protocol, ojs-http-binding §10).

Every job needs these endpoints, so `FastRoutes` finds them by path in a table. FastAPI would search its routes and resolve a
graph of dependencies, which takes longer than the handler. The handlers stay routes of the application, which documents
them and answers other methods.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

from fastapi import APIRouter, Request
from pydantic import JsonValue
from starlette.types import ASGIApp, Receive, Scope, Send

from ....domain import execution
from ....domain.access import Principal
from ....domain.definition import size_of
from ....domain.events import Failure
from ....domain.execution import Phase
from ....ports import OutdatedState
from ....services.operations import lookup, task_claims, task_leases, worker_answers
from ....services.operations.errors import NotAnId, NotFound
from ....services.operations.errors import OperationError as NotPossible
from ....services.operations.lookup import ExecutionMatch
from ....services.operations.task_leases import Held, Lease
from ..api.dependencies import Components, Here, parts_of
from ..api.problems import FieldError, Problem
from ..auth.security import TRIGGERS, Triggerer, permitted_to
from . import envelope, job_view, protocol, queues
from .protocol import Body, OjsResponse, documented, read_object

PREFIX: Final = "/ojs/v1/workers"
MAX_JOBS_PER_FETCH: Final = 100
MAX_WAIT_S: Final = 20.0
"""How long a fetch may wait for its first job."""
MAX_TRIES: Final = 5
MAX_WORKER_ID_LENGTH: Final = 255
MAX_MESSAGE_LENGTH: Final = 4_096
MAX_NAME_LENGTH: Final = 255
"""The number of characters of an error's message that are stored, from its beginning."""
MAX_TRACEBACK_LENGTH: Final = 8_192
"""The number of characters of a backtrace that are stored, up to its end."""
MAX_DETAILS_BYTES: Final = 16_384

router = APIRouter(
    prefix=PREFIX,
    tags=["Open Job Spec"],
    default_response_class=OjsResponse,
    responses=documented(400, 401, 403, 404, 409, 413, 422, 429, 500, 503),
)
_ID: Final = {"type": "string"}


@router.post(
    "/fetch",
    operation_id="fetchJobs",
    openapi_extra=protocol.body_schema(
        "queues",
        queues={"type": "array", "items": _ID},
        count={"type": "integer", "minimum": 1, "maximum": MAX_JOBS_PER_FETCH},
        worker_id=_ID,
        visibility_timeout_ms={"type": "integer", "minimum": 1},
        wait_ms={"type": "integer", "minimum": 0, "description": "How long to wait for the first job (an extension)."},
    ),
)
async def fetch(here: Here, _: Triggerer, body: Body) -> dict[str, Any]:
    """Fetch jobs, those of the first queue first."""
    names = body.get("queues")
    if not isinstance(names, list) or not names or not all(_is_queue(name) for name in names):
        raise _wrong("queues", "must be an array of at least one queue's name")
    for name in dict.fromkeys(names):
        queues.require_pulled(here, name, field="queues")
    count = body.get("count") or 1
    if not isinstance(count, int) or not 1 <= count <= MAX_JOBS_PER_FETCH:
        raise _wrong("count", f"must be an integer from 1 to {MAX_JOBS_PER_FETCH}")
    claims = await task_claims.take(
        here.log,
        here.queues,
        here.clock,
        list(dict.fromkeys(names)),
        limit=count,
        worker=_worker(body),
        lease=Lease(here.settings.worker.lease, _seconds(body, "visibility_timeout_ms")),
        wait=min(_seconds(body, "wait_ms") or 0.0, MAX_WAIT_S),
    )
    return {"jobs": [_shown(lease) for lease in claims]}


@router.post(
    "/ack", operation_id="ackJob", openapi_extra=protocol.body_schema("job_id", job_id=_ID, worker_id=_ID, result={})
)
async def ack(here: Here, _: Triggerer, body: Body) -> dict[str, Any]:
    """Report that a job completed."""
    id = _id(body)  # noqa: A001 - the field has this name
    claim = await _held(here, id, _worker(body))
    facts = await worker_answers.complete(here.log, claim, _result(body), arrivals=here.arrivals)
    state, step = execution.fold(facts.facts), claim.claim.message.step
    shown = job_view.progress(facts.facts, state, step)
    if state.steps[step].phase is Phase.COMPLETED:
        shown["state"] = "completed"  # also if other steps continue
    return {"acknowledged": True, "id": id, "job_id": id, **shown}


@router.post(
    "/nack",
    operation_id="nackJob",
    openapi_extra=protocol.body_schema(
        "job_id", job_id=_ID, worker_id=_ID, error={"type": "object"}, requeue={"type": "boolean"}
    ),
)
async def nack(here: Here, _: Triggerer, body: Body) -> dict[str, Any]:
    """Report that a job failed, or with `requeue` return it to its queue."""
    id = _id(body)  # noqa: A001 - the field has this name
    claim = await _held(here, id, _worker(body))
    if body.get("requeue") is True:
        facts = await _requeued(here, id, claim)
    else:
        facts = await worker_answers.fail(here.log, claim, _error(body), arrivals=here.arrivals)
    shown = job_view.job(facts.facts, id=id, step=claim.claim.message.step)
    answer = {"acknowledged": True, "id": id, "job_id": id}
    reported = ("state", "attempt", "max_attempts", "next_attempt_at", "retry_delay_ms", "completed_at", "discarded_at")
    return answer | {name: shown[name] for name in reported if name in shown}


@router.post(
    "/heartbeat",
    operation_id="beat",
    openapi_extra=protocol.body_schema(
        worker_id=_ID, active_jobs={"type": "array", "items": _ID}, visibility_timeout_ms={"type": "integer"}
    ),
)
async def heartbeat(here: Here, _: Triggerer, body: Body) -> dict[str, Any]:
    """Extend the leases of a worker's jobs, and name the jobs it lost."""
    active = body.get("active_jobs", body.get("active_job_ids", []))
    ids = active if isinstance(active, list) else body.get("active_job_ids", [])
    if not isinstance(ids, list) or not all(isinstance(id_, str) for id_ in ids) or len(ids) > 10 * MAX_JOBS_PER_FETCH:
        raise _wrong("active_jobs", "must be an array of job ids")
    extended, lost, state = [], [], "running"
    for id_ in ids:
        try:
            claim = await _extended(here, id_, _worker(body), _seconds(body, "visibility_timeout_ms"))
        except (Problem, NotFound, NotAnId, NotPossible, OutdatedState):
            lost.append(id_)
        else:
            extended.append(id_)
            state = _directive(here, claim) or state
    return {
        "state": state,
        "jobs_extended": extended,
        "jobs_lost": lost,
        "server_time": job_view.instant(here.clock.now()),
    }


def _shown(held: Held) -> dict[str, Any]:
    claim = held.claim.message
    shown = job_view.job(held.found.facts, step=claim.step)
    if len(held.state.steps) > 1:
        shown["id"] = f"{shown['id']}:{claim.step}"
    task = held.task.message
    return {
        **shown,
        "meta": {**shown["meta"], **task.recovery_context},
        "state": "active",
        "args": list(task.args),
        **({"input": task.input} if task.input else {}),
        **({"parent_results": task.upstream} if task.upstream else {}),
        **({"fence": task.fence} if task.fence is not None else {}),
    }


async def _held(here: Components, id: str, worker: str) -> Held:  # noqa: A002 - the field has this name
    """Return the lease that a worker reports on.

    Raises:
        Problem: no worker holds the job, or another worker does.
    """
    step = id.partition(":")[2] or None
    job, why = await job_view.find(here.log, id), ""
    for _ in range(MAX_TRIES):
        try:
            claim = task_leases.held_of(job, step=step, worker=worker)
        except NotPossible as error:
            claim, why = None, str(error)
        if claim is not None:
            return claim
        if await lookup.is_newest(here.log, job):
            break
        job, why = (
            await job_view.find(here.log, id),
            "",
        )  # stale read from a lagging replica, or the job changed just now
    state = job_view.job(job.facts, id=id, step=step)["state"]
    raise Problem(409, "conflict", why or f"job {id} is not active, but {state}")


async def _extended(here: Components, id: str, worker: str, asked: float | None) -> Held:  # noqa: A002 - the field has this name
    """Extend a lease; an event of another step does not end it.

    Raises:
        Problem: the lease ended.
        OutdatedState: other writers changed the execution at every try.
    """
    tries = 1
    while True:
        claim = await _held(here, id, worker)
        try:
            await task_leases.extend(here.log, here.clock, claim, asked=asked)
            return claim
        except OutdatedState:
            if tries == MAX_TRIES:
                raise
        tries += 1


async def _requeued(here: Components, id: str, held: Held) -> ExecutionMatch:  # noqa: A002 - the field has this name
    """Return a job to its queue.

    Raises:
        Problem: the lease ended; another worker may hold the job.
        OutdatedState: other writers changed the execution at every try.
    """
    claim, tries = held.claim.sequence, 1
    while True:
        try:
            await task_leases.hand_back(here.log, held)
            return await job_view.find(here.log, id)
        except OutdatedState:
            if tries == MAX_TRIES:
                raise
        tries += 1
        held = await _held(here, id, held.claim.message.worker or "")
        if held.claim.sequence != claim:
            raise Problem(409, "conflict", f"the lease of job {id} ended, and the job was fetched again")


def _directive(here: Components, held: Held) -> str | None:
    """Return the test directive of the conformance suite, if `/dev/reset` is enabled."""
    if here.reset is None:
        return None
    options = job_view.about_of(held.state.request.plan.meta).get("options")
    metadata = options.get("metadata") if isinstance(options, dict) else None
    directive = metadata.get("test_directive") if isinstance(metadata, dict) else None
    return directive if directive in {"quiet", "terminate"} else None


def _error(body: dict[str, Any]) -> Failure:
    error = body.get("error")
    if not isinstance(error, dict):
        raise _wrong("error", "must be an object with `code` and `message`")
    details = error.get("details")
    code, message = error.get("code"), error.get("message", "")
    if not isinstance(message, str) or not isinstance(code, str | None) or not isinstance(details, dict | None):
        raise _wrong("error", "must be an object: `code` and `message` are strings, `details` is an object")
    kinds = (error.get("type"), (details or {}).get("error_class"), code, "handler_error")
    return Failure(
        type=next(kind for kind in kinds if isinstance(kind, str) and kind)[:MAX_NAME_LENGTH],
        message=message[:MAX_MESSAGE_LENGTH],
        traceback=error["backtrace"][-MAX_TRACEBACK_LENGTH:] if isinstance(error.get("backtrace"), str) else None,
        retryable=error.get("retryable") is not False,
        code=None if code is None else code[:MAX_NAME_LENGTH],
        details=_bounded(details),
    )


def _bounded(details: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the details of an error, or only their size.

    Details that are too large could not be stored.
    """
    if details is None or (size := size_of(details)) <= MAX_DETAILS_BYTES:
        return details
    return {"left_out": f"{size:,} bytes, more than {MAX_DETAILS_BYTES:,}"}


def _result(body: dict[str, Any]) -> JsonValue:
    result: JsonValue = body.get("result")
    return result


def _id(body: dict[str, Any]) -> str:
    value = body.get("job_id")
    if not isinstance(value, str) or not value:
        raise _wrong("job_id", "must be the id of a job")
    return value


def _worker(body: dict[str, Any]) -> str:
    value = body.get("worker_id") or ""
    if not isinstance(value, str) or len(value) > MAX_WORKER_ID_LENGTH:
        raise _wrong("worker_id", f"must be a string of at most {MAX_WORKER_ID_LENGTH} characters")
    return value


def _seconds(body: dict[str, Any], name: str) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not 0 <= value <= 1000 * task_leases.MAX_LEASE_S
    ):
        raise _wrong(name, "must be a number of milliseconds, at most a year")
    return value / 1000 or None


def _is_queue(name: object) -> bool:
    return isinstance(name, str) and envelope.QUEUE.fullmatch(name) is not None


def _wrong(field: str, right: str) -> Problem:
    return Problem(400, "invalid-request", f"`{field}` {right}", (FieldError(field=field, right=right),))


Handler: TypeAlias = Callable[[Components, Principal, dict[str, Any]], Awaitable[dict[str, Any]]]

DIRECT: Final[Mapping[str, Handler]] = {
    f"{PREFIX}/fetch": fetch,
    f"{PREFIX}/ack": ack,
    f"{PREFIX}/nack": nack,
    f"{PREFIX}/heartbeat": heartbeat,
}
"""Path of a POST request -> its handler, as the routes declare it."""


class FastRoutes:
    """Answer the requests in `DIRECT`, and pass the others on."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        handle = DIRECT.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if handle is None:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        caller = await permitted_to(request, *TRIGGERS)
        answer = await handle(parts_of(request), caller, await read_object(request))
        await OjsResponse(answer)(scope, receive, send)
