"""Keys of a fold with events that cannot all be applied.

No decision may rest on such a key until an operator sets the events aside.

An event breaks its key if this version cannot read it, or if the state before it does not accept it. The key keeps that state and all events since,
so that it is whole again as soon as the event is set aside (`tocsin repair --unreadable`), or a newer version loads a snapshot. Messages that need a
decision on such a key wait in the log (`waiting`).
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

import msgspec

from .. import subjects
from ..domain.errors import TocsinError
from ..domain.events import Message, Recorded, Voided

PATIENCE: Final = timedelta(days=1)
"""How long an input waits until its key is whole; then it is poison."""


class BrokenKey(TocsinError):
    """An event of a key cannot be applied: no decision may rest on this key."""

    code = "broken-key"

    def __init__(self, state: "Broken") -> None:
        super().__init__(str(state))
        event = state.since[0]
        self.scope = event.scope
        self.repair = subjects.voided(subjects.stream_of(event.subject), event.number).rpartition(".")[0] + ".>"
        """The scope of the decision that sets the event aside."""


class StoredEvent(msgspec.Struct, array_like=True, frozen=True):
    """An event as it is stored: its number, subject, time (UTC) and body."""

    number: int
    subject: str
    time: datetime
    body: msgspec.Raw

    @classmethod
    def of(cls, recorded: Recorded[Message]) -> "StoredEvent":
        """Return a decoded event as it is stored."""
        body = msgspec.Raw(recorded.message.encode())
        return cls(recorded.sequence, recorded.subject, recorded.time, body)

    def read(self) -> Recorded[Message]:
        """Return the decoded event.

        Raises:
            DecodeError: this version cannot read it.
        """
        message = subjects.decode(self.subject, bytes(self.body))
        return Recorded(message, self.subject, self.number, self.time)

    @property
    def scope(self) -> str:
        """The scope of its subject."""
        return subjects.guard_of(self.subject) or self.subject


class Broken(msgspec.Struct, frozen=True):
    """The state of a broken key.

    Its events are not bounded: only a process that can apply them adds any, and no event is stored that some process cannot read.

    Attributes:
        before: the state that did not accept an event; None: no state was before it.
        since: the events from that event on.
        aside: the numbers of the events that an operator set aside.
        error: why the first event cannot be applied.
    """

    before: Any
    since: tuple[StoredEvent, ...]
    aside: tuple[int, ...]
    error: str

    @property
    def number(self) -> int:
        """The number of the event that broke the key."""
        return self.since[0].number

    def __str__(self) -> str:
        return f"{self.since[0].scope}: event {self.number:,} cannot be applied: {self.error}"

    def add(self, event: StoredEvent) -> "Broken":
        """Return the state with one more event."""
        return msgspec.structs.replace(self, since=(*self.since, event))

    def without(self, voided: Voided) -> "Broken":
        """Return the state after an operator set one of its events aside."""
        of_body = (event.number for event in self.since if subjects.digest_of(bytes(event.body)) == voided.digest)
        return (
            msgspec.structs.replace(self, aside=(*self.aside, voided.sequence)) if voided.sequence in of_body else self
        )


OnBroken: TypeAlias = Callable[[StoredEvent, str, bool], None]
"""Takes an event that broke its key, the reason, and whether it can be read."""
