"""The tables of the screen: their columns, and the rows of what a reader returns."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from rich.text import Text

from ...domain.agent import AgentRecord
from ...services.operator import Operator
from ...services.queues import QueueDetails
from ..agents import holds
from ..output.format import STYLES, state
from ..output.tables import TELLING
from ..queues import count
from .head import age, cell, plain
from .readers import LOOKUPS, MAX_ROWS, JobReader, JobState, Listing, RunningExecution, RunningReader

T = TypeVar("T")


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
