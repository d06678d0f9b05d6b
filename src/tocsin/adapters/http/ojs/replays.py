"""Dead letters that were retried."""

from collections.abc import Sequence

from .... import subjects
from ....domain import dead_letter, execution
from ....domain.access import Principal
from ....domain.events import Message, Recorded
from ....domain.execution import Execution
from ....ports import DeadLetterRow
from ....services.operations import event_waiter, execution_requests
from ....subjects import DecodeError
from ..api.dependencies import Components
from ..api.problems import Problem
from ..auth.visibility import Run
from . import job_view
from .job_view import MAX_REPLAYS, about_of


class NotStarted(Problem):
    """A retry is stored, and no stage has started it yet."""

    code = "unavailable"
    is_momentary = True


async def newest_replay(here: Components, job: str, execution_id: str) -> str | None:
    """Return the id of the newest execution that retried a dead letter, if one ran.

    A retried dead letter stays in the history's list until it is resolved.
    """
    newest = await job_view.newest_replay(here.log, job, execution_id)
    return None if newest is None else newest.execution_id


async def of_request(here: Components, job: str, execution_id: str, key: str) -> str | None:
    """Return the id of the execution that a request led to, if any.

    `key` is made from its idempotency key. `execution_id` is that of the job's first execution. The execution may have failed too, and have run again by another request.
    """
    for _ in range(MAX_REPLAYS):
        state = dead_letter.fold(await here.log.load(subjects.dead_letter(job, execution_id)))
        if (replay := dead_letter.find_replay(state, key)) is not None:
            return replay.execution_id
        newest = await newest_replay(here, job, execution_id)
        if newest is None:
            break
        execution_id = newest
    return None


async def begun(here: Components, job: str, execution_id: str, name: str) -> Sequence[Recorded[Message]]:
    """Return the events of a retry after a stage started it.

    `name`: what was retried, for the error.

    Raises:
        NotStarted: no stage started it.
    """
    events = await event_waiter.until(here.log, subjects.execution(job, execution_id), execution_requests.has_begun)
    if not events:
        detail = f"{name} is stored for a retry, but no stage has started it yet. Check that the stages run"
        raise NotStarted(503, "unavailable", detail)
    return events


async def facts_of(here: Components, row: DeadLetterRow) -> Sequence[Recorded[Message]]:
    """Return the events of a dead letter's execution, unless it ran again."""
    if row.execution_id is None:
        return ()
    try:
        if await newest_replay(here, row.job_name, row.execution_id) is not None:
            return ()
        return await here.log.load(subjects.execution(row.job_name, row.execution_id))
    except DecodeError:  # the other dead letters are listed nevertheless
        return ()


async def id_of(here: Components, caller: Principal, state: Execution) -> str:
    """Return the id by which `job_view.find` finds an execution.

    It is that of the job's first execution. If a later retry or another definition keeps the first from leading to this execution, it
    is the execution's own.
    """
    request = state.request
    if (own := about_of(request.plan.meta).get("id")) is not None:  # a retry has the same plan
        return str(own)
    current, before = request.execution_id, request.replay_of
    for _ in range(MAX_REPLAYS):
        try:
            if before is None or await newest_replay(here, request.job, before) != current:
                break
            facts = await here.log.load(subjects.execution(request.job, before))
        except DecodeError:  # of a later version
            break
        requested = execution.fold(facts).requested
        if requested is None or not await here.visibility.may_see_run(caller, Run.of_facts(request.job, facts)):
            break
        current, before = before, requested.replay_of
    return current
