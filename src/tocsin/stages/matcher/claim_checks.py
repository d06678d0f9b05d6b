"""Checks of claims against hold lists: lost tasks are handed over again or released.

A task that a hold list lacks was lost on its way. A silent or ended agent loses its claims, and so does one without a process
that listens.
"""

from datetime import timedelta
from typing import Final

from ...domain.agent import MAX_HELD, MAX_HELD_BYTES, MAX_HELD_NAME
from ...domain.task_board import NO_AGENT, AgentClaim, TaskBoard
from ...ports import AgentChannel, Clock
from .agents import SILENCE_S, HeardAgent, HeardAgents, HeldTasks
from .claims import Releases
from .end_notices import EndNotices
from .task_sender import LimitedHandOver
from .trials import Trials

AT_ONCE: Final = 256
"""The greatest number of claims that are looked at together."""
INTERVAL_S: Final = 0.5
"""Time between two looks at the agents if nothing arrives."""
REPEAT_AFTER_S: Final = 2.0
"""A hold list that arrives sooner after a hand-over may be older than it."""
MAX_HAND_OVERS: Final = 3
"""Hand-overs of a claim whose task no hold list shows, before the claim is released."""
CALL_INTERVAL_S: Final = 1.0
"""The least time between two roll calls because of agents that did not listen."""
END_WAIT_S: Final = 5.0
"""The longest wait of a matcher that ends for the ends of claims."""
END_INTERVAL_S: Final = 0.02
"""Time between two looks at them."""
CHECK_INTERVAL_S: Final = 10.0
"""Time between two looks at some of the claims of workers that are no agents."""


class ClaimChecks:
    """Compares claims with hold lists, for the matcher that leads."""

    def __init__(
        self,
        channel: AgentChannel,
        board: TaskBoard,
        agents: HeardAgents,
        releases: Releases,
        hand_over: LimitedHandOver,
        ends: EndNotices,
        trials: Trials,
        clock: Clock,
    ) -> None:
        self._channel = channel
        self._board = board
        self._agents = agents
        self._releases = releases
        self._hand_over = hand_over
        self._ends = ends
        self._trials = trials
        self._clock = clock
        self._absent: list[tuple[str, int]] = []
        self._listens_since = clock.monotonic()
        self._called_at = float("-inf")
        self._looked_at = float("-inf")
        self._checked_at = float("-inf")
        self._checked = 0

    @property
    def listens_since(self) -> float:
        """The time from which on agents could be heard, in seconds of the monotonic clock."""
        return self._listens_since

    def begin(self) -> None:
        """Take no agent for silent because of a time in which none was heard."""
        self._listens_since = self._clock.monotonic()

    def forget(self) -> None:
        """Act on nothing that was noted until now: another matcher leads."""
        self._absent.clear()
        self._ends.forget()

    def note_absence(self, agent_id: str, claim: int) -> None:
        """Note that a task reached no process."""
        self._absent.append((agent_id, claim))

    async def call_roll(self) -> None:
        """Have every agent send its hold list."""
        await self._channel.call_roll()
        self._called_at = self._clock.monotonic()

    async def run_once(self, *, upto: int) -> None:
        """Act on absences, ends and hold lists; the board has events up to `upto`."""
        await self._ends.send()
        await self._release_absent()
        await self._look_at_agents(upto)

    async def release_ended(self) -> None:
        """Release what ended agents held, before this matcher ends, and wait for the lease keeper.

        No stream stores the last hold list of an agent. Without this, the next matcher would have to wait for the agent's silence.
        A server that stops with the stages forgets which messages the lease keeper handed back, and sends them late after its start.
        """
        await self._channel.catch_up()
        self._agents.read()
        ended = [agent.key for agent in self._agents.news if agent.has_ended]
        claims = [claim for key in ended for claim in self._board.claims_of(key)]
        for claim in claims:
            await self._releases.release(claim, "handed_back")
        deadline = self._clock.monotonic() + END_WAIT_S
        while (claims := await self._releases.still_open(claims)) and self._clock.monotonic() < deadline:
            await self._clock.sleep(END_INTERVAL_S)

    async def _release_absent(self) -> None:
        """Release tasks that reached no process.

        The agent gets no other task until it is heard again.
        """
        absent, self._absent = self._absent, []
        now = self._clock.monotonic()
        if absent and now - self._called_at >= CALL_INTERVAL_S:
            await self.call_roll()  # an agent that lost its connection for a moment answers
        for agent_id, sequence in absent:
            for agent in self._agents.with_id(agent_id):
                agent.is_absent = True
                for claim in self._board.claims_of(agent.key):
                    if claim.sequence == sequence:
                        await self._releases.release(claim, "handed_back")

    async def _look_at_agents(self, upto: int) -> None:
        """Hand over again what agents do not hold; release what lost and ended agents held."""
        now = self._clock.monotonic()
        for agent in self._agents.news:
            await self._compare(agent, upto)
            self._ends.compare(agent)
            self._agents.note_compared(agent)
        if now - self._looked_at < INTERVAL_S:
            return
        self._looked_at = now
        self._releases.apply_refusals()
        for key in self._board.agents:
            heard_agent = self._agents.get(key)
            heard_at = self._listens_since if heard_agent is None else max(heard_agent.heard_at, self._listens_since)
            if now - heard_at < SILENCE_S:
                continue
            last = None if heard_agent is None else self._clock.now() - timedelta(seconds=now - heard_agent.heard_at)
            for claim in await self._releases.still_open(self._board.claims_of(key)[:AT_ONCE]):
                await self._releases.release(claim, "lease_over", last_heartbeat=last)
        await self._ends.check()
        await self._check_other_claims(now)

    async def _check_other_claims(self, now: float) -> None:
        """Withdraw claims of other workers that are over.

        A report may have been missed, and no hold list shows it.
        """
        if now - self._checked_at < CHECK_INTERVAL_S:
            return
        self._checked_at = now
        claims = self._board.claims_of(NO_AGENT)
        start = self._checked if self._checked < len(claims) else 0
        some = claims[start : start + AT_ONCE]
        self._checked = start + len(await self._releases.still_open(some))

    async def _compare(self, agent: HeardAgent, upto: int) -> None:
        """Compare an agent's claims with its newest hold list."""
        tasks, missing_claims = agent.tasks, list[AgentClaim]()
        held = frozenset[str]() if tasks is None else frozenset(tasks.held)
        is_full = tasks is not None and _is_full(tasks)
        for claim in self._board.claims_of(agent.key):
            if agent.has_ended:
                await self._releases.release(claim, "handed_back")
            elif tasks is None:
                continue
            elif claim.sequence in tasks.handed_back:
                await self._releases.release(claim, "handed_back", is_refused=True)
            elif claim.task.held_name in held:
                self._trials.prove(claim)
            elif claim.sequence > upto:
                continue
            elif agent.heard_at - claim.handed_at >= REPEAT_AFTER_S:
                missing_claims.append(claim)
            if is_full:
                self._trials.prove(claim)  # the list has no room for it
        still_open = await self._releases.still_open(missing_claims[:AT_ONCE])
        ignored = [] if is_full else [claim for claim in still_open if claim.hand_overs >= MAX_HAND_OVERS]
        for claim in ignored:
            await self._releases.release(claim, "handed_back", is_refused=True)
        await self._hand_over.send([claim for claim in still_open if claim not in ignored])


def _is_full(tasks: HeldTasks) -> bool:
    """Return whether a hold list has no room for every task of its agent."""
    return len(tasks.held) >= MAX_HELD or sum(map(len, tasks.held)) > MAX_HELD_BYTES - MAX_HELD_NAME
