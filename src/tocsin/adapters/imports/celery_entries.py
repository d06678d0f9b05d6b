"""The entries of a Celery schedule, and the statements that change them later."""

from bisect import bisect_left
from collections.abc import Iterator
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
    is_named: bool = True
    """Whether the file names it, as a text."""

    @property
    def key(self) -> str:
        """The name in Celery's schedule.

        Celery makes that of a nameless entry of its task and arguments.
        """
        return self.name if self.is_named else repr([self.value.get(part) for part in ("task", "args", "kwargs")])


class Entries:
    """The entries of a file, in order."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self.changes: dict[int, int] = {}
        """The line that changes or removes an entry, by the number of the entry."""
        self._numbers: dict[str, list[int]] = {}
        self._read: set[tuple[str, int]] = set()
        """The name and the mapping of each entry."""
        self._open: list[int] = []
        """The numbers of the entries that no change of a computed name has met."""

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        """Yield the entries."""
        return iter(self._entries)

    def add(self, entry: Entry) -> None:
        """Add an entry, unless a schedule that has two names has it already."""
        read = entry.key, id(entry.value)
        if read not in self._read:
            self._read.add(read)
            self._numbers.setdefault(entry.key, []).append(len(self._entries))
            self._open.append(len(self._entries))
            self._entries.append(entry)

    def note_change(self, name: object, line: int, *, since: int = 0) -> None:
        """Note a change of the entries of a name that are known by now.

        All of them from the number `since` on are changed if the name is computed. An entry is visited once, however many statements
        change it: the first statement counts.
        """
        if isinstance(name, str):
            numbers = self._numbers.pop(name, [])
        else:
            first = bisect_left(self._open, since)
            numbers = self._open[first:]
            del self._open[first:]
        for number in numbers:
            self.changes.setdefault(number, line)
