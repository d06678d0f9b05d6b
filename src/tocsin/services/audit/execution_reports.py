"""The reports on the attempts of one execution, in any order relative to its events.

Reports have a stream of their own, whose leader may have another clock. So a report may be taken before its task, and a
decision before the report that it needs: such a decision is doubted until the report is taken.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import NamedTuple, TypeAlias

from ...domain import ids
from ...domain.events import ExecutionFact, Message, Recorded, Report
from ...subjects import subject_of

Attempt: TypeAlias = tuple[str, int]
Outcome: TypeAlias = tuple[str, int, str]
"""A reported attempt: step, attempt and outcome."""


def is_proven(recorded: Recorded[Message], key: bytes) -> bool:
    """Return whether a report is of a stage or of the worker of its claim."""
    report = recorded.message
    if not isinstance(report, Report) or report.proof is None:
        return False
    proof = ids.claim_proof(key, report.execution_id, report.step, report.attempt, report.claim)
    return compare_digest(report.proof.encode(), proof.encode()) and recorded.subject == subject_of(report)


class Wrong(NamedTuple):
    """A rule that an event breaks."""

    invariant: str
    reason: str


class Doubt(NamedTuple):
    """A rule that an event breaks, unless a report of an outcome follows."""

    wrong: Wrong
    event: Recorded[ExecutionFact]


@dataclass(slots=True)
class AttemptReports:
    """The reports of an execution, as far as its events are judged by them."""

    early: dict[Attempt, list[Report]] = field(default_factory=dict)
    doubts: dict[Outcome, Doubt] = field(default_factory=dict)
    claimed: set[Attempt] = field(default_factory=set)
    """The attempts with a current or former holder, who may still answer."""
    _tokens: dict[Attempt, str] = field(default_factory=dict)
    _known: set[Outcome] = field(default_factory=set)

    @classmethod
    def of(cls, early: Iterable[Report]) -> "AttemptReports":
        reports = cls()
        for report in early:
            reports.early.setdefault((report.step, report.attempt), []).append(report)
        return reports

    def dispatched(self, attempt: Attempt, token: str) -> None:
        self._tokens[attempt] = token
        for report in self.early.pop(attempt, ()):
            self._count(report, attempt)

    def take(self, report: Report) -> Iterator[Wrong]:
        """Take a report; a report without the task's token is ignored."""
        attempt = report.step, report.attempt
        if attempt not in self._tokens:
            self.early.setdefault(attempt, []).append(report)
        elif self._count(report, attempt) and self.doubts.pop((*attempt, report.outcome), None) is not None:
            yield from self._is_claimed(attempt)

    def has(self, attempt: Attempt, outcome: str) -> bool:
        return (*attempt, outcome) in self._known

    def require(self, attempt: Attempt, outcome: str, event: Recorded[ExecutionFact]) -> Iterator[Wrong]:
        """Judge an event that needs a report by a holder of an attempt."""
        if self.has(attempt, outcome):
            yield from self._is_claimed(attempt)
        else:
            reason = f"no holder of attempt {attempt[1]} of {attempt[0]} reported that it {outcome}"
            self.doubt(attempt, outcome, Doubt(Wrong("I3", reason), event))

    def doubt(self, attempt: Attempt, outcome: str, doubt: Doubt) -> None:
        """Doubt an event until a report of an outcome is taken."""
        self.doubts.setdefault((*attempt, outcome), doubt)

    def _count(self, report: Report, attempt: Attempt) -> bool:
        if self._tokens[attempt] != report.token:
            return False
        self._known.add((*attempt, report.outcome))
        if report.delivery is None:  # an mq executor claims nothing
            self.claimed.add(attempt)
        return True

    def _is_claimed(self, attempt: Attempt) -> Iterator[Wrong]:
        if attempt not in self.claimed:
            yield Wrong("I3", f"attempt {attempt[1]} of {attempt[0]} was never started")
