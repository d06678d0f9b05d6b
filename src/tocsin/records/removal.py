"""How archived messages are taken out of their stream: by few filters, each as wide as what stays there allows.

For every purge the server counts anew, for each consumer, what it still has to be given, and stores that; meanwhile nobody
else is served on the stream. So one purge for each execution may hold up a busy stream for seconds; one for all executions
that began before the oldest that is still open takes as long as one for any of them. A job whose executions run for long
holds up its own only: behind them, each execution that is over is purged by itself.
"""

from collections.abc import Container, Iterator
from math import inf
from typing import Final

from ..ports import StoredMessage
from .harvest import ENDS, INPUTS

_LEVELS: Final = (1, 2, 3)
"""Leading tokens that executions and dead letters have in common: all, those of a job, those of one."""


class Removal:
    """Finds what removes the archived messages of one stream, and nothing else."""

    def __init__(self, archived: Container[int]) -> None:
        """`archived`: their sequences."""
        self._archived = archived
        self._kept: dict[str, int] = {}
        self._upto: dict[str, int] = {}

    def take(self, message: StoredMessage) -> None:
        """Look at one more, in the order of the stream: at all that it holds up to the newest archived one."""
        filters = _covering(message.subject)
        if message.sequence in self._archived:
            free = next(one for one in filters if self._kept.get(one, inf) > message.sequence)
            self._upto[free] = message.sequence
        else:
            for one in filters:
                self._kept.setdefault(one, message.sequence)

    def purges(self) -> Iterator[tuple[str, int]]:
        """Filters, and the sequence up to which all that each covers goes. The narrowest first.

        So what is over goes as a whole, also where a wider one ends in the midst of it.
        """
        return iter(sorted(self._upto.items(), key=_narrowness))


def _narrowness(purge: tuple[str, int]) -> int:
    subject, _ = purge
    return -subject.count(".")


def _covering(subject: str) -> tuple[str, ...]:
    """The filters that may take a message along with others, the widest first."""
    tokens = subject.split(".")
    if tokens[0] in ENDS:
        return tuple(".".join((*tokens[:level], ">")) for level in _LEVELS if level < len(tokens))
    return (f"{tokens[0]}.>",) if tokens[0] in INPUTS else (subject,)
