"""Agent keeper: registers worker processes by their hold lists, and notices those that fall silent.

Workers send hold lists over core NATS; nothing stores them. The leader decides and stores events; every copy that has read
the log answers agents whose mode differs from what the log says, so that an agent also learns it while leaders change.
Two leaders at once are correct, because each event is guarded by the scope of its agent.

Only the newest hold list of each process is looked at, a few times a second, so a flood of them costs little. The
number of processes is bounded, over all and for each name.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

from pydantic import ValidationError

from ... import subjects, telemetry
from ...domain import agent
from ...domain.agent import Agent, Command, HoldList
from ...domain.events import (
    Acknowledged,
    AgentEnded,
    AgentFact,
    AgentFellSilent,
    AgentForgotten,
    AgentRegistered,
    Proposed,
    QuorumSettled,
    type_of,
)
from ...domain.token_bucket import TokenBucket
from ...engine.agent_memory import RefusedHoldLists
from ...engine.fold import Fold
from ...engine.hold_list_inbox import ArrivedHoldList, HoldListInbox
from ...engine.leader_election import LeaderElection, lease_access
from ...engine.stage import Access, Stage, StageContext, attempted
from ...ports import AgentChannel, Clock, EventLog, LogUnavailable, OutdatedState, Projections, RequestRefused
from ...subjects import AGENT_KEEPER_LEASE, LAYOUT, Bucket
from .acknowledgements import CURSOR, Acknowledgements
from .roster import Entry, Mirror, Roster, size_of

INTERVAL_S: Final = 0.2
"""Time between two rounds over the hold lists that arrived."""
SILENCE_S: Final = 30.0
"""Time without a hold list after which an agent is lost."""
FORGET_ENDED: Final = timedelta(hours=1)
FORGET_LOST: Final = timedelta(hours=24)
CHANGE_INTERVAL_S: Final = 10.0
"""The least time between two stored changes of what one process registered with."""
KEPT_PER_NAME: Final = 100
"""From this number of processes of a name on, the keeper forgets the oldest that is over before it registers another."""
TRIES: Final = 3

Decide = Callable[[Agent], Sequence[AgentFact]]
_log = telemetry.get_logger("tocsin.agent-keeper")


BYTES_AT_ONCE: Final = 16 * 1_048_576
"""Enough to register each of 5,000 processes with 3 KB."""
BYTES_PER_S: Final = 4_096
"""350 MB a day: six ordinary registrations in each second."""
_SHARED: Final = ""
"""In place of a name: all names without an account of their own."""


class RegistrationBudget:
    """The bytes that may still be registered."""

    def __init__(self, reserved: Collection[str], monotonic: Callable[[], float]) -> None:
        """`reserved`: the names of agents with an account of their own."""
        self._reserved = frozenset(reserved)
        self._monotonic = monotonic
        self._bucket = TokenBucket(limit=BYTES_PER_S, per=1.0, burst=BYTES_AT_ONCE)
        self._used_until: dict[str, float] = {}

    def take(self, name: str, facts: Sequence[AgentFact]) -> bool:
        """Count the bytes of events, and return whether they fit; if not, nothing is counted."""
        account = name if name in self._reserved else _SHARED
        used_until, now = self._used_until.get(account, float("-inf")), self._monotonic()
        size = sum(len(fact.encode()) for fact in facts)
        if size > self._bucket.available(used_until, now):
            return False
        self._used_until[account] = self._bucket.used(used_until, now, size)
        return True


class AgentKeeper:
    """Keeps the roster of agents."""

    def __init__(
        self,
        log: EventLog,
        projections: Projections,
        channel: AgentChannel,
        leadership: LeaderElection,
        clock: Clock,
        *,
        fold: Callable[[], Fold],
        requires_grant: bool = False,
        reserved: Collection[str] = (),
    ) -> None:
        """`fold` returns the fold of the process."""
        self._log = log
        self._channel = channel
        self.leadership = leadership
        self._clock = clock
        self._mirror = Mirror(projections, clock, requires_grant=requires_grant)
        self.roster = Roster(log, reserved)
        self.acknowledgements = Acknowledgements(
            log, projections, channel, leadership, clock, self.roster, fold, requires_grant=requires_grant
        )
        self._refused = RefusedHoldLists("agent_keeper", clock.monotonic)
        self._budget = RegistrationBudget(reserved, clock.monotonic)
        self._inbox = HoldListInbox(
            lambda name, agent_id: self.roster.find(name, agent_id) is not None, reserved, self._refused
        )
        self._listens_since = float("inf")

    async def run(self) -> None:
        """Listen to agents until cancelled."""
        async with self._channel.hold_lists(self.receive):
            self._listens_since = self._clock.monotonic()
            try:
                while True:
                    await attempted(self._run_once, _log, "agents not kept; retrying", "agents-not-kept")
                    await self._clock.sleep(INTERVAL_S)
            finally:
                with suppress(LogUnavailable, RequestRefused):
                    await self._note_ended()

    async def _run_once(self) -> None:
        await self.run_once(await self.leadership.time() or self._clock.now())

    async def _note_ended(self) -> None:
        """Store the ends of agents before this keeper ends.

        No stream stores the last hold list of an agent. Without this, the next keeper would take it for lost.
        """
        if not self.roster.is_complete:
            return
        await self._channel.catch_up()
        for arrived in self._inbox.take():
            await self._hear(arrived)
        for entry in self.roster:
            if entry.unjudged is not None and entry.unjudged.ended:
                await self._store_heard(entry, entry.unjudged)

    def receive(self, name: str, agent_id: str, body: bytes) -> None:
        """Take a hold list."""
        self._inbox.put(name, agent_id, body)

    async def run_once(self, now: datetime) -> None:
        """Look at the hold lists that arrived, and at the agents that are silent."""
        if not self.roster.is_complete:
            return
        if not self._channel.connections:
            self._listens_since = self._clock.monotonic()  # no agent can be heard
        for arrived in self._inbox.take():
            await self._hear(arrived)
        for entry in self.roster:
            await self._judge(entry, now)
        await self._mirror.show(self.roster, leads=self.leadership.is_leading)

    async def _hear(self, arrived: ArrivedHoldList) -> None:
        name, agent_id = arrived.name, arrived.agent_id
        entry = self.roster.find(name, agent_id)
        if entry is not None and arrived.number <= entry.number:
            return  # it is late, or was sent twice
        try:
            hold_list = _read(arrived.body)
        except ValidationError:
            self._refused.note(name, "unreadable")
            return
        if entry is None and (hold_list is None or not await self._has_room(name)):
            return
        if hold_list is not None and not self._takes(name, agent_id, hold_list):
            self._refused.note(name, "bytes")
            hold_list = None
        if entry is None:
            if hold_list is None:
                return
            entry = self.roster.enter(name, agent_id)
        entry.number, entry.heard_at = arrived.number, self._clock.monotonic()
        if hold_list is None:
            return  # there is no room for the list, and the process lives on as it was
        self.acknowledgements.hear(entry, hold_list)
        # Its numbers are not needed any more, and `size_of` does not count them.
        entry.held, entry.unjudged = (
            hold_list.held,
            hold_list.model_copy(update={"acknowledged": (), "handed_back": ()}),
        )
        mode = entry.state.mode(enabled=self.roster.is_enabled(name))
        if hold_list.mode != mode and not hold_list.ended:
            await self._channel.command(
                name, agent_id, Command(mode=mode, layout=LAYOUT).model_dump_json(exclude_defaults=True).encode()
            )

    def _takes(self, name: str, agent_id: str, hold_list: HoldList) -> bool:
        return self.roster.memory.take(name, agent_id, size_of(hold_list, hold_list.held))

    async def _has_room(self, name: str) -> bool:
        """Return whether another process of a name may be entered.

        If needed, the process that was over first is forgotten. No other is looked at: ids may be invented.
        """
        if self.roster.number(name) >= KEPT_PER_NAME and self.leadership.is_leading:
            over = self.roster.first_over(name)
            if over is not None:
                await self._forget(over)
        if self.roster.processes.has_room(name):
            return True
        self._refused.note(name, "processes")
        return False

    async def _judge(self, entry: Entry, now: datetime) -> None:
        """Store what follows from the last hold list of a process, or from its silence."""
        heard_at = max(entry.heard_at or float("-inf"), self._listens_since)
        silent_for = self._clock.monotonic() - heard_at
        if silent_for >= SILENCE_S:
            if not entry.sequence:
                self.roster.remove(entry)
            elif not self.leadership.is_leading:
                return
            elif entry.state.is_live:
                await self._store(entry, lambda state: agent.lose(state, silent_for=silent_for))
            elif entry.changed_at is not None:
                limit = FORGET_ENDED if entry.state.end == "ended" else FORGET_LOST
                if now - entry.changed_at >= limit:
                    await self._forget(entry)
            return
        if entry.unjudged is not None:
            await self._compare(entry, entry.unjudged)

    async def _compare(self, entry: Entry, hold_list: HoldList) -> None:
        """Store what the newest hold list of a process changes."""
        if facts := agent.hear(entry.state, entry.name, entry.agent_id, hold_list):
            is_early = self._has_changed_lately(entry) and entry.state.is_live and not hold_list.ended
            if is_early or not self.leadership.is_leading:
                return
            if not hold_list.ended and not self._budget.take(entry.name, facts):
                self._refused.note(entry.name, "rate")
                entry.unjudged = None  # its next hold list tries again
                return
            if await self._store_heard(entry, hold_list):
                entry.registered_at = self._clock.monotonic()
        entry.unjudged = None
        self.roster.note(entry)

    async def _store_heard(self, entry: Entry, hold_list: HoldList) -> bool:
        return await self._store(entry, lambda state: agent.hear(state, entry.name, entry.agent_id, hold_list))

    def _has_changed_lately(self, entry: Entry) -> bool:
        at = entry.registered_at
        return at is not None and self._clock.monotonic() - at < CHANGE_INTERVAL_S

    async def _forget(self, entry: Entry) -> None:
        if await self._store(entry, lambda state: agent.forget(state, entry.name, entry.agent_id)):
            self.roster.remove(entry)

    async def _store(self, entry: Entry, decide: Decide) -> bool:
        """Decide on a process and store the events.

        If another writer was faster, the process is read again.
        """
        for _ in range(TRIES):
            facts = decide(entry.state)
            if not facts:
                return False
            try:
                for fact in facts:
                    sequence = await self._log.append(fact, expect=entry.sequence)
                    entry.state, entry.sequence = agent.evolve(entry.state, fact), sequence
                    entry.changed_at = self._clock.now()
                    self.roster.note(entry)
                    event_type = type_of(type(fact))
                    _log.info(f"agent {event_type}", action="agent-changed", agent=entry.name, agent_id=entry.agent_id)
            except OutdatedState:
                history = await self._log.load(subjects.agent(entry.name, entry.agent_id))
                entry.state, entry.sequence = agent.fold(history), history[-1].sequence if history else 0
                self.roster.note(entry)
            else:
                return True
        return False


def _read(body: bytes | None) -> HoldList | None:
    """Return a hold list; of a process that ends, nothing else counts.

    Raises:
        ValidationError: the body is no hold list.
    """
    hold_list = None if body is None else HoldList.model_validate_json(body)
    if hold_list is None or not hold_list.ended:
        return hold_list
    return HoldList(number=hold_list.number, mode=hold_list.mode, ended=True)


def _start(context: StageContext) -> AgentKeeper | None:
    if context.agents is None:
        return None
    return AgentKeeper(
        context.log,
        context.projections,
        context.agents,
        context.elect(AGENT_KEEPER_LEASE),
        context.clock,
        fold=context.fold,
        requires_grant=context.settings.agents.require_grant,
        reserved=context.settings.agents.accounts,
    )


AGENT_KEEPER: Final = Stage(
    name="agent_keeper",
    purpose="registers workers as agents, and lets them acknowledge executions",
    consumes="hold lists of workers, which no stream stores; executions that need acknowledgements",
    decides="`registered`, `fell-silent`, `ended`, `forgotten`; the KV bucket `agents`; commands to workers; `proposed`, `acknowledged`, "
    "`quorum-settled`",
    access=Access(
        appends=(
            *(AgentRegistered, AgentFellSilent, AgentEnded, AgentForgotten),
            *(Proposed, Acknowledged, QuorumSettled),
        ),
        writes=(*lease_access(AGENT_KEEPER_LEASE), (Bucket.AGENTS, ">"), (Bucket.CURSORS, CURSOR)),
        keeps_agents=True,
    ),
    start=_start,
    loops=(
        lambda keeper: keeper.leadership.run(),
        lambda keeper: keeper.roster.follow(),
        AgentKeeper.run,
        lambda keeper: keeper.acknowledgements.run(),
    ),
)
