"""The tables of hip-62 with the columns of the other documents, and scratchbird's views (§9)."""

from contextlib import suppress

import sqlalchemy as sa
from alembic import op
from sqlalchemy.exc import ProgrammingError

from tocsin.adapters.sql import tables

revision = "r0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables with their indexes, and the views."""
    tables.metadata.create_all(op.get_bind(), checkfirst=False)
    _views()


def downgrade() -> None:
    """Fail: there is no downgrade.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError("the history has no downgrade: use another database, which is filled from the log")


_VIEW_JOBS = """
SELECT job_uuid, job_name, description,
       coalesce({job_class}, 'LOCAL_SAFE') AS job_class,
       CASE WHEN {sql} IS NOT NULL THEN 'SQL' WHEN {procedure} IS NOT NULL THEN 'PROCEDURE' ELSE 'EXTERNAL' END AS job_type,
       schedule_type, cron_expression, timezone, next_run_time, last_scheduled_time, state, created_by, created_at,
       (SELECT count(*) FROM scheduler_executions e
        WHERE e.job_name = j.job_name AND e."trigger" = 'cron' AND e.status <> 'skipped' AND e.scheduled_time >= j.created_at
       ) AS run_count,
       (SELECT count(*) FROM scheduler_executions e
        WHERE e.job_name = j.job_name AND e.status = 'failed' AND e.scheduled_time >= j.created_at
       ) AS error_count
FROM scheduler_jobs j
WHERE state <> 'DELETED'
"""

# A run that ended before its job was registered belongs to an earlier registration of the name.
_VIEW_JOB_RUNS = """
SELECT e.id AS job_run_uuid, j.job_uuid, e.job_name, e.worker AS assigned_node,
       e.scheduled_time,
       CASE WHEN e.status = 'running' OR e.duration_ms IS NOT NULL THEN e.started_at END AS started_at, e.completed_at, upper(e.status) AS state,
       CASE WHEN e.attempt > 1 THEN e.attempt - 1 ELSE 0 END AS retry_count,
       coalesce(e.error, e.reason, {message}) AS result_message,
       {rows} AS rows_affected,
       e.result AS result_data, e.error_type AS error_code, e.agent AS assigned_node_uuid, e.shard
FROM scheduler_executions e
LEFT JOIN scheduler_jobs j ON j.job_name = e.job_name AND (e.completed_at IS NULL OR e.completed_at >= j.created_at)
"""

_VIEW_JOB_DEPENDENCIES = """
SELECT j.job_uuid, o.job_uuid AS depends_on_job_uuid, j.job_name, {job} AS depends_on_job_name
FROM scheduler_jobs j CROSS JOIN {dependencies} d LEFT JOIN scheduler_jobs o ON o.job_name = {job} AND o.state <> 'DELETED'
WHERE j.state <> 'DELETED'
"""

_IN_POSTGRESQL = {
    "job_class": "definition ->> 'job_class'",
    "sql": "(definition -> 'sql')",
    "procedure": "(definition -> 'procedure')",
    "message": "e.result ->> 'message'",
    "rows": "CASE WHEN jsonb_typeof(e.result -> 'rows_affected') = 'number' THEN (e.result ->> 'rows_affected')::numeric END",
    "job": "(d.value ->> 'job')",
    "dependencies": "LATERAL jsonb_array_elements("
    "CASE WHEN jsonb_typeof(j.definition -> 'depends_on') = 'array' THEN j.definition -> 'depends_on' END)",
}
_IN_SQLITE = {
    "job_class": "json_extract(definition, '$.job_class')",
    "sql": "json_extract(definition, '$.sql')",
    "procedure": "json_extract(definition, '$.procedure')",
    "message": "json_extract(e.result, '$.message')",
    "rows": "json_extract(e.result, '$.rows_affected')",
    "job": "json_extract(d.value, '$.job')",
    "dependencies": "json_each(j.definition, '$.depends_on')",
}


def _views() -> None:
    is_postgresql = op.get_bind().dialect.name == "postgresql"
    parts = _IN_POSTGRESQL if is_postgresql else _IN_SQLITE
    if is_postgresql and op.get_bind().execute(_MAY_CREATE_SCHEMAS).scalar():
        op.execute("CREATE SCHEMA IF NOT EXISTS sys")
    views = {"jobs": _VIEW_JOBS, "job_runs": _VIEW_JOB_RUNS, "job_dependencies": _VIEW_JOB_DEPENDENCIES}
    for name, query in views.items():
        op.execute(f"CREATE VIEW sys_{name} AS {query.format(**parts)}")
        if is_postgresql:
            _show_in_sys(name)


_MAY_CREATE_SCHEMAS = sa.text("SELECT has_database_privilege(current_database(), 'CREATE')")


def _show_in_sys(name: str) -> None:
    """Create or replace the view `sys.<name>` over `sys_<name>` where PostgreSQL allows it.

    It refuses if the schema does not exist, if the schema or an object of this name has another owner, and if the object is no view with these
    columns. Then what exists stays, and `sys_<name>` alone has the rows.
    """
    with suppress(ProgrammingError), op.get_bind().begin_nested():
        op.execute(f"CREATE OR REPLACE VIEW sys.{name} AS SELECT * FROM sys_{name}")  # noqa: S608 - our own names
