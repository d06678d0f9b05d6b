"""The state of a ledger, and how each event changes it.

Many jobs have equal timetables. They share one object, so that a process can hold the timetables of a million jobs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache, reduce
from itertools import pairwise
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from ..definition import CatchUp, JobDefinition, OnCompletion
from ..events import (
    Defined,
    Deleted,
    Due,
    Message,
    Passed,
    Paused,
    Recorded,
    Resumed,
    in_force_since,
)
from ..schedule import DayRules, DstPolicy

SHARED: Final = 2**15
"""The number of timetables that jobs share."""


@dataclass(frozen=True, slots=True)
class Timetable:
    """The fields of a definition that decide on time."""

    schedule: str | None
    timezone: str
    dst: DstPolicy | None
    enabled: bool
    catch_up: CatchUp
    catch_up_limit: int
    catch_up_max_age: float
    starting_deadline: float | None
    on_completion: OnCompletion
    is_divided: bool = False
    """Whether the job has a partition, so that `due` names the shard map."""
    days: DayRules | None = None
    """The calendars and blackouts; None: every day is open."""

    @classmethod
    def of(cls, definition: JobDefinition) -> "Timetable":
        """Return the timetable of a definition; equal timetables are one object."""
        return shared(
            definition.schedule,
            definition.timezone,
            definition.dst,
            definition.enabled,
            definition.catch_up,
            definition.catch_up_limit,
            definition.catch_up_max_age,
            definition.starting_deadline,
            definition.on_completion,
            definition.partition is not None,
            definition.day_rules,
        )

    def has_same_instants_as(self, other: "Timetable") -> bool:
        mine = self.schedule, self.timezone, self.dst, self.days
        return mine == (other.schedule, other.timezone, other.dst, other.days)


shared: Final = lru_cache(SHARED)(Timetable)
"""Returns the timetable with the given fields; equal timetables are one object."""


class Regime(msgspec.Struct, frozen=True):
    """The rule from `since` on: a definition, paused or not.

    `definition` is a sequence in the ledger (0: deleted). `fact` and `previous` are the sequences of this definition
    event and of its predecessor.
    """

    since: datetime
    definition: int
    paused: bool
    fact: int
    previous: int


class KnownDefinition(msgspec.Struct, frozen=True):
    """A definition that a regime may refer to."""

    since: datetime
    timetable: Timetable
    definition: JobDefinition
    created_at: datetime | None = None
    """The time of the registration; None: `since`."""
    created_by: str | None = None
    """The identity that registered the job first; None: unknown."""
    anchor: datetime | None = None
    """The time from which `@every` counts until the job fires; None: `since`."""


class Ledger(msgspec.Struct, frozen=True):
    """A job's ledger. `regimes` govern undecided time; the last regime is in force now."""

    job: str = ""
    regimes: tuple[Regime, ...] = ()
    definitions: Mapping[int, KnownDefinition] = msgspec.field(default_factory=dict)
    watermark: datetime | None = None
    last_fired: datetime | None = None
    """The last instant that fired, also of an earlier registration of the name; see `fired_since`."""

    @property
    def current(self) -> Regime | None:
        return self.regimes[-1] if self.regimes else None

    @property
    def definition(self) -> JobDefinition | None:
        """Return the definition in force now; None: the job does not exist."""
        return self._known.definition if self._known else None

    @property
    def timetable(self) -> Timetable | None:
        return self._known.timetable if self._known else None

    @property
    def defined_at(self) -> datetime:
        """Return the time (UTC) of the definition in force; no job: the first time."""
        return self._known.since if self._known else datetime.min.replace(tzinfo=UTC)

    @property
    def created_at(self) -> datetime | None:
        """Return the time (UTC) of the first registration."""
        known = self._known
        return (known.created_at or known.since) if known else None

    @property
    def created_by(self) -> str | None:
        """Return the identity that registered the job first, if known."""
        return self._known.created_by if self._known else None

    @property
    def _known(self) -> KnownDefinition | None:
        return self.definitions.get(self.current.definition) if self.current else None

    @property
    def newest(self) -> int:
        """Return the sequence of the newest event on a definition; 0: no event."""
        return self.current.fact if self.current else 0

    def may_change_at(self, at: datetime) -> bool:
        """Return whether no instant and no definition is decided after a time (UTC)."""
        known = (self.watermark, None if self.current is None else self.current.since)
        return all(one is None or one <= at for one in known)

    @property
    def is_paused(self) -> bool:
        return self.current is not None and self.current.paused


initial: Final = Ledger()


def evolve(state: Ledger, recorded: Recorded[Message]) -> Ledger:  # noqa: PLR0911 - one case a fact
    """Return the state after an event; events of other kinds change nothing.

    The result is right for any subset of events for which `missing_fact` returns None.
    """
    fact = recorded.message
    match fact:
        case Defined():
            definitions = {**state.definitions, recorded.sequence: _known(recorded)}
            return _govern(state, recorded, recorded.sequence, definitions, paused=fact.paused)
        case Paused():
            return _govern(state, recorded, fact.definition, state.definitions, paused=True)
        case Resumed():
            return _govern(state, recorded, fact.definition, state.definitions, paused=False)
        case Deleted():
            return _govern(state, recorded, 0, state.definitions, paused=False)
        case Due():
            return _decided(state, fact, fact.scheduled_time, fact.scheduled_time)
        case Passed():
            return _decided(state, fact, fact.until, state.last_fired)
        case _:
            return state


def fired_since(registered: datetime, last_fired: datetime | None) -> datetime | None:
    """Return the last instant that fired, unless it fired before a registration."""
    return last_fired if last_fired is not None and last_fired > registered else None


def fold(facts: Iterable[Recorded[Message]], state: Ledger = initial) -> Ledger:
    """Return the state after events, oldest first."""
    return reduce(evolve, facts, state)


def missing_fact(state: Ledger) -> int | None:
    """Return the sequence of an event that is needed to decide on undecided time.

    A reader that folds only the newest events loads this event and folds again. None: nothing is missing.
    """
    if not state.regimes:
        return None
    first = state.regimes[0]
    if first.previous and (state.watermark is None or first.since > state.watermark):
        return first.previous
    if gap := next((b.previous for a, b in pairwise(state.regimes) if b.previous != a.fact), None):
        return gap
    return next((r.definition for r in state.regimes if r.definition and r.definition not in state.definitions), None)


def _known(recorded: Recorded[Any]) -> KnownDefinition:
    fact: Defined = recorded.message
    since, timetable = in_force_since(recorded), Timetable.of(fact.definition)
    return KnownDefinition(since, timetable, fact.definition, fact.created_at, fact.creator, fact.anchor)


def _govern(
    state: Ledger,
    recorded: Recorded[Any],
    definition: int,
    definitions: Mapping[int, KnownDefinition],
    *,
    paused: bool,
) -> Ledger:
    since, fact = in_force_since(recorded), recorded.message
    regimes = (*state.regimes, Regime(since, definition, paused, recorded.sequence, fact.previous))
    return _trimmed(Ledger(fact.job, regimes, definitions, state.watermark, state.last_fired))


def _decided(state: Ledger, fact: Due | Passed, upto: datetime, last_fired: datetime | None) -> Ledger:
    watermark = upto if state.watermark is None else max(state.watermark, upto)
    return _trimmed(Ledger(fact.job, state.regimes, state.definitions, watermark, last_fired))


def _trimmed(state: Ledger) -> Ledger:
    """Drop regimes that ended by the watermark, and definitions without a regime."""
    if state.watermark is None or len(state.regimes) < 2:  # noqa: PLR2004 - nothing has ended
        return state
    mark = state.watermark
    regimes = (*(a for a, b in pairwise(state.regimes) if b.since > mark), state.regimes[-1])
    definitions = {regime.definition for regime in regimes}
    return replace(state, regimes=regimes, definitions={s: d for s, d in state.definitions.items() if s in definitions})
