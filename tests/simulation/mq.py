"""Executors that know only hip-62's subjects.

They take envelopes from a work queue, and answer on the completion subjects.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from typing import Final
from uuid import UUID

from tocsin import subjects
from tocsin.domain.events import Completion, Dispatched, Envelope, EnvelopeData
from tocsin.ports import DurableSpec, LogUnavailable
from tocsin.subjects import Stream

from .network import at_once
from .ports import Intake, SimulatedDelivery, SimulatedLog
from .process import Process
from .server import SimulatedServer
from .workload import BRIDGED

SPEC: Final = DurableSpec("mq-executors", Stream.MQ, ("mq.scheduled.>",), 4.0)
BEGINNING, LOST, FAILING, TWICE, FORGED, STRAY = 0.3, 0.12, 0.25, 0.3, 0.1, 0.1
"""Shares of tasks whose beginning is reported, without an answer, with a failure, with two answers; and of answers preceded by an answer with a forged token, or by an
answer about an unknown task.
"""


@dataclass(slots=True)
class Answer:
    """The answer to a task, and the time since which it is known to be stored (UTC)."""

    task: EnvelopeData
    answer: Completion
    at: datetime | None = None


@dataclass(slots=True)
class Handed:
    """The tasks and answers of all these executors, for the judgement. Forged and stray answers are left out."""

    seed: int
    taken: list[EnvelopeData] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)


class MqExecutor:
    """One process of them."""

    def __init__(
        self, told: Handed, server: SimulatedServer, log: SimulatedLog, intake: Intake, process: Process
    ) -> None:
        """Start it."""
        self._told = told
        self._server = server
        self._log = log
        self._intake = intake
        self._process = process
        process.spawn("mq", self._run)

    def stop(self) -> None:
        """In good order: take nothing more."""

    async def _run(self) -> None:
        while not self._process.is_stopping:
            for delivery in await self._intake.take(3, wait=None):
                self._process.spawn("a task", lambda delivery=delivery: self._work(delivery))  # type: ignore[misc]

    async def _work(self, delivery: SimulatedDelivery) -> None:
        envelope = subjects.decode(delivery.subject, delivery.body)
        if not isinstance(envelope, Envelope):
            raise TypeError(delivery.subject)
        task = envelope.data
        self._told.taken.append(task)
        chance = Random(f"{self._told.seed}/{envelope.id}/{delivery.sequence}/{delivery.delivered}")
        await self._process.wait(chance.choice((0.05, 0.5, 2.0)))
        if chance.random() < BEGINNING:
            await self._say(task, Completion(status="started", step=task.step, attempt=task.attempt))
        if chance.random() > LOST:
            if chance.random() < FORGED:
                await self._say(task, Completion(step=task.step, token="of my own"))
            if chance.random() < STRAY:
                await self._stray(chance)
            answer = _answer(task, chance)
            for _ in range(1 + (chance.random() < TWICE)):
                said = Answer(task, answer)
                self._told.answers.append(said)
                await self._say(task, answer)
                said.at = self._process.clock.now()
        try:
            await delivery.ack()
        except LogUnavailable:
            return  # it comes again, and is done again

    async def _say(self, about: EnvelopeData | Dispatched, answer: Completion) -> None:
        job = about.job_name if isinstance(about, EnvelopeData) else about.job
        subject = f"mq.scheduler.complete.{job}.{about.execution_id}"
        while True:
            try:
                await self._log.publish(subject, answer, message_id=f"{subject} {self._process.loop.time()}")
            except LogUnavailable:
                await self._process.wait(0.3)
            else:
                return

    async def _stray(self, chance: Random) -> None:
        """Answer for a task of another executor, or for an unknown task."""
        others = [task for task in self._others() if task.queue != BRIDGED]
        task = chance.choice(others) if others else None
        if task is not None:
            unknown_id = str(UUID(int=chance.getrandbits(128), version=4))
            some = task if chance.random() < 0.7 else task.changed(execution_id=unknown_id)
            await self._say(some, Completion(status="completed", step=task.step))

    def _others(self) -> Iterator[Dispatched]:
        tasks = [task for kind in subjects.filters_of(Dispatched) for task in at_once(self._server.read(kind))]
        for recorded in sorted(tasks, key=lambda task: task.sequence):
            if isinstance(recorded.message, Dispatched):
                yield recorded.message


def _answer(task: EnvelopeData, chance: Random) -> Completion:
    """Return a random part of the optional fields."""
    named = chance.choice(("all", "all", "attempt", "step"))
    return Completion(
        status=chance.choice(("failed", "error"))
        if chance.random() < FAILING
        else chance.choice(("completed", "ok", "COMPLETED")),
        step=task.step,
        attempt=None if named == "step" else task.attempt,
        token=task.token if named == "all" else None,
        result={"attempt": task.attempt},
    )
