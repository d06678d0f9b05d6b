"""`/v1/overview`: an installation at a glance, and `/v1/outcomes`: the last executions of several jobs."""

import asyncio
from datetime import datetime
from typing import Annotated, Final, get_args

from fastapi import APIRouter, Query
from pydantic import BaseModel

from ....domain.access import Permission, Principal
from ....domain.definition import Name, Text
from ....domain.events import AgentFact, DefinitionFact, Message, QueueFact, Recorded, SilencesDefined, Voided
from ....domain.execution_record import Status
from ....services import overview
from ....services.changes import Change, ChangeFilter, ChangeType, changes
from ....services.health.status import UNAVAILABLE
from ....services.jobs import Job, JobStatus
from ....services.overview import FailingJob, Instant, Rate, Waiting
from ..auth.security import HistoryReader
from ..auth.visibility import VisibleRuns, sees_agent
from .dependencies import Calculate, Components, Here, shown_as

MAX_LONGEST: Final = 10
MAX_JOBS: Final = 100
MAX_OUTCOMES: Final = 50

router = APIRouter(prefix="/v1", tags=["overviews"])


class RunningExecution(BaseModel):
    """An execution of which a worker has started a step."""

    execution_id: str
    job: str
    started_at: datetime | None


class RunningExecutions(BaseModel):
    """The number of running executions, and those that run longest."""

    count: int
    longest: list[RunningExecution]


class Waits(BaseModel, use_attribute_docstrings=True):
    """Open executions by the reason for which they wait."""

    count: int
    """The number of executions of which no worker has started a step."""
    examined: int
    """The number of open executions, those that were scheduled first, whose state the counts below include."""
    lock: Waiting = Waiting()
    worker: Waiting = Waiting()
    dependency: Waiting = Waiting()
    acknowledgements: Waiting = Waiting()
    delay: Waiting = Waiting()


class FailingJobs(BaseModel):
    """The number of jobs whose last execution failed, and those that failed last."""

    count: int
    jobs: list[FailingJob]


class InstantList(BaseModel):
    """The number of instants, and the earliest of them."""

    count: int
    instants: list[Instant]


class LeaderLease(BaseModel, use_attribute_docstrings=True):
    """The process that leads a stage."""

    stage: str
    holder: str
    renewed_at: datetime
    ends_at: datetime | None
    is_overdue: bool
    """The holder has not renewed the lease in time."""


class JobTotals(BaseModel):
    """The number of jobs in each state."""

    active: int
    paused: int
    disabled: int
    on_demand: int


class EndTotals(BaseModel):
    """The number of executions that ended."""

    completed: int
    failed: int
    skipped: int
    cancelled: int


class Totals(BaseModel):
    """Totals of the jobs, and of the executions that ended in the time of `rates`."""

    jobs: JobTotals
    ended: EndTotals


class Overview(BaseModel, use_attribute_docstrings=True):
    """The state of an installation, as far as the caller sees its jobs.

    Lists and counts of executions lag a moment.
    """

    at: datetime
    running: RunningExecutions
    waiting: Waits
    are_open_complete: bool
    """false: there are so many running or waiting executions that some are not counted."""
    failing: FailingJobs
    late: InstantList
    """The instants, one of each job, that are due for at least ten seconds and not decided."""
    upcoming: InstantList
    """The next instant of each job in the next hour."""
    are_jobs_complete: bool
    """false: `late`, `upcoming` and `totals.jobs` lack some jobs, whose calculation takes longer. Repeat the request."""
    leader: list[LeaderLease] | None
    """The processes that lead stages; null: they are unknown now, or the caller is bound to namespaces."""
    rates: list[Rate]
    """The ends of each minute of the last hour, or of less if there are too many."""
    totals: Totals


@router.get("/overview", operation_id="getOverview")
async def get_overview(here: Here, caller: HistoryReader, calculate: Calculate) -> Overview:
    """Show at a glance what runs, waits, fails, is late and comes next."""
    now = here.clock.now()
    jobs = await here.registry.jobs()
    registered = here.registry.last_listed
    sees = VisibleRuns(here.visibility, caller, registered)
    summaries = here.history.summaries
    of_jobs, of_open, failing, ends, leader = await asyncio.gather(
        calculate(lambda effort: overview.jobs_now(jobs, caller.may_see, here.instants, now, effort)),
        overview.open_executions(here.log, summaries, here.hold_ups(caller), sees, caller.reached),
        overview.failing_jobs(summaries, lambda name: _is_seen(caller, registered(name)), sees, caller.reached),
        summaries.ends(
            overview.first_minute(now), limit=overview.MAX_ENDS, by_job=not sees.all, namespaces=caller.reached
        ),
        _leader(here, caller, now),
    )
    rates = await overview.rates(ends, now, None if sees.all else sees)
    return Overview(
        at=now,
        running=RunningExecutions(
            count=len(of_open.running),
            longest=[
                shown_as(RunningExecution, head, job=head.job_name)
                for head in sorted(of_open.running, key=lambda head: head.started_at or head.scheduled_time)[
                    :MAX_LONGEST
                ]
            ],
        ),
        waiting=Waits.model_validate({"count": len(of_open.pending), "examined": of_open.examined, **of_open.waiting}),
        are_open_complete=of_open.is_complete,
        failing=FailingJobs(count=len(failing), jobs=list(failing[: overview.MAX_LISTED])),
        late=InstantList(count=of_jobs.late_count, instants=of_jobs.late),
        upcoming=InstantList(count=of_jobs.upcoming_count, instants=of_jobs.upcoming),
        are_jobs_complete=of_jobs.is_complete,
        leader=leader,
        rates=list(rates),
        totals=Totals(
            jobs=JobTotals(**{state.replace(" ", "_"): of_jobs.states[state] for state in get_args(JobStatus)}),
            ended=EndTotals(**{end: sum(getattr(rate, end) for rate in rates) for end in EndTotals.model_fields}),
        ),
    )


class JobOutcome(BaseModel):
    """An execution in short."""

    execution_id: str
    status: Status
    scheduled_time: datetime
    duration_ms: int | None
    trigger: str


class Outcomes(BaseModel):
    """The last executions of jobs, the newest first.

    Jobs that are unknown or hidden are absent.
    """

    jobs: dict[str, list[JobOutcome]]


@router.get("/outcomes", operation_id="getOutcomes")
async def get_outcomes(
    here: Here,
    caller: HistoryReader,
    job: Annotated[list[Name], Query(min_length=1, max_length=MAX_JOBS, description="The jobs, up to 100.")],
    limit: Annotated[int, Query(ge=1, le=MAX_OUTCOMES, description="Executions of each job.")] = 20,
) -> Outcomes:
    """List the last executions of several jobs."""
    await here.registry.jobs()
    registered = here.registry.last_listed
    sees = VisibleRuns(here.visibility, caller, registered)
    names = [name for name in sorted(set(job)) if _is_seen(caller, registered(name))]
    newest = await here.history.summaries.newest_of(names, limit=limit)
    return Outcomes(
        jobs={
            name: [
                shown_as(JobOutcome, head)
                for head in heads
                if await sees(name, head.definition, head.status, head.completed_at or head.scheduled_time)
            ]
            for name, heads in newest.items()
        }
    )


def _is_seen(caller: Principal, job: Job | None) -> bool:
    return job is not None and caller.may_see(job)


async def _leader(here: Components, caller: Principal, now: datetime) -> list[LeaderLease] | None:
    """Return the leases; None: unknown now, or the caller is bound to namespaces."""
    if caller.is_bound:
        return None
    try:
        leadership = await here.leadership()
    except UNAVAILABLE:
        return None
    return [
        shown_as(LeaderLease, lease, stage=lease.name, is_overdue=lease.lateness(now) is not None)
        for lease in leadership.leases
    ]


MAX_PAGE: Final = 200


class ChangeList(BaseModel, use_attribute_docstrings=True):
    """A page of changes, newest first; `next` is the cursor of the following page."""

    changes: list[Change]
    next: int | None = None


@router.get("/changes", operation_id="listChanges")
async def list_changes(
    here: Here,
    caller: HistoryReader,
    job: Annotated[Name | None, Query(description="Return changes of this job only.")] = None,
    by: Annotated[
        Text | None, Query(description="Return changes by this identity only, such as `ada` or `token:deploy`.")
    ] = None,
    type: Annotated[list[ChangeType] | None, Query(description="Return changes of these types only.")] = None,
    after: Annotated[
        int | None, Query(ge=1, lt=2**63, description="Return older changes: `next` of the previous page.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
) -> ChangeList:
    """List who changed which jobs, and what operators decided.

    Decisions are on agents, queues, shards, silences and the policy.

    A page may have fewer than `limit` changes and still have a `next`.
    """
    wanted = ChangeFilter(job=job, by=by, types=frozenset(type) if type else None)
    page, following = await changes(here.log, wanted, _SeesChange(here, caller), before=after, limit=limit)
    return ChangeList(changes=list(page), next=following)


class _SeesChange:
    """Decides whether a caller may see a change.

    Changes of jobs are visible as on `/v1/events`, and decisions on the installation as in the list of the changed things. A caller of
    some namespaces sees no decisions on the whole installation.
    """

    def __init__(self, here: Components, caller: Principal) -> None:
        self._here = here
        self._caller = caller
        self._queues: frozenset[str] | None = None
        self._agents: frozenset[str] | None = None

    async def __call__(self, recorded: Recorded[Message]) -> bool:
        match recorded.message:
            case _ if self._caller.may(Permission.ADMINISTER):
                return True
            case DefinitionFact():
                return await self._here.visibility.may_see_event(self._caller, recorded)
            case QueueFact() as fact:
                return await self._sees_queue(fact.queue)
            case AgentFact() as fact if self._caller.is_bound:
                return await self._sees_agents(fact.name)
            case SilencesDefined() as fact if not self._caller.is_bound:  # the end of a silence does not name its job
                jobs = [silence.job for silence in fact.silences if silence.job is not None]
                return self._caller.may(Permission.CANCEL) and all(
                    [await self._here.visibility.may_see(self._caller, name) for name in jobs]
                )
            case fact:
                return not (self._caller.is_bound or isinstance(fact, Voided))

    async def _sees_queue(self, name: str) -> bool:
        if self._queues is None:
            self._queues = frozenset(queue.name for queue in await self._here.queues(self._caller))
        return name in self._queues

    async def _sees_agents(self, name: str) -> bool:
        if self._agents is None:
            known = await self._here.agents.agents()
            hidden = {agent.name for agent in known if not sees_agent(self._caller, agent)}
            self._agents = frozenset(agent.name for agent in known) - hidden
        return name in self._agents
