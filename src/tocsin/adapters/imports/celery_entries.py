"""The entries of a Celery schedule, and the statements that change them later."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a schedule."""

    name: str
    value: Any
    line: int
    block: str
    """The statement that decides whether the entry exists; empty: it always does."""


class Entries:
    """The entries of a file, in order."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self.changes: dict[int, int] = {}
        """The line that changes or removes an entry, by the number of the entry."""
        self._numbers: dict[str, list[int]] = {}
        self._read: set[tuple[str, int]] = set()
        """The name and the mapping of each entry."""
        self._changed = 0
        """The number of the first entries that are all changed."""

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        """Yield the entries."""
        return iter(self._entries)

    def add(self, entry: Entry) -> None:
        """Add an entry, unless a schedule that has two names has it already."""
        read = entry.name, id(entry.value)
        if read not in self._read:
            self._read.add(read)
            self._numbers.setdefault(entry.name, []).append(len(self._entries))
            self._entries.append(entry)

    def note_change(self, name: object, line: int, *, since: int = 0) -> None:
        """Note a change of the entries of a name that are known by now.

        All of them from the number `since` on are changed if the name is computed.
        """
        numbers: Iterable[int] = self._numbers.get(name, ()) if isinstance(name, str) else ()
        if not isinstance(name, str):
            numbers = range(max(since, self._changed), len(self._entries))
            self._changed = len(self._entries) if since <= self._changed else self._changed
        for number in numbers:
            self.changes.setdefault(number, line)
