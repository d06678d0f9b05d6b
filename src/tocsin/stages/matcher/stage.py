"""Matcher: assigns each task to an agent with its function and a free slot.

It takes tasks as they are decided, without a durable, so that a task that no agent can take holds back nothing. It proposes
the claim (`started`) in the agent's name for the same commit, and hands the task over on core NATS after the commit is
stored. The message may be lost: a claim that is missing in the agent's next hold list is handed over again.

One matcher leads. Two at once are correct, because every claim is guarded. A standby follows the log too, so that a new
leader assigns at once; it calls the roll, and every agent answers with its hold list.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from ... import subjects, telemetry
from ...domain.events import Cancelled, Message, OwnershipAssigned, Recorded, Report, Started
from ...domain.task_board import TaskBoard
from ...domain.task_offers import Offer
from ...engine.leader_election import LeaderElection, lease_access
from ...engine.stage import Access, Stage, StageContext
from ...ports import (
    AgentChannel,
    Clock,
    EventLog,
    FetchChannel,
    LogUnavailable,
    OutdatedState,
    Projections,
    RequestRefused,
)
from ...settings import Queue
from ...subjects import MATCHER_LEASE, Bucket, Stream, outside_key
from . import followed_tasks, operator_decisions, owners
from .agents import HeardAgent, HeardAgents
from .backlog_display import BacklogDisplay
from .claim_checks import INTERVAL_S, ClaimChecks
from .claims import Claims, Releases, StoredClaim, claim_of
from .end_notices import EndNotices
from .fetch_server import FetchServer
from .fetches import Fetches
from .followed_tasks import FollowedTasks
from .http_workers import HttpWorkers
from .last_heartbeats import LastHeartbeats
from .operator_decisions import OperatorDecisions
from .owners import Owners
from .purges import Purges
from .queue_rates import QueueRates, rates_of
from .task_sender import LimitedHandOver, TaskSender
from .trials import Trials

AT_ONCE: Final = 256
"""The greatest number of tasks that are claimed in one write."""
MAX_RATES: Final = 500
"""The number of groups of rates whose tokens are looked at in one turn."""
LEASE_S: Final = 3.0
"""The time to live of the leader lease: no task is assigned for so long after the leader was killed."""

FILTERS: Final = (*followed_tasks.FILTERS, *owners.FILTERS)
"""Filters over everything that the matcher follows in the log."""

_log = telemetry.get_logger("tocsin.matcher")


class Channels(NamedTuple):
    """The channels to workers."""

    agents: AgentChannel
    fetches: FetchChannel


class Matcher:
    """Assigns the tasks of queues to agents."""

    def __init__(  # noqa: PLR0913 - the parts of a matcher
        self,
        log: EventLog,
        projections: Projections,
        channels: Channels,
        leadership: LeaderElection,
        clock: Clock,
        queues: Mapping[str, Queue],
        serves: Callable[[str], bool],
        *,
        key: bytes,
        requires_grant: bool = False,
        reserved: Collection[str] = (),
    ) -> None:
        """Assign the tasks of the queues that it `serves`; `queues` are always shown.

        `key` proves heartbeats. `reserved`: the names of agents with an account of their own.
        """
        self._log = log
        self._channel = channel = channels.agents
        self._fetch_channel = fetch_channel = channels.fetches
        self._leadership = leadership
        self._clock = clock
        limits = {name: queue.concurrency for name, queue in queues.items() if queue.concurrency is not None}
        self.board = TaskBoard(limits, clock=clock.monotonic)
        self._rates = QueueRates(projections, clock, rates_of(queues))
        self.agents = HeardAgents(clock.monotonic, frozenset(reserved))
        self._display = BacklogDisplay(projections, clock, tuple(queues), limits)
        self._decisions = OperatorDecisions(self.board, requires_grant=requires_grant)
        self._purges = Purges(log, self.board, self._decisions)
        self._owners = Owners(log, self.board, self.agents, self._decisions, clock)
        self._claims = Claims(log, self.board, self.agents, self._rates, self._decisions, self._owners)
        self._releases = Releases(log, self.board, clock, key)
        sender = TaskSender(channel, self.agents, self._releases, LastHeartbeats(log, clock, key), clock, key)
        self._trials = Trials(self.board, self.agents, reserved, clock.monotonic)
        self._hand_over = LimitedHandOver(self.board, self._owners, self._releases, sender)
        self._checks = ClaimChecks(
            channel,
            self.board,
            self.agents,
            self._releases,
            self._hand_over,
            EndNotices(log, channel, self.board, self.agents, clock),
            self._trials,
            clock,
        )
        self._fetches = Fetches(clock.monotonic)
        self._http_workers = workers = HttpWorkers(projections, clock, self.board, self._fetches, self._decisions)
        self._fetch_server = FetchServer(
            log, fetch_channel, self._fetches, workers, self.board, self._claims, self._releases, clock
        )
        self._followed = FollowedTasks(self.board, self._fetches, workers, serves)
        self._upto = 0
        self._is_complete = False
        self._changed = asyncio.Event()
        self._is_roll_called = False

    async def lead(self) -> None:
        """Hold the leader lease, or try to."""
        await self._leadership.run()

    async def follow(self) -> None:
        """Follow tasks, claims and ends, from the open executions on."""
        async for batch in self._log.follow(Stream.LOG, *FILTERS, after=None):
            for scope in batch.undone:
                self.board.forget(scope)
                self._owners.forget(scope)
            self._followed.settle(0, batch.undone)
            for recorded in batch.messages:
                self.learn(recorded)
            self._upto = batch.upto
            self._followed.settle(batch.upto)
            self._is_complete = self._is_complete or batch.caught_up
            self._changed.set()

    async def follow_decisions(self) -> None:
        """Follow what operators decided about queues and agents."""
        async for batch in self._log.follow(Stream.LEDGER, *operator_decisions.filters(), after=None):
            for recorded in batch.messages:
                self._decisions.learn(recorded)
            self._decisions.is_complete = self._decisions.is_complete or batch.caught_up
            self._changed.set()

    async def run(self) -> None:
        """Hear agents, and assign tasks as long as this matcher leads."""
        async with (
            self._channel.hold_lists(self.receive),
            self._channel.absences(self.receive_absence),
            self._fetch_channel.requests(self.receive_fetch),
        ):
            self._checks.begin()
            try:
                await self._run()
            finally:
                with suppress(LogUnavailable, RequestRefused):
                    await self._checks.release_ended()

    async def _run(self) -> None:
        while True:
            try:
                await self.run_once()
            except (LogUnavailable, OutdatedState) as error:
                _log.info("tasks wait for JetStream", action="log-unavailable", error=str(error))
            except Exception as error:  # noqa: BLE001 - tasks must be assigned after any trouble
                _log.error("tasks not assigned; retrying", action="tasks-not-assigned", exc_info=error)
                await self._clock.sleep(INTERVAL_S)
            await self._changed.wait()
            self._changed.clear()

    async def tick(self) -> None:
        """Let `run` look at agents and fetches although nothing arrives."""
        while True:
            await self._clock.sleep(INTERVAL_S)
            self._changed.set()

    def learn(self, recorded: Recorded[Message]) -> None:
        """Apply an event of the log."""
        if subjects.is_ownership(recorded.subject):
            self._owners.learn(recorded)
        else:
            self._followed.learn(recorded)

    def receive(self, name: str, agent_id: str, body: bytes) -> None:
        """Take a hold list."""
        self.agents.receive(name, agent_id, body)
        self._changed.set()

    def receive_fetch(self, body: bytes) -> None:
        """Take a request of a worker over HTTP."""
        self._fetches.receive(body)
        self._changed.set()

    def receive_absence(self, agent_id: str, claim: int) -> None:
        """Note that a task reached no process."""
        self._checks.note_absence(agent_id, claim)
        self._changed.set()

    def _knows_all(self) -> bool:
        return self._is_complete and self._decisions.is_complete

    async def run_once(self) -> None:
        """Compare agents with their claims, and assign every task that an agent can take."""
        while await self._take_turn():
            pass

    async def _take_turn(self) -> bool:
        """Look at agents and fetches, assign one wave, and return whether to repeat.

        While tasks wait for slots, every report makes room for another wave. So each wave has a look at everything else first.
        """
        self.agents.read()
        self.agents.forget_silent(but=lambda: self.board.agents)  # also while another matcher leads
        self._trials.learn()
        if not self._channel.connections:
            self._checks.begin()
            self._is_roll_called = False
        if not self._leadership.is_leading or not self._knows_all():
            self._is_roll_called = False
            self._checks.forget()
            self._fetches.forget()
            self.board.forget_rates()  # another matcher may take the tokens from now on
            self.board.note_hold_ups({}, self._decisions.room)  # for the claims of a later leader
            return False
        if not self._is_roll_called:
            self._display.forget()
            self._rates.forget()
            await self._checks.call_roll()
            await self._fetch_channel.call_fetches()
            self._is_roll_called = True
        await self._hand_over.read_back(upto=self._upto)
        await self._checks.run_once(upto=self._upto)
        await self._owners.settle(since=self._checks.listens_since)
        while await self._fetch_server.serve(self._upto, await self._room()):
            pass
        has_more = any([await self._assign(), await self._purges.run_once()])
        await self._display.show(self.board, await self._rates.room())
        await self._http_workers.show()
        return has_more

    async def _assign(self) -> bool:
        """Claim and hand over one wave of tasks; return whether there may be more."""
        if not len(self.board):
            return False
        self._releases.apply_refusals()
        room = await self._room()
        assignments = self.board.assign(self._offers(), limit=AT_ONCE, room=room, drains=True)
        if not assignments:
            return False
        admitted, trials = self._trials.admit(assignments)
        for _, key in admitted:
            self.agents.note_served(key)
        stored: list[StoredClaim] = []
        try:
            stored = await self._claims.store(
                [
                    (task, claim_of(task, agent.name, agent=agent.agent_id, epoch=self._owners.epoch(task)))
                    for task, key in admitted
                    if (agent := self.agents.get(key)) is not None
                ]
            )
        finally:
            self._trials.begin(admitted, trials, stored)
        claims = [claim for _, claim in stored]
        await self._hand_over.stored(claims, upto=self._upto)
        return bool(claims) and len(self.board) > 0

    async def _room(self) -> dict[str, int]:
        """Return the number of tasks that may start in limited queues: none in paused queues.

        Tasks of groups that held back may start if a token came. What holds back tasks now is noted.
        """
        self.board.let_start(await self._rates.room_of(self.board.waiting_rates(MAX_RATES)))
        room, paused = await self._rates.room(), self._decisions.room
        self.board.note_hold_ups(room, paused)
        return {**room, **paused}

    def _offers(self) -> list[Offer]:
        """Return the free slots of agents, as their newest hold lists describe them."""
        self.agents.read()
        now, lanes = self._clock.monotonic(), self._owners.lanes()
        suspecting = {claim.agent for claim in self.board.suspects}
        alone = {claim.agent for claim in self.board.suspects if claim.task.runs_alone}
        return [
            self._offer(agent, free, lanes.get(agent.key), has_suspect=agent.key in suspecting)
            for agent in self.agents
            if agent.takes_tasks
            and agent.key not in alone
            and not agent.is_silent(now)
            and (free := self._decisions.slots(agent.max_concurrent_jobs) - self.board.used_slots(agent.key)) > 0
        ]

    def _offer(self, agent: HeardAgent, free: int, lanes: Collection[str] | None, *, has_suspect: bool) -> Offer:
        """Return the offer of an agent; `lanes`: those that only the agent gets."""
        slots, is_last = self._trials.slots(agent.key, free)
        granted, functions = self._decisions.granted(agent), agent.functions
        if lanes is not None:
            functions, granted = owners.with_lanes(functions, lanes), owners.granted_with_lanes(granted, lanes)
        used = self.board.used_slots(agent.key)
        return Offer(agent.key, agent.queues, functions, slots, granted, is_last, used, has_suspect)


def _start(context: StageContext) -> Matcher | None:
    settings = context.settings
    if context.agents is None or context.fetches is None:
        return None
    return Matcher(
        context.log,
        context.projections,
        Channels(context.agents, context.fetches),
        context.elect(MATCHER_LEASE, ttl=LEASE_S),
        context.clock,
        {name: settings.queues.get(name, Queue()) for name in settings.matched_queues},
        settings.is_matched,
        key=context.report_key,
        requires_grant=settings.agents.require_grant,
        reserved=settings.agents.accounts,
    )


MATCHER_STAGE: Final = Stage(
    name="matcher",
    purpose="assigns tasks to agents and to workers over HTTP",
    consumes="`dispatched`, claims, ends; what operators decided about queues and agents, the namespaces and the policy; hold lists of workers and "
    "fetches, which no stream stores",
    decides="`started` and `assigned` in the worker's name; tasks to workers, and notices of ends; reports that end claims of lost agents; `cancelled` after a purge",
    access=Access(
        appends=(Started, OwnershipAssigned, Report, Cancelled),
        reads=(Stream.PROGRESS,),
        writes=(
            *(*lease_access(MATCHER_LEASE), (Bucket.QUEUES, ">")),
            (Bucket.AGENTS, outside_key("http", "*")),
        ),
        assigns_tasks=True,
    ),
    start=_start,
    loops=(*(Matcher.lead, Matcher.follow, Matcher.follow_decisions, Matcher.run, Matcher.tick),),
)
