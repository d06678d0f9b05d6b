"""`/ojs/v1/queues`: list, show, pause and resume queues (ojs-queue-config, ojs-http-binding §11)."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Annotated, Any, Final, TypeAlias, TypeVar, get_args

from fastapi import Query

from .... import subjects
from ....domain import duration
from ....domain.access import Principal
from ....domain.events import JobState
from ....ports import LogUnavailable
from ....ports.summaries import QueueCounts
from ....services.queue_decisions import QueueDecisions, pause_of
from ....services.queues import PERIOD, QueueDetails, find
from ..api.dependencies import Components, Here, Reason
from ..api.problems import Problem
from ..auth.security import Reader, SharedOperator
from . import envelope, job_view
from .job_filter import until_current
from .job_view import Json
from .protocol import ojs_router

STATES: Final[tuple[JobState, ...]] = get_args(JobState)
MAX_WARNINGS: Final = 10
"""The number of queues that an answer warns of."""
MAX_LIMIT: Final = 1_000
"""More than the 200 of the specification: a larger page is an extension."""
DEFAULT_LIMIT: Final = 50

router = ojs_router("/ojs/v1/queues", 404, 409)

Limit: TypeAlias = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Return this many at most.")]
Offset: TypeAlias = Annotated[
    int, Query(ge=0, le=1_000_000, description="Skip this many, from the cursor on if one is given.")
]
Cursor: TypeAlias = Annotated[
    str | None, Query(max_length=1_000, description="Continue after a page: its `next_cursor`.")
]

T = TypeVar("T")


def page_of(
    items: Sequence[T], name_of: Callable[[T], str], *, limit: int, offset: int, cursor: str | None
) -> tuple[Sequence[T], Json]:
    """Return a page of items that are sorted by name, and its place.

    The cursor is the last name of a page, so that a page continues correctly if items come and go between two requests. Without
    `next_cursor`, the list ends with this page.
    """
    following = items if cursor is None else [item for item in items if name_of(item) > cursor]
    end = offset + limit
    page, has_more = following[offset:end], len(following) > end
    after = name_of(page[-1]) if has_more else None
    place = {"total": len(items), "limit": limit, "offset": offset, "has_more": has_more, "next_cursor": after}
    return page, place


async def warnings(here: Components, caller: Principal, names: Iterable[str]) -> list[str]:
    """Return a warning for each of the first queues that do not exist yet.

    The name may be misspelled, so that a worker would wait in vain. The first job may also be still to come: otherwise
    the queue is empty.

    A queue exists if the settings, a job or the caller's token names it, or if a task was dispatched to it. Without the log, there are none.
    """
    found: list[str] = []
    for name in names:
        if name in caller.binding.queues:
            continue
        try:
            similar = await here.queue_names.similar_to_absent(name)
        except LogUnavailable:  # the answer without jobs is right nevertheless
            break
        if similar is not None:
            reached = next(filter(caller.reaches, similar), None)
            usual = "Its first job makes it, or an entry under `queues:` in tocsin.yaml."
            hint = usual if reached is None else f"Did you mean {reached!r}?"
            found.append(f"no queue is called {name!r} yet. {hint}")
        if len(found) == MAX_WARNINGS:
            break
    return found


@router.get("", operation_id="listQueues")
async def list_queues(
    here: Here, caller: Reader, limit: Limit = DEFAULT_LIMIT, offset: Offset = 0, cursor: Cursor = None
) -> dict[str, Any]:
    """List the queues by name."""
    known = await here.queues(caller)
    page, place = page_of(known, lambda queue: queue.name, limit=limit, offset=offset, cursor=cursor)
    return {"queues": list(map(_queue_of, page)), "pagination": place}


@router.get("/{name}", operation_id="getQueueOfOjs")
async def show(here: Here, caller: Reader, name: str) -> dict[str, Any]:
    """Show a queue with its configuration, which is that of the settings, and its statistics."""
    measured = await stats(here, caller, name)
    return {**measured, "state": measured["status"], "config": config_of(here, name)}


@router.get("/{name}/stats", operation_id="queueStats")
async def stats(here: Here, caller: Reader, name: str) -> dict[str, Any]:
    """Count the jobs of a queue by state, as of this request."""
    checked = checked_name(caller, name)
    await until_current(here)
    queue, counts = await measured(here, caller, checked)
    states = {state: counts.states.get(state, 0) for state in STATES}
    completed, failed = counts.ended.get("completed", 0), counts.ended.get("discarded", 0)
    return {
        "queue": {**_queue_of(queue), **states},
        "name": name,
        "status": status_of(queue),
        "stats": {
            "total": sum(states.values()),
            **states,
            "completed_last_hour": completed,
            "failed_last_hour": failed,
            "throughput_per_second": round(completed / PERIOD.total_seconds(), 4),
        },
        "computed_at": job_view.instant(here.clock.now()),
    }


async def measured(here: Components, caller: Principal, name: str) -> tuple[QueueDetails, QueueCounts]:
    """Return a queue and the number of its jobs, by the history."""
    counts = await here.history.summaries.of_queue(name, here.clock.now() - PERIOD)
    may_be_new = bool(counts.states) and await _sees_all(here, caller)
    return await _details(here, caller, name, may_be_new=may_be_new), counts


async def _sees_all(here: Components, caller: Principal) -> bool:
    """Return whether a caller sees all jobs that it reaches: no queue is hidden."""
    return all(caller.may_see(job) for job in await here.registry.jobs() if caller.reaches(job.name))


@router.post("/{name}/pause", operation_id="pauseQueue")
async def pause(here: Here, caller: SharedOperator, name: str, reason: Reason = None) -> dict[str, Any]:
    """Pause a queue: no job is handed out, and new jobs are accepted.

    A queue that does not exist yet is paused too, and the answer has `warnings` (an extension). A caller that is bound to namespaces gets
    404 for it.
    """
    paused = _switched(await switch_queue(here, caller, name, reason, paused=True))
    return {**paused, **await warnings_on(here, caller, name)}


@router.post("/{name}/resume", operation_id="resumeQueue")
async def resume(here: Here, caller: SharedOperator, name: str, reason: Reason = None) -> dict[str, Any]:
    """Resume a queue: jobs are handed out again."""
    return _switched(await switch_queue(here, caller, name, reason, paused=False))


def _switched(queue: QueueDetails) -> dict[str, Any]:
    return {"queue": _queue_of(queue), "name": queue.name, "status": status_of(queue)}


async def switch_queue(
    here: Components, caller: Principal, name: str, reason: str | None, *, paused: bool
) -> QueueDetails:
    """Pause or resume a queue, and return it.

    A queue may be paused before its first job, unless it may be one that is hidden from the caller. A caller that is bound to namespaces
    pauses only queues that exist, because the absent queues that are paused have a limit that a team could use up.
    """
    checked = checked_name(caller, name)
    known = await here.queues(caller)
    names = {queue.name for queue in known}
    is_absent = checked not in names
    if is_absent and not await _sees_all(here, caller):
        find(checked, known)
    if is_absent and paused:
        is_absent = not any(await here.log.tails(*subjects.tasks(checked)))
        if is_absent and caller.is_bound:
            find(checked, known)
    decisions = here.queue_decisions(caller)
    async with here.paused_names.turn(checked, names) if is_absent and paused else nullcontext():
        changed = await decisions.switch(checked, paused=paused, reason=reason, is_absent=is_absent)
    return await _details(here, caller, checked, may_be_new=paused or changed)


async def warnings_on(here: Components, caller: Principal, name: str) -> dict[str, list[str]]:
    """Return a warning if no queue has a name yet: it may be misspelled."""
    found = await warnings(here, caller, [name])
    return {"warnings": found} if found else {}


async def _details(here: Components, caller: Principal, name: str, *, may_be_new: bool = False) -> QueueDetails:
    known = await here.queues(caller)
    if name not in {queue.name for queue in known} and (may_be_new or await _sees_all(here, caller)):
        state = await QueueDecisions(here.log).state(name)
        if may_be_new or state.is_paused:
            return QueueDetails(name, "matched", paused=pause_of(state))
    return find(name, known)


def checked_name(caller: Principal, name: str) -> str:
    """Return the name of a queue that a caller reaches."""
    if not envelope.is_queue(name) or not caller.reaches(name):
        raise Problem(404, "not-found", f"no queue is called {name!r}")
    return name


def status_of(queue: QueueDetails) -> str:
    """Return the state of a queue (ojs-queue-config §5.1)."""
    return "active" if queue.paused is None else "paused"


def config_of(here: Components, name: str) -> dict[str, Any]:
    """Return the configuration of a queue (ojs-queue-config §6); fields without a value are left out."""
    section, retention_days = here.settings.queues.get(name), here.settings.execution.history_retention_days
    concurrency, rate = (None, None) if section is None else (section.concurrency, section.rate)
    return {
        **({} if concurrency is None else {"concurrency": concurrency}),
        **({} if rate is None else {"rate_limit": {"limit": rate.limit, "period": duration.iso(rate.per)}}),
        "retention": dict.fromkeys(("completed", "discarded", "cancelled"), f"P{retention_days}D"),
    }


def _queue_of(queue: QueueDetails) -> dict[str, Any]:
    status = status_of(queue)
    return {"name": queue.name, "paused": status == "paused", "status": status, "available": queue.waiting or 0}
