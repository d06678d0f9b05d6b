"""Acknowledgements of agents: proposes executions of `QUORUM_REQUIRED` jobs, and stores what agents answer.

A proposal is an event that names the agents. Each of them hears of it in a command, and its next hold list names the sequence of the
proposal. So an answer is authenticated as every hold list is, and needs no subject of its own. A lost command or answer is
repeated after two seconds.

The executions that wait are in the fold. Only the leader acts. Two that act are harmless, because every append is guarded by the state of the
execution.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, TypeAlias

from ... import subjects, telemetry
from ...domain import execution
from ...domain.agent import MAX_PROPOSALS, AgentState, Command, HoldList, agent_key
from ...domain.agent_grants import may_get
from ...domain.definition import MAX_PROPOSED_TO
from ...domain.duration import MAX_DURATION_S
from ...domain.events import Proposed, Recorded
from ...domain.execution import Execution
from ...domain.lock import most_waiting
from ...engine.broken_keys import BrokenKey
from ...engine.fold import Fold
from ...engine.kinds import EXECUTION
from ...engine.leader_election import LeaderElection
from ...engine.saved_place import SavedPlace
from ...engine.stage import attempted
from ...ports import AgentChannel, Append, Clock, EventLog, LogUnavailable, OutdatedState, Projections
from ...subjects import LAYOUT, Stream
from .roster import Entry, Roster

INTERVAL_S: Final = 0.2
"""Time between two looks at the executions that wait."""
REPEAT: Final = timedelta(seconds=2)
"""The time after which a proposal is sent again to an agent that has not answered."""
DECIDED_TOGETHER: Final = 64
"""Executions that are decided in one write."""
CURSOR: Final = subjects.cursor(Stream.LOG, subjects.ACKNOWLEDGEMENTS)
DUE_NOW: Final = datetime.min.replace(tzinfo=UTC)
"""The time of an examination that is due now."""

Work: TypeAlias = frozenset[tuple[str, str]]
"""Queue and function of each step."""

_log = telemetry.get_logger("tocsin.agent-keeper")


@dataclass(slots=True)
class AgentAnswers:
    """The answers to a proposal, as this process heard them since it leads."""

    scope: str
    late_at: datetime
    """The time (UTC) until which the proposal waits, from the moment at which this process first sends it: no time without a leader counts."""
    heard: set[str] = field(default_factory=set)
    """The agents that acknowledged it."""
    due: datetime = DUE_NOW
    """When it is examined and sent next (UTC)."""


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
        fold: Callable[[], Fold],
        *,
        requires_grant: bool = False,
    ) -> None:
        """`requires_grant`: agents of a name without a grant get no tasks and no proposals."""
        self._log = log
        self._channel = channel
        self._leadership = leadership
        self._clock = clock
        self._roster = roster
        self._fold = fold
        self._requires_grant = requires_grant
        self._place = SavedPlace(projections, clock, CURSOR)
        self._answers: dict[int, AgentAnswers] = {}
        """By the sequence of the proposal, the newest of its execution."""

    def hear(self, entry: Entry, hold_list: HoldList) -> None:
        """Take the acknowledgements of a hold list, if the agent may run a step."""
        if hold_list.mode != "enabled" or hold_list.ended:
            return
        agent = agent_key(entry.name, entry.agent_id)
        for sequence in set(hold_list.acknowledged):  # an agent may repeat one at will
            answers = self._answers.get(sequence)
            state = None if answers is None or agent in answers.heard else self._state(answers.scope)
            if answers is None or state is None or agent not in state.quorum.unheard():
                continue
            if self._may_run(entry, _work(state), hold_list.queues, hold_list.functions):
                answers.heard.add(agent)
                answers.due = DUE_NOW

    async def run(self) -> None:
        """Gather acknowledgements, as long as this process leads."""
        while True:
            await self._clock.sleep(INTERVAL_S)
            now = await self._leadership.time()
            if now is None:
                self._answers.clear()
            elif self._roster.is_complete:
                await attempted(partial(self.run_once, now), _log, "proposals not examined; retrying")

    async def run_once(self, now: datetime) -> None:
        """Examine every execution that is due at `now` (UTC)."""
        upto = await self._log.end(Stream.LOG)
        decided, sent = self._examine(now, upto)
        for place in range(0, len(decided), DECIDED_TOGETHER):
            for result in await self._log.write(decided[place : place + DECIDED_TOGETHER]):
                if result.error is not None and not isinstance(result.error, OutdatedState | LogUnavailable):
                    raise result.error
        for agent, sequences in sent.items():
            await self._send(agent, sequences[:MAX_PROPOSALS])
        await self._place.save(self._oldest, upto)

    def _examine(self, now: datetime, upto: int) -> tuple[list[Append], dict[str, list[int]]]:
        """Return what is decided now, and the proposals to send to each agent.

        Nothing is sent of an event that is not stored: `upto` is the number of the newest stored event.
        """
        fold, before, self._answers = self._fold(), self._answers, {}
        candidates: dict[Work, list[str]] = {}
        decided, sent = list[Append](), defaultdict[str, list[int]](list)
        places = {scope: place for scopes in fold.held.values() for place, scope in enumerate(scopes)}
        for scope in fold.proposed:
            if (state := self._state(scope)) is None:
                continue
            newest, heard, is_late = state.quorum.proposal, set[str](), False
            if newest is not None:
                if newest.sequence > upto:
                    continue
                answers = before.get(newest.sequence) or AgentAnswers(scope, _late_at(newest, state, now))
                self._answers[newest.sequence] = answers
                if answers.due > now:
                    continue
                heard, is_late, answers.due = answers.heard, answers.late_at <= now, now + REPEAT
                for agent in state.quorum.unheard():
                    sent[agent].append(newest.sequence)
            work = _work(state)
            if (newest is None or is_late) and work not in candidates:
                candidates[work] = self._candidates(work)
            is_surplus = newest is None and places[scope] >= most_waiting(state.request)
            named = candidates.get(work, [])
            if events := execution.gather(state, heard, named, is_late=is_late, is_surplus=is_surplus):
                decided.append(Append(tuple(events), fold.numbers[scope]))
        return decided, sent

    def _state(self, scope: str) -> Execution | None:
        """Return an execution; None: one of its events cannot be applied."""
        try:
            return self._fold().state(EXECUTION, scope)
        except BrokenKey:
            return None

    def _oldest(self) -> int | None:
        """Return the number of the first event of the oldest execution that waits."""
        fold = self._fold()
        return min((fold.events[scope][0].sequence for scope in fold.proposed), default=None)

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


def _late_at(newest: Recorded[Proposed], state: Execution, now: datetime) -> datetime:
    rule = state.request.plan.quorum
    timeout = MAX_DURATION_S if rule is None else min(rule.timeout, MAX_DURATION_S)
    return max(now, newest.time) + timedelta(seconds=timeout)  # `now` is an estimate, and may be before the event


def _work(state: Execution) -> Work:
    return frozenset((step.queue, step.function) for step in state.request.plan.steps)
