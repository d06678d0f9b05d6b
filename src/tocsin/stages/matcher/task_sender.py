"""The hand-over of claimed tasks to their agents."""

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from ... import telemetry
from ...domain import ids
from ...domain.agent import Assignment
from ...domain.json_codec import written
from ...domain.open_task import StepKey
from ...domain.task_board import AgentClaim, TaskBoard
from ...ports import AgentChannel, Clock, HandOver
from .agents import HeardAgents
from .claims import Releases
from .last_heartbeats import LastHeartbeats
from .owners import Owners

_log = telemetry.get_logger("tocsin.matcher")


class TaskSender:
    """Sends claimed tasks; a message may be lost, and the next hold list shows it."""

    def __init__(
        self,
        channel: AgentChannel,
        agents: HeardAgents,
        releases: Releases,
        heartbeats: LastHeartbeats,
        clock: Clock,
        key: bytes,
    ) -> None:
        """`key` is the installation's; it proves reports on the claims."""
        self._key = key
        self._channel = channel
        self._agents = agents
        self._releases = releases
        self._clock = clock
        self._heartbeats = heartbeats

    async def send(self, claims: Sequence[AgentClaim]) -> None:
        """Send claimed tasks to their agents, with what earlier attempts sent last."""
        if not claims:
            return
        heartbeats = await self._heartbeats.of(claims)
        too_large = await self._send(claims, heartbeats)
        if any(claim.task.key in heartbeats for claim in too_large):
            too_large = await self._send(too_large, {})  # no task rests on a heartbeat
        for claim in too_large:
            _log.error("task too large for the server", action="task-too-large", scope=claim.task.scope)
            await self._releases.release(claim, "handed_back", is_refused=True)

    async def _send(self, claims: Sequence[AgentClaim], heartbeats: Mapping[StepKey, JsonValue]) -> list[AgentClaim]:
        """Send tasks, and return those that are too large."""
        now = self._clock.monotonic()
        hand_overs: list[tuple[AgentClaim, HandOver]] = []
        for claim in claims:
            agent = self._agents.get(claim.agent)
            if agent is None or claim.task.message is None:
                continue
            body = self._assignment(claim, heartbeats.get(claim.task.key)).framed(written(claim.task.message))
            hand_overs.append((claim, HandOver(agent.name, agent.agent_id, claim.sequence, body)))
            claim.handed_at = now
            claim.hand_overs += 1
        refused = await self._channel.hand_over([hand_over for _, hand_over in hand_overs])
        return [claim for claim, hand_over in hand_overs if hand_over in refused] if refused else []

    def _assignment(self, claim: AgentClaim, heartbeat: JsonValue) -> Assignment:
        task = claim.task
        proof = ids.claim_proof(self._key, task.execution_id, task.step, task.attempt, claim.sequence)
        return Assignment(
            subject=task.subject,
            sequence=task.sequence,
            time=task.time,
            delivery=claim.delivery,
            claim=claim.sequence,
            proof=proof,
            heartbeat=heartbeat,
            epoch=claim.epoch,
        )


class LimitedHandOver:
    """Hands over claims; releases claims beyond their limit, or of an earlier owner.

    Another matcher may believe that it leads, and claim at the same time. The log has one order, so in the fold up to a
    claim each matcher finds the same earlier claims.
    """

    def __init__(self, board: TaskBoard, owners: Owners, releases: Releases, sender: TaskSender) -> None:
        self._board = board
        self._owners = owners
        self._releases = releases
        self._sender = sender
        self._unread: list[AgentClaim] = []
        """Claims with a limit that the fold may not have reached yet."""

    async def stored(self, claims: Sequence[AgentClaim], *, upto: int) -> None:
        """Hand over claims without a limit or an owner; others wait for the fold.

        `upto`: the sequence up to which the log is folded.
        """
        contested = {claim.sequence for claim in claims if self._board.is_contested(claim.task)}
        await self._sender.send([claim for claim in claims if claim.sequence not in contested])
        self._unread += (claim for claim in claims if claim.sequence in contested)
        await self.read_back(upto=upto)

    async def read_back(self, *, upto: int) -> None:
        """Hand over the claims that the fold has reached."""
        reached = [claim for claim in self._unread if claim.sequence <= upto]
        self._unread = [claim for claim in self._unread if claim.sequence > upto]
        await self.send([claim for claim in reached if self._board.claim_of(*claim.task.key) is claim])

    async def send(self, claims: Sequence[AgentClaim]) -> None:
        """Hand over claims that the fold has reached, unless they must be released."""
        beyond = [claim for claim in claims if self._board.is_beyond_limit(claim) or self._owners.is_outdated(claim)]
        for claim in beyond:
            await self._releases.release(claim, "handed_back")
        await self._sender.send([claim for claim in claims if claim not in beyond])
