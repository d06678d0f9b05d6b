"""The reason why a job ran, or did not.

    ExplainReader (reads the log) ──definitions, decisions, leadership──▶ judge ──▶ Answer ──execution──▶ Outcome

`judge` is pure: the same events give the same answer everywhere. `Moment` is the state of everything as of a moment.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from ...domain import history, ledger, lock
from ...domain.events import (
    DeadLettered,
    ExecutionFact,
    LeadershipFact,
    LeadershipGained,
    LedgerFact,
    LockFact,
    Message,
    PoisonMessage,
    Recorded,
    Resolved,
)
from ...domain.execution_record import ExecutionRecord
from ...domain.ledger import Ledger
from ...domain.lock import Lock
from ...subjects import Stream, stream_of
from .evidence import Answer, BackfilledRun, Evidence, Gap, Outcome, Verdict, outcome_of, triggers_of
from .judgement import default_instant, judge, latest
from .reader import ExplainReader

__all__ = [
    "Answer",
    "BackfilledRun",
    "Evidence",
    "ExplainReader",
    "Gap",
    "Moment",
    "Outcome",
    "Verdict",
    "default_instant",
    "judge",
    "latest",
    "outcome_of",
    "triggers_of",
]


_OPEN: Final = frozenset({"pending", "running"})


@dataclass(slots=True)
class Moment:
    """Everything taken so far, folded.

    It holds the ledger and the lock of each job, the open executions, and the ids of finished executions.
    """

    facts: int = 0
    last: dict[Stream, Recorded[Message]] = field(default_factory=dict)
    """The last message of each stream."""
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    locks: dict[str, Lock] = field(default_factory=dict)
    open: dict[str, ExecutionRecord] = field(default_factory=dict)
    over: set[str] = field(default_factory=set)
    ended: Counter[str] = field(default_factory=Counter)
    """The number of executions by their end."""
    dead_letters: set[tuple[str, str]] = field(default_factory=set)
    """The unresolved dead letters: (job, id)."""
    leaders: dict[str, str] = field(default_factory=dict)
    """The holder of each leader lease."""

    def take(self, recorded: Recorded[Message]) -> None:
        """Take one more event, each stream in its order."""
        self.facts += 1
        self.last[stream_of(recorded.subject)] = recorded
        match recorded.message:
            case LedgerFact(job=job):
                self.ledgers[job] = ledger.evolve(self.ledgers.get(job, ledger.initial), recorded)
            case ExecutionFact(execution_id=execution_id) if execution_id not in self.over:
                self._execution(recorded, execution_id)
            case LockFact(job=job, shard=None):
                self.locks[job] = lock.evolve(self.locks.get(job, lock.initial), recorded)
            case DeadLettered() | PoisonMessage() as kept:
                self.dead_letters.add((kept.job, kept.id))
            case Resolved() as resolved:
                self.dead_letters.discard((resolved.job, resolved.id))
            case LeadershipGained() as gained:
                self.leaders[gained.lease] = gained.holder
            case LeadershipFact() as left if self.leaders.get(left.lease) == left.holder:
                del self.leaders[left.lease]
            case _:
                pass

    def holder(self, job: str) -> str | None:
        """Return the open execution that holds the lock of a job, or None."""
        holder = self.locks.get(job, lock.initial).holder
        return None if holder is None or holder in self.over else holder

    def _execution(self, recorded: Recorded[Message], execution_id: str) -> None:
        record = history.evolve(self.open.get(execution_id), recorded)
        if record is None or record.status in _OPEN:
            if record is not None:
                self.open[execution_id] = record
            return
        self.open.pop(execution_id, None)
        self.over.add(execution_id)
        self.ended[record.status] += 1
