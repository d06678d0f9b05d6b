"""The tables `sys.…` of SELECT statements, with the columns of scratchbird (§9)."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, TypeAlias

from ..domain.agent import AgentRecord
from ..domain.history import rows_affected
from ..domain.ledger import schedule_type
from ..ports import ExecutionRow
from .jobs import Job
from .shards import ShardMap

Cell: TypeAlias = str | int | float | None
CellRow: TypeAlias = tuple[Cell, ...]

TABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "jobs": (
        *("job_uuid", "job_name", "description", "job_class", "job_type", "schedule_type", "cron_expression"),
        *("timezone", "next_run_time", "last_scheduled_time", "state", "created_by", "created_at"),
    ),
    "job_runs": (
        *("job_run_uuid", "job_uuid", "job_name", "assigned_node", "scheduled_time", "started_at", "completed_at"),
        *("state", "retry_count", "result_message", "rows_affected", "result_data", "error_code", "assigned_node_uuid"),
        "shard",
    ),
    "job_dependencies": ("job_uuid", "depends_on_job_uuid", "job_name", "depends_on_job_name"),
    "shards": ("shard_id", "shard_name", "state", "labels", "map_version", "owner_name", "owner_uuid"),
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
            job.job_uuid,
            job.name,
            definition.description,
            definition.job_class,
            "SQL" if definition.sql is not None else "PROCEDURE" if definition.procedure is not None else "EXTERNAL",
            schedule_type(job.ledger.timetable),
            definition.schedule,
            definition.timezone,
            _time(job.next_fire_time(now)),
            _time(job.last_fire_time),
            state_of(job),
            job.created_by,
            _time(job.created_at),
        )


def state_of(job: Job) -> str:
    """Return the state of a job in the words of scratchbird (§3.1)."""
    return {"paused": "PAUSED", "disabled": "DISABLED"}.get(job.status, "ENABLED")


def run_rows(runs: Iterable[ExecutionRow], jobs: Mapping[str, Job]) -> Iterator[CellRow]:
    """Yield the rows of `sys.job_runs`; `jobs` are the registered jobs.

    A run that ended before the job was registered is of an earlier registration of the name, and has no job's UUID.
    """
    for run in runs:
        job = jobs.get(run.job_name)
        message = run.result.get("message") if isinstance(run.result, dict) else None
        rows = rows_affected(run.result)
        text = run.error or run.reason or (message if isinstance(message, str) else None)
        yield (
            run.execution_id,
            None if job is None or (run.completed_at and run.completed_at < job.created_at) else job.job_uuid,
            run.job_name,
            run.worker,
            _time(run.scheduled_time),
            _time(run.started_at),
            _time(run.completed_at),
            run.status.upper(),
            max(0, run.attempt - 1),
            text[:MAX_RESULT_CHARACTERS] if text else None,
            rows if rows is not None and -(2**63) <= rows < 2**63 else None,
            _data(run.result),
            run.error_type,
            run.agent,
            run.shard,
        )


def dependency_rows(jobs: Mapping[str, Job]) -> Iterator[CellRow]:
    """Yield the rows of `sys.job_dependencies`. A job that is not visible has no UUID here."""
    for job in jobs.values():
        for dependency in job.definition.depends_on:
            other = jobs.get(dependency.job)
            yield (job.job_uuid, other.job_uuid if other is not None else None, job.name, dependency.job)


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


def shard_rows(newest: ShardMap) -> Iterator[CellRow]:
    """Yield the rows of `sys.shards`."""
    for shard in newest.shards:
        labels = json.dumps(shard.labels, ensure_ascii=False) if shard.labels else None
        owner = newest.owners.get(shard.shard_id)
        named = (None, None) if owner is None else (owner.name, owner.agent_id)
        yield (shard.shard_id, shard.name or None, shard.state.value, labels, newest.version, *named)


def _time(at: datetime | None) -> str | None:
    """Return an instant as text that sorts by time and that SQLite's functions read."""
    return None if at is None else at.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "milliseconds")


def _listed(texts: Sequence[str]) -> str:
    return ", ".join(texts)[:MAX_RESULT_CHARACTERS]


def _data(result: object) -> str | None:
    if result is None:
        return None
    text = json.dumps(result, ensure_ascii=False)
    return text if len(text) <= MAX_RESULT_CHARACTERS else None
