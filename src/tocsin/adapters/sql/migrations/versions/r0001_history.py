"""The tables of hip-62, and the columns that the other documents require.

Before there were migrations, a database had other tables of the same names. The log contains everything that they
stored and more. They are dropped, and the recorder fills the new tables from the first fact of the log.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from tocsin.adapters.sql.migrations.sys_schema import show_in_sys

revision = "r0001"
down_revision = None
branch_labels = None
depends_on = None

_time = sa.DateTime(timezone=True)
_json = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
_uuid = sa.Text().with_variant(postgresql.UUID(), "postgresql")
_bytewise = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Create the tables, the indexes and the views."""
    _make_way()
    _executions()
    _others()
    _views()


def downgrade() -> None:
    """Fail: there is no downgrade.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError("the history has no downgrade: use another database, which is filled from the log")


def _make_way() -> None:
    connection = op.get_bind()
    if sa.inspect(connection).has_table("scheduler_offsets"):  # only Tocsin has this table beside the others
        for table in ("scheduler_executions", "scheduler_dead_letters", "scheduler_offsets"):
            op.drop_table(table)


def _executions() -> None:
    op.create_table(
        "scheduler_executions",
        sa.Column("id", _uuid, primary_key=True),
        sa.Column("job_name", sa.Text, nullable=False),
        sa.Column("execution_id", _bytewise, nullable=False, unique=True),
        sa.Column("trigger", sa.Text, nullable=False),
        sa.Column("started_at", _time, nullable=False),
        sa.Column("completed_at", _time),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("duration_ms", sa.Integer),
        sa.Column("attempt", sa.Integer, nullable=False, server_default="1"),
        sa.Column("error", sa.Text),
        sa.Column("dag_state", _json),
        sa.Column("scheduled_time", _time, nullable=False),
        sa.Column("worker", sa.Text),
        sa.Column("error_type", sa.Text),
        sa.Column("traceback", sa.Text),
        sa.Column("reason", sa.Text),
        sa.Column("result", _json),
        sa.Column("tags", _json),
        sa.Column("created_by", sa.Text),
        sa.Column("replay_of", sa.Text),
        sa.Column("definition", sa.BigInteger),
    )
    for name, columns, where in (
        ("newest", ["scheduled_time", "execution_id"], None),
        ("of_job", ["job_name", "scheduled_time", "execution_id"], None),
        ("by_status", ["status", "scheduled_time", "execution_id"], None),
        ("by_trigger", ["trigger", "scheduled_time", "execution_id"], None),
        ("with_error", ["scheduled_time", "execution_id"], sa.text("error IS NOT NULL")),
        ("by_start", ["started_at", "execution_id"], None),
        ("by_duration", ["duration_ms", "execution_id"], sa.text("duration_ms IS NOT NULL")),
    ):
        full_name = f"scheduler_executions_{name}"
        op.create_index(full_name, "scheduler_executions", columns, sqlite_where=where, postgresql_where=where)
    op.create_table(
        "scheduler_execution_tags",
        sa.Column("tag", sa.Text, primary_key=True),
        sa.Column("scheduled_time", _time, primary_key=True),
        sa.Column("execution_id", _bytewise, primary_key=True),
        sqlite_with_rowid=False,
    )


def _others() -> None:
    op.create_table(
        "scheduler_dead_letters",
        sa.Column("id", _uuid, primary_key=True),
        sa.Column("job_name", sa.Text, nullable=False),
        sa.Column("execution_id", sa.Text),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("last_error", sa.Text),
        sa.Column("input", _json),
        sa.Column("first_attempt", _time, nullable=False),
        sa.Column("last_attempt", _time, nullable=False, server_default=sa.func.current_timestamp()),
        sa.Column("resolved", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("letter_id", _bytewise, nullable=False, unique=True),
        sa.Column("attempt_history", _json),
        sa.Column("definition", sa.BigInteger),
    )
    op.create_index("scheduler_dead_letters_newest", "scheduler_dead_letters", ["last_attempt", "letter_id"])
    op.create_table(
        "scheduler_jobs",
        sa.Column("job_uuid", _uuid, primary_key=True),
        sa.Column("job_name", _bytewise, nullable=False, unique=True),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("schedule_type", sa.Text),
        sa.Column("cron_expression", sa.Text),
        sa.Column("timezone", sa.Text),
        sa.Column("next_run_time", _time),
        sa.Column("last_scheduled_time", _time),
        sa.Column("decided_until", _time),
        sa.Column("description", sa.Text),
        sa.Column("created_at", _time, nullable=False),
        sa.Column("created_by", sa.Text),
        sa.Column("changed_at", _time, nullable=False),
        sa.Column("paused", sa.Boolean, nullable=False),
        sa.Column("retention", sa.Double),
        sa.Column("anchor", _time),
        sa.Column("definition", _json),
    )
    op.create_table(
        "scheduler_offsets",
        sa.Column("installation", sa.Text, primary_key=True),
        sa.Column("stream", sa.Text, primary_key=True),
        sa.Column("sequence", sa.BigInteger, nullable=False),
    )


# --- the views that scratchbird §9 requires ---------------------------------------------------------------------------

_JOBS = """
SELECT job_uuid, job_name, description,
       coalesce({job_class}, 'LOCAL_SAFE') AS job_class,
       'EXTERNAL' AS job_type,
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
       e.result AS result_data, e.error_type AS error_code
FROM scheduler_executions e LEFT JOIN scheduler_jobs j ON j.job_name = e.job_name
"""


def _views() -> None:
    is_postgresql = op.get_bind().dialect.name == "postgresql"
    # A value that is not an object, or lacks the member, gives NULL in both.
    member = "{0} ->> '{1}'" if is_postgresql else "json_extract({0}, '$.{1}')"
    rows = member.format("e.result", "rows_affected")
    if is_postgresql:
        rows = f"CASE WHEN jsonb_typeof(e.result -> 'rows_affected') = 'number' THEN ({rows})::numeric END"
    jobs = _JOBS.format(job_class=member.format("definition", "job_class"))
    runs = _JOB_RUNS.format(message=member.format("e.result", "message"), rows=rows)
    for name, query in (("jobs", jobs), ("job_runs", runs)):
        op.execute(f"CREATE VIEW sys_{name} AS {query}")
    if is_postgresql:
        if _may_make_schemas():
            op.execute("CREATE SCHEMA IF NOT EXISTS sys")
        for name in ("jobs", "job_runs"):
            show_in_sys(name)


def _may_make_schemas() -> bool:
    """Return whether the user may create schemas; if not, `sys_jobs` and `sys_job_runs` replace them."""
    may = sa.text("SELECT has_database_privilege(current_database(), 'CREATE')")
    return bool(op.get_bind().execute(may).scalar())
