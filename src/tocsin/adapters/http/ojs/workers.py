"""`/ojs/v1/workers`: workers in any language fetch tasks and report (ojs-worker-protocol, ojs-http-binding §10)."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi import Request
from pydantic import JsonValue
from starlette.requests import ClientDisconnect

from .... import telemetry
from ....domain import execution
from ....domain.access import Principal
from ....domain.agent import Mode
from ....domain.execution import Phase
from ....domain.task_fetch import MAX_COUNT, MAX_QUEUES, MAX_WAIT_S
from ....domain.trace_context import process_of
from ....domain.visibility_lease import Lease
from ....ports import LogUnavailable, OutdatedState
from ....services.agents import AgentRegistry
from ....services.operations import lookup, task_leases, worker_answers
from ....services.operations.checkpoints import last_heartbeat
from ....services.operations.errors import NotAnId, NotFound
from ....services.operations.errors import OperationError as NotPossible
from ....services.operations.lookup import ExecutionMatch
from ....services.operations.task_leases import Held, Holder
from ....services.operations.worker_answers import Answered
from ..api.dependencies import Components, Here, until_disconnect
from ..api.problems import FieldError, Problem
from ..auth.security import TaskWorker, not_bound
from . import job_view, protocol, queues, worker_requests, workflow_view
from .protocol import Body, ojs_router, refused

PREFIX: Final = "/ojs/v1/workers"
MAX_TRIES: Final = 5

router = ojs_router(PREFIX, 404, 409, 413)
_ID: Final = {"type": "string"}


DIRECTIVES: Final[Mapping[Mode, str]] = {"enabled": "running", "disabled": "quiet", "draining": "terminate"}

_log = telemetry.get_logger("tocsin.http")


def completed(job_id: str, held: Held, found: Answered) -> dict[str, Any]:
    """Return the progress of a job after it was reported as completed.

    Raises:
        Problem: another event decided on the job first, such as a request to cancel it.
    """
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
    """Return the state that operators decided on.

    `running` if this cannot be read: the leases are extended already, and the next heartbeat brings it.
    """
    try:
        mode = await AgentRegistry(here.log, here.projections).mode_over_http(holder.identity, holder.worker)
    except LogUnavailable as error:
        _log.warning("decision on a worker not read", action="no-directive", worker=holder.worker, error=str(error))
        return DIRECTIVES["enabled"]
    return DIRECTIVES[mode]


def of_suite(here: Components, held: Held) -> str | None:
    """Return the test directive of the conformance suite, if `/dev/reset` is enabled.

    Elsewhere a client that enqueues could stop workers.
    """
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
    if not isinstance(names, list) or not names or not all(worker_requests.is_queue(name) for name in names):
        raise refused("queues", "must be an array of at least one queue's name")
    if len(names) > MAX_QUEUES:
        raise refused("queues", f"must name at most {MAX_QUEUES} queues")
    for name in dict.fromkeys(names):
        if not caller.may_fetch_from(name):
            raise not_bound(caller, name)
        if not here.settings.is_matched(name):
            right = f"must name queues whose transport is `matched`; that of {name!r} is `mq`"
            wrong = FieldError(field="queues", right=right)
            raise Problem(409, "queue-not-matched", f"`queues` {right}", (wrong,))
    count = body.get("count") or 1
    if not isinstance(count, int) or not 1 <= count <= MAX_COUNT:
        raise refused("count", f"must be an integer from 1 to {MAX_COUNT}")
    holder = worker_requests.holder(caller, body)
    lease = Lease(here.settings.worker.lease, worker_requests.seconds(body, "visibility_timeout_ms"))
    wait = min(worker_requests.seconds(body, "wait_ms") or 0.0, MAX_WAIT_S)
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
    job_id = worker_requests.job_id(body)
    claim = await held_of(here, job_id, worker_requests.holder(caller, body))
    result = worker_requests.result(body)
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
    job_id = worker_requests.job_id(body)
    holder = worker_requests.holder(caller, body)
    if body.get("requeue") is True:
        facts, claim = await _requeued(here, job_id, holder)
        progress = returned(job_id, claim, facts)
    else:
        claim = await held_of(here, job_id, holder)
        error = worker_requests.failure(body)
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
    holder = worker_requests.holder(caller, body)
    extended, lost = list[str](), list[str]()
    directive: str | None = None
    for id_ in ids:
        try:
            claim = await _extended(here, id_, holder, worker_requests.seconds(body, "visibility_timeout_ms"))
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
    results = workflow_view.parent_results(held.state, claim.step)
    if not results and len(held.state.steps) > 1:
        shown["id"] = f"{shown['id']}:{claim.step}"
    task = held.task.message
    context = process_of(task.execution_id, task.traceparent, task.step, task.attempt, claim.delivery)
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


async def held_of(here: Components, job_id: str, holder: Holder, *, exactly: bool = False) -> Held:
    """Return the lease that a worker answers for.

    Raises:
        NotFound: no job has this id, or it is of a queue or function that the token does not include.
        Problem: no worker holds the job, or another holder does (`task_leases.held_of`).
    """
    step = job_id.partition(":")[2] or None

    async def reaches(match: ExecutionMatch) -> bool:
        return reaches_step(holder, match, step)

    job, why = await job_view.find(here.log, job_id, sees=reaches), ""
    if not await reaches(job):  # a retry may be in another queue
        raise job_view.unknown(job_id)
    for _ in range(MAX_TRIES):
        try:
            claim = task_leases.held_of(job, step=step, holder=holder, exactly=exactly)
        except NotPossible as error:
            claim, why = None, str(error)
        if claim is not None:
            return claim
        if await lookup.is_newest(here.log, job):
            break
        # stale read from a lagging replica, or the job changed just now
        job, why = await job_view.find(here.log, job_id), ""
    if not why:
        why = f"job {job_id} is not active, but {job_view.job(job.facts, job_id=job_id, step=step)['state']}"
    raise Problem(409, "conflict", why)


def reaches_step(holder: Holder, match: ExecutionMatch, step: str | None) -> bool:
    """Return whether a token includes a step, or with None any step of an execution."""
    requested = execution.fold(match.facts).requested
    steps = () if requested is None else requested.plan.steps
    return any(holder.may_run(each.queue, each.function) for each in steps if step in {None, each.name})


async def held_if_active(here: Components, job_id: str, holder: Holder) -> Held | None:
    """Return the lease that a worker reports on; None: the job is not active.

    Raises:
        NotFound: no job has this id, or it is of a queue or function that the token does not include.
        Problem: another holder has the job.
    """
    try:
        return await held_of(here, job_id, holder)
    except Problem:
        job = await job_view.find(here.log, job_id)
        if job_view.job(job.facts, step=job_id.partition(":")[2] or None)["state"] == "active":
            raise
        return None


async def _extended(here: Components, job_id: str, holder: Holder, asked: float | None) -> Held:
    """Extend a lease; an event of another step does not end it."""
    tries = 1
    while True:
        claim = await held_of(here, job_id, holder, exactly=True)
        try:
            await task_leases.extend(here.log, here.clock, claim, asked=asked)
            return claim
        except OutdatedState:
            if tries == MAX_TRIES:
                raise
        tries += 1


async def _requeued(here: Components, job_id: str, holder: Holder) -> tuple[ExecutionMatch, Held]:
    """Return a job to its queue, unless another worker of the identity holds it."""
    held, tries = await held_of(here, job_id, holder, exactly=True), 1
    claim = held.claim.sequence
    while True:
        try:
            await task_leases.hand_back(here.log, held)
            return await job_view.find(here.log, job_id), held
        except OutdatedState:
            if tries == MAX_TRIES:
                raise
        tries += 1
        held = await held_of(here, job_id, holder, exactly=True)
        if held.claim.sequence != claim:
            raise Problem(409, "conflict", f"the lease of job {job_id} ended, and the job was fetched again")
