"""Acknowledgements of agents: proposes executions of `QUORUM_REQUIRED` jobs, and stores what agents answer.

A proposal is an event that names the agents. Each of them hears of it in a command, and its next hold list names the sequence of the
proposal. So an answer is authenticated as every hold list is, and needs no subject of its own. A lost command or answer is
repeated after two seconds.

Everything is read from the log: a process that stopped left nothing behind. Only the leader acts. Two that act are harmless,
because every append is guarded by the state of the execution.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Final, TypeAlias

from ... import subjects, telemetry
from ...domain import execution
from ...domain.agent import MAX_PROPOSALS, AgentState, Command, HoldList, agent_key
from ...domain.agent_grants import may_get
from ...domain.definition import MAX_PROPOSED_TO
from ...domain.events import ExecutionFact, Message, Recorded
from ...engine.leader_election import LeaderElection
from ...engine.saved_place import SavedPlace
from ...ports import AgentChannel, Append, Clock, EventLog, LogUnavailable, OutdatedState, Projections
from ...subjects import LAYOUT, Stream
from .proposals import FILTERS, Proposal, Proposals
from .roster import Entry, Roster

INTERVAL_S: Final = 0.2
"""Time between two looks at the executions that wait."""
REPEAT: Final = timedelta(seconds=2)
"""The time after which a proposal is sent again to an agent that has not answered."""
DECIDED_TOGETHER: Final = 64
"""Executions that are decided in one write."""
CURSOR: Final = subjects.cursor(Stream.LOG, subjects.ACKNOWLEDGEMENTS)

Work: TypeAlias = frozenset[tuple[str, str]]
"""Queue and function of each step."""

_log = telemetry.get_logger("tocsin.agent-keeper")


class Acknowledgements:
    """Lets agents acknowledge executions."""

    def __init__(
        self,
        log: EventLog,
        projections: Projections,
        channel: AgentChannel,
        leadership: LeaderElection,
        clock: Clock,
        roster: Roster,
        *,
        requires_grant: bool = False,
    ) -> None:
        """`requires_grant`: agents of a name without a grant get no tasks and no proposals."""
        self._log = log
        self._channel = channel
        self._leadership = leadership
        self._clock = clock
        self._roster = roster
        self._requires_grant = requires_grant
        self._place = SavedPlace(projections, clock, CURSOR)
        self.proposals = Proposals()
        self._upto = 0
        self.is_complete = False

    async def follow(self) -> None:
        """Follow which executions wait."""
        async for batch in self._log.follow(Stream.LOG, *FILTERS, after=await self._place.load()):
            for recorded in batch.messages:
                self.proposals.learn(recorded)
            self._upto = batch.upto
            self.is_complete = self.is_complete or batch.caught_up

    def hear(self, entry: Entry, hold_list: HoldList) -> None:
        """Take the acknowledgements of a hold list, if the agent may run a step."""
        if hold_list.mode != "enabled" or hold_list.ended:
            return
        agent = agent_key(entry.name, entry.agent_id)
        for sequence in set(hold_list.acknowledged):  # an agent may repeat one at will
            proposal = self.proposals.find(sequence, agent)
            if proposal is not None and self._may_run(entry, proposal.work, hold_list.queues, hold_list.functions):
                self.proposals.hear(proposal, agent)

    async def run(self) -> None:
        """Gather acknowledgements, as long as this process leads."""
        while True:
            await self._clock.sleep(INTERVAL_S)
            now = await self._leadership.time()
            if now is None:
                self.proposals.forget_deadlines()
                continue
            if not (self.is_complete and self._roster.is_complete):
                continue
            try:
                await self.run_once(now)
            except (LogUnavailable, OutdatedState) as error:
                _log.info("proposals wait for JetStream", action="log-unavailable", error=str(error))
            except Exception as error:  # noqa: BLE001 - the other executions go on
                _log.error("proposals not examined; retrying", action="undecidable", exc_info=error)

    async def run_once(self, now: datetime) -> None:
        """Examine every execution that is due at `now` (UTC)."""
        due = self.proposals.take(now)
        candidates: dict[Work, list[str]] = {}
        sent: defaultdict[str, list[int]] = defaultdict(list)
        while some := list(islice(due, DECIDED_TOGETHER)):
            undecided = [proposal for proposal in some if proposal.needs_decision(now)]
            for proposal in some:
                self.proposals.look_again(proposal.scope, now + REPEAT)  # also after an error
                if (newest := proposal.quorum.proposal) is not None:
                    proposal.note_sent(now)
                    for agent in proposal.quorum.unheard():
                        sent[agent].append(newest.sequence)
            await self._decide(undecided, candidates, now)
        for agent, sequences in sent.items():
            await self._send(agent, sequences[:MAX_PROPOSALS])
        await self._place.save(lambda: self.proposals.oldest, self._upto)

    async def _decide(self, some: Sequence[Proposal], candidates: dict[Work, list[str]], now: datetime) -> None:
        """Store what follows for executions; what another writer changed is examined again."""
        if not some:
            return
        reads = await self._log.load_each(*(proposal.scope for proposal in some))
        writes: list[Append] = []
        for proposal, facts in zip(some, reads.facts, strict=True):
            events = self._decided(proposal, facts, candidates, now)
            if events:
                writes.append(Append(tuple(events), facts[-1].sequence))
            elif not execution.fold(facts).is_held:  # it is over, and may be archived
                self.proposals.forget(proposal.scope)
        for result in await self._log.write(writes) if writes else []:
            if result.error is not None and not isinstance(result.error, OutdatedState | LogUnavailable):
                raise result.error

    def _decided(
        self,
        proposal: Proposal,
        facts: Sequence[Recorded[Message]],
        candidates: dict[Work, list[str]],
        now: datetime,
    ) -> Sequence[ExecutionFact]:
        state, known = execution.fold(facts), proposal.quorum.proposal
        if state.quorum.proposal is not None and (known is None or known.sequence != state.quorum.proposal.sequence):
            return ()  # what was heard belongs to an earlier proposal, and `follow` receives the newest soon
        is_late = proposal.is_late(now)
        if (known is None or is_late) and proposal.work not in candidates:
            candidates[proposal.work] = self._candidates(proposal.work)
        agents = candidates.get(proposal.work, [])
        return execution.gather(state, proposal.heard, agents, is_late=is_late, is_surplus=proposal.is_surplus)

    def _candidates(self, work: Work) -> list[str]:
        """Return the agents that a proposal names: those that may run a step.

        The names take turns, so that many processes of a name crowd out no other.
        """
        of_name: Counter[str] = Counter()
        ranked: list[tuple[int, str, str]] = []
        for entry in sorted(self._roster, key=lambda entry: entry.agent_id):
            fact = entry.state.registered
            if fact is not None and self._may_run(entry, work, fact.queues, fact.functions):
                ranked.append((of_name[entry.name], entry.name, entry.agent_id))
                of_name[entry.name] += 1
        return [agent_key(name, agent_id) for _, name, agent_id in sorted(ranked)[:MAX_PROPOSED_TO]]

    def _may_run(self, entry: Entry, work: Work, queues: Collection[str], functions: Collection[str]) -> bool:
        """Return whether an agent with some functions is enabled and may run a step."""
        state, granted = entry.state, self._roster.granted(entry.name)
        if not state.is_live or state.state(enabled=self._roster.is_enabled(entry.name)) is not AgentState.ENABLED:
            return False
        return any(
            queue in queues
            and function in functions
            and (not self._requires_grant if granted is None else may_get(granted.grants, queue, function))
            for queue, function in work
        )

    async def _send(self, agent: str, sequences: Sequence[int]) -> None:
        """Send proposals to an agent, in a command that repeats its mode."""
        name, _, agent_id = agent.partition(".")
        entry = self._roster.find(name, agent_id)
        if entry is None or not entry.state.is_live:
            return
        mode = entry.state.mode(enabled=self._roster.is_enabled(name))
        command = Command(mode=mode, layout=LAYOUT, proposals=tuple(sequences))
        await self._channel.command(name, agent_id, command.model_dump_json(exclude_defaults=True).encode())
