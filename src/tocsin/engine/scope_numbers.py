"""The numbers of the newest events of scopes, in a process without stages.

They are for the guards of the events that it proposes.

The process began at a head, so it does not know the events before, and the number of scopes is limited. A scope that it does not know is no empty
scope. A proposal for such a scope is decided only if its proposer found the newest event up to a number from which on this process knows all.
"""

from datetime import datetime
from typing import Final

from typing_extensions import override

from .. import subjects
from ..domain.commit import Commit
from ..domain.events import Message, Recorded
from ..domain.log_events import NamedSnapshot, decode, is_log_event
from .fold import Fold

MAX_SCOPES: Final = 300_000
"""The most scopes with known numbers, about 50 MB."""


class ScopeNumbers(Fold):
    """A fold without states."""

    def __init__(self, since: int) -> None:
        """`since`: the number of the newest event before the first that this process reads."""
        super().__init__()
        self.since = since
        """The number after which the process knows the newest event of each scope."""
        self._earlier: dict[str, int] = {}
        """The newest events of scopes that were stored before it began; a later one is in `numbers`."""

    def take_commit(self, commit: Commit) -> None:
        """Note the events of the next commit."""
        for number, event in enumerate(commit.events, commit.first):
            if not is_log_event(event.subject):
                scope = subjects.guard_of(event.subject) or event.subject
                self.numbers.pop(scope, None)
                self.numbers[scope] = number
            elif isinstance(change := decode(event), NamedSnapshot):
                self.evolve_log(change, writer=commit.writer, number=number, at=commit.at)
        self.keep(commit.at)

    def note_earlier(self, numbers: dict[str, int], *, after: int, upto: int) -> None:
        """Note the newest event of each scope between two numbers.

        Note nothing if they are too many, or do not reach the known numbers.
        """
        if upto == self.since and len(numbers) <= MAX_SCOPES:
            self._earlier |= {scope: number for scope, number in numbers.items() if scope not in self._earlier}
            self.since = after

    def known(self, scope: str) -> int | None:
        """Return the number of the newest event of a scope; None: it is unknown."""
        return self.numbers.get(scope, self._earlier.get(scope))

    @override
    def evolve(self, recorded: Recorded[Message], scope: str) -> None:
        self.journal.put(self.numbers, scope, recorded.sequence)

    @override
    def keep(self, at: datetime) -> None:
        self.journal.keep({})
        while len(self.numbers) > MAX_SCOPES:
            scope = next(iter(self.numbers))
            self.since = max(self.since, self.numbers.pop(scope))
            self._earlier.pop(scope, None)

    @override
    def allows(self, scope: str, expect: int, known_upto: int) -> bool:
        number = self.known(scope)
        return known_upto >= self.since if number is None else number == expect
