"""The shard of an execution, and the id under which it was fanned out.

Rows of earlier versions have neither.
"""

import sqlalchemy as sa
from alembic import op

revision = "r0004"
down_revision = "r0003"
branch_labels = None
depends_on = None

_bytewise = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add the columns, and the index that finds the executions of an occurrence."""
    op.add_column("scheduler_executions", sa.Column("shard", sa.Text))
    op.add_column("scheduler_executions", sa.Column("occurrence_id", _bytewise))
    where = sa.text("occurrence_id IS NOT NULL")
    columns = ["occurrence_id", "scheduled_time", "execution_id"]
    op.create_index(
        "scheduler_executions_of_occurrence",
        "scheduler_executions",
        columns,
        sqlite_where=where,
        postgresql_where=where,
    )


def downgrade() -> None:
    """Fail: there is no downgrade.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError("the history has no downgrade: use another database, which is filled from the log")
