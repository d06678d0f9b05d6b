"""`/ojs/v1/workers/ack/batch`: report several jobs as completed in one request, an extension."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from fastapi import Response
from pydantic import JsonValue

from .... import subjects
from ....domain import execution
from ....domain.errors import TocsinError
from ....domain.execution import Status
from ....domain.task_fetch import MAX_COUNT
from ....ports import LogUnavailable
from ....services.operations import lookup, worker_answers
from ....services.operations.lookup import ExecutionMatch
from ....services.operations.task_fetches import Held, Holder
from ....services.operations.worker_answers import Answered
from ..api.dependencies import Components, Here
from ..api.problems import Problem, problem_of
from ..auth.security import TaskWorker
from . import batches, protocol, workers
from .job_view import Json
from .protocol import Body, as_error, ojs_router, refused

router = ojs_router(workers.PREFIX, 413)
MAX_ID_LENGTH: Final = 512
"""Characters of the id of a job: an execution and a step."""
_ACKS: Final[Json] = {
    "type": "array",
    "minItems": 1,
    "maxItems": MAX_COUNT,
    "items": {"type": "object", "properties": {"job_id": {"type": "string"}, "result": {}}, "required": ["job_id"]},
}


@router.post(
    "/ack/batch",
    operation_id="ackJobs",
    responses=batches.PARTIAL,
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
        _item(index, id_, claim, outcome)
        for index, ((id_, _), (claim, outcome)) in enumerate(zip(acks, outcomes, strict=True))
    ]
    failed = sum(item["status"] == "failed" for item in items)
    response.status_code = batches.status_of_items(len(items), failed)
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


def _item(index: int, id_: str, claim: Held | TocsinError, outcome: Answered | Exception) -> Json:
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
