"""The executions that wait for acknowledgements of agents."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from ... import subjects
from ...domain import quorum
from ...domain.duration import MAX_DURATION_S
from ...domain.events import (
    COMPENSATING_TRIGGERS,
    DependenciesSettled,
    ExecutionFact,
    Message,
    Planned,
    Proposed,
    QuorumRule,
    Recorded,
    Skipped,
    Terminal,
)
from ...domain.lock import most_waiting
from ...domain.quorum import Quorum

FILTERS: Final = (
    subjects.DEPENDENTS,
    *(
        subjects.filter_for(f"execution.{event}")
        for event in (
            *("dependencies-settled", "proposed", "acknowledged", "quorum-settled"),
            *("skipped", "cancelled"),
        )
    ),
)
"""Filters over the events that begin, change or end such a wait."""
DUE_NOW: Final = datetime.min.replace(tzinfo=UTC)
"""The time of an examination that is due now."""

Kind: TypeAlias = tuple[str, bool]
"""A job, and whether the execution is a replay or a backfill, which are counted apart."""


@dataclass(slots=True)
class Proposal:
    """An execution that waits, without its input, which is not needed here."""

    scope: str
    rule: QuorumRule
    work: frozenset[tuple[str, str]]
    """Queue and function of each step."""
    sequence: int
    kind: Kind
    is_surplus: bool
    """Whether as many of its job and kind as may wait did so before it."""
    is_dependent: bool
    """It waits for other jobs first."""
    quorum: Quorum = quorum.initial
    heard: set[str] = field(default_factory=set)
    """The agents that acknowledged the newest proposal, as this process heard."""
    late_at: datetime | None = None
    """The time (UTC) until which the newest proposal waits; None: this process did not send it yet.

    It counts from the moment at which this process first sends it since it leads, so that no time without a leader counts.
    """

    def note_sent(self, now: datetime) -> None:
        """Note that the newest proposal is sent to its agents."""
        if self.late_at is None and (newest := self.quorum.proposal) is not None:
            # `now` is an estimate, and may be before the event.
            self.late_at = max(now, newest.time) + timedelta(seconds=min(self.rule.timeout, MAX_DURATION_S))

    def is_late(self, now: datetime) -> bool:
        """Return whether the time for answers to the newest proposal is over."""
        return self.late_at is not None and self.late_at <= now

    def needs_decision(self, now: datetime) -> bool:
        """Return whether there is something to store."""
        state = self.quorum
        has_news = state.is_reached() or not self.heard <= state.acknowledged
        return self.is_surplus or state.proposal is None or has_news or self.is_late(now)


class Proposals:
    """All executions that wait for acknowledgements, by scope."""

    def __init__(self) -> None:
        self._waiting: dict[str, Proposal] = {}  # in log order: the first entry is the oldest
        self._counts: Counter[Kind] = Counter()
        """The number of waiting executions of each job and kind, without surplus."""
        self._due: dict[str, datetime] = {}
        """When each execution is examined next (UTC)."""
        self._scopes: dict[int, str] = {}
        """The executions by the sequences of their newest proposals."""

    def __len__(self) -> int:
        """Return the number of waiting executions."""
        return len(self._waiting)

    @property
    def oldest(self) -> int | None:
        """The sequence of the oldest execution that waits; None: none waits."""
        return next((proposal.sequence for proposal in self._waiting.values()), None)

    def learn(self, recorded: Recorded[Message]) -> None:
        """Apply an event of an execution."""
        fact = recorded.message
        if not isinstance(fact, ExecutionFact):
            return
        scope = subjects.execution(fact.job, fact.execution_id)
        if isinstance(fact, Planned):
            self._plan(scope, fact, recorded.sequence)
        elif (proposal := self._waiting.get(scope)) is not None:
            self._follow(proposal, recorded)

    def _plan(self, scope: str, fact: Planned, sequence: int) -> None:
        rule = fact.plan.quorum
        if rule is None or scope in self._waiting:
            return
        kind = fact.job, fact.trigger in COMPENSATING_TRIGGERS
        is_surplus = self._counts[kind] >= most_waiting(fact)
        if not is_surplus:
            self._counts[kind] += 1
        work = frozenset((step.queue, step.function) for step in fact.plan.steps)
        is_dependent = bool(fact.plan.depends_on)
        self._waiting[scope] = Proposal(scope, rule, work, sequence, kind, is_surplus, is_dependent)
        if not is_dependent:
            self._due[scope] = DUE_NOW

    def _follow(self, proposal: Proposal, recorded: Recorded[Message]) -> None:
        fact, before = recorded.message, proposal.quorum.proposal
        proposal.quorum = quorum.evolve(proposal.quorum, recorded)
        if isinstance(fact, DependenciesSettled) and fact.outcome == "met":
            proposal.is_dependent = False
            self._due[proposal.scope] = DUE_NOW
        elif isinstance(fact, Proposed):
            self._scopes.pop(before.sequence if before else 0, None)
            self._scopes[recorded.sequence] = proposal.scope
            proposal.heard.clear()
            proposal.late_at = None
            self._due[proposal.scope] = DUE_NOW
        elif isinstance(fact, DependenciesSettled | Skipped | Terminal) or proposal.quorum.settled is not None:
            self.forget(proposal.scope)

    def forget(self, scope: str) -> None:
        """Remove an execution that does not wait any more."""
        if (proposal := self._waiting.pop(scope, None)) is None:
            return
        self._due.pop(scope, None)
        if proposal.quorum.proposal is not None:
            self._scopes.pop(proposal.quorum.proposal.sequence, None)
        if not proposal.is_surplus and (others := self._counts.pop(proposal.kind) - 1):
            self._counts[proposal.kind] = others

    def take(self, now: datetime) -> Iterator[Proposal]:
        """Yield the executions that are due for an examination, the longest due first."""
        for _, scope in sorted((at, scope) for scope, at in self._due.items() if at <= now):
            if self._due.pop(scope, None) is not None:
                yield self._waiting[scope]

    def look_again(self, scope: str, at: datetime) -> None:
        """Examine an execution again at `at` (UTC), if it still waits."""
        if scope in self._waiting:
            self._due[scope] = at

    def find(self, sequence: int, agent: str) -> Proposal | None:
        """Return the execution whose newest proposal has a sequence, if it waits for an agent."""
        proposal = self._waiting.get(self._scopes.get(sequence, ""))
        if proposal is None or agent in proposal.heard or agent not in proposal.quorum.unheard():
            return None
        return proposal

    def hear(self, proposal: Proposal, agent: str) -> None:
        """Note that an agent acknowledged the newest proposal of an execution, which waits for it."""
        proposal.heard.add(agent)
        self._due[proposal.scope] = DUE_NOW

    def forget_deadlines(self) -> None:
        """Let the time for answers begin again, because this process does not lead."""
        for proposal in self._waiting.values():
            proposal.late_at = None
