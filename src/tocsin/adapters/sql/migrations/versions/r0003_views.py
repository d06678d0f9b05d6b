"""The agent of each run, and views that show types, agents and dependencies of jobs.

Views that a user built on ours stay: in PostgreSQL a view is replaced, and keeps its columns.
"""

import sqlalchemy as sa
from alembic import op

from tocsin.adapters.sql.migrations.sys_schema import show_in_sys

revision = "r0003"
down_revision = "r0002"
branch_labels = None
depends_on = None

_JOBS = """
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

_JOB_RUNS = """
SELECT e.id AS job_run_uuid, j.job_uuid, e.job_name, e.worker AS assigned_node,
       e.scheduled_time,
       CASE WHEN e.status = 'running' OR e.duration_ms IS NOT NULL THEN e.started_at END AS started_at, e.completed_at, upper(e.status) AS state,
       CASE WHEN e.attempt > 1 THEN e.attempt - 1 ELSE 0 END AS retry_count,
       coalesce(e.error, e.reason, {message}) AS result_message,
       {rows} AS rows_affected,
       e.result AS result_data, e.error_type AS error_code, e.agent AS assigned_node_uuid
FROM scheduler_executions e LEFT JOIN scheduler_jobs j ON j.job_name = e.job_name
"""

_JOB_DEPENDENCIES = """
SELECT j.job_uuid, o.job_uuid AS depends_on_job_uuid, j.job_name, {job} AS depends_on_job_name
FROM scheduler_jobs j CROSS JOIN {dependencies} d LEFT JOIN scheduler_jobs o ON o.job_name = {job} AND o.state <> 'DELETED'
WHERE j.state <> 'DELETED'
"""


def upgrade() -> None:
    """Add the column, and create or replace the views."""
    op.add_column("scheduler_executions", sa.Column("agent", sa.Text))
    is_postgresql = op.get_bind().dialect.name == "postgresql"
    queries = _of_postgresql() if is_postgresql else _of_sqlite()
    for name, query in queries.items():
        if not is_postgresql:
            op.execute(f"DROP VIEW IF EXISTS sys_{name}")
        op.execute(f"CREATE {'OR REPLACE ' if is_postgresql else ''}VIEW sys_{name} AS {query}")
    if is_postgresql:
        for name in queries:
            show_in_sys(name)


def downgrade() -> None:
    """Fail: there is no downgrade.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError("the history has no downgrade: use another database, which is filled from the log")


def _of_postgresql() -> dict[str, str]:
    rows = "CASE WHEN jsonb_typeof(e.result -> 'rows_affected') = 'number' THEN (e.result ->> 'rows_affected')::numeric END"
    listed = "CASE WHEN jsonb_typeof(j.definition -> 'depends_on') = 'array' THEN j.definition -> 'depends_on' END"
    return {
        "jobs": _JOBS.format(
            job_class="definition ->> 'job_class'", sql="(definition -> 'sql')", procedure="(definition -> 'procedure')"
        ),
        "job_runs": _JOB_RUNS.format(message="e.result ->> 'message'", rows=rows),
        "job_dependencies": _JOB_DEPENDENCIES.format(
            job="(d.value ->> 'job')", dependencies=f"LATERAL jsonb_array_elements({listed})"
        ),
    }


def _of_sqlite() -> dict[str, str]:
    member = "json_extract({0}, '$.{1}')".format
    return {
        "jobs": _JOBS.format(
            job_class=member("definition", "job_class"),
            sql=member("definition", "sql"),
            procedure=member("definition", "procedure"),
        ),
        "job_runs": _JOB_RUNS.format(message=member("e.result", "message"), rows=member("e.result", "rows_affected")),
        "job_dependencies": _JOB_DEPENDENCIES.format(
            job=member("d.value", "job"), dependencies="json_each(j.definition, '$.depends_on')"
        ),
    }
