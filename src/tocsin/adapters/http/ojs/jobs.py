"""`/ojs/v1/jobs`: enqueue, show and cancel jobs of the Open Job Spec (ojs-http-binding §9).

A job is an execution, so `tocsin executions show`, `tocsin executions cancel` and `tocsin audit` apply to it.
A client may bring a job's id, a UUID of version 7; otherwise the server creates one.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from secrets import token_hex
from typing import Any, Final

from fastapi import Request, Response

from .... import subjects
from ....domain import execution, execution_plan, ids
from ....domain.access import Permission, Principal
from ....domain.events import Enqueued, Recorded, Requested, Skipped, newest_of, unfold
from ....domain.execution import Status
from ....domain.namespaces import namespace_of
from ....services import daily_room
from ....services.operations import execution_requests, lookup
from ....services.operations.errors import JobTooLarge, NotFound
from ....services.operations.event_waiter import Awaited, Facts, until_each
from ....services.operations.lookup import ExecutionMatch
from ..api.dependencies import Components, Here, Traceparent
from ..api.problems import Problem, problem_of
from ..auth.security import HistoryReader, Triggerer, actor, forbidden
from ..auth.visibility import Run
from ..middleware.idempotency import IdempotentRoute, request_name
from . import envelope, job_view, protocol
from .protocol import Body, Id, ojs_router

router = ojs_router("/ojs/v1/jobs", 404, 409, 413, route_class=IdempotentRoute)


@router.post(
    "",
    status_code=201,
    operation_id="pushJob",
    openapi_extra=protocol.body_schema(
        "type", "args", type={"type": "string"}, args={"type": "array"}, options={"type": "object"}
    ),
)
async def push(
    here: Here, caller: Triggerer, request: Request, body: Body, response: Response, traceparent: Traceparent = None
) -> dict[str, Any]:
    """Enqueue a job."""
    [execution_id], is_retried = made_ids(here, request)
    left_out = await defaults(here, traceparent)
    job_input = envelope.within(
        caller, envelope.read(body, execution_id, left_out, actor(caller)), left_out, execution_id
    )
    [outcome] = await enqueue_all(here, caller, Batch([job_input], {execution_id}, is_retried=is_retried))
    response.headers["Location"] = f"/ojs/v1/jobs/{outcome.job['id']}"
    if outcome.is_duplicate:
        response.status_code = 200
        return {"job": outcome.job, "deduplicated": True}
    return {"job": outcome.job}


def made_ids(here: Components, request: Request, number: int = 1) -> tuple[list[str], bool]:
    """Return ids for jobs of a request, and whether a try came before it.

    The earlier try may have enqueued the jobs. With an idempotency key, the ids are made from the key, so that a repeated request finds
    what the first enqueued.
    """
    name = request_name(request)
    key, since = (token_hex(16), None) if name is None else (name.name, name.since)
    at = since or here.clock.now()
    return [ids.enqueued_id(key, index, at) for index in range(number)], name is not None and name.is_retried


@router.get("/{id}", operation_id="getJobOfOjs")
async def show(here: Here, caller: HistoryReader, job_id: Id) -> dict[str, Any]:
    """Show a job."""
    match = await visible_match(here, caller, job_id)
    return {"job": job_view.job(match.facts, job_id=job_id, step=job_id.partition(":")[2] or None)}


@router.delete("/{id}", operation_id="cancelJob")
async def cancel(here: Here, caller: Triggerer, job_id: Id) -> dict[str, Any]:
    """Cancel a job that has not ended."""
    return {"job": await cancel_job(here, caller, job_id)}


async def cancel_job(
    here: Components, caller: Principal, job_id: str, *, states: Collection[str] | None = None
) -> dict[str, Any]:
    """Cancel a job that has not ended, in one of some states; None: in any."""
    match = await visible_match(here, caller, job_id)
    await here.visibility.require(caller, Permission.CANCEL, Run.of(match))
    before = job_view.job(match.facts, job_id=job_id, step=job_id.partition(":")[2] or None)
    if job_view.is_workflow(execution.fold(match.facts)):
        workflow = match.execution_id
        detail = f"job {job_id} is part of a workflow: cancel workflow {workflow}"
        raise Problem(409, "conflict", detail, facts={"workflow_id": workflow})
    if states is not None and before["state"] not in states:
        raise Problem(409, "conflict", f"job {job_id} is not cancelled: it is {before['state']}")

    def is_chosen(state: execution.Execution) -> bool:
        return states is None or (not state.is_over and job_view.state_of(state) in states)

    if not execution.fold(match.facts).is_over:
        cause = "by OJS client"
        await execution_requests.cancel(
            here.log, match.execution_id, job=match.job, by=actor(caller), reason=cause, only_if=is_chosen
        )
    match = await job_view.find(here.log, job_id)
    shown = job_view.job(match.facts, job_id=job_id)
    if execution.fold(match.facts).status is not Status.CANCELLED or before["state"] == "cancelled":
        raise Problem(409, "conflict", f"job {job_id} cannot be cancelled: it is {shown['state']}")
    return {**shown, "previous_state": before["state"]}


async def visible_match(here: Components, caller: Principal, job_id: str) -> ExecutionMatch:
    """Return the current execution of a job, if the caller may see it."""

    async def sees(match: ExecutionMatch) -> bool:
        return await here.visibility.may_see_run(caller, Run.of(match))

    match = await job_view.find(here.log, job_id, sees=sees)
    if not await sees(match):  # a retry may have run under another definition
        raise job_view.unknown(job_id)
    return match


async def defaults(here: Components, traceparent: str | None) -> envelope.Defaults:
    """Return the values of fields that a pushed job leaves out."""
    ceiling = (await here.registry.recent_policy.newest()).policy.job_timeout
    timeout = ceiling or here.settings.execution.default_timeout
    return envelope.Defaults(
        now=here.clock.now(),
        timeout=timeout,
        max_timeout=ceiling,
        traceparent=traceparent,
        remembered=here.settings.archive.hot_window,
        namespaces=(await here.registry.namespaces.newest()).names,
    )


MAX_DECISION_S: Final = 15.0
"""Seconds after which a request begins no further wait for the decisions on its unique jobs."""
_SUMMARY: Final = ("id", "type", "queue", "state")
"""Fields of an existing job that a caller without access to the history sees."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a request to enqueue a job."""

    job: dict[str, Any]
    is_duplicate: bool = False
    """No job was created: `job` has the unique key."""


class Undecided(Problem):
    """A unique job is stored, and not decided yet."""

    code = "unavailable"
    is_momentary = True

    def __init__(self, job_id: str) -> None:
        reason = (
            f"it is not decided yet whether job {job_id} is a duplicate: read it, or send the request again "
            "with the same `id` of the job or the same `Idempotency-Key`"
        )
        super().__init__(503, "unavailable", reason, headers={"Retry-After": "1"})
        self.job_id = job_id


@dataclass(frozen=True, slots=True)
class Batch:
    """The jobs of one request."""

    inputs: Sequence[Enqueued]
    made: Collection[str] = ()
    """The ids that the server made, which no other job has."""
    is_retried: bool = False
    """An earlier try of the request may have enqueued the jobs."""


async def enqueue_all(here: Components, caller: Principal, batch: Batch) -> list[Outcome]:
    """Enqueue jobs: all of them, or none if an id is taken.

    Raises:
        Problem: an id is taken, the caller may not replace jobs, or a job is refused as a duplicate. Its facts have the
            `index` of the job, if the batch has several.
    """
    begun = await _earlier(here, batch)
    refused = await _refused(here, caller, batch, begun)
    for index, problem in refused.items():
        raise problem if len(batch.inputs) == 1 else of_job(index, problem)
    wanted = [job_input for index, job_input in enumerate(batch.inputs) if index not in begun]
    await check_room(here, *wanted)
    try:
        requested = iter(await execution_requests.request(here.log, *wanted, arrivals=here.arrivals) if wanted else ())
    except execution_requests.Duplicate as error:
        raise Problem(409, "duplicate", str(error)) from None
    facts = [begun[index] if index in begun else next(requested) for index in range(len(batch.inputs))]
    facts = await _decided(here, batch.inputs, facts)
    return list(await asyncio.gather(*map(partial(_outcome, here, caller), batch.inputs, facts)))


async def enqueue_each(here: Components, caller: Principal, batch: Batch) -> list[Outcome | Problem]:
    begun = await _earlier(here, batch)
    results: dict[int, Outcome | Problem] = dict(await _refused(here, caller, batch, begun))
    wanted = {index: wish for index, wish in enumerate(batch.inputs) if index not in begun and index not in results}
    full = await _without_room(here, wanted.values())
    for index, wish in [*wanted.items()]:
        if (problem := full.get(namespace_of(wish.definition.name) or "")) is not None:
            results[index] = problem
            del wanted[index]
    requested = await _request_each(here, [*wanted.values()])
    begun |= dict(zip(wanted, await _decided(here, [*wanted.values()], requested), strict=True))

    async def outcome(index: int, facts: Facts) -> None:
        try:
            results[index] = await _outcome(here, caller, batch.inputs[index], facts)
        except Problem as problem:
            results[index] = problem

    await asyncio.gather(*(outcome(index, facts) for index, facts in begun.items()))
    return [results[index] for index in range(len(batch.inputs))]


async def check_room(here: Components, *wanted: Enqueued) -> None:
    """Refuse jobs if a daily quota of their namespace has no room for all."""
    for problem in (await _without_room(here, wanted)).values():
        raise problem


async def _without_room(here: Components, wanted: Iterable[Enqueued]) -> dict[str, Problem]:
    jobs = [wish.definition.name for wish in wanted]
    full = await daily_room.without_room(here.registry.namespaces, here.projections, here.clock, jobs)
    return {name: problem_of(error) for name, error in full.items()}


def of_job(index: int, problem: Problem) -> Problem:
    """Return the problem of a job as that of its batch."""
    errors = tuple(wrong.model_copy(update={"field": f"jobs[{index}].{wrong.field}"}) for wrong in problem.errors)
    detail = f"job {index} of the batch: {problem.detail}"
    return Problem(problem.status, problem.kind, detail, errors, problem.headers, {**problem.facts, "index": index})


async def _request_each(here: Components, wanted: Sequence[Enqueued]) -> list[Facts]:
    """Store requests together, or one by one if some were requested a moment ago."""
    if not wanted:
        return []
    try:
        return await execution_requests.request(here.log, *wanted, arrivals=here.arrivals)
    except execution_requests.Duplicate:
        each = (execution_requests.request(here.log, wish, arrivals=here.arrivals) for wish in wanted)
        return [facts for [facts] in await asyncio.gather(*each)]


async def _decided(here: Components, wishes: Sequence[Enqueued], known: Sequence[Facts]) -> list[Facts]:
    """Return the facts of jobs after the decisions on those that are unique.

    The planner decides on jobs with the same key one after another. Wait while it makes progress.
    """
    facts = list(known)
    open_ = [index for index, wish in enumerate(wishes) if wish.unique is not None and not _is_decided(facts[index])]
    if len(open_) < 2:  # noqa: PLR2004 - no progress shows that a lone job will soon be decided
        return facts
    clock = asyncio.get_running_loop()
    end = clock.time() + MAX_DECISION_S
    with ExitStack() as waiting:
        awaited: dict[int, Awaited] = {}
        for index in open_:
            scope = subjects.execution(wishes[index].definition.name, wishes[index].execution_id)
            awaited[index] = waiting.enter_context(here.arrivals.of(scope, facts[index]))
        makes_progress = True
        while open_ and makes_progress and clock.time() < end:
            found = await until_each(here.log, [awaited[index] for index in open_], _is_decided)
            for index, newest in zip(open_, found, strict=True):
                facts[index] = newest
            left = [index for index in open_ if not _is_decided(facts[index])]
            makes_progress, open_ = len(left) < len(open_), left
    return facts


def _is_decided(facts: Facts) -> bool:
    return any(isinstance(fact.message, Requested | Skipped) for fact in unfold(facts))


async def _earlier(here: Components, batch: Batch) -> dict[int, Facts]:
    if not batch.is_retried:
        return {}
    limit = asyncio.Semaphore(execution_requests.AT_ONCE)

    async def find(wish: Enqueued) -> Facts | None:
        async with limit:
            try:
                match = await lookup.find(here.log, wish.execution_id)
            except NotFound:
                return None
        facts = match.facts if match.is_planned else ()  # nothing is decided on a request yet
        requested = next((fact.message for fact in unfold(facts) if isinstance(fact.message, Requested)), None)
        is_own = wish.execution_id in batch.made or requested is None or requested.by == wish.by
        return facts if facts and is_own else None

    found = await asyncio.gather(*map(find, batch.inputs))
    return {index: facts for index, facts in enumerate(found) if facts is not None}


async def _refused(here: Components, caller: Principal, batch: Batch, begun: Mapping[int, Facts]) -> dict[int, Problem]:
    """Return why jobs cannot be enqueued, by index; `begun`: those that were enqueued."""
    fresh = () if batch.is_retried else batch.made
    refused: dict[int, Problem] = {}
    for index in await execution_requests.taken(here.log, batch.inputs, fresh=fresh):
        reason = f"a job with the id {batch.inputs[index].execution_id!r} was enqueued before"
        refused[index] = Problem(409, "duplicate", reason)
    for index, wish in enumerate(batch.inputs):
        try:
            execution_requests.check_size(wish)
        except JobTooLarge as error:
            refused[index] = problem_of(error)
        replaces = wish.unique is not None and wish.unique.on_conflict in {"replace", "replace_except_schedule"}
        if replaces and not caller.may(Permission.CANCEL):
            refused[index] = forbidden(caller, Permission.CANCEL)
    return {index: problem for index, problem in refused.items() if index not in begun}


async def _outcome(here: Components, caller: Principal, job_input: Enqueued, facts: Facts) -> Outcome:
    skipped = newest_of(facts, Skipped)
    if skipped is not None:
        return await _duplicate(here, caller, job_input, skipped.message.active_execution_id or "")
    if execution.fold(facts).requested is None:
        if job_input.unique is not None:
            raise Undecided(job_input.execution_id)
        facts = expected(here, job_input)
    return Outcome(job_view.job(facts))


def expected(here: Components, wish: Enqueued) -> Facts:
    """Return the beginning of a stored execution that no stage has processed yet."""
    now = here.clock.now()
    admitted = execution_plan.from_enqueued(Recorded(wish, subjects.subject_of(wish), 1, now))
    return (Recorded(admitted, subjects.subject_of(admitted), 1, now),)


async def _duplicate(here: Components, caller: Principal, job_input: Enqueued, existing_id: str) -> Outcome:
    existing: dict[str, Any] = {"id": existing_id}
    try:
        match = await job_view.find(here.log, existing_id)
    except NotFound:
        pass  # another job with the key came first, and was replaced before it began
    else:
        existing = job_view.job(match.facts, job_id=existing_id)
    if not caller.may(Permission.HISTORY):
        existing = {name: existing[name] for name in _SUMMARY if name in existing}
    if job_input.unique is not None and job_input.unique.on_conflict == "ignore":
        return Outcome(existing, is_duplicate=True)
    facts = {
        "existing_job_id": existing_id,
        **({"existing_job_state": existing["state"]} if "state" in existing else {}),
    }
    raise Problem(409, "duplicate", f"job {existing_id} has the unique key of this job", facts=facts)
