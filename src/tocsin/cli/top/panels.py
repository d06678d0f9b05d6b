"""The tables of the screen: their readers, columns and rows.

The progress of running executions is looked up for a few at each read, in turn, so that the number of requests does not
grow with the number of rows.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

from rich.text import Text

from ...domain.agent import AgentRecord
from ...domain.errors import TocsinError
from ...ports import ExecutionRow
from ...ports.queries import ExecutionQuery
from ...services.jobs import Job
from ...services.operations.execution_output import Progress
from ...services.operator import Operator
from ...services.queues import QueueDetails
from ..agents import holds
from ..output.format import STYLES, state
from ..output.tables import TELLING
from ..queues import count
from .head import age, cell, plain

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

MAX_ROWS: Final = 200
"""Rows of a table."""
LOOKUPS: Final = 16
"""Executions with progress that is looked up at each read: few enough for the rate that the API allows."""
NONE: Final = "none"
"""The outcome of a job without an ended execution among its newest."""


@dataclass(frozen=True, slots=True)
class Listing(Generic[T_co]):
    """Items, and whether there are more than were read."""

    items: tuple[T_co, ...] = ()
    has_more: bool = False


@dataclass(frozen=True, slots=True)
class RunningExecution:
    """A running execution, with the progress of its steps as far as it is known."""

    row: ExecutionRow
    progress: Mapping[str, Progress]

    @property
    def steps(self) -> tuple[str, ...]:
        states = self.row.dag_state.items()
        return tuple(name for name, step in states if isinstance(step, Mapping) and step.get("status") == "running")


@dataclass(frozen=True, slots=True)
class JobState:
    """A job, and the status of its last finished execution; None: it is unknown."""

    job: Job
    outcome: str | None = None


class RunningReader:
    """Reads the running executions that started first."""

    def __init__(self, operator: Operator, lookups: int = LOOKUPS) -> None:
        self._operator = operator
        self._lookups = lookups
        self._place = 0
        """The next execution with progress to look up."""
        self._progress: dict[str, Mapping[str, Progress]] = {}

    async def read(self) -> Listing[RunningExecution]:
        query = ExecutionQuery(status="running", sort="first-started", limit=MAX_ROWS)
        page = await self._operator.executions(query)
        ids = [row.execution_id for row in page.rows]
        place = self._place if self._place < len(ids) else 0
        self._place = place + self._lookups
        await asyncio.gather(*map(self._look_up, ids[place : self._place]))
        self._progress = {id_: self._progress[id_] for id_ in ids if id_ in self._progress}
        return Listing(
            tuple(RunningExecution(row, self._progress.get(row.execution_id, {})) for row in page.rows),
            has_more=page.cursor is not None,
        )

    async def _look_up(self, execution_id: str) -> None:
        try:
            output = await self._operator.output(await self._operator.execution(execution_id))
        except TocsinError:
            return  # the row is shown without its progress
        self._progress[execution_id] = output.progress


class JobReader:
    """Reads the jobs, and the last outcomes of the jobs `in_view`."""

    def __init__(self, operator: Operator) -> None:
        self.in_view: Sequence[str] = ()
        self._operator = operator

    async def read(self) -> Listing[JobState]:
        """Return the jobs by name.

        If the history cannot be read, their outcomes are unknown; the table of running executions shows the error.
        """
        jobs = await self._operator.jobs()
        in_view = self.in_view or [job.name for job in jobs[:MAX_ROWS]]
        outcomes: Mapping[str, str] = {}
        with suppress(TocsinError):
            outcomes = dict.fromkeys(in_view, NONE) | dict(await self._operator.last_outcomes(in_view))
        return Listing(tuple(JobState(job, outcomes.get(job.name)) for job in jobs))


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table, and the names that keys act on."""

    key: str
    cells: tuple[Text, ...]
    job: str | None = None
    execution_id: str | None = None


@dataclass(frozen=True, slots=True)
class View:
    """The shown rows of a table. `more`: a line about the hidden rows, or empty."""

    rows: tuple[Row, ...] = ()
    number: int = 0
    more: str = ""


@dataclass(frozen=True, slots=True)
class Panel(Generic[T]):
    """One table of the screen."""

    id: str
    title: str
    headings: tuple[str, ...]
    empty: str
    read: Callable[[], Awaitable[Listing[T]]]
    names: Callable[[T], str]
    """The text of an item that a filter searches."""
    row: Callable[[T, datetime], Row]
    document: Callable[[T, datetime], dict[str, Any]]
    notice: Callable[[Sequence[str]], None] = lambda _: None
    """Called with the keys of the rows that are shown."""

    def view(self, listing: Listing[T], now: datetime, text: str = "") -> View:
        """Return the rows at `now` (UTC) whose names contain a text, ignoring case."""
        wanted = text.casefold()
        items = [item for item in listing.items if wanted in self.names(item).casefold()]
        rows = tuple(self.row(item, now) for item in items[:MAX_ROWS])
        left_out = len(items) - len(rows)
        rest = "and more" if listing.has_more else f"and {left_out:,} more" if left_out else ""
        filtered = "" if listing.has_more else "; filter with /"
        more = f"{rest}: a table shows the first {MAX_ROWS} rows{filtered}" if rest else ""
        return View(rows, len(items), more)


def panels_of(operator: Operator, *, lookups: int = LOOKUPS) -> tuple[Panel[Any], ...]:
    """Return the tables of an installation, in their order on the screen.

    `lookups`: the executions whose progress is looked up at each read.
    """
    running, jobs = RunningReader(operator, lookups), JobReader(operator)

    def look_at(names: Sequence[str]) -> None:
        jobs.in_view = names

    async def read_queues() -> Listing[QueueDetails]:
        return Listing(await operator.queues())

    async def read_agents() -> Listing[AgentRecord]:
        return Listing(await operator.agents())

    return (
        Panel(
            "running",
            "Running",
            ("JOB", "EXECUTION", "STEP", "SINCE", "WORKER", "PROGRESS"),
            "no running executions",
            running.read,
            lambda item: f"{item.row.job_name} {item.row.execution_id} {item.row.worker or ''}",
            _running_row,
            lambda item, _: asdict(item.row) | {"progress": {name: asdict(p) for name, p in item.progress.items()}},
        ),
        Panel(
            "jobs",
            "Jobs",
            ("JOB", "STATE", "NEXT", "LAST OUTCOME"),
            "no jobs. Run `tocsin jobs apply -f FILE` to register some.",
            jobs.read,
            lambda item: item.job.name,
            _job_row,
            lambda item, now: item.job.summary(now) | {"last_outcome": item.outcome},
            look_at,
        ),
        Panel(
            "queues",
            "Queues",
            ("QUEUE", "STATE", "WAITING", "OLDEST", "TAKEN", "AGENTS"),
            "no queues",
            read_queues,
            lambda queue: queue.name,
            _queue_row,
            lambda queue, _: asdict(queue),
        ),
        Panel(
            "agents",
            "Agents",
            ("AGENT", "STATE", "HOLDS", "QUEUES"),
            "no agents. A worker registers when it starts, if the stage `agent_keeper` runs.",
            read_agents,
            lambda agent: f"{agent.name} {agent.agent_id}",
            _agent_row,
            lambda agent, _: agent.model_dump(mode="json"),
        ),
    )


def _running_row(item: RunningExecution, now: datetime) -> Row:
    row, steps = item.row, item.steps
    reported = (item.progress[step] for step in steps if step in item.progress)
    progress = next((f"{report.fraction:.0%} {report.message}".rstrip() for report in reported), "")
    others = f" +{len(steps) - 1}" if len(steps) > 1 else ""
    return Row(
        row.execution_id,
        (
            cell(row.job_name, "bold"),
            cell(row.execution_id[:TELLING]),
            cell(plain(steps[0]) + others if steps else ""),
            cell(age(row.started_at, now)),
            cell(row.worker or ""),
            cell(progress),
        ),
        row.job_name,
        row.execution_id,
    )


def _job_row(item: JobState, now: datetime) -> Row:
    job, outcome = item.job, item.outcome or ""
    at = job.next_fire_time(now)
    return Row(
        job.name,
        (
            cell(job.name, "bold"),
            state(job.status),
            cell("" if at is None else f"in {age(now, at)}"),
            cell(outcome, STYLES.get(outcome, "")),
        ),
        job.name,
    )


def _queue_row(queue: QueueDetails, now: datetime) -> Row:
    return Row(
        queue.name,
        (
            cell(queue.name, "bold"),
            cell("paused", "yellow") if queue.paused else cell("open"),
            cell(count(queue.waiting)),
            cell(age(queue.oldest, now)),
            cell(count(queue.taken)),
            cell(len(queue.agents), "" if queue.agents or not queue.waiting else "red"),
        ),
    )


def _agent_row(agent: AgentRecord, _: datetime) -> Row:
    return Row(
        agent.agent_id,
        (cell(agent.name, "bold"), cell(agent.state.value), cell(holds(agent)), cell(", ".join(agent.queues))),
    )
