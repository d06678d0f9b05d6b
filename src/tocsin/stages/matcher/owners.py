"""The owners of resources: the agents that alone get certain tasks.

A resource gets an owner when an open task needs it, and another when its owner may not stay. The owner is an event in the log,
in one order with the claims: so each reader of the log knows the owner at every claim, although two matchers may lead at once.

A shard has no owner until an agent declares it: any worker gets its tasks. Its first owner binds it for good. From then on,
its tasks wait for an agent that declares it.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from ... import subjects, telemetry
from ...domain import ownership
from ...domain.events import Message, OwnershipAssigned, Recorded, Started
from ...domain.events.shards import OwnershipReason
from ...domain.open_task import OpenTask
from ...domain.ownership import Candidate, Owner
from ...domain.task_board import AgentClaim, TaskBoard
from ...domain.task_offers import Granted
from ...ports import Append, Clock, EventLog, OutdatedState
from .agents import HeardAgent, HeardAgents
from .operator_decisions import OperatorDecisions
from .owner_candidates import OwnerCandidates, key_of

FILTERS: Final = (subjects.filter_for("ownership.assigned"),)
"""Filters over the events that the matcher follows for them."""
KEPT: Final = 16
"""The newest owners of a resource that are remembered, for claims that are on their way."""
AT_ONCE: Final = 256
"""The greatest number of owners that are stored in one write."""
COMPARED_AT_ONCE: Final = 10_000
"""The greatest number of comparisons of a resource with an agent before other work: about 50 ms. Agents may be invented."""
LOOK_INTERVAL_S: Final = 1.0
"""Time between two looks at a resource whose tasks wait, if no agent came or went."""

_log = telemetry.get_logger("tocsin.matcher")


class _Change(NamedTuple):
    """A new owner of a resource, and the reason for it."""

    resource: str
    owner: Candidate
    reason: OwnershipReason


class Owners:
    """The owners of all resources that open tasks or agents named."""

    def __init__(
        self, log: EventLog, board: TaskBoard, agents: HeardAgents, decisions: OperatorDecisions, clock: Clock
    ) -> None:
        self._log = log
        self._board = board
        self._decisions = decisions
        self._clock = clock
        self._candidates = OwnerCandidates(agents, decisions, clock)
        self._terms: dict[str, list[Owner]] = {}
        """The newest owners of each resource, oldest first."""
        self._tails: dict[str, int] = {}
        """The last sequence of the scope of each resource that was read."""
        self._considered: dict[str, int] = {}
        """The number of the look at which each resource was considered last."""
        self._look = 0
        """The number of the newest look."""
        self._vacant: set[str] = set()
        """Shards that agents declare, and that have no owner yet, as resources."""
        self._look_at = float("-inf")
        self._crowd: tuple[object, ...] = ()
        """The agents and the decisions at the last look."""

    def learn(self, recorded: Recorded[Message]) -> None:
        """Apply an event of the log."""
        fact, sequence = recorded.message, recorded.sequence
        if isinstance(fact, OwnershipAssigned) and sequence > self._tails.get(fact.resource, 0):
            self._note(fact, sequence)

    def _note(self, fact: OwnershipAssigned, sequence: int) -> None:
        terms = self._terms.setdefault(fact.resource, [])
        terms.append(Owner(fact.name, fact.agent_id, sequence))
        del terms[:-KEPT]
        self._tails[fact.resource] = sequence
        self._vacant.discard(fact.resource)
        if (shard := ownership.shard_of(fact.resource)) is not None:
            self._board.bind((shard,))

    def forget(self, scope: str) -> None:
        """Forget the owners of a resource: its learned events are not stored after all."""
        resource = scope.removeprefix("ownership.").removesuffix(".>")
        self._terms.pop(resource, None)
        self._tails.pop(resource, None)

    async def _load(self, resources: Iterable[str]) -> None:
        """Read the owners of resources, and free the shards that never had one."""
        unread = [resource for resource in resources if resource not in self._tails]
        if not unread:
            return
        await self._read(unread)
        shards = (ownership.shard_of(resource) for resource in unread if resource not in self._terms)
        self._board.free({shard for shard in shards if shard is not None})

    async def _read(self, resources: Sequence[str]) -> None:
        """Read the newest owners of resources."""
        loaded = await self._log.load_each(*map(subjects.ownership, resources))
        for resource, history in zip(resources, loaded.facts, strict=True):
            self._tails.setdefault(resource, 0)
            for recorded in history:
                self.learn(recorded)

    async def settle(self, *, since: float) -> None:
        """See that needed resources and declared shards have owners.

        `since`: seconds of the monotonic clock from which on agents could be heard.

        Raises:
            LogUnavailable: the log did not answer.
        """
        if not self._board.owned and not self._decisions.shards:
            return
        standing = self._candidates.standing()
        if self._looks_again(standing):
            self._look += 1
            await self._declare(standing)
        needed = [resource for resource in self._board.owned if self._is_due(resource)]
        await self._load(needed)
        known = [*needed, *sorted(filter(self._is_due, self._vacant.difference(needed)))]
        known.sort(key=lambda resource: self._considered.get(resource, 0))  # the crowd may change before all had a turn
        due = known[: min(AT_ONCE, max(1, COMPARED_AT_ONCE // max(1, len(standing))))]
        if due:
            await self._store(list(self._changes(due, standing, since)))
            self._considered.update(dict.fromkeys(due, self._look))

    def _is_due(self, resource: str) -> bool:
        """Return whether a resource was not considered since the last look."""
        return self._considered.get(resource, 0) < self._look

    def _looks_again(self, standing: Sequence[HeardAgent]) -> bool:
        """Return whether agents came or went, or a while is over since the last look."""
        now = self._clock.monotonic()
        agents = {agent.key: (agent.is_candidate, agent.shards) for agent in standing}
        crowd = self._decisions.revision, agents
        if crowd == self._crowd and now < self._look_at:
            return False
        self._crowd, self._look_at = crowd, now + LOOK_INTERVAL_S
        return True

    async def _declare(self, standing: Sequence[HeardAgent]) -> None:
        """Note the shards of the map that agents declare and that never had an owner."""
        self._vacant.clear()
        declared = frozenset[str]().union(*(agent.shards for agent in standing))
        if not declared:
            return
        resources = {shard: ownership.shard_resource(shard) for shard in sorted(self._decisions.shards)}
        await self._load(resources.values())
        self._vacant.update(
            resource
            for shard, resource in resources.items()
            if resource not in self._terms and ownership.declares(declared, shard)
        )

    def _changes(self, resources: Iterable[str], standing: Collection[HeardAgent], since: float) -> Iterator[_Change]:
        """Yield the new owners that resources need."""
        owned = self._owned()
        for resource in resources:
            change = self._change(resource, standing, owned, since)
            if change is not None:
                if (before := self._newest(resource)) is not None:
                    owned[key_of(before)] -= 1
                owned[key_of(change.owner)] += 1
                yield change

    def _change(
        self, resource: str, standing: Collection[HeardAgent], owned: Counter[str], since: float
    ) -> _Change | None:
        """Return the new owner that a resource needs."""
        lanes = self._board.owned.get(resource, ())
        before = self._newest(resource)
        reason = "vacant" if before is None else self._candidates.obstacle(resource, before, since=since)
        if reason is None and ownership.shard_of(resource) is None:
            return None
        best = min(self._candidates.of(resource, lanes, owned, standing), default=None)
        if best is None:
            return None
        if before is None or reason is not None:
            return _Change(resource, best, reason or "vacant")
        lacks = self._candidates.lacks(before, lanes)
        if best.lacks < lacks:
            reason = "unable"
        elif best.lacks == lacks and owned[key_of(before)] - best.owned >= ownership.BALANCE:
            reason = "balanced"
        if reason is None or self._works_on(before, resource):
            return None
        return _Change(resource, best, reason)

    def _works_on(self, owner: Owner, resource: str) -> bool:
        """Return whether an owner has a task of its resource.

        It finishes the task before the resource moves by choice.
        """
        return any(claim.task.ownable == resource for claim in self._board.claims_of(key_of(owner)))

    def _owned(self) -> Counter[str]:
        """Return the number of resources that each agent owns, by its key.

        Shards that were removed from the map do not count.
        """
        return Counter(
            key_of(terms[-1])
            for resource, terms in self._terms.items()
            if (shard := ownership.shard_of(resource)) is None or shard in self._decisions.shards
        )

    async def _store(self, changes: Sequence[_Change]) -> None:
        if not changes:
            return
        facts = [
            OwnershipAssigned(
                resource=change.resource,
                name=change.owner.name,
                agent_id=change.owner.agent_id,
                reason=change.reason,
            )
            for change in changes
        ]
        results = await self._log.write([Append((fact,), self._tails[fact.resource]) for fact in facts])
        outdated = list[str]()
        for fact, written in zip(facts, results, strict=True):
            if written.sequences:
                self._assigned(fact, written.sequences[0])
            elif isinstance(written.error, OutdatedState):
                outdated.append(fact.resource)
            elif written.error is not None:
                raise written.error
        if outdated:  # another matcher was faster
            await self._read(outdated)

    def _assigned(self, fact: OwnershipAssigned, sequence: int) -> None:
        if sequence > self._tails[fact.resource]:  # else the follower was faster
            self._note(fact, sequence)
        _log.info(
            "owner assigned",
            action="owner-assigned",
            resource=fact.resource,
            agent=fact.name,
            agent_id=fact.agent_id,
            reason=fact.reason,
            epoch=sequence,
        )

    def epoch(self, task: OpenTask) -> int | None:
        """Return the epoch of a task's owner; None: any agent gets the task."""
        owner = None if task.resource is None else self._newest(task.resource)
        return None if owner is None else owner.epoch

    def permits(self, task: OpenTask, claim: Started) -> bool:
        """Return whether a claim may be stored, however long ago its task was chosen."""
        if task.ownable is None:
            return True
        owner = self._newest(task.ownable)
        if owner is None:  # any worker gets the tasks of a shard without an owner
            return task.resource is None and claim.epoch is None
        return owner == (claim.worker, claim.agent, claim.epoch)

    def is_outdated(self, claim: AgentClaim) -> bool:
        """Return whether the log has a newer owner before a claim.

        Another matcher may believe that it leads. The log is folded up to the claim.
        """
        if claim.task.ownable is None:
            return False
        before = [owner for owner in self._terms.get(claim.task.ownable, ()) if owner.epoch < claim.sequence]
        return bool(before) and before[-1].epoch != claim.epoch

    def lanes(self) -> dict[str, set[str]]:
        """Return the lanes of open tasks that only an owner gets, by its key."""
        lanes: dict[str, set[str]] = {}
        for resource, of_resource in self._board.owned.items():
            if (owner := self._newest(resource)) is not None:
                lanes.setdefault(key_of(owner), set()).update(lane for _, lane in of_resource)
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
