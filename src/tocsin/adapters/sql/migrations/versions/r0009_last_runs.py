"""The last run of each job, and an index of running executions.

The last runs of earlier versions are taken from the rows of executions.
"""

import sqlalchemy as sa
from alembic import op

revision = "r0009"
down_revision = "r0008"
branch_labels = None
depends_on = None

_FILL = """
INSERT INTO scheduler_last_runs (job_name, execution_id, status, ended_at, duration_ms, error, reason, definition)
SELECT job_name, execution_id, status, completed_at, duration_ms, error, reason, definition FROM ({ended}) AS ended
WHERE place = 1
"""
_ENDED = """
SELECT job_name, execution_id, status, completed_at, nullif(duration_ms, 2147483647) AS duration_ms,
       substr(error, 1, 500) AS error, substr(reason, 1, 500) AS reason, definition,
       row_number() OVER (PARTITION BY job_name ORDER BY completed_at DESC, execution_id DESC) AS place
FROM scheduler_executions
WHERE completed_at IS NOT NULL AND definition > 0
"""  # 2147483647 stands for any longer duration


def upgrade() -> None:
    """Create the table and the index, and fill the table."""
    op.create_table(
        "scheduler_last_runs",
        sa.Column("job_name", sa.Text().with_variant(sa.Text(collation="C"), "postgresql"), primary_key=True),
        sa.Column("execution_id", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("duration_ms", sa.BigInteger),
        sa.Column("error", sa.Text),
        sa.Column("reason", sa.Text),
        sa.Column("definition", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    where = sa.text("status = 'running'")
    op.create_index(
        "scheduler_executions_running",
        "scheduler_executions",
        ["job_name"],
        sqlite_where=where,
        postgresql_where=where,
    )
    op.execute(_FILL.format(ended=_ENDED))


def downgrade() -> None:
    """Fail: there is no downgrade.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError("the history has no downgrade: use another database, which is filled from the log")
