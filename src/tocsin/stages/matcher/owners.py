"""The owners of resources: the agents that alone get certain tasks.

A resource gets an owner when an open task needs it, and another when its owner may not stay. The owner is an event in the log,
in one order with the claims: so each reader of the log knows the owner at every claim, although two matchers may lead at once.
"""

from collections.abc import Collection, Iterator
from typing import Final

from ... import subjects, telemetry
from ...domain import ownership
from ...domain.events import Message, OwnershipAssigned, Recorded, Started
from ...domain.events.ownership import OwnershipReason
from ...domain.open_task import OpenTask
from ...domain.ownership import Candidate, Owner
from ...domain.task_board import AgentClaim, TaskBoard
from ...domain.task_offers import Granted
from ...ports import Clock, EventLog, OutdatedState
from .agents import SILENCE_S, HeardAgent, HeardAgents
from .operator_decisions import OperatorDecisions

FILTERS: Final = (subjects.filter_for("ownership.assigned"),)
"""Filters over the events that the matcher follows for them."""
KEPT: Final = 16
"""The newest owners of a resource that are remembered, for claims that are on their way."""

_log = telemetry.get_logger("tocsin.matcher")


class Owners:
    """The owners of all resources that open tasks needed."""

    def __init__(
        self, log: EventLog, board: TaskBoard, agents: HeardAgents, decisions: OperatorDecisions, clock: Clock
    ) -> None:
        self._log = log
        self._board = board
        self._agents = agents
        self._decisions = decisions
        self._clock = clock
        self._terms: dict[str, list[Owner]] = {}
        """The newest owners of each resource, oldest first."""
        self._tails: dict[str, int] = {}
        """The last sequence of the scope of each resource that was read."""

    # --- the fold ------------------------------------------------------------------------------------------------------

    def learn(self, recorded: Recorded[Message]) -> None:
        """Apply an event of the log."""
        fact, sequence = recorded.message, recorded.sequence
        if not isinstance(fact, OwnershipAssigned) or fact.resource not in self._tails:
            return  # the newest event is read when a task needs the resource
        if sequence > self._tails[fact.resource]:
            self._note(fact, sequence)

    def _note(self, fact: OwnershipAssigned, sequence: int) -> None:
        terms = self._terms.setdefault(fact.resource, [])
        terms.append(Owner(fact.name, fact.agent_id, sequence))
        del terms[:-KEPT]
        self._tails[fact.resource] = sequence

    async def _load(self, resource: str) -> None:
        history = await self._log.load(subjects.ownership(resource))
        self._tails.setdefault(resource, 0)
        for recorded in history:
            self.learn(recorded)
        if history:  # a foreign message has no owner, and the guard counts it
            self._tails[resource] = max(self._tails[resource], history[-1].sequence)

    # --- decisions -----------------------------------------------------------------------------------------------------

    async def settle(self, *, since: float) -> None:
        """See that every resource that an open task needs has an owner.

        `since`: seconds of the monotonic clock from which on agents could be heard.

        Raises:
            LogUnavailable: the log did not answer.
        """
        for resource in tuple(self._board.owned):
            if resource not in self._tails:
                await self._load(resource)
            owner = self._newest(resource)
            reason = "vacant" if owner is None else self._obstacle(owner, since)
            if reason is not None and (candidate := ownership.choose(self._candidates())) is not None:
                await self._assign(resource, candidate, reason)

    async def _assign(self, resource: str, candidate: Candidate, reason: OwnershipReason) -> None:
        fact = OwnershipAssigned(resource=resource, name=candidate.name, agent_id=candidate.agent_id, reason=reason)
        try:
            sequence = await self._log.append(fact, expect=self._tails[resource])
        except OutdatedState:
            await self._load(resource)  # another matcher was faster
            return
        if sequence > self._tails[resource]:  # else the follower was faster
            self._note(fact, sequence)
        _log.info(
            "owner assigned",
            action="owner-assigned",
            resource=resource,
            agent=candidate.name,
            agent_id=candidate.agent_id,
            reason=reason,
            epoch=sequence,
        )

    def _obstacle(self, owner: Owner, since: float) -> OwnershipReason | None:
        """Return why an owner may not stay; None: it stays."""
        agent = self._agents.get(_key_of(owner))
        heard_at = since if agent is None else max(agent.heard_at, since)
        if agent is not None and agent.has_ended:
            return "ended"
        if self._decisions.is_disabled(owner.name) or (agent is not None and agent.mode == "disabled"):
            return "disabled"
        if self._decisions.is_draining(owner.agent_id) or (agent is not None and agent.mode == "draining"):
            return "draining"
        if agent is not None and not self._stands(agent):
            return "withdrawn"
        return "silent" if self._clock.monotonic() - heard_at >= SILENCE_S else None

    def _candidates(self) -> Iterator[Candidate]:
        now = self._clock.monotonic()
        for agent in self._agents:
            is_allowed = not self._decisions.is_disabled(agent.name) and not self._decisions.is_draining(agent.agent_id)
            if is_allowed and agent.takes_tasks and not agent.is_silent(now) and self._stands(agent):
                owned = sum(1 for terms in self._terms.values() if terms and terms[-1].agent_id == agent.agent_id)
                yield Candidate(owned, agent.name, agent.agent_id)

    def _stands(self, agent: HeardAgent) -> bool:
        """Return whether an agent wants tasks that only an owner gets, and may get any."""
        return agent.is_candidate and agent.max_concurrent_jobs > 0 and self._decisions.granted(agent) != ()

    # --- questions -----------------------------------------------------------------------------------------------------

    def epoch(self, task: OpenTask) -> int | None:
        """Return the epoch of a task's owner; None: any agent gets the task."""
        owner = None if task.resource is None else self._newest(task.resource)
        return None if owner is None else owner.epoch

    def permits(self, task: OpenTask, claim: Started) -> bool:
        """Return whether a claim may be stored, however long ago its task was chosen."""
        if task.resource is None:
            return True
        owner = self._newest(task.resource)
        return owner is not None and owner == (claim.worker, claim.agent, claim.epoch)

    def is_outdated(self, claim: AgentClaim) -> bool:
        """Return whether the log has a newer owner before a claim.

        Another matcher may believe that it leads. The log is folded up to the claim.
        """
        if claim.task.resource is None:
            return False
        before = [owner for owner in self._terms.get(claim.task.resource, ()) if owner.epoch < claim.sequence]
        return bool(before) and before[-1].epoch != claim.epoch

    def lanes(self) -> dict[str, set[str]]:
        """Return the lanes of open tasks that only an owner gets, by its key."""
        lanes: dict[str, set[str]] = {}
        for resource, of_resource in self._board.owned.items():
            if (owner := self._newest(resource)) is not None:
                lanes.setdefault(_key_of(owner), set()).update(of_resource)
        return lanes

    def _newest(self, resource: str) -> Owner | None:
        terms = self._terms.get(resource)
        return terms[-1] if terms else None


def with_lanes(functions: frozenset[str], lanes: Collection[str]) -> frozenset[str]:
    """Add the lanes of an owner to the functions that it has."""
    return functions.union(lane for lane in lanes if ownership.function_of(lane) in functions)


def granted_with_lanes(granted: Granted | None, lanes: Collection[str]) -> Granted | None:
    """Add the lanes of an owner to the functions that it may get."""
    if granted is None:
        return None
    return tuple((queue, with_lanes(functions, lanes)) for queue, functions in granted)


def _key_of(owner: Owner) -> str:
    return f"{owner.name}.{owner.agent_id}"
