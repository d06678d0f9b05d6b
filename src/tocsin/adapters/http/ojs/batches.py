"""Requests on several jobs: `/ojs/v1/jobs/batch` (ojs-http-binding §9.2) and `/ojs/v1/jobs/bulk` (ojs-bulk-operations).

`/ojs/v1/workers/ack/batch` reports several as completed, an extension.

The jobs of one request are stored as one atomic batch of the log. With an idempotency key, their ids are made from the key,
so that a repeated request finds the jobs that were enqueued, also if the process died before it answered.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Final, TypeAlias

from fastapi import Request, Response
from pydantic import JsonValue
from typing_extensions import override

from .... import subjects
from ....domain import execution
from ....domain.access import Principal
from ....domain.errors import TocsinError
from ....domain.events import Enqueued
from ....domain.execution import Status
from ....domain.task_fetch import MAX_COUNT
from ....ports import MAX_TOGETHER, LogUnavailable
from ....services.operations import lookup, worker_answers
from ....services.operations.lookup import ExecutionMatch
from ....services.operations.task_fetches import Held, Holder
from ....services.operations.worker_answers import Answered
from ..api.dependencies import Components, Here, Traceparent
from ..api.problems import FieldError, Problem, problem_of
from ..auth.security import Replayer, TaskWorker, Triggerer, actor
from ..middleware.idempotency import IdempotentRoute, request_name
from . import dead_letters, envelope, job_filter, jobs, protocol, workers
from .job_filter import Selection
from .job_view import Json
from .jobs import Batch, Outcome, Undecided, enqueue_all, enqueue_each, of_job
from .protocol import Body, as_error, not_kept_if_retryable, ojs_router, read_object, refused

MAX_BATCH: Final = MAX_TOGETHER
BATCH_SIZE: Final = "X-OJS-Batch-Size"
MAX_BATCH_SIZE: Final = "X-OJS-Max-Batch-Size"
AT_ONCE: Final = 32
"""The number of jobs that a request cancels or retries at a time."""
SUMMARY: Final = ("id", "type", "state", "queue", "scheduled_at", "created_at", "enqueued_at")


class BulkRoute(IdempotentRoute):
    """A route with a key in a `bulk` body as `idempotency_key` (ojs-bulk-operations §11.3)."""

    @override
    async def key_of(self, request: Request) -> tuple[str, object]:
        name, key = await super().key_of(request)
        if key is not None or "bulk" not in request.url.path.split("/"):
            return name, key
        return "idempotency_key", (await read_object(request)).get("idempotency_key")


router = ojs_router("/ojs/v1/jobs", 409, 413, route_class=BulkRoute)
_JOBS: Final[Json] = {"type": "array", "items": {"type": "object"}, "minItems": 1, "maxItems": MAX_BATCH}
_IDS: Final[Json] = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_BATCH}
_KEY: Final[Json] = {"type": "string", "maxLength": 256}
_CHANGED: Final[Json] = {
    "job_ids": {**_IDS, "type": ["array", "null"]},
    "filter": {"type": ["object", "null"], "minProperties": 1},
    "cursor": {"type": ["string", "null"]},
    "idempotency_key": _KEY,
}
_RESULTS: Final[Json] = {
    "type": "object",
    "properties": {"items": {"type": "array", "items": {"type": "object"}}},
    "required": ["items"],
}


def _with_results(description: str, *alternatives: Json) -> Json:
    schema = {"schema": {"anyOf": [_RESULTS, *alternatives]}}
    return {"description": description, "content": {protocol.MEDIA_TYPE: schema, protocol.PLAIN: schema}}


PARTIAL: Final[dict[int | str, Json]] = {
    207: _with_results("The jobs have different results."),
    422: _with_results("No job was changed.", {"$ref": "#/components/schemas/OjsErrorAnswer"}),
}


@router.post("/batch", status_code=201, operation_id="pushJobs", openapi_extra=protocol.body_schema("jobs", jobs=_JOBS))
async def push_batch(
    here: Here, caller: Triggerer, request: Request, body: Body, traceparent: Traceparent = None
) -> Json:
    """Enqueue several jobs: all of them, or none if a job is invalid.

    A job with a unique key must be ignored or replace if it is a duplicate. To refuse it would refuse all others.
    """
    given = await _read(here, caller, request, _listed(body, "jobs"), traceparent)
    for index, problem in enumerate(given.problems()):
        if problem is not None:
            raise of_job(index, problem)
    outcomes = await enqueue_all(here, caller, given.batch)
    return {"jobs": [outcome.job for outcome in outcomes], "count": len(outcomes)}


@router.post(
    "/bulk",
    status_code=201,
    operation_id="bulkEnqueueJobs",
    responses=PARTIAL,
    openapi_extra=protocol.body_schema(
        "jobs", jobs=_JOBS, atomicity={"type": "string", "enum": ["partial", "atomic"]}, idempotency_key=_KEY
    ),
)
async def bulk_enqueue(
    here: Here, caller: Triggerer, request: Request, response: Response, body: Body, traceparent: Traceparent = None
) -> Json:
    """Enqueue several jobs, with the result of each.

    `partial`: invalid jobs affect no others. `atomic`: all jobs are enqueued, or none. A unique job of which it is not known soon whether it is a
    duplicate is `undecided`.
    """
    enqueue = _all_or_none if _is_atomic(body) else _each
    outcomes = await enqueue(here, caller, await _read(here, caller, request, _listed(body, "jobs"), traceparent))
    undecided = [outcome for outcome in outcomes if isinstance(outcome, Undecided)]
    if undecided and request_name(request) is not None:
        raise undecided[0]  # the answer would be kept for the repeated request, which finds what was decided
    not_kept_if_retryable(request, *(outcome for outcome in outcomes if isinstance(outcome, Problem)))
    items = [_item(index, outcome) for index, outcome in enumerate(outcomes)]
    failed = sum(item["status"] == "failed" for item in items)
    response.headers[BATCH_SIZE] = str(len(items))
    status = status_of_items(len(items), failed, success=HTTPStatus.CREATED)
    response.status_code = HTTPStatus.MULTI_STATUS if undecided else status
    open_ = {"undecided": len(undecided)} if undecided else {}
    succeeded = len(items) - failed - len(undecided)
    return {"total": len(items), "succeeded": succeeded, "failed": failed, **open_, "items": items}


@router.post(
    "/bulk/cancel",
    operation_id="bulkCancelJobs",
    responses=PARTIAL,
    openapi_extra=protocol.body_schema(**_CHANGED),
)
async def bulk_cancel(here: Here, caller: Triggerer, request: Request, response: Response, body: Body) -> Json:
    """Cancel the jobs of a list or a filter, with the result of each.

    A filter selects at most 1,000 jobs that wait; `next_cursor` continues, and is null at the end.
    """
    cancel, select = to_cancel(here, caller, request, body.get("filter"))
    return await _change_each(body, response, "cancelled", cancel, select)


@router.post(
    "/bulk/retry",
    operation_id="bulkRetryJobs",
    responses=PARTIAL,
    openapi_extra=protocol.body_schema(**_CHANGED),
)
async def bulk_retry(here: Here, caller: Replayer, request: Request, response: Response, body: Body) -> Json:
    """Run dead letters of a list or a filter again, with the result of each.

    A filter selects at most 1,000 jobs; `next_cursor` continues, and is null at the end.
    """
    retry, select = to_retry(here, caller, request, body.get("filter"))
    return await _change_each(body, response, "retried", retry, select)


Change: TypeAlias = Callable[[str], Awaitable[object]]
Select: TypeAlias = Callable[[object], Awaitable[Selection]]
"""Returns the jobs that a filter selects, from a cursor on."""


def to_cancel(here: Components, caller: Principal, request: Request, given: object) -> tuple[Change, Select | None]:
    """Return how a job is cancelled, and how jobs of a filter are selected."""
    chosen = None if given is None else job_filter.read(given, job_filter.CANCELLABLE, ("available", "scheduled"))
    cancel = partial(jobs.cancel_job, here, caller, states=None if chosen is None else chosen.state)
    select = None if chosen is None else partial(job_filter.cancellable, here, caller, chosen)
    return protocol.changing(request, cancel), select


def to_retry(here: Components, caller: Principal, request: Request, given: object) -> tuple[Change, Select | None]:
    """Return how a dead letter runs again, and how jobs of a filter are selected."""
    chosen = None if given is None else job_filter.read(given, job_filter.RETRIABLE, job_filter.RETRIABLE)
    select = None if chosen is None else partial(job_filter.dead, here, caller, chosen)
    return protocol.changing(request, partial(dead_letters.retry_job, here, caller, request)), select


def _listed(body: Json, field: str) -> list[Any]:
    items, right = body.get(field), f"must be an array of 1 to {MAX_BATCH:,} jobs"
    if not isinstance(items, list) or not items:
        raise refused(field, right)
    if len(items) > MAX_BATCH:
        detail = f"`{field}` has {len(items):,} jobs: {right}"
        wrong = FieldError(field=field, value=f"{len(items):,} jobs", right=right)
        headers, facts = {MAX_BATCH_SIZE: str(MAX_BATCH)}, {"max_batch_size": MAX_BATCH}
        raise Problem(413, "batch-size-exceeded", detail, (wrong,), headers, facts)
    return items


def _is_atomic(body: Json) -> bool:
    atomicity = body.get("atomicity", "partial")
    if not isinstance(atomicity, str) or atomicity not in {"partial", "atomic"}:
        raise refused("atomicity", "must be `partial` or `atomic`")
    return atomicity == "atomic"


@dataclass(frozen=True, slots=True)
class _Given:
    """The jobs of a body: the input of each, or why it is invalid."""

    inputs: Sequence[Enqueued | Problem]
    made: Collection[str]
    is_retried: bool

    @property
    def batch(self) -> Batch:
        wishes = [wish for wish in self.inputs if isinstance(wish, Enqueued)]
        return Batch(wishes, self.made, is_retried=self.is_retried)

    def problems(self) -> list[Problem | None]:
        """Return why jobs are invalid in an atomic batch."""
        right = "must be `ignore` or `replace` in an atomic batch"
        return [
            wish
            if isinstance(wish, Problem)
            else refused("unique.on_conflict", right, "reject")
            if wish.unique is not None and wish.unique.on_conflict == "reject"
            else None
            for wish in self.inputs
        ]


async def _read(
    here: Components, caller: Principal, request: Request, listed: Sequence[object], traceparent: str | None
) -> _Given:
    """Read jobs, and make ids for them from the idempotency key, if any."""
    defaults, (made, is_retried) = await jobs.defaults(here, traceparent), jobs.made_ids(here, request, len(listed))
    inputs: list[Enqueued | Problem] = []
    for job, execution_id in zip(listed, made, strict=True):
        try:
            wish = envelope.read(job, execution_id, defaults, actor(caller))
            inputs.append(envelope.within(caller, wish, defaults, execution_id))
        except Problem as problem:
            inputs.append(problem)
    return _Given(inputs, frozenset(made), is_retried)


async def _each(here: Components, caller: Principal, given: _Given) -> list[Outcome | Problem]:
    outcomes = iter(await enqueue_each(here, caller, given.batch))
    return [wish if isinstance(wish, Problem) else next(outcomes) for wish in given.inputs]


async def _all_or_none(here: Components, caller: Principal, given: _Given) -> list[Outcome | Problem]:
    problems = given.problems()
    rejected = Problem(422, "batch-rejected", "not enqueued, because another job of the batch is invalid")
    if any(problems):
        return [problem or rejected for problem in problems]
    try:
        return [*await enqueue_all(here, caller, given.batch)]
    except Problem as problem:
        if (failed := problem.facts.get("index")) is None:
            raise
        return [problem if index == failed else rejected for index in range(len(problems))]


def _item(index: int, outcome: Outcome | Problem) -> Json:
    if isinstance(outcome, Undecided):
        error = as_error(outcome).model_dump(exclude_none=True)
        return {"index": index, "status": "undecided", "job": {"id": outcome.job_id}, "error": error}
    if isinstance(outcome, Problem):
        return {"index": index, "status": "failed", "error": as_error(outcome).model_dump(exclude_none=True)}
    summary = {name: outcome.job[name] for name in SUMMARY if name in outcome.job}
    return {"index": index, "status": "duplicate" if outcome.is_duplicate else "created", "job": summary}


async def _change_each(body: Json, response: Response, done: str, change: Change, select: Select | None) -> Json:
    """Change each job of a list or a selection; `done`: the state of changed jobs."""
    if _is_atomic(body):
        raise refused("atomicity", "must be `partial`: each job is decided on by itself", "atomic")
    if select is None:
        if body.get("cursor") is not None:
            raise refused("cursor", "must be absent without `filter`")
        listed = _listed(body, "job_ids")
        for index, listed_id in enumerate(listed):  # all of them, before the first is changed
            if not isinstance(listed_id, str):
                raise refused(f"job_ids[{index}]", "must be the id of a job")
        return await _change_listed(listed, response, done, change)
    if body.get("job_ids") is not None:
        raise refused("filter", "must be absent if `job_ids` is there")
    selection = await select(body.get("cursor"))
    changed = await _change_listed(selection.ids, response, done, change)
    return {**changed, "next_cursor": selection.cursor}


async def _change_listed(listed: Sequence[str], response: Response, done: str, change: Change) -> Json:
    def item(index: int, job_id: str, problem: Problem | None) -> Json:
        head: Json = {"index": index, "job_id": job_id}
        if problem is None:
            return {**head, "status": done}
        error = as_error(problem).model_dump(exclude_none=True)
        return {**head, "status": "skipped", "reason": problem.detail, "error": error}

    problems = await problems_of_each(listed, change)
    items = [item(index, id_, problem) for index, (id_, problem) in enumerate(zip(listed, problems, strict=True))]
    skipped = sum(item["status"] == "skipped" for item in items)
    response.headers[BATCH_SIZE] = str(len(items))
    response.status_code = status_of_items(len(items), skipped, success=HTTPStatus.OK)
    return {"total_matched": len(items), done: len(items) - skipped, "skipped": skipped, "items": items}


async def problems_of_each(listed: Sequence[str], change: Change) -> list[Problem | None]:
    """Change jobs, some at a time; return why each was not changed, or None."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def problem_with(job_id: str) -> Problem | None:
        async with limit:
            try:
                await change(job_id)
            except TocsinError as error:
                return problem_of(error)
        return None

    return await asyncio.gather(*map(problem_with, listed))


def status_of_items(total: int, failed: int, *, success: HTTPStatus = HTTPStatus.OK) -> int:
    """Return the status of an answer with results, of which some failed."""
    if not failed:
        return success
    return HTTPStatus.UNPROCESSABLE_ENTITY if failed == total else HTTPStatus.MULTI_STATUS


ack_router = ojs_router(workers.PREFIX, 413)
MAX_ID_LENGTH: Final = 512
"""Characters of the id of a job: an execution and a step."""
_ACKS: Final[Json] = {
    "type": "array",
    "minItems": 1,
    "maxItems": MAX_COUNT,
    "items": {"type": "object", "properties": {"job_id": {"type": "string"}, "result": {}}, "required": ["job_id"]},
}


@ack_router.post(
    "/ack/batch",
    operation_id="ackJobs",
    responses=PARTIAL,
    openapi_extra=protocol.body_schema("acks", acks=_ACKS, worker_id={"type": "string"}),
)
async def ack_jobs(here: Here, caller: TaskWorker, response: Response, body: Body) -> Json:
    """Report that several jobs completed, with the outcome of each (an extension)."""
    holder, acks = workers.holder_of(caller, body), _acks(body)
    found = await _held_each(here, [id_ for id_, _ in acks], holder)
    held = [(claim, result) for claim, (_, result) in zip(found, acks, strict=True) if isinstance(claim, Held)]
    reported = iter(await worker_answers.complete_each(here.log, held, key=here.report_key, arrivals=here.arrivals))
    outcomes = [(claim, next(reported) if isinstance(claim, Held) else claim) for claim in found]
    errors = [outcome for _, outcome in outcomes if isinstance(outcome, Exception)]
    if errors and all(isinstance(error, LogUnavailable) for error in errors) and len(errors) == len(outcomes):
        raise errors[0]
    items = [
        _ack_item(index, id_, claim, outcome)
        for index, ((id_, _), (claim, outcome)) in enumerate(zip(acks, outcomes, strict=True))
    ]
    failed = sum(item["status"] == "failed" for item in items)
    response.status_code = status_of_items(len(items), failed)
    return {"total": len(items), "acknowledged": len(items) - failed, "failed": failed, "items": items}


def _acks(body: Json) -> list[tuple[str, JsonValue]]:
    given = body.get("acks")
    if not isinstance(given, list) or not 1 <= len(given) <= MAX_COUNT:
        raise refused("acks", f"must be an array of 1 to {MAX_COUNT} objects with a `job_id`")
    earlier = set[str]()
    for index, each in enumerate(given):
        if not isinstance(each, dict) or not isinstance(each.get("job_id"), str) or not each["job_id"]:
            raise refused(f"acks[{index}].job_id", "must be the id of a job")
        if unknown := each.keys() - {"job_id", "result"}:
            raise refused(f"acks[{index}].{min(unknown)}", "is no field of an ack")
        if len(each["job_id"]) > MAX_ID_LENGTH:  # the answer repeats it
            raise refused(f"acks[{index}].job_id", f"has more than {MAX_ID_LENGTH} characters")
        if each["job_id"] in earlier:
            raise refused(f"acks[{index}].job_id", "is there twice; a job has one result")
        earlier.add(each["job_id"])
    return [(each["job_id"], each.get("result")) for each in given]


async def _held_each(here: Components, ids: Sequence[str], holder: Holder) -> list[Held | TocsinError]:
    """Return the lease of each job, or why it has none, usually with one read."""
    scopes = [
        subjects.execution(subjects.ANY, id_.partition(":")[0]) for id_ in ids if lookup.is_id(id_.partition(":")[0])
    ]
    facts: dict[str, Sequence[Any]] = {}
    if scopes:
        with suppress(subjects.DecodeError):  # perhaps of a newer version: then each job is read on its own
            facts = dict(zip(scopes, (await here.log.load_each(*scopes)).facts, strict=True))

    async def held(id_: str) -> Held | TocsinError:
        execution_id = id_.partition(":")[0]
        known = lookup.of_one_job(facts.get(subjects.execution(subjects.ANY, execution_id), ()), execution_id)
        match = None
        if known and execution.fold(known).status is Status.ADMITTED:
            match = ExecutionMatch(subjects.job_of(known[0].subject), execution_id, tuple(known))
        try:
            return await workers.held_of(here, id_, holder, known=match)
        except TocsinError as error:
            return error

    return await asyncio.gather(*map(held, ids))


def _ack_item(index: int, id_: str, claim: Held | TocsinError, outcome: Answered | Exception) -> Json:
    if isinstance(claim, Held) and not isinstance(outcome, Exception):
        try:
            progress = workers.completed(id_, claim, outcome)
        except Problem as problem:
            outcome = problem
        else:
            return {"index": index, "job_id": id_, "status": "acknowledged", **progress}
    assert isinstance(outcome, Exception)  # noqa: S101 - for the type checker
    error = as_error(problem_of(outcome)).model_dump(exclude_none=True)
    return {"index": index, "job_id": id_, "status": "failed", "error": error}
