"""Executors that take tasks under leases, as the Open Job Spec gateway does."""

from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final

from tests.domain.given import KEY
from tocsin import subjects
from tocsin.domain.events import Failure, Started
from tocsin.domain.task_fetch import Lease
from tocsin.ports import EventLog, LogUnavailable, OutdatedState
from tocsin.services.operations import lookup, task_fetches, worker_answers
from tocsin.services.operations.errors import MatcherUnavailable, OperationError
from tocsin.services.operations.lookup import ExecutionMatch
from tocsin.services.operations.task_fetches import Held, Holder, TaskFetches

from .agents import SimulatedChannel
from .process import Process, ProcessClock
from .workload import OUTSIDE, Run

LEASE: Final = 2.5
BEAT: Final = 1.0
TRIES: Final = 8
SILENT: Final = 0.2
"""The share that gives no sign of life, and answers about when its lease is over."""


@dataclass(slots=True)
class Outside:
    """The actions of all executors outside, for the judgement."""

    seed: int
    runs: list[Run]
    queues: tuple[str, ...] = (OUTSIDE,)
    """The queues whose tasks they fetch."""
    accepted: list[Started] = field(default_factory=list)
    """The claims whose success was taken."""
    fetched: list[int] = field(default_factory=list)
    """The sequences of the claims that executors received."""


class OutsideExecutor:
    """A gateway process and its workers: some work, some fail, some hand back, some vanish."""

    def __init__(self, told: Outside, log: EventLog, channel: SimulatedChannel, process: Process) -> None:
        """Start it."""
        self._told = told
        self._log = log
        self._process = process
        self._clock = ProcessClock(process)
        noise = Random(f"{told.seed}/{process.name}/noise")
        self._fetches = TaskFetches(log, channel, self._clock, lambda: f"{noise.getrandbits(128):x}")
        process.spawn("outside", self._run)

    def stop(self) -> None:
        """In good order: take nothing more."""

    async def _run(self) -> None:
        holder, lease = Holder("outside", self._process.name), Lease(LEASE)
        async with self._fetches.running():
            while not self._process.is_stopping:
                try:
                    held = await self._fetches.take(
                        self._told.queues, functions=("*",), limit=2, holder=holder, lease=lease, wait=1.0
                    )
                except (LogUnavailable, MatcherUnavailable):
                    await self._process.wait(0.3)
                    continue
                for one in held:
                    self._told.fetched.append(one.claim.sequence)
                    self._process.spawn("a job", partial(self._work, one))

    async def _work(self, held: Held) -> None:
        claim = held.claim.message
        self._told.runs.append((claim.execution_id, claim.step, claim.attempt, claim.delivery, claim.worker))
        chance = Random(f"{self._told.seed}/{claim.execution_id}/{claim.step}/{held.claim.sequence}")
        draw, left = chance.random(), chance.choice((0.1, 0.6, 3.0, 5.0, 9.0))
        if chance.random() < SILENT:
            await self._process.wait(chance.uniform(LEASE - 0.3, LEASE + 0.3))
        else:
            await self._live(held, left)
        if draw < 0.15:
            return  # never heard of again
        for _ in range(TRIES):
            try:
                mine = await self._mine(held)
                if mine is None:
                    return
                if draw < 0.3:
                    await task_fetches.hand_back(self._log, mine)
                elif draw < 0.5:
                    await worker_answers.fail(self._log, mine, Failure(type="error", message="again, please"), key=KEY)
                else:
                    await worker_answers.complete(self._log, mine, "done", key=KEY)
                    self._told.accepted.append(mine.claim.message)
            except (LogUnavailable, OutdatedState):
                await self._process.wait(0.3)
            except OperationError:  # another worker got the task meanwhile
                return
            else:
                return

    async def _live(self, held: Held, left: float) -> None:
        while left > 0:
            await self._process.wait(min(left, BEAT))
            left -= BEAT
            if left > 0:
                await self._beat(held)

    async def _beat(self, held: Held) -> None:
        try:
            mine = await self._mine(held)
            if mine is None:
                return
            await worker_answers.extend(self._log, mine, key=KEY)
        except (LogUnavailable, OutdatedState, OperationError):
            return

    async def _mine(self, held: Held) -> Held | None:
        """Return the tasks still held, by the newest events."""
        claim, found = held.claim.message, held.found
        for _ in range(TRIES):
            facts = await self._log.load(subjects.execution(claim.job, claim.execution_id))
            found = ExecutionMatch(held.found.job, claim.execution_id, tuple(facts) or found.facts)
            try:
                mine = task_fetches.held_of(found, step=claim.step, holder=Holder("outside", claim.worker))
            except OperationError:
                return None
            if mine is not None and mine.claim.sequence == held.claim.sequence:
                return mine
            if await lookup.is_newest(self._log, found):
                return None
        return None
