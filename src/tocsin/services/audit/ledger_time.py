"""The ledger is complete (I2): each instant is in exactly one `due` or `passed`.

The instants are recomputed from the definitions in force. Memory: for each job, the definitions that govern undecided time.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial

from ...domain.events import (
    Defined,
    DefinitionFact,
    Deleted,
    Due,
    Message,
    Passed,
    Paused,
    Recorded,
    Resumed,
)
from ...domain.schedule import ScheduleError
from . import check
from .check import Handler, Taken
from .report import Debt, Proof, Violation
from .timeline import Named, Timeline

COUNTED: int = 1_000
"""Largest count of undecided instants of one job; more are "1,000 or more"."""


class LedgerTime:
    """Follows the time of every job."""

    def __init__(self, since: datetime | None = None) -> None:
        """Do not judge decisions before `since` (UTC)."""
        self._since = since
        self._jobs: dict[str, Timeline] = {}
        self._last: dict[str, Recorded[Message]] = {}
        self.horizon: datetime | None = None
        """The time up to which instants should be decided (UTC); set before `debts`."""
        self.remarks: dict[str, str] = {}

    @property
    def count(self) -> int:
        """The number of jobs."""
        return len(self._jobs)

    def handlers(self) -> Mapping[type[Message], Handler]:
        """See `Check`."""
        changes: tuple[type[Message], ...] = (Defined, Paused, Resumed, Deleted)
        return {**dict.fromkeys(changes, self._govern), Due: self._due, Passed: self._passed}

    def _govern(self, recorded: Recorded[DefinitionFact]) -> Taken:
        fact = recorded.message
        timeline = self._jobs.setdefault(fact.job, Timeline(fact.job))
        before, begun = timeline.newest, bool(timeline.newest) or self._since is None
        if begun and fact.previous != before:
            reason = f"it says that it follows fact {fact.previous} on the definition, and it follows {before}"
            yield check.violation("I2", check.job(fact.job), reason, recorded)
        if not timeline.govern(recorded) and begun:
            yield check.violation("I2", check.job(fact.job), "it names a definition that is not there", recorded)
        self._last[fact.job] = recorded

    def _due(self, recorded: Recorded[Due]) -> Taken:
        due = recorded.message
        yield from self._decided(recorded, due.job, due.scheduled_time, fired=True)

    def _passed(self, recorded: Recorded[Passed]) -> Taken:
        passed = recorded.message
        begin = self._jobs[passed.job].begin if passed.job in self._jobs else None
        if begin is not None and passed.start != begin and not self._is_first(passed.job):
            reason = f"its span begins at {_iso(passed.start)}, and {_iso(begin)} is how far time was decided"
            yield check.violation("I2", check.job(passed.job), reason, recorded)
        yield from self._decided(recorded, passed.job, passed.until, fired=False)

    def _decided(self, recorded: Recorded[Due | Passed], job: str, upto: datetime, *, fired: bool) -> Taken:
        timeline = self._jobs.setdefault(job, Timeline(job))
        if not timeline.regimes and self._since is None:
            yield check.violation("I2", check.job(job), "no definition was ever in force", recorded)
        elif timeline.watermark is not None and upto <= timeline.watermark:
            reason = f"decided again: all up to {_iso(timeline.watermark)} was"
            yield check.violation("I2", check.job(job), reason, recorded)
        elif not self._is_first(job):
            yield from self._compared(timeline, recorded, upto)
        timeline.decide(upto, fired=fired)
        self._last[job] = recorded

    def _compared(self, timeline: Timeline, recorded: Recorded[Due | Passed], upto: datetime) -> Taken:
        """Return the violation of a decision under the likeliest count of intervals."""
        fact = recorded.message
        limit = 1 + max(COUNTED, fact.count if isinstance(fact, Passed) else 0)
        found = [[*_wrong(recorded, named)] for named in self._named(timeline, upto, limit)]
        if found and all(found):
            before = self._last.get(timeline.job)
            entity, facts = check.job(timeline.job), (recorded,) if before is None else (before, recorded)
            yield from map(partial(_violation, entity, facts), found[0])

    def _named(self, timeline: Timeline, upto: datetime, limit: int) -> Sequence[Sequence[Named]]:
        try:
            return timeline.named(upto, limit)
        except ScheduleError as error:
            self.remarks[timeline.job] = (
                f"{check.job(timeline.job)}: its instants cannot be recomputed: {error.problem}"
            )
            return ()

    def _is_first(self, job: str) -> bool:
        """Whether this is the first decision of a job, with nothing to judge it by."""
        return self._since is not None and self._jobs[job].watermark is None

    def debts(self) -> Iterator[Debt]:
        """See `Check`."""
        if self.horizon is None:
            return
        for job, timeline in self._jobs.items():
            if self._is_first(job):
                continue
            ways = self._named(timeline, self.horizon, COUNTED)
            undecided = min(ways, key=len, default=())
            if undecided:
                first, number = undecided[0].at, len({named.at for named in undecided})
                reason = f"{_counted(number)} not decided yet, the first at {_iso(first)}"
                yield Debt("I2", check.job(job), reason, first, facts=(Proof.of(self._last[job]),))


def _wrong(recorded: Recorded[Due | Passed], named: Sequence[Named]) -> Iterator[str]:
    """Return the difference between a decision and the named instants since the previous decision."""
    fact = recorded.message
    if {one.definition for one in named} - {fact.definition}:
        others = sorted({one.definition for one in named} - {fact.definition})
        yield f"it goes by definition {fact.definition}, and {', '.join(map(str, others))} was in force"
    if isinstance(fact, Due):
        yield from _wrong_due(fact, named)
    else:
        yield from _wrong_passed(fact, named)


def _wrong_due(fact: Due, named: Sequence[Named]) -> Iterator[str]:
    at = fact.scheduled_time
    if forgotten := [one.at for one in named if one.at != at]:
        yield f"{_counted(len(forgotten))} never decided, the first at {_iso(forgotten[0])}"
    if not any(one.fires and one.at == at for one in named):
        yield "it fired, and no definition in force named that instant"
    if any(one.paused for one in named if one.at == at):
        yield "it fired while the job was paused or disabled"
    if fact.dst_skip != any(not one.fires and one.at == at for one in named):
        yield "a local time that does not exist falls there, or does not, and it says otherwise"


def _wrong_passed(fact: Passed, named: Sequence[Named]) -> Iterator[str]:
    # A nonexistent local time may fall on an instant that passes for another reason; it is listed, and not counted.
    counted = [one for one in named if one.fires or fact.reason in {"paused", "dst_skip"}]
    if fact.count != len(counted):
        yield f"{fact.count:,} passed, and {_counted(len(counted))} named"
    elif not named or named[-1].at != fact.until:
        yield f"its span ends at {_iso(fact.until)}, which is no instant that was named"
    paused = sum(one.paused for one in named)
    if paused != (len(named) if fact.reason == "paused" else 0):
        yield f"they passed as {fact.reason!r}, and {paused} of {len(named)} were paused or disabled"
    elif fact.reason == "dst_skip" and any(one.fires for one in named):
        yield "they passed as local times that do not exist, and some do"
    expected = [one.at for one in named if fact.reason == "paused" or not one.fires]
    if [*fact.scheduled_times] != expected:
        yield "the public events name other instants"


def _violation(entity: str, facts: tuple[Recorded[Message], ...], reason: str) -> Violation:
    return check.violation("I2", entity, reason, *facts)


def _counted(number: int) -> str:
    many = f"{number:,}{' or more' * (number >= COUNTED)}"
    return f"{many} instant was" if number == 1 else f"{many} instants were"


def _iso(at: datetime) -> str:
    return at.isoformat()
