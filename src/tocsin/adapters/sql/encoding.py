"""Values and statements for the drivers.

They bypass SQLAlchemy's processing of each value, because recording is where the time goes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

from sqlalchemy import JSON, Table

from .tables import UuidText


@dataclass(frozen=True)
class Encoding:
    """The encoding of values for the driver of a dialect."""

    dialect: str

    @cached_property
    def is_file(self) -> bool:
        """SQLite, which has no type for times."""
        return self.dialect == "sqlite"

    def time(self, time: datetime) -> object:
        """Encode an instant; an instant without a zone is assumed to be in UTC."""
        if time.tzinfo is None:
            time = time.replace(tzinfo=UTC)
        if not self.is_file:
            return time
        written = time.isoformat(" ", "microseconds")
        if not written.endswith("+00:00"):
            written = time.astimezone(UTC).isoformat(" ", "microseconds")
        return written[:-6]

    def maybe_time(self, time: datetime | None) -> object:
        """Encode an aware instant or None."""
        return None if time is None else self.time(time)

    def upsert(self, table: Table, columns: Sequence[str], key: str) -> str:
        """Return a statement that inserts a row, or updates the row of the same key."""
        names = ", ".join(f'"{name}"' for name in columns)
        values = ", ".join(self._placeholder(table, name) for name in columns)
        changes = ", ".join(f'"{name}" = excluded."{name}"' for name in columns if name not in {"id", key})
        return f'INSERT INTO {table.name} ({names}) VALUES ({values}) ON CONFLICT ("{key}") DO UPDATE SET {changes}'  # noqa: S608 - our own names

    def update(self, table: Table, columns: Sequence[str], key: str) -> str:
        """Return a statement that sets columns of the row of a key.

        The key is its last value. The indexes of all other columns stay untouched, whereas an upsert rewrites every
        index of the row.
        """
        changes = ", ".join(f'"{name}" = {self._placeholder(table, name)}' for name in columns)
        return f'UPDATE {table.name} SET {changes} WHERE "{key}" = {self._placeholder(table, key)}'  # noqa: S608 - our own names

    def insert(self, table: Table, columns: Sequence[str]) -> str:
        """Return a statement that inserts a row unless it exists."""
        names = ", ".join(f'"{name}"' for name in columns)
        values = ", ".join(self._placeholder(table, name) for name in columns)
        return f"INSERT INTO {table.name} ({names}) VALUES ({values}) ON CONFLICT DO NOTHING"  # noqa: S608 - our own names

    def _placeholder(self, table: Table, column: str) -> str:
        if self.is_file:
            return "?"
        kind = table.c[column].type
        return "%s::jsonb" if isinstance(kind, JSON) else "%s::uuid" if isinstance(kind, UuidText) else "%s"
