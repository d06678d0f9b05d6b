"""Values as the drivers take them, without SQLAlchemy's way round each of them: recording is where the time goes."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

from sqlalchemy import JSON, Table

from .tables import UuidText


@dataclass(frozen=True)
class Encoding:
    """How the driver of a dialect takes values."""

    dialect: str

    @cached_property
    def is_file(self) -> bool:
        """SQLite, which has no type for times."""
        return self.dialect == "sqlite"

    def time(self, time: datetime) -> object:
        """An instant; one without a zone is taken to be UTC."""
        if time.tzinfo is None:
            time = time.replace(tzinfo=UTC)
        if not self.is_file:
            return time
        written = time.isoformat(" ", "microseconds")
        if not written.endswith("+00:00"):
            written = time.astimezone(UTC).isoformat(" ", "microseconds")
        return written[:-6]

    def maybe_time(self, time: datetime | None) -> object:
        """An aware instant that may be absent."""
        return None if time is None else self.time(time)

    def upsert(self, table: Table, columns: Sequence[str], key: str) -> str:
        """A statement that inserts a row of these columns; where one of the same key is there, it sets all the others."""
        names = ", ".join(f'"{name}"' for name in columns)
        values = ", ".join(self._placeholder(table, name) for name in columns)
        changes = ", ".join(f'"{name}" = excluded."{name}"' for name in columns if name not in {"id", key})
        return f'INSERT INTO {table.name} ({names}) VALUES ({values}) ON CONFLICT ("{key}") DO UPDATE SET {changes}'  # noqa: S608 - our own names

    def update(self, table: Table, columns: Sequence[str], key: str) -> str:
        """A statement that sets these columns of the row of a key, which is its last value.

        It leaves alone the indexes of all other columns: an upsert, too, writes every index of the row anew.
        """
        changes = ", ".join(f'"{name}" = {self._placeholder(table, name)}' for name in columns)
        return f'UPDATE {table.name} SET {changes} WHERE "{key}" = {self._placeholder(table, key)}'  # noqa: S608 - our own names

    def insert(self, table: Table, columns: Sequence[str]) -> str:
        """A statement that inserts a row unless it is there."""
        names = ", ".join(f'"{name}"' for name in columns)
        values = ", ".join(self._placeholder(table, name) for name in columns)
        return f"INSERT INTO {table.name} ({names}) VALUES ({values}) ON CONFLICT DO NOTHING"  # noqa: S608 - our own names

    def _placeholder(self, table: Table, column: str) -> str:
        if self.is_file:
            return "?"
        kind = table.c[column].type
        return "%s::jsonb" if isinstance(kind, JSON) else "%s::uuid" if isinstance(kind, UuidText) else "%s"
