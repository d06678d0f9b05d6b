"""Count skips that only announce an instant apart from other skips."""

from alembic import op

revision = "r0007"
down_revision = "r0006"
branch_labels = None
depends_on = None

_ANNOUNCED = "status = 'skipped' AND reason IN ('disabled', 'dst_skip') AND completed_at IS NOT NULL"
_FILL = """
INSERT INTO scheduler_execution_counts (job_name, period, definition, "trigger", status, total)
SELECT job_name, {period}, coalesce(definition, -1), "trigger", 'announced', count(*)
FROM scheduler_executions WHERE {announced} GROUP BY 1, 2, 3, 4
"""
_TAKE = """
INSERT INTO scheduler_execution_counts (job_name, period, definition, "trigger", status, total)
SELECT job_name, period, definition, "trigger", 'skipped', -total
FROM scheduler_execution_counts WHERE status = 'announced'
ON CONFLICT (job_name, period, definition, "trigger", status)
DO UPDATE SET total = scheduler_execution_counts.total + excluded.total
"""
_PERIODS = {
    "sqlite": "CAST(strftime('%s', scheduled_time) AS INTEGER) / 300",
    "postgresql": "CAST(floor(extract(epoch FROM scheduled_time) / 300) AS BIGINT)",
}


def upgrade() -> None:
    """Move what was counted as skipped."""
    op.execute(_FILL.format(period=_PERIODS[op.get_bind().dialect.name], announced=_ANNOUNCED))
    op.execute(_TAKE)
    op.execute("DELETE FROM scheduler_execution_counts WHERE total <= 0")


def downgrade() -> None:
    """Fail: there is no downgrade.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError("the history has no downgrade: use another database, which is filled from the log")
