"""Readers of running executions with their progress, and of jobs with their last outcome.

The progress is looked up for a few executions at each read, in turn, so that the number of requests does not grow with the
number of rows.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from ...domain.errors import TocsinError
from ...ports import ExecutionRow
from ...ports.queries import ExecutionQuery
from ...services.jobs import Job
from ...services.operations.execution_output import Progress
from ...services.operator import Operator

T_co = TypeVar("T_co", covariant=True)

MAX_ROWS: Final = 200
"""Rows of a table."""
LOOKUPS: Final = 16
"""Executions whose progress is looked up at each read: few enough for the rate that the API allows."""
NONE: Final = "none"
"""The outcome of a job of whose newest executions none has ended."""


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
        """The execution whose progress is looked up next."""
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
    """Reads the jobs, and the last outcomes of those `in_view`."""

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
