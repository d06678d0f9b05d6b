"""The counters of jobs in a SQL database, each read by an index."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final

from sqlalchemy import BindParameter, Connection, Select, bindparam, func, select, text

from ...domain.execution_record import Status
from ...domain.last_run import LastRun
from ...ports.summaries import JobRuns
from . import tables, totals

_TOTALS: Final = tables.totals.c
_EXECUTIONS: Final = tables.executions.c
_LAST: Final = tables.last_runs.c
_CHUNK: Final = 500
_JOBS: Final[BindParameter[Any]] = bindparam("jobs", expanding=True)

_ENDS: Final = (
    select(_TOTALS.job_name, _TOTALS.status, func.sum(_TOTALS.total))
    .where(_TOTALS.kind == "executions", _TOTALS.job_name.in_(_JOBS))
    .group_by(_TOTALS.job_name, _TOTALS.status)
)
_RUNNING: Final = (
    select(_EXECUTIONS.job_name, func.count())
    .where(text("status = 'running'"), _EXECUTIONS.job_name.in_(_JOBS))  # without a parameter, or no index is used
    .group_by(_EXECUTIONS.job_name)
)
_LAST_RUNS: Final = select(
    _LAST.job_name,
    *(_LAST.execution_id, _LAST.status, _LAST.ended_at, _LAST.duration_ms, _LAST.error, _LAST.reason, _LAST.definition),
).where(_LAST.job_name.in_(_JOBS))


def runs(connection: Connection, *, jobs: Sequence[str], installation: str) -> dict[str, JobRuns] | None:
    """Return the counters of jobs; None: a rebuild has not reached its former place."""
    if not totals.are_complete(connection, installation=installation):
        return None
    chunks = [jobs[start : start + _CHUNK] for start in range(0, len(jobs), _CHUNK)]

    def rows(query: Select[Any]) -> Any:  # noqa: ANN401 - rows of any query
        return chain.from_iterable(connection.execute(query, {"jobs": chunk}) for chunk in chunks)

    ends = defaultdict[str, dict[Status, int]](dict)
    for job, status, total in rows(_ENDS):
        ends[job][status] = int(total)
    running: Mapping[str, int] = dict(map(tuple, rows(_RUNNING)))
    last = {job: LastRun(*columns) for job, *columns in rows(_LAST_RUNS)}
    return {job: JobRuns(ends.get(job, {}), running.get(job, 0), last.get(job)) for job in jobs}
