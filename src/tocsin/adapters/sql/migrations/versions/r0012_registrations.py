"""The shard of each run in its view, and no `job_uuid` of a later registration.

A run that ended before its job was registered belongs to an earlier registration of the name. Views that a user built on ours stay, and
so does a view `sys.job_runs` of another owner.
"""

from typing import Final

from alembic import op

from tocsin.adapters.sql.migrations.sys_schema import show_in_sys

revision = "r0012"
down_revision = "r0011"
branch_labels = None
depends_on = None

_JOB_RUNS: Final = """
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
_POSTGRESQL: Final = _JOB_RUNS.format(
    message="e.result ->> 'message'",
    rows="CASE WHEN jsonb_typeof(e.result -> 'rows_affected') = 'number' THEN (e.result ->> 'rows_affected')::numeric END",
)
_SQLITE: Final = _JOB_RUNS.format(
    message="json_extract(e.result, '$.message')", rows="json_extract(e.result, '$.rows_affected')"
)


def upgrade() -> None:
    """Replace the view."""
    if op.get_bind().dialect.name != "postgresql":
        op.execute("DROP VIEW IF EXISTS sys_job_runs")
        op.execute(f"CREATE VIEW sys_job_runs AS {_SQLITE}")
        return
    op.execute(f"CREATE OR REPLACE VIEW sys_job_runs AS {_POSTGRESQL}")
    show_in_sys("job_runs")


def downgrade() -> None:
    """Fail: there is no downgrade.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError("the history has no downgrade: use another database, which is filled from the log")
