"""The tables of hip-62 with the columns of the other documents, and scratchbird's views (§9)."""

from contextlib import suppress

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import ProgrammingError

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
    _executions()
    _dead_letters()
    _jobs()
    _counts()
    _views()


def downgrade() -> None:
    """Fail: there is no downgrade.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError("the history has no downgrade: use another database, which is filled from the log")


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
        sa.Column("agent", sa.Text),
        sa.Column("shard", sa.Text),
        sa.Column("occurrence_id", _bytewise),
        sa.Column("start_delay_ms", sa.Integer),
        sa.Column("queue", sa.Text),
        sa.Column("job_state", sa.Text),
        sa.Column("was_handed_over", sa.Boolean, nullable=False, server_default=sa.false()),
        *(
            sa.Column(f"recoveries_{outcome}", sa.Integer, nullable=False, server_default="0")
            for outcome in ("tried", "successful", "failed", "abandoned")
        ),
    )
    newest = ["scheduled_time", "execution_id"]
    for name, columns, where in (
        ("newest", newest, None),
        ("of_job", ["job_name", *newest], None),
        ("by_status", ["status", *newest], None),
        ("by_trigger", ["trigger", *newest], None),
        ("with_error", newest, "error IS NOT NULL"),
        ("of_occurrence", ["occurrence_id", *newest], "occurrence_id IS NOT NULL"),
        ("by_start", ["started_at", "execution_id"], None),
        ("ended", ["status", "completed_at", "job_name", "definition"], "completed_at IS NOT NULL"),
        ("results", ["job_name", "status", *newest], "completed_at IS NOT NULL"),
        ("by_duration", ["duration_ms", "execution_id"], "duration_ms IS NOT NULL"),
        ("of_queue", ["queue", "job_state", "completed_at"], "queue IS NOT NULL AND job_state IS NOT NULL"),
        ("open", ["job_name", "scheduled_time"], "completed_at IS NULL"),
        ("running", ["job_name"], "status = 'running'"),
    ):
        part = None if where is None else sa.text(where)
        full_name = f"scheduler_executions_{name}"
        op.create_index(full_name, "scheduler_executions", columns, sqlite_where=part, postgresql_where=part)
    op.create_table(
        "scheduler_execution_tags",
        sa.Column("tag", sa.Text, primary_key=True),
        sa.Column("scheduled_time", _time, primary_key=True),
        sa.Column("execution_id", _bytewise, primary_key=True),
        sqlite_with_rowid=False,
    )


def _dead_letters() -> None:
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
        sa.Column("error_pattern", _bytewise, nullable=False, server_default=""),
    )
    group, member = ["job_name", "error_pattern"], ["last_attempt", "letter_id"]
    op.create_index("scheduler_dead_letters_newest", "scheduler_dead_letters", member)
    op.create_index(
        "scheduler_dead_letters_groups",
        "scheduler_dead_letters",
        [*group, "definition", *member, "first_attempt", "resolved"],
        sqlite_where=sa.text("resolved = 0"),
        postgresql_where=sa.text("NOT resolved"),
    )
    columns = [*group, *member, "definition", "first_attempt"]
    op.create_index("scheduler_dead_letters_of_group", "scheduler_dead_letters", columns)


def _jobs() -> None:
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
        "scheduler_last_runs",
        sa.Column("job_name", _bytewise, primary_key=True),
        sa.Column("execution_id", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("ended_at", _time, nullable=False),
        sa.Column("duration_ms", sa.BigInteger),
        sa.Column("error", sa.Text),
        sa.Column("reason", sa.Text),
        sa.Column("definition", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )


def _counts() -> None:
    op.create_table(
        "scheduler_offsets",
        sa.Column("installation", sa.Text, primary_key=True),
        sa.Column("stream", sa.Text, primary_key=True),
        sa.Column("sequence", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "scheduler_totals",
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("job_name", _bytewise, primary_key=True),
        sa.Column("label", sa.Text, primary_key=True),
        sa.Column("status", sa.Text, primary_key=True),
        sa.Column("total", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "scheduler_execution_counts",
        sa.Column("job_name", _bytewise, primary_key=True),
        sa.Column("period", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("definition", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("trigger", sa.Text, primary_key=True),
        sa.Column("status", sa.Text, primary_key=True),
        sa.Column("total", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "scheduler_passed",
        sa.Column("job_name", _bytewise, primary_key=True),
        sa.Column("until_time", _time, primary_key=True),
        sa.Column("start_time", _time, primary_key=True),
        sa.Column("reason", sa.Text, primary_key=True),
        sa.Column("total", sa.BigInteger, nullable=False),
        sa.Column("definition", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("scheduler_passed_oldest", "scheduler_passed", ["until_time"])


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
