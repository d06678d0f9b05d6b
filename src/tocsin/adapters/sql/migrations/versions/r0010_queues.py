"""Keep the queue of each execution, and its state as a job."""

import sqlalchemy as sa
from alembic import op

revision = "r0010"
down_revision = "r0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns and their index."""
    for name in ("queue", "job_state"):
        op.add_column("scheduler_executions", sa.Column(name, sa.Text))
    known = sa.text("queue IS NOT NULL AND job_state IS NOT NULL")
    op.create_index(
        "scheduler_executions_of_queue",
        "scheduler_executions",
        ["queue", "job_state", "completed_at"],
        sqlite_where=known,
        postgresql_where=known,
    )


def downgrade() -> None:
    """Fail: there is no downgrade.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError("the history has no downgrade: use another database, which is filled from the log")
