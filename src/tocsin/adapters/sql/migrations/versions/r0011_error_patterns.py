"""Keep the pattern of each dead letter's last error, by which they are grouped.

A later change to the patterns needs another revision that fills the column again.
"""

import sqlalchemy as sa
from alembic import op

from tocsin.domain.error_pattern import MAX_TEXT, error_pattern

revision = "r0011"
down_revision = "r0010"
branch_labels = None
depends_on = None

_CHUNK = 1_000
_READ = sa.text(
    f"SELECT letter_id, substr(last_error, 1, {MAX_TEXT}) AS error FROM scheduler_dead_letters "  # noqa: S608 - a number
    "WHERE last_error IS NOT NULL AND letter_id > :after ORDER BY letter_id LIMIT :most"
)
_FILL = sa.text("UPDATE scheduler_dead_letters SET error_pattern = :pattern WHERE letter_id = :letter")


def upgrade() -> None:
    """Add the column, fill it, and create its indexes."""
    kind = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.add_column("scheduler_dead_letters", sa.Column("error_pattern", kind, nullable=False, server_default=""))
    connection, after = op.get_bind(), ""
    while rows := connection.execute(_READ, {"after": after, "most": _CHUNK}).all():
        connection.execute(_FILL, [{"letter": row.letter_id, "pattern": error_pattern(row.error)} for row in rows])
        after = rows[-1].letter_id
    op.create_index(
        "scheduler_dead_letters_groups",
        "scheduler_dead_letters",
        ["job_name", "error_pattern", "definition", "last_attempt", "letter_id", "first_attempt", "resolved"],
        sqlite_where=sa.text("resolved = 0"),
        postgresql_where=sa.text("NOT resolved"),
    )
    op.create_index(
        "scheduler_dead_letters_of_group",
        "scheduler_dead_letters",
        ["job_name", "error_pattern", "last_attempt", "letter_id", "definition", "first_attempt"],
    )


def downgrade() -> None:
    """Fail: there is no downgrade.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError("the history has no downgrade: use another database, which is filled from the log")
