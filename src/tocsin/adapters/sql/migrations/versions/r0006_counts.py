"""Counts of ended executions by time, and spans of missed instants.

The executions of earlier versions are counted here. Their passed instants are recorded by `tocsin history rebuild`.
"""

import sqlalchemy as sa
from alembic import op

revision = "r0006"
down_revision = "r0005"
branch_labels = None
depends_on = None

_bytewise = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_time = sa.DateTime(timezone=True)

_FILL = """
INSERT INTO scheduler_execution_counts (job_name, period, definition, "trigger", status, total)
SELECT job_name, {period}, coalesce(definition, -1), "trigger", status, count(*)
FROM scheduler_executions WHERE completed_at IS NOT NULL GROUP BY 1, 2, 3, 4, 5
"""
_PERIODS = {
    "sqlite": "CAST(strftime('%s', scheduled_time) AS INTEGER) / 300",
    "postgresql": "CAST(floor(extract(epoch FROM scheduled_time) / 300) AS BIGINT)",
}


def upgrade() -> None:
    """Create the tables and the index of open executions, and count the executions."""
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
    where = sa.text("completed_at IS NULL")
    columns = ["job_name", "scheduled_time"]
    op.create_index(
        "scheduler_executions_open", "scheduler_executions", columns, sqlite_where=where, postgresql_where=where
    )
    op.execute(_FILL.format(period=_PERIODS[op.get_bind().dialect.name]))


def downgrade() -> None:
    """Fail: there is no downgrade.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError("the history has no downgrade: use another database, which is filled from the log")
