"""The view of commits for parts of a process that read events by themselves."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from ..domain.commit import CommitEvent
from ..domain.events import Message, Recorded


class Shown(NamedTuple):
    """The events of a commit, events of the log itself (`domain.log_events`) among them."""

    first: int
    """The number of the first event."""
    at: datetime
    events: Sequence[CommitEvent]
    recorded: Sequence[Recorded[Message] | None]
    """The decoded events, with None for an unreadable event; empty: no event is decoded."""
    is_own: bool
    """Whether this process stored the commit just now."""


class Watcher(Protocol):
    """The notes to the parts of a process that read its events by themselves."""

    def decided(self, event: CommitEvent, recorded: Recorded[Message], /) -> bool:
        """Take an event that is not stored yet.

        Return whether a part may propose more at once.
        """

    def undone(self, scopes: Iterable[str], newest: int, /) -> None:
        """Take back the events of scopes; `newest`: the number of the newest stored event."""

    def explode(self, shown: Shown, /) -> None:
        """Take the events of the next commit."""


class NobodyWatches:
    """No part of the process reads events by itself."""

    def decided(self, event: CommitEvent, recorded: Recorded[Message], /) -> bool:
        """Do nothing."""
        del event, recorded
        return False

    def undone(self, scopes: Iterable[str], newest: int, /) -> None:
        """Do nothing."""

    def explode(self, shown: Shown, /) -> None:
        """Do nothing."""
