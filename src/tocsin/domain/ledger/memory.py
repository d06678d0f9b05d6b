"""The ledgers of many jobs in little memory."""

from collections.abc import Iterator
from datetime import datetime

import msgspec

from .instants import drop_time, next_instant, schedule_of
from .state import KnownDefinition, Ledger, Regime, fired_since, initial, missing_fact, without_definitions
from .timetables import Lookahead, Timetable


class Plain(msgspec.Struct, frozen=True, gc=False):
    """The usual ledger: one definition, since which the job was not paused.

    The garbage collector does not visit it, since it can be in no cycle.
    """

    sequence: int
    definition: int
    previous: int
    since: datetime
    timetable: Timetable
    watermark: datetime | None
    last_fired: datetime | None
    created_at: datetime | None
    anchor: datetime | None


class Ledgers:
    """The ledger of each job, with the last sequence that it includes, and without definitions."""

    def __init__(self) -> None:
        self._plain: dict[str, Plain] = {}
        self._others: dict[str, tuple[Ledger, int]] = {}

    def __getitem__(self, job: str) -> tuple[Ledger, int]:
        """Return a job's ledger and last sequence; unknown: the initial ledger and 0."""
        plain = self._plain.get(job)
        if plain is None:
            return self._others.get(job, (initial, 0))
        since, definition = plain.since, plain.definition
        regimes = (Regime(since, definition, paused=False, fact=definition, previous=plain.previous),)
        definitions = {definition: KnownDefinition(since, plain.timetable, None, plain.created_at, anchor=plain.anchor)}
        return Ledger(job, regimes, definitions, plain.watermark, plain.last_fired), plain.sequence

    def put(self, job: str, state: Ledger, sequence: int) -> None:
        """Set a job's ledger and its last sequence."""
        plain = _plain(state, sequence)
        if plain is None:
            self._plain.pop(job, None)
            self._others[job] = without_definitions(state), sequence
        else:
            self.put_plain(job, plain)

    def plain(self, job: str) -> Plain | None:
        """Return a job's usual ledger, compact; None: it is another ledger, or unknown."""
        return self._plain.get(job)

    def put_plain(self, job: str, plain: Plain) -> None:
        """Set a job's ledger and its last sequence from the compact form."""
        self._others.pop(job, None)
        self._plain[job] = plain

    def next_instant(self, job: str, lookahead: Lookahead) -> datetime | None:
        """Return the next time that needs a decision on a job (`instants.next_instant`).

        Raises:
            LookupError: undecided time belongs to an earlier definition, or an event is missing.
            ScheduleError: the schedule or its time zone is unknown.
        """
        plain = self._plain.get(job)
        if plain is None:
            state, _ = self[job]
            if len(state.regimes) != 1 or missing_fact(state) is not None:
                raise LookupError(job)
            return next_instant(state, state.regimes[0].since, lookahead=lookahead)
        since, watermark, timetable = plain.since, plain.watermark, plain.timetable
        if plain.previous and (watermark is None or since > watermark):
            raise LookupError(job)
        if timetable.schedule is None:
            return None
        if (dropped := drop_time(timetable, plain.last_fired)) is not None:
            return dropped
        floor = since if watermark is None or watermark < since else watermark
        anchor = fired_since(plain.created_at or since, plain.last_fired) or plain.anchor or since
        return lookahead.next_at(schedule_of(timetable), floor, anchor)

    def sequence(self, job: str) -> int:
        """Return the last sequence of a job's ledger; 0: the job is unknown."""
        plain = self._plain.get(job)
        return self._others.get(job, (initial, 0))[1] if plain is None else plain.sequence

    def __len__(self) -> int:
        """Return the number of jobs."""
        return len(self._plain) + len(self._others)

    def __iter__(self) -> Iterator[str]:
        """Yield all jobs."""
        yield from self._plain
        yield from self._others


def _plain(state: Ledger, sequence: int) -> Plain | None:
    if len(state.regimes) != 1 or len(state.definitions) != 1:
        return None
    regime = state.regimes[0]
    known = state.definitions.get(regime.definition)
    if regime.paused or regime.fact != regime.definition or known is None or known.since != regime.since:
        return None
    return Plain(
        *(sequence, regime.definition, regime.previous, regime.since, known.timetable),
        *(state.watermark, state.last_fired, known.created_at, known.anchor),
    )
