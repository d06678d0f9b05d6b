"""How many executions reached an executor, and how many were lost on the way (cloacina, CronExecutionStats, RecoveryStats).

Counted from facts: what was never recorded is not counted, and what is still under way is neither a success nor a loss. An
execution that was skipped, or cancelled before an executor had it, was not to reach one, and does not count at all.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from .events import Advanced, Exhausted, Failed, Message, Recorded, RetryScheduled, Started
from .recovery import ABANDONED, TIMED_OUT

Happening: TypeAlias = Literal[
    "planned", "admitted", "started", "advanced", "recovered", "completed", "failed", "cancelled", "skipped"
]


@dataclass(frozen=True, slots=True)
class ExecutionStats:
    """The hand-off of executions; `success_rate` is a percentage of those that reached an executor or were lost."""

    total_executions: int
    """That were to reach an executor: those that did, those that were lost, and those still on their way."""
    successful_executions: int
    """That an executor claimed, or answered for."""
    lost_executions: int
    """That failed without any executor, or were found lost and have not reached one since."""
    pending_executions: int
    success_rate: float | None
    """None: there is none to tell it by."""


@dataclass(frozen=True, slots=True)
class RecoveryStats:
    """What became of what the recoverer handed on anew; a recovery that is under way counts as an attempt only."""

    total_recovery_attempts: int
    successful_recoveries: int
    """After which an executor had it."""
    failed_recoveries: int
    """After which it was lost again, or failed all the same."""
    abandoned_recoveries: int
    """Executions that were lost for good."""
    recovery_success_rate: float | None


@dataclass(slots=True)
class _Seen:
    """One execution, as far as it matters here."""

    began: bool = False
    handed: bool = False
    recovering: bool = False
    end: Happening | None = None


@dataclass(slots=True)
class Tally:
    """Counts what happens, in the order in which it happens. Memory: a few flags for each execution."""

    _executions: dict[str, _Seen] = field(default_factory=dict)
    _attempts: int = 0
    _successes: int = 0
    _failures: int = 0
    _abandoned: int = 0

    def record(self, execution: str, what: Happening) -> None:
        """Take in one fact of an execution, whatever names it."""
        seen = self._executions.setdefault(execution, _Seen())
        match what:
            case "planned" | "admitted":
                seen.began = True
            case "recovered":
                self._attempts += 1
                self._failures += seen.recovering
                seen.recovering = True
            case "started" | "advanced" | "completed":
                seen.handed = True
                self._successes += seen.recovering
                seen.recovering = False
            case "failed":
                self._failures += seen.recovering
                seen.recovering = False
            case "cancelled" | "skipped":
                seen.recovering = False
        if what in {"completed", "failed", "cancelled", "skipped"}:
            seen.end = what

    def failed(self, execution: str, fact: Failed, facts: Iterable[Recorded[Message]] = ()) -> None:
        """Take in why one failed; `facts` are all of its own, for one of which no claim was seen."""
        self._abandoned += fact.reason == ABANDONED
        seen = self._executions.setdefault(execution, _Seen())
        seen.handed = seen.handed or any(_is_answered(recorded.message) for recorded in facts) or _is_answered(fact)

    def was_handed(self, execution: str) -> bool:
        """Whether it is known that an executor had an execution."""
        seen = self._executions.get(execution)
        return seen is not None and seen.handed

    def executions(self) -> ExecutionStats:
        """Of the executions whose beginning was seen."""
        begun = [seen for seen in self._executions.values() if seen.began]
        successful = sum(seen.handed for seen in begun)
        lost = sum(not seen.handed and (seen.end == "failed" or seen.recovering) for seen in begun)
        pending = sum(not seen.handed and seen.end is None and not seen.recovering for seen in begun)
        return ExecutionStats(
            total_executions=successful + lost + pending,
            successful_executions=successful,
            lost_executions=lost,
            pending_executions=pending,
            success_rate=_percentage(successful, lost),
        )

    def recoveries(self) -> RecoveryStats:
        """Of the recoveries that were seen, whenever the executions began."""
        return RecoveryStats(
            total_recovery_attempts=self._attempts,
            successful_recoveries=self._successes,
            failed_recoveries=self._failures,
            abandoned_recoveries=self._abandoned,
            recovery_success_rate=_percentage(self._successes, self._failures),
        )


def _is_answered(fact: Message) -> bool:
    """Whether a fact shows that an executor had the execution: also one outside, which claims nothing, but answers."""
    match fact:
        case Started() | Advanced():
            return True
        case RetryScheduled() | Exhausted():
            return fact.error.type != TIMED_OUT
        case Failed(step=str()):
            return fact.step_completed or fact.error is None or fact.error.type != TIMED_OUT
        case _:
            return False


def _percentage(good: int, bad: int) -> float | None:
    return 100.0 * good / (good + bad) if good + bad else None
