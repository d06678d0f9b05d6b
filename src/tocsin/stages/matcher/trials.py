"""Limits on tasks for agents that have proved nothing yet, or that give tasks back.

A hold list costs its sender nothing. A worker account may invent processes that do not listen, or that give back or
ignore each task. Each such task costs the log a claim and its release, and its execution waits meanwhile. So a process gets tasks freely only up to
the number that it held or answered. Each task beyond that takes a token of its name, and of all names without an account of their
own. The token comes back as soon as a hold list shows the task, or the task is over; it is lost if the claim is released. A process
that dies while it holds tasks costs no token, so that a fleet may be replaced at once.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from ...domain.agent import name_of
from ...domain.open_task import OpenTask, StepKey
from ...domain.task_board import NO_AGENT, AgentClaim, TaskBoard
from ...domain.token_bucket import TokenBucket
from .agents import HeardAgents
from .claims import StoredClaim

OF_NAME: Final = TokenBucket(limit=1, per=5.0, burst=2_000)
"""Tasks on trial of one name: enough for a hundred processes that begin with twenty tasks each."""
SHARED: Final = TokenBucket(limit=2, per=1.0, burst=20_000)
"""Those of all names without an account of their own together."""
MAX_KNOWN: Final = 10_000
"""Processes and names of which something is remembered."""
_ALL: Final = ""
"""In place of a name: all names without an account of their own."""


class Trials:
    """Proofs of agents, and the tokens of their names."""

    def __init__(
        self, board: TaskBoard, agents: HeardAgents, reserved: Collection[str], monotonic: Callable[[], float]
    ) -> None:
        """`reserved`: the names of agents with an account of their own."""
        self._board = board
        self._agents = agents
        self._reserved = frozenset(reserved)
        self._monotonic = monotonic
        self._used_until: dict[str, float] = {}
        self._left: dict[str, int] = {}
        """The tokens of names in this turn, so that thousands of agents cost little."""
        self._proved: Counter[str] = Counter()
        """The tasks that each agent held or answered, without those that it gave back."""
        self._most = MAX_KNOWN
        """The number of agents with such tasks after which unknown agents are forgotten."""

    def learn(self) -> None:
        """Count the claims that are over since the last call; a turn begins."""
        self._left.clear()
        for claim, was_released in self._board.take_over():
            if claim.agent == NO_AGENT:
                continue
            if was_released:
                self._note_return(claim)
            else:
                self.prove(claim)
        self._prune()  # also while another matcher leads

    def prove(self, claim: AgentClaim) -> None:
        """Note that an agent holds a task, or that the task is over."""
        if claim.is_proved:
            return
        claim.is_proved = True
        self._proved[claim.agent] += 1
        if claim.is_trial:
            claim.is_trial = False
            self._give_back(claim.agent)

    def _note_return(self, claim: AgentClaim) -> None:
        if claim.is_proved:
            self._proved[claim.agent] = max(self._proved[claim.agent] - 1, 0)
        if not claim.is_trial:
            self._take(claim.agent)

    def slots(self, agent: str, free: int) -> tuple[int, bool]:
        """Return the free slots that an agent may offer, and whether others come first.

        Others do if it has proved nothing, and its name has lost half of its tokens.
        """
        proved = max(self._proved[agent] - self._board.used_slots(agent), 0)
        if free <= proved:
            return free, False
        tokens = self._tokens(agent)
        return min(free, proved + tokens), not proved and 2 * tokens < OF_NAME.burst

    def admit(self, assignments: Sequence[tuple[OpenTask, str]]) -> tuple[list[tuple[OpenTask, str]], set[StepKey]]:
        """Take a token for each task on trial.

        Return the tasks to claim, and the keys of those on trial. Tasks without a token are open again.
        """
        admitted, refused, trials = list[tuple[OpenTask, str]](), list[OpenTask](), set[StepKey]()
        chosen: Counter[str] = Counter()
        for task, agent in assignments:
            if self._proved[agent] <= self._board.used_slots(agent) + chosen[agent]:
                if not self._tokens(agent):
                    refused.append(task)
                    continue
                self._take(agent)
                trials.add(task.key)
            chosen[agent] += 1
            admitted.append((task, agent))
        for task in reversed(refused):
            self._board.put_back(task)
        return admitted, trials

    def begin(self, admitted: Iterable[tuple[OpenTask, str]], trials: set[StepKey], stored: list[StoredClaim]) -> None:
        """Mark the stored claims that are on trial, and give the other tokens back."""
        claims = {claim.task.key: claim for _, claim in stored}
        for task, agent in admitted:
            if task.key in trials:
                claim = claims.get(task.key)
                if claim is None or claim.is_proved:
                    self._give_back(agent)
                else:
                    claim.is_trial = True

    def _prune(self) -> None:
        """Forget agents that the matcher does not know any more, and full buckets."""
        if len(self._proved) > self._most:
            known = ((agent, number) for agent, number in self._proved.items() if self._agents.get(agent) is not None)
            self._proved = Counter(dict(known))
            self._most = max(MAX_KNOWN, 2 * len(self._proved))
        if len(self._used_until) > MAX_KNOWN:
            now = self._monotonic()
            self._used_until = {name: until for name, until in self._used_until.items() if until > now}

    def _tokens(self, agent: str) -> int:
        name = name_of(agent)
        own = self._left_of(name, OF_NAME)
        return own if name in self._reserved else min(own, self._left_of(_ALL, SHARED))

    def _left_of(self, account: str, bucket: TokenBucket) -> int:
        left = self._left.get(account)
        if left is None:
            until = self._used_until.get(account)
            left = bucket.burst if until is None else bucket.available(until, self._monotonic())
            self._left[account] = left
        return left

    def _take(self, agent: str) -> None:
        self._move(name_of(agent), 1)

    def _give_back(self, agent: str) -> None:
        self._move(name_of(agent), -1)

    def _move(self, name: str, number: int) -> None:
        """Take tokens.

        A bucket owes none, so that a new process waits for a limited time.
        """
        now = self._monotonic()
        self._left.clear()
        accounts = [(name, OF_NAME)] if name in self._reserved else [(name, OF_NAME), (_ALL, SHARED)]
        for account, bucket in accounts:
            until = bucket.used(self._used_until.get(account, float("-inf")), now, number)
            self._used_until[account] = bucket.credible(until, now)
