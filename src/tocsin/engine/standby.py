"""Messages for stages that another process leads: a standby has them at hand when it takes over."""

from collections import deque
from collections.abc import Collection, Iterable

from ..domain.commit import Position
from .causes import MessageCause
from .fold import EVENTS


class Standby:
    """Messages that wait for a leader, by stage and source, in the order of their places."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str, str], deque[MessageCause]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._calls.values()))

    def add(self, call: MessageCause) -> None:
        """Add a message after those of its stage and source."""
        self._calls.setdefault(call.key, deque()).append(call)

    def put(self, calls: Iterable[MessageCause]) -> None:
        """Add the messages of stages that this process leads no more."""
        for call in sorted(calls, key=lambda call: (call.key, call.place)):
            self.add(call)

    def take(self, stages: Collection[str]) -> list[MessageCause]:
        """Remove and return the messages of stages, each source in order."""
        keys = [key for key in self._calls if key[0] in stages]
        return [call for key in keys for call in self._calls.pop(key)]

    def forget_taken(self, stage: str, source: str, position: Position) -> None:
        """Forget what the leader of a stage has taken."""
        calls = self._calls.get((stage, source))
        while calls and position.has(calls[0].place):
            calls.popleft()

    def forget_newer(self, newest: int) -> None:
        """Forget the events after the newest that exists."""
        for (_, source), calls in self._calls.items():
            while source == EVENTS and calls and calls[-1].place > newest:
                calls.pop()
