"""The events of executions, dead letters and ledgers, as the log stored them."""

from alembic import op

from tocsin.adapters.sql import tables

revision = "r0002"
down_revision = "r0001"
branch_labels = None
depends_on = None

TABLES = ("scheduler_execution_events", "scheduler_ledger_events", "scheduler_removed_events")


def upgrade() -> None:
    """Create the tables with their indexes, and note that they lack the recorded events."""
    tables.metadata.create_all(op.get_bind(), [tables.metadata.tables[name] for name in TABLES], checkfirst=False)
    op.execute(
        "INSERT INTO scheduler_removed_events (job_name, installation, stream, upto, number)"
        " SELECT '*', installation, stream, CURRENT_TIMESTAMP, sequence FROM scheduler_offsets"
    )


def downgrade() -> None:
    """Fail: there is no downgrade.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError("the history has no downgrade: use another database, which is filled from the log")
