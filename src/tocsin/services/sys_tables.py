"""The tables `sys.…` of SELECT statements, with the columns of scratchbird (§9).

Their rows are made for one statement and one caller, from what this caller may see.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, TypeAlias

from ..domain import ids
from ..domain.agent import AgentRecord
from ..domain.ledger import schedule_of
from ..ports import ExecutionRow
from .jobs import Job

Cell: TypeAlias = str | int | float | None
CellRow: TypeAlias = tuple[Cell, ...]

TABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "jobs": (
        *(
            "job_uuid",
            "job_name",
            "description",
            "job_class",
            "job_type",
            "schedule_type",
            "cron_expression",
            "timezone",
        ),
        *("next_run_time", "last_scheduled_time", "state", "created_by", "created_at"),
    ),
    "job_runs": (
        *(
            "job_run_uuid",
            "job_uuid",
            "job_name",
            "assigned_node",
            "scheduled_time",
            "started_at",
            "completed_at",
            "state",
        ),
        *("retry_count", "result_message", "rows_affected", "result_data", "error_code"),
    ),
    "job_dependencies": ("job_uuid", "depends_on_job_uuid", "job_name", "depends_on_job_name"),
    "agents": (
        *("agent_uuid", "agent_name", "kind", "state", "queues", "functions", "max_concurrent_jobs", "running"),
        *("host", "version", "state_changed_at"),
    ),
}
"""The columns of each table."""
MAX_RESULT_CHARACTERS: Final = 2_048
"""A longer result of a run is NULL in `result_data`, and a longer text of a run is cut."""


def job_rows(jobs: Iterable[Job], now: datetime) -> Iterator[CellRow]:
    """Yield the rows of `sys.jobs` at `now` (UTC)."""
    for job in jobs:
        definition = job.definition
        yield (
            _uuid(job),
            job.name,
            definition.description,
            definition.job_class,
            "SQL" if definition.sql is not None else "PROCEDURE" if definition.procedure is not None else "EXTERNAL",
            _schedule_type(job),
            definition.schedule,
            definition.timezone,
            _time(job.next_fire_time(now)),
            _time(job.ledger.last_fired),
            {"paused": "PAUSED", "disabled": "DISABLED"}.get(job.status, "ENABLED"),
            job.created_by,
            _time(job.created_at),
        )


def run_rows(runs: Iterable[ExecutionRow], jobs: Mapping[str, Job]) -> Iterator[CellRow]:
    """Yield the rows of `sys.job_runs`; `jobs` are the registered jobs."""
    for run in runs:
        job = jobs.get(run.job_name)
        message, rows = _member(run.result, "message"), _member(run.result, "rows_affected")
        text = run.error or run.reason or (message if isinstance(message, str) else None)
        yield (
            run.execution_id,
            _uuid(job) if job is not None else None,
            run.job_name,
            run.worker,
            _time(run.scheduled_time),
            _time(run.started_at),
            _time(run.completed_at),
            run.status.upper(),
            max(0, run.attempt - 1),
            text[:MAX_RESULT_CHARACTERS] if text else None,
            rows if isinstance(rows, int) and not isinstance(rows, bool) and -(2**63) <= rows < 2**63 else None,
            _data(run.result),
            run.error_type,
        )


def dependency_rows(jobs: Mapping[str, Job]) -> Iterator[CellRow]:
    """Yield the rows of `sys.job_dependencies`. A job that is not visible has no UUID here."""
    for job in jobs.values():
        for dependency in job.definition.depends_on:
            other = jobs.get(dependency.job)
            yield (_uuid(job), _uuid(other) if other is not None else None, job.name, dependency.job)


def agent_rows(agents: Iterable[AgentRecord]) -> Iterator[CellRow]:
    """Yield the rows of `sys.agents`."""
    for agent in agents:
        yield (
            agent.agent_id,
            agent.name,
            agent.kind,
            agent.state.value,
            _listed(agent.queues),
            _listed(agent.functions),
            agent.max_concurrent_jobs,
            len(agent.held),
            agent.host,
            agent.version,
            _time(agent.since),
        )


def _uuid(job: Job) -> str:
    return ids.job_id(job.name, job.created_at)


def _schedule_type(job: Job) -> str | None:
    timetable = job.ledger.timetable
    if timetable is None or timetable.schedule is None:
        return None
    return "RECURRING" if schedule_of(timetable).only_instant is None else "ONE_TIME"


def _time(at: datetime | None) -> str | None:
    """Return an instant as text that sorts by time and that SQLite's functions read."""
    return None if at is None else at.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "milliseconds")


def _listed(texts: Sequence[str]) -> str:
    return ", ".join(texts)[:MAX_RESULT_CHARACTERS]


def _member(result: object, name: str) -> object:
    return result.get(name) if isinstance(result, dict) else None


def _data(result: object) -> str | None:
    if result is None:
        return None
    text = json.dumps(result, ensure_ascii=False)
    return text if len(text) <= MAX_RESULT_CHARACTERS else None
