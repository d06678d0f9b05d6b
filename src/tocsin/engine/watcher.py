"""The view of commits for parts of a process that read events by themselves."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Protocol

from ..domain.commit import CommitEvent
from ..domain.events import Message, Recorded


class Watcher(Protocol):
    """The notes to the parts of a process that read its events by themselves."""

    def decided(self, event: CommitEvent, recorded: Recorded[Message], /) -> bool:
        """Take an event that is not stored yet.

        Return whether a part may propose more at once.
        """
        ...

    def undone(self, scopes: Iterable[str], newest: int, /) -> None:
        """Take back the events of scopes; `newest`: the number of the newest stored event."""
        ...

    def explode(
        self,
        first: int,
        at: datetime,
        events: Sequence[CommitEvent],
        recorded: Sequence[Recorded[Message] | None],
        /,
        *,
        is_own: bool,
    ) -> None:
        """Take the events of the next commit.

        `recorded`: the decoded events, with None for an unreadable event; or None: no event is decoded.

        Events of the log itself (`domain.log_events`) are among them.
        """
        ...


class NobodyWatches:
    """No part of the process reads events by itself."""

    def decided(self, event: CommitEvent, recorded: Recorded[Message], /) -> bool:
        """Do nothing."""
        del event, recorded
        return False

    def undone(self, scopes: Iterable[str], newest: int, /) -> None:
        """Do nothing."""

    def explode(
        self,
        first: int,
        at: datetime,
        events: Sequence[CommitEvent],
        recorded: Sequence[Recorded[Message] | None],
        /,
        *,
        is_own: bool,
    ) -> None:
        """Do nothing."""
