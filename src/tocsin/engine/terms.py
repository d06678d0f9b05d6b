"""The terms of the processes that lead a stage, folded from the log.

They are the leader and the leaders that died.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

from ..domain.log_events import Began, Left, LogEvent, Trying

SPAN: Final = timedelta(minutes=10)
"""The time within which two deaths make the next leader careful, and the time of its care."""
CAREFUL_AFTER: Final = 2
"""Deaths within `SPAN` after which each decision is announced."""
POISON_AFTER: Final = 3
"""Deaths at one place after which no process decides on it again."""
MAX_DEATHS: Final = 16


class Term(msgspec.Struct, frozen=True):
    """A term of a process."""

    writer: str
    began: int
    """The number of its `Began`."""
    at: datetime
    """The time (UTC) of its `Began`; of a death, the time at which its successor began."""
    place: str = ""
    """The cause of the decision that it was about to make, if it was careful."""


class Terms(msgspec.Struct, frozen=True):
    """The terms of one stage."""

    open: Term | None = None
    """The newest term, unless it was left."""
    deaths: tuple[Term, ...] = ()
    """Terms that ended without `Left`, oldest first."""

    def is_careful(self, now: datetime) -> bool:
        """Return whether the leader announces each decision before it makes it."""
        if self.open is None or now - self.open.at >= SPAN:
            return False
        return sum(self.open.at - death.at <= SPAN for death in self.deaths) >= CAREFUL_AFTER

    def is_poison(self, place: str) -> bool:
        """Return whether decisions on a place killed so many leaders that it is poison."""
        return sum(death.place == place for death in self.deaths) >= POISON_AFTER

    def died(self, writer: str) -> tuple[int, ...]:
        """Return the terms of a process that count as deaths."""
        return tuple(death.began for death in self.deaths if death.writer == writer)


NO_TERMS: Final = Terms()


def evolve(
    before: Mapping[str, Terms], event: LogEvent, *, writer: str, number: int, at: datetime
) -> Mapping[str, Terms]:
    """Return the terms that an event of a process changes, by stage.

    `before`: the terms of all stages.
    """
    match event:
        case Began(stages):
            return {stage: _begin(before.get(stage, NO_TERMS), writer, number, at) for stage in stages}
        case Left(terms):
            return {stage: _leave(before.get(stage, NO_TERMS), began) for stage, began in terms.items()}
        case Trying(stage, place):
            # A process dies of what it tried last, in any stage.
            return {name: _try(terms, writer, place if name == stage else "") for name, terms in before.items()}
        case _:
            return {}


def _begin(state: Terms, writer: str, number: int, at: datetime) -> Terms:
    deaths = state.deaths
    if (before := state.open) is not None:
        deaths = (*deaths, Term(before.writer, before.began, at, before.place))[-MAX_DEATHS:]
    return Terms(Term(writer, number, at), deaths)


def _leave(state: Terms, began: int) -> Terms:
    is_open = state.open is not None and state.open.began == began
    return Terms(None if is_open else state.open, tuple(death for death in state.deaths if death.began != began))


def _try(state: Terms, writer: str, place: str) -> Terms:
    if state.open is None or state.open.writer != writer:
        return state
    return Terms(msgspec.structs.replace(state.open, place=place), state.deaths)
