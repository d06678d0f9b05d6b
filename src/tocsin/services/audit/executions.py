"""Executions (I3, I4, I6, I7): each lives in order, ends once, and dead-letters once.

Memory: the life of each open execution, and the key of each finished execution (about 210 bytes), because an event after the end may
come at any time; reports that are taken before their execution, and executions whose report is not taken yet.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from ...domain.events import (
    Admitted,
    DeadLettered,
    ExecutionFact,
    Failed,
    FannedOut,
    Planned,
    Recorded,
    Report,
    Skipped,
    Terminal,
)
from . import check
from .check import Check, Debt, Key, Proof, Taken, on
from .execution_life import JUDGES, ExecutionLife
from .execution_parts import AttemptReports

BEGINNINGS: Final = (Planned, Admitted, Skipped)


class Executions(Check):
    """Follows every execution from its first event to its end."""

    def __init__(self, since: datetime | None = None) -> None:
        super().__init__(since)
        self._open: dict[Key, ExecutionLife] = {}
        self._over: dict[Key, int] = {}
        self._doubted: dict[Key, ExecutionLife] = {}
        """Lives that are over, with a decision whose report is not taken yet."""
        self._early: dict[Key, list[Report]] = {}
        """Reports on executions that are not taken yet."""
        self._letters: dict[Key, Recorded[Failed]] = {}
        self.count = 0

    def is_over(self, key: Key) -> bool:
        return key in self._over

    def is_open(self, key: Key) -> bool:
        """Whether an execution has started and not ended."""
        return key in self._open

    @on(*JUDGES)
    def _fact(self, recorded: Recorded[ExecutionFact]) -> Taken:
        fact = recorded.message
        key = check.key_of(fact)
        if (end := self._over.get(key)) is not None:
            if end:
                reason = f"{recorded.subject} follows its end, which is message {end}"
                yield check.violation("I6", check.entity(fact), reason, recorded)
            return
        life = self._open.get(key)
        if life is None:
            if self._since is not None and not isinstance(fact, BEGINNINGS):
                self._over[key] = 0  # it started earlier, so its events cannot be judged
                return
            early = AttemptReports.of(self._early.pop(key, ()))
            life = self._open[key] = ExecutionLife(recorded, recorded, reports=early)
            self.count += 1
        for wrong in life.take(recorded):
            yield check.violation(wrong.invariant, check.entity(fact), wrong.reason, recorded)
        if isinstance(fact, Terminal | Skipped):
            for wrong in life.unfinished(fact):
                yield check.violation(wrong.invariant, check.entity(fact), wrong.reason, life.first, recorded)
            del self._open[key]
            if life.reports.doubts:
                self._doubted[key] = life
            self._over[key] = recorded.sequence
            if isinstance(fact, Failed) and fact.dead_letter:
                self._letters[key] = Recorded(fact, recorded.subject, recorded.sequence, recorded.time)

    @on(FannedOut)
    def _fanned_out(self, recorded: Recorded[FannedOut]) -> Taken:
        """Take the only event under an id that stands for several executions."""
        fact = recorded.message
        key = check.key_of(fact)
        if key in self._open or self._over.get(key):
            yield check.violation("I6", check.entity(fact), "it fans out, although it began before", recorded)
        self._over[key] = recorded.sequence

    @on(Report)
    def _report(self, recorded: Recorded[Report]) -> Taken:
        report = recorded.message
        key = check.key_of(report)
        life = self._open.get(key) or self._doubted.get(key)
        if life is not None:
            for wrong in life.reports.take(report):
                yield check.violation(wrong.invariant, check.entity(life.first.message), wrong.reason, recorded)
            if not life.reports.doubts:
                self._doubted.pop(key, None)
        elif key not in self._over:
            self._early.setdefault(key, []).append(report)

    @on(DeadLettered)
    def _dead_letter(self, recorded: Recorded[DeadLettered]) -> Taken:
        letter = recorded.message
        key = check.key_of(letter)
        if self._letters.pop(key, None) is None and self._over.get(key) != 0:
            reason = "a second dead letter, or one of what did not fail, or that its job did not ask for"
            yield check.violation("I7", check.entity(letter), reason, recorded)

    def debts(self) -> Iterator[Debt]:
        for life in self._open.values():
            for debt in life.owed():
                entity = check.entity(life.first.message)
                yield Debt(debt.invariant, entity, debt.reason, debt.since, debt.by, (Proof.of(life.first),))
        for life in (*self._open.values(), *self._doubted.values()):
            for (invariant, reason), event in life.reports.doubts.values():
                yield Debt(invariant, check.entity(event.message), reason, event.time, "clocks", (Proof.of(event),))
        for failed in self._letters.values():
            proof = (Proof.of(failed),)
            yield Debt("I7", check.entity(failed.message), "no dead letter is kept of it", failed.time, facts=proof)
