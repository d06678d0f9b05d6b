"""The jobs that a `filter` selects for a request on several jobs (ojs-bulk-operations §6.1)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias

from pydantic import AwareDatetime, BaseModel, BeforeValidator, Field, JsonValue, ValidationError

from .... import subjects
from ....domain import execution
from ....domain.access import Principal
from ....domain.events import JobState
from ....domain.execution_record import Status
from ....ports import CATCH_UP_PAUSES_S, DeadLetterRow, ExecutionRow, recorded_upto
from ....ports.queries import DeadLetterQuery, ExecutionQuery, ExecutionSort
from ....services.operations.event_waiter import EXECUTIONS
from ....subjects import DecodeError, Stream
from ..api.dependencies import Components
from ..api.problems import Problem
from ..auth.visibility import Run
from . import dead_letters, job_view
from .job_view import Json
from .protocol import refused

MAX_MATCHES: Final = 1_000
MAX_SEARCHED: Final = 2_000
"""Candidates that a request reads; a workflow counts as its jobs, if they are listed."""
MAX_SECONDS: Final = 10.0
"""The time after which a request searches no further page."""
PAGE_SIZE: Final = 16
"""Candidates whose events are loaded and folded between two turns of other requests, and two looks at the clock."""
STEPS_TOGETHER: Final = 8
"""Jobs of a workflow that are shown between two turns of other requests."""
CANCELLABLE: Final[tuple[JobState, ...]] = ("available", "scheduled", "retryable")
"""The states in which a filter cancels jobs (ojs-bulk-operations §6.1)."""
RETRIABLE: Final[tuple[JobState, ...]] = ("discarded",)
"""The states in which a filter runs jobs again."""

Candidate: TypeAlias = ExecutionRow | DeadLetterRow
Pages: TypeAlias = AsyncIterator[tuple[Sequence[Candidate], str | None]]
"""Pages of candidates, and the cursor after each."""
OPEN: Final[tuple[Status, ...]] = ("pending", "running")


def _instant(value: object) -> datetime:
    if not isinstance(value, str):
        raise ValueError("not text")  # noqa: TRY004 - pydantic reports only ValueError as a validation error
    return datetime.fromisoformat(value)


def is_instant(value: object) -> bool:
    try:
        return _instant(value).tzinfo is not None
    except ValueError:
        return False


INSTANT: Final = "must be an instant with its offset from UTC, in RFC 3339"
_Instant: TypeAlias = Annotated[AwareDatetime, BeforeValidator(_instant)]
_State: TypeAlias = Literal["available", "scheduled", "retryable", "discarded"]


class JobFilter(BaseModel, strict=True, extra="forbid", use_attribute_docstrings=True):
    """The criteria of jobs; an absent field excludes no job."""

    type: str | None = None
    queue: str | None = None
    state: Annotated[list[_State], Field(min_length=1)] | None = None
    """must be an array of the states `available`, `scheduled` and `retryable` for a cancellation, of `discarded` for a retry"""
    enqueued_before: _Instant | None = Field(default=None, description=INSTANT)
    enqueued_after: _Instant | None = Field(default=None, description=INSTANT)
    priority: int | None = None
    """must be an integer"""
    meta: dict[str, JsonValue] | None = None
    """must be an object with at least one field"""

    def matches(self, job: Json) -> bool:
        enqueued_at = datetime.fromisoformat(job["enqueued_at"])
        return (
            (self.type is None or is_of_type(self.type, job["type"]))
            and self.queue in {None, job["queue"]}
            and (self.state is None or job["state"] in self.state)
            and (self.enqueued_before is None or enqueued_at < self.enqueued_before)
            and (self.enqueued_after is None or enqueued_at > self.enqueued_after)
            and self.priority in {None, job["priority"]}
            and all(name in job["meta"] and job["meta"][name] == value for name, value in (self.meta or {}).items())
        )


def is_of_type(pattern: str, type: str) -> bool:  # noqa: A002 - the field has this name
    """Return whether a job has a type; `*` ends the beginning of several (ojs-admin-api §7.1)."""
    return type.startswith(pattern[:-1]) if pattern.endswith("*") else type == pattern


async def until_current(here: Components) -> None:
    """Wait until the history has all events of executions that were stored before this request."""
    newest = await here.log.tail(EXECUTIONS)
    if await recorded_upto(here.history, Stream.LOG, newest, CATCH_UP_PAUSES_S) < newest:
        raise Problem(
            503,
            "unavailable",
            "the history does not have the newest events yet. Check that the stage `recorder` runs",
            headers={"Retry-After": "1"},
        )


class Selection(NamedTuple):
    """The jobs that a request selects."""

    ids: list[str]
    cursor: str | None
    """Where the next request continues; None: no candidates are left."""


REQUIRED: Final = f"must be an object with at least one of {', '.join(JobFilter.model_fields)}"


def read(given: object, states: Sequence[str], default: Sequence[str]) -> JobFilter:
    """Return a filter; without `state`, it has the default states."""
    if not isinstance(given, dict) or not given:
        raise refused("filter", REQUIRED, given)
    try:
        chosen = JobFilter.model_validate(given)
    except ValidationError as error:
        field = str(error.errors()[0]["loc"][0])
        raise _invalid_field(field, given.get(field)) from None
    for field, value in given.items():
        if value is None or value == {}:  # such a field excludes no job
            raise _invalid_field(field, value)
    if any(state not in states for state in chosen.state or ()):
        raise _invalid_field("state", chosen.state)
    return chosen if chosen.state is not None else chosen.model_copy(update={"state": list(default)})


async def cancellable(here: Components, caller: Principal, chosen: JobFilter, cursor: object) -> Selection:
    """Select jobs that wait, the oldest scheduled time first, without jobs of workflows."""
    await until_current(here)
    return await _selected(here, caller, chosen, execution_pages(here, caller, OPEN, cursor, sort="oldest"))


async def dead(here: Components, caller: Principal, chosen: JobFilter, cursor: object) -> Selection:
    """Select jobs of unresolved dead letters, the newest first, without jobs of workflows."""
    await until_current(here)
    return await _selected(here, caller, chosen, dead_letter_pages(here, caller, cursor))


async def _selected(here: Components, caller: Principal, chosen: JobFilter, pages: Pages) -> Selection:
    ids = dict[str, None]()

    def take(job: Json) -> bool:
        if chosen.matches(job):
            ids[job["id"]] = None
        return len(ids) + PAGE_SIZE <= MAX_MATCHES

    following = await search(here, caller, pages, take)
    return Selection([*ids], following)


async def search(
    here: Components, caller: Principal, pages: Pages, take: Callable[[Json], bool], *, with_workflows: bool = False
) -> str | None:
    """Take the jobs of candidates one by one; return the cursor after them.

    None: no candidates are left. `take`: returns whether jobs of a further page may be taken. `with_workflows`: take the jobs of workflows too.
    """
    searched, following = 0, None
    async with here.job_searches.turn(caller.party):
        clock = asyncio.get_running_loop()
        end, has_room = clock.time() + MAX_SECONDS, True
        async for rows, cursor in pages:
            following = cursor
            views = await asyncio.gather(*(_views(here, caller, row, with_workflows=with_workflows) for row in rows))
            found = [job for view in views for job in view]
            for job in found:
                has_room = take(job)
            await asyncio.sleep(0)  # what is in memory is loaded without a turn of others
            searched += max(len(rows), len(found))
            if searched + PAGE_SIZE > MAX_SEARCHED or not has_room or clock.time() >= end:
                break
    return following


async def _facts(here: Components, caller: Principal, row: Candidate) -> job_view.Facts:
    """Return the events of a candidate; none: it is hidden, ran again, or is unreadable."""
    if row.execution_id is None or not await here.visibility.may_see_run(caller, Run.of(row)):
        return ()
    if isinstance(row, DeadLetterRow):
        return await dead_letters.facts_of(here, row)
    try:
        return await here.log.load(subjects.execution(row.job_name, row.execution_id))
    except DecodeError:  # the others are selected nevertheless
        return ()


async def execution_pages(
    here: Components,
    caller: Principal,
    statuses: Sequence[Status | None],
    cursor: object,
    *,
    sort: ExecutionSort = "newest",
) -> Pages:
    """Yield pages of executions, one status after another, and the cursor after each page."""
    names = [status or "any" for status in statuses]
    first, _, place = _cursor(cursor).partition(":")
    if first and (first not in names or not place):
        raise refused("cursor", "must be the `next_cursor` of an answer to the same filter", cursor)
    begin = names.index(first) if first else 0
    for number, status in enumerate(statuses[begin:], begin):
        after = place if number == begin and place not in {"", "0"} else None
        following = f"{names[number + 1]}:0" if number + 1 < len(names) else None
        while True:
            query = ExecutionQuery(status=status, sort=sort, limit=PAGE_SIZE, cursor=after, namespaces=caller.reached)
            page = await here.history.executions(query)
            after = page.cursor
            yield page.rows, f"{names[number]}:{after}" if after is not None else following
            if after is None:
                break


async def dead_letter_pages(here: Components, caller: Principal, cursor: object) -> Pages:
    """Yield pages of unresolved dead letters, and the cursor after each."""
    after: str | None = _cursor(cursor) or None
    while True:
        query = DeadLetterQuery(unresolved=True, limit=PAGE_SIZE, cursor=after, namespaces=caller.reached)
        page = await here.history.dead_letters(query)
        after = page.cursor
        yield page.rows, after
        if after is None:
            return


async def _views(here: Components, caller: Principal, row: Candidate, *, with_workflows: bool) -> list[Json]:
    """Return the jobs of a candidate that the caller sees.

    It has none if it was not requested, was skipped after that, or failed and ran again: then the newest execution stands for the job.
    """
    if not (facts := await _facts(here, caller, row)):
        return []
    state = execution.fold(facts)
    if state.requested is None or state.status is execution.Status.SKIPPED:
        return []
    if not job_view.is_workflow(state):
        if isinstance(row, ExecutionRow) and await _ran_again(here, state):
            return []
        return [job_view.job(facts, state=state, job_id=await dead_letters.id_of(here, caller, state))]
    if not with_workflows:
        return []
    workflow, views = state.request.execution_id, list[Json]()
    for number, step in enumerate(state.steps):
        if number % STEPS_TOGETHER == 0:
            await asyncio.sleep(0)
        views.append(job_view.job(facts, state=state, job_id=f"{workflow}:{step}", step=step))
    return views


async def _ran_again(here: Components, state: execution.Execution) -> bool:
    if state.status is not execution.Status.FAILED or not state.request.plan.dead_letter:
        return False
    try:
        return await job_view.newest_replay(here.log, state.request.job, state.request.execution_id) is not None
    except DecodeError:  # of a later version
        return False


def _cursor(given: object) -> str:
    if given is not None and (not isinstance(given, str) or len(given) > 1_000):  # noqa: PLR2004 - far above any cursor
        raise refused("cursor", "must be the `next_cursor` of an answer to the same filter", given)
    return given or ""


def _invalid_field(field: str, value: object) -> Problem:
    known = JobFilter.model_fields.get(field)
    right = "must be absent: a filter has no such field" if known is None else known.description or "must be text"
    return refused(f"filter.{field}", right, value)
