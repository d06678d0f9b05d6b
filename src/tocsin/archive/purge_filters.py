"""Filters that purge archived messages: few filters, each as wide as the remaining messages allow.

At every purge the server recounts the pending messages of each consumer, and serves no other request on the stream
meanwhile. A purge for each execution blocks a busy stream for seconds; a single purge for all executions older than the
oldest open execution takes hardly longer than a purge for one of them. An execution that stays open for long affects its
own job only: there, finished executions after it are purged one by one.
"""

from collections.abc import Collection, Iterator
from math import inf
from typing import Final

from ..ports import LogUnavailable, StoredMessage
from .segment_selection import ENDS, INPUTS

_LEVELS: Final = (1, 2, 3)
"""Leading tokens of a filter: over all entities, over those of a job, over a single entity."""


class PurgeFilters:
    """Finds the filters that purge exactly the archived messages of a stream."""

    def __init__(self, archived: Collection[StoredMessage]) -> None:
        """`archived`: compared by sequence and subject, because a restored backup may hold other messages."""
        self._archived = {(message.sequence, message.subject) for message in archived}
        self._kept: dict[str, int] = {}
        self._upto: dict[str, int] = {}

    def take(self, message: StoredMessage) -> None:
        """Take the next message of the stream, up to the newest archived message.

        Raises:
            LogUnavailable: an unarchived message of a scope precedes an archived message; a lagging replica was read.
        """
        filters = _covering(message.subject)
        if (message.sequence, message.subject) in self._archived:
            free = next((wide for wide in filters if self._kept.get(wide, inf) > message.sequence), None)
            if free is None:
                raise LogUnavailable(f"stale read of {message.subject} from a lagging replica")
            self._upto[free] = message.sequence
        else:
            for covering in filters:
                self._kept.setdefault(covering, message.sequence)

    def purges(self) -> Iterator[tuple[str, int]]:
        """Yield each filter with the sequence up to which it purges.

        Narrow filters come first, so that a finished execution goes as a whole even if a wider filter ends within it. Dead
        letters come before everything else, because a resolved dead letter can be replayed while it is in the stream.
        """
        return iter(sorted(self._upto.items(), key=_turn))


def _turn(purge: tuple[str, int]) -> tuple[bool, int]:
    subject, _ = purge
    return not subject.startswith("dead-letter."), -subject.count(".")


def _covering(subject: str) -> tuple[str, ...]:
    """Return the filters that cover a message, the widest first."""
    tokens = subject.split(".")
    if tokens[0] in ENDS:
        return tuple(".".join((*tokens[:level], ">")) for level in _LEVELS if level < len(tokens))
    return (f"{tokens[0]}.>",) if tokens[0] in INPUTS else (subject,)
