"""Inputs that wait, as states of the fold.

For example, a request to cancel may overtake the request that begins its execution.

A stage answers `wait` when an input cannot be decided yet. The event `log.waits` then holds the input, and the input counts
as taken. The input is decided again, in its turn, after a state that the decision read or the place of a stage has changed,
or when its time is over; `log.waited` ends the state. Beyond the limits of a publisher, or of all, no input waits: it is
decided at once as if its time were over.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from .. import subjects
from ..domain.log_events import Name, Waited, Waits

if TYPE_CHECKING:
    from .journal import Journal

TAKEN: Final = "taken."
"""The beginning of the names of places of stages, which an input may await like scopes."""
MAX_OF_PUBLISHER: Final = 1_000
MAX_OF_ALL: Final = 10_000
MAX_BYTES_OF_PUBLISHER: Final = 6_710_886
MAX_BYTES_OF_ALL: Final = 67_108_864
"""Bytes of the bodies of inputs that wait."""
_ALL: Final = ">"
"""All publishers together; no account has this name."""


def taken_scope(stage: str, source: str) -> str:
    """Return the name of a stage's place in a source, for inputs that await it."""
    return f"{TAKEN}{stage}.{source}"


class Entry(NamedTuple):
    """An input that waits, and the number of its event."""

    waits: Waits
    number: int


class WaitingInputs:
    """The inputs that wait."""

    def __init__(self, journal: "Journal") -> None:
        self._journal = journal
        self.entries: dict[tuple[str, str, str, int], dict[str, Entry]] = {}
        """The inputs that wait, by place and subject. A change of an input replaces the mapping of its place."""
        self._on: dict[str, tuple[Name, ...]] = {}
        self._sizes: dict[str, tuple[int, int]] = {}
        """The number of waiting inputs, and the bytes of their bodies, by publisher and together (`_ALL`).

        The empty publisher is the API, or a program without an account of its own.
        """

    def __len__(self) -> int:
        """Return how many inputs wait."""
        return self._sizes.get(_ALL, (0, 0))[0]

    def __iter__(self) -> Iterator[Entry]:
        """Yield the inputs, in the order of the numbers of their events."""
        entries = [entry for of_place in self.entries.values() for entry in of_place.values()]
        return iter(sorted(entries, key=lambda entry: entry.number))

    def get(self, name: Name) -> Waits | None:
        """Return an input; None: it does not wait."""
        entry = self.entries.get(name[:-1], {}).get(name[-1])
        return None if entry is None else entry.waits

    def on(self, scope: str) -> tuple[Name, ...]:
        """Return the inputs that await events of a scope."""
        return self._on.get(scope, ())

    def has_room(self, waits: Waits) -> bool:
        """Return whether one more input may wait."""
        number, size = self._sizes.get(subjects.publisher_of(waits.subject) or "", (0, 0))
        number_of_all, size_of_all = self._sizes.get(_ALL, (0, 0))
        return (
            number < MAX_OF_PUBLISHER
            and size + len(waits.body) <= MAX_BYTES_OF_PUBLISHER
            and number_of_all < MAX_OF_ALL
            and size_of_all + len(waits.body) <= MAX_BYTES_OF_ALL
        )

    def evolve(self, event: Waits | Waited, number: int) -> None:
        """Apply an event."""
        put, name = self._journal.put, event.name
        before = self.entries.get(name[:-1], {})
        entries = {subject: entry for subject, entry in before.items() if event.subject not in {"", subject}}
        for waits, _ in (entry for subject, entry in before.items() if subject not in entries):
            self._forget(waits)
        if isinstance(event, Waits):
            entries[event.subject] = Entry(event, number)
            for scope in event.on:
                put(self._on, scope, (*self._on.get(scope, ()), name))
            self._add(event, 1)
        if entries:
            put(self.entries, name[:-1], entries)
        elif before:
            self._journal.remove(self.entries, name[:-1])

    def _forget(self, waits: Waits) -> None:
        for scope in waits.on:
            if rest := tuple(other for other in self._on[scope] if other != waits.name):
                self._journal.put(self._on, scope, rest)
            else:
                self._journal.remove(self._on, scope)
        self._add(waits, -1)

    def _add(self, waits: Waits, number: int) -> None:
        for publisher in (subjects.publisher_of(waits.subject) or "", _ALL):
            count, size = self._sizes.get(publisher, (0, 0))
            if count + number:
                self._journal.put(self._sizes, publisher, (count + number, size + number * len(waits.body)))
            else:
                self._journal.remove(self._sizes, publisher)
