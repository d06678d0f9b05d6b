"""How archived messages are taken out of their stream: by few filters, each as wide as what stays there allows.

For every purge the server counts anew, for each consumer, what it still has to be given, and stores that; meanwhile nobody
else is served on the stream. So one purge for each execution holds up a busy stream for seconds, and one for all executions
that began before the oldest that is still open hardly longer than one for any of them. What stays in the stream for long
holds up its own job only: behind it, each execution that is over is purged by itself.
"""

from collections.abc import Collection, Iterator
from math import inf
from typing import Final

from ..ports import LogUnavailable, StoredMessage
from .segment_selection import ENDS, INPUTS

_LEVELS: Final = (1, 2, 3)
"""Leading tokens that executions and dead letters have in common: all, those of a job, those of one."""


class PurgeFilters:
    """Finds what removes the archived messages of one stream, and nothing else."""

    def __init__(self, archived: Collection[StoredMessage]) -> None:
        """`archived`: these, and nothing that somebody else's backup put in their place."""
        self._archived = {(message.sequence, message.subject) for message in archived}
        self._kept: dict[str, int] = {}
        self._upto: dict[str, int] = {}

    def take(self, message: StoredMessage) -> None:
        """Look at one more, in the order of the stream: at all that it holds up to the newest archived one.

        Raises:
            LogUnavailable: what is archived lies behind a part of the same that is not; a replica that lags was read.
        """
        filters = _covering(message.subject)
        if (message.sequence, message.subject) in self._archived:
            free = next((one for one in filters if self._kept.get(one, inf) > message.sequence), None)
            if free is None:
                raise LogUnavailable(f"{message.subject}: a replica that lags was read")
            self._upto[free] = message.sequence
        else:
            for one in filters:
                self._kept.setdefault(one, message.sequence)

    def purges(self) -> Iterator[tuple[str, int]]:
        """Filters, and the sequence up to which all that each covers goes.

        The narrowest first: so what is over goes as a whole, also where a wider one ends in the midst of it. Dead letters
        before all else: one that was resolved may be replayed for as long as it is there.
        """
        return iter(sorted(self._upto.items(), key=_turn))


def _turn(purge: tuple[str, int]) -> tuple[bool, int]:
    subject, _ = purge
    return not subject.startswith("dead-letter."), -subject.count(".")


def _covering(subject: str) -> tuple[str, ...]:
    """The filters that may take a message along with others, the widest first."""
    tokens = subject.split(".")
    if tokens[0] in ENDS:
        return tuple(".".join((*tokens[:level], ">")) for level in _LEVELS if level < len(tokens))
    return (f"{tokens[0]}.>",) if tokens[0] in INPUTS else (subject,)
