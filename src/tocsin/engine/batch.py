"""The decisions of a process since the last stored commit."""

from datetime import datetime

import msgspec

from .. import subjects
from ..domain.commit import CommitEvent
from ..domain.events import Message, Recorded
from .causes import Cause, Effect, MessageCause, OfPart
from .step import ANSWERED, Send


class Batch:
    """The decisions since the last stored commit."""

    def __init__(self) -> None:
        self.since: datetime | None = None
        """The time at which positions moved first."""
        self.calls: list[Cause] = []
        self.closed: list[MessageCause] = []
        """The inputs and events that were decided to their end."""
        self.events: list[CommitEvent] = []
        self.recorded: list[Recorded[Message]] = []
        """The same events as messages."""
        self.effects: list[tuple[str, Effect]] = []
        self.size = 0
        self.inputs = 0
        self.is_cut = False
        """Whether its last decision goes on in the next commit."""

    @property
    def is_awaited(self) -> bool:
        """Return whether an input is to be sent, or a publisher waits for an answer."""
        return any(isinstance(effect, Send) or effect.signal is ANSWERED for _, effect in self.effects)

    def begin(self, cause: Cause) -> "Mark":
        """Add a cause; return the end before it."""
        self.calls.append(cause)
        return Mark(len(self.calls) - 1, len(self.events), len(self.effects), self.size)

    def settle(self) -> None:
        """Answer the proposals and notes in it: it is stored."""
        for call in self.calls:
            if isinstance(call, OfPart):
                call.settle()

    def scopes(self, after: int = 0) -> set[str]:
        """Return the scopes of the batch's events after a number of events."""
        return {subjects.guard_of(event.subject) or event.subject for event in self.events[after:]}

    def cut(self, mark: "Mark") -> None:
        """Forget the decisions after a mark."""
        del self.calls[mark.calls :], self.events[mark.events :]
        del self.recorded[mark.events :], self.effects[mark.effects :]
        self.size = mark.size


class Mark(msgspec.Struct, frozen=True):
    """The end of a batch at some time."""

    calls: int
    events: int
    effects: int
    size: int
