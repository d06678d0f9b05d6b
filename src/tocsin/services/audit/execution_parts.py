"""The reports on one execution, its wait for acknowledgements, and the order of its workflow.

Reports have a stream of their own; its leader may have another clock. So a report may be taken before its task, and a
decision before the report that it needs: such a decision is doubted until the report is taken.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import NamedTuple, TypeAlias

from ...domain import ids
from ...domain.agent import agent_key
from ...domain.events import (
    Acknowledged,
    ExecutionFact,
    Message,
    PlannedStep,
    Proposed,
    QuorumRule,
    QuorumSettled,
    Recorded,
    Report,
    Workflow,
    WorkflowNode,
)
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
    """The attempts with a current or former holder that may still answer."""
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


QuorumFact: TypeAlias = Proposed | Acknowledged | QuorumSettled


@dataclass(slots=True)
class QuorumLife:
    """The wait of one execution for acknowledgements."""

    proposal: Proposed | None = None
    sequence: int = 0
    agents: set[str] = field(default_factory=set)
    settled: QuorumSettled | None = None

    @property
    def is_reached(self) -> bool:
        """Whether enough agents acknowledged the execution."""
        return self.settled is not None and self.settled.outcome == "reached"

    def take(self, fact: QuorumFact, sequence: int, rule: QuorumRule | None) -> Iterator[Wrong]:
        """Take the event of a sequence; yield the rules that it breaks.

        `rule`: that of the plan.
        """
        if rule is None:
            yield Wrong("I6", "it needs no acknowledgements")
            return
        if self.settled is not None:
            yield Wrong("I6", "its wait for acknowledgements had ended")
        match fact:
            case Proposed():
                yield from self._proposed(fact, rule)
                self.proposal, self.sequence, self.agents = fact, sequence, set()
            case Acknowledged():
                yield from self._acknowledged(fact)
            case QuorumSettled():
                yield from self._settled(fact, rule)
                self.settled = fact

    def _proposed(self, fact: Proposed, rule: QuorumRule) -> Iterator[Wrong]:
        before = 0 if self.proposal is None else self.proposal.attempt
        if fact.attempt != before + 1 or fact.attempt > rule.max_attempts:
            yield Wrong(
                "I6", f"proposal {fact.attempt} came after proposal {before}, and {rule.max_attempts} are allowed"
            )
        if len(set(fact.agents)) != len(fact.agents):
            yield Wrong("I6", f"proposal {fact.attempt} names an agent twice")
        if fact.needed < rule.acknowledgements or 2 * fact.needed <= len(fact.agents):
            yield Wrong("I6", f"proposal {fact.attempt} needs {fact.needed} acknowledgements, which is too few")

    def _acknowledged(self, fact: Acknowledged) -> Iterator[Wrong]:
        agent = agent_key(fact.name, fact.agent_id)
        if self.proposal is None or (fact.attempt, fact.proposal) != (self.proposal.attempt, self.sequence):
            yield Wrong("I6", f"{fact.name} acknowledged another proposal than the newest")
            return
        if agent not in self.proposal.agents:
            yield Wrong("I6", f"{fact.name} acknowledged it, and the proposal does not name this agent")
        if agent in self.agents:
            yield Wrong("I6", f"{fact.name} acknowledged it twice")
        self.agents.add(agent)

    def _settled(self, fact: QuorumSettled, rule: QuorumRule) -> Iterator[Wrong]:
        attempt, needed = (0, 1) if self.proposal is None else (self.proposal.attempt, self.proposal.needed)
        received = len(self.agents)
        if fact.outcome == "reached" and (self.proposal is None or received < needed):
            yield Wrong("I6", f"its quorum counts as reached with {received} of {needed} acknowledgements")
        if fact.outcome == "no_quorum" and (attempt < rule.max_attempts or received >= needed):
            yield Wrong(
                "I6", f"it was given up after proposal {attempt} of {rule.max_attempts}, {received} of {needed}"
            )
        if fact.outcome != "queue_full" and fact.attempt != attempt:
            yield Wrong("I6", f"its wait ended with proposal {fact.attempt}, and the newest is {attempt}")


@dataclass(frozen=True, slots=True)
class WorkflowOrder:
    """The steps of a workflow that ended, and the steps that may begin then (I6).

    It is judged from each step upwards. The domain walks down from the root; both must agree.
    """

    workflow: Workflow
    steps: Mapping[str, PlannedStep]
    completed: Collection[str]
    exhausted: Collection[str]

    def may_run(self, step: str) -> bool:
        """Return whether every node above a step lets it run."""
        name: str | None = step
        while name is not None:
            above = next((node for node in self.workflow.nodes if name in _below(node)), None)
            if above is not None and not self._lets_run(above, name):
                return False
            name = None if above is None else above.key
        return True

    def has_completed(self) -> bool:
        return self._has_completed(self.workflow.nodes[0].key)

    def _lets_run(self, node: WorkflowNode, name: str) -> bool:
        if name not in node.members:
            has_failed = any(map(self._has_failed, node.members))
            is_over = all(self._has_failed(member) or self._has_completed(member) for member in node.members)
            return is_over and not (has_failed and name == node.on_success) and (has_failed or name != node.on_failure)
        if node.kind == "chain":
            return all(map(self._has_completed, node.members[: node.members.index(name)]))
        return node.kind != "dag" or set(self.steps[name].depends_on) <= set(self.completed)

    def _has_completed(self, name: str) -> bool:
        node = self._node(name)
        if node is None:
            return name in self.completed
        if node.kind != "batch":
            return all(map(self._has_completed, node.members))
        is_over = all(self._has_failed(member) or self._has_completed(member) for member in node.members)
        if node.fails_with_members and any(map(self._has_failed, node.members)):
            return False
        return is_over and all(map(self._has_completed, self._called(node)))

    def _has_failed(self, name: str) -> bool:
        node = self._node(name)
        if node is None:
            return name in self.exhausted
        if node.kind == "chain":
            return any(map(self._has_failed, node.members))
        if node.kind == "dag":
            return self._has_failed_graph(node)
        is_over = all(self._has_failed(member) or self._has_completed(member) for member in node.members)
        if node.kind != "batch":
            return is_over and any(map(self._has_failed, node.members))
        called = self._called(node)
        are_over = all(self._has_failed(step) or self._has_completed(step) for step in called)
        counted = (*called, *node.members) if node.fails_with_members else called
        return is_over and are_over and any(map(self._has_failed, counted))

    def _has_failed_graph(self, node: WorkflowNode) -> bool:
        never = set(self.exhausted) & set(node.members)
        while more := {name for name in node.members if name not in never and never & set(self.steps[name].depends_on)}:
            never |= more
        return bool(never) and never | set(self.completed) >= set(node.members)

    def _called(self, node: WorkflowNode) -> list[str]:
        due = node.on_failure if any(map(self._has_failed, node.members)) else node.on_success
        return [step for step in (node.on_complete, due) if step is not None]

    def _node(self, name: str) -> WorkflowNode | None:
        return next((node for node in self.workflow.nodes if node.key == name), None)


def _below(node: WorkflowNode) -> tuple[str | None, ...]:
    return (*node.members, node.on_complete, node.on_success, node.on_failure)
