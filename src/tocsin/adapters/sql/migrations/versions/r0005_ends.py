"""The index that finds the executions that ended last, by status."""

import sqlalchemy as sa
from alembic import op

revision = "r0005"
down_revision = "r0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the index. It has all columns that counts of ends need."""
    where = sa.text("completed_at IS NOT NULL")
    op.create_index(
        "scheduler_executions_ended",
        "scheduler_executions",
        ["status", "completed_at", "job_name", "definition"],
        sqlite_where=where,
        postgresql_where=where,
    )


def downgrade() -> None:
    """Fail: there is no downgrade.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError("the history has no downgrade: use another database, which is filled from the log")
