"""The journal of a fold: old values since the last stored commit."""

from collections.abc import Mapping
from typing import Any, Final, TypeVar

T = TypeVar("T")

_ABSENT: Final = object()
_APPENDED: Final = object()


class Journal:
    """The old values of tables since the last stored commit."""

    def __init__(self) -> None:
        self._old: list[tuple[dict[Any, Any], Any, Any]] = []

    def put(self, table: dict[Any, T], key: object, value: T) -> None:
        """Change an entry."""
        self._old.append((table, key, table.get(key, _ABSENT)))
        table[key] = value

    def remove(self, table: dict[Any, T], key: object) -> None:
        """Remove an entry."""
        self._old.append((table, key, table.pop(key)))

    def append(self, table: dict[Any, list[T]], key: object, value: T) -> None:
        """Add to the list of an entry."""
        if (values := table.get(key)) is None:
            self.put(table, key, [value])
        else:
            values.append(value)
            self._old.append((table, key, _APPENDED))

    def __len__(self) -> int:
        return len(self._old)

    def undo(self, table: Mapping[str, object], length: int = 0) -> set[str]:
        """Restore entries of the last commit, or of a length; return the changed keys."""
        keys = {key for changed, key, _ in self._old[length:] if changed is table}
        while len(self._old) > length:
            table, key, old = self._old.pop()
            if old is _ABSENT:
                del table[key]
            elif old is _APPENDED:
                table[key].pop()
            else:
                table[key] = old
        return keys

    def keep(self, table: Mapping[str, object]) -> list[str]:
        """Forget the old values of a stored commit; return a table's keys by first change."""
        keys = dict.fromkeys([key for changed, key, _ in self._old if changed is table])
        self._old.clear()
        return list(keys)
