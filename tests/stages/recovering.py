"""A world that a recoverer follows, and executors who vanish."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

from tests.domain.given import KEY
from tests.stages.world import World
from tocsin import subjects
from tocsin.domain import ids
from tocsin.domain.events import Dispatched, Message, Report, Started
from tocsin.domain.recovery import Policy
from tocsin.engine.stage import BoundStage
from tocsin.stages.recoverer.stage import RECOVERER, Recoverer
from tocsin.testing import InMemoryTaskQueue, settle

POLICY: Final = Policy(grace=timedelta(seconds=10))
MINUTE: Final = 60.0
HOUR: Final = 60 * MINUTE
JOB: Final[dict[str, Any]] = {
    "name": "nightly",
    "function": "f",
    "timeout": 30,
    "retry": {"max_attempts": 2, "initial_delay": 1, "jitter": 0},
    "dead_letter": True,
}


class Scene:
    """A world with a recoverer that follows it, and a worker that takes tasks."""

    def __init__(self, world: World, it: Recoverer) -> None:
        self.world = world
        self.it = it
        self.queue = InMemoryTaskQueue(world.log, "default")
        self.stages = (world.planner, world.lock_keeper, world.dag_advancer, world.retrier, world.dead_letter_sink)

    async def passes(self, seconds: float, *stages: BoundStage) -> None:
        """Let time pass, the recoverer look, and the stages handle what that brings; then the same again, at once."""
        await self.world.clock.run(seconds)
        for _ in range(2):
            await settle()
            with self.world.log.played_by(BoundStage("recoverer", access=RECOVERER.access)):
                await self.it.run_once(self.world.clock.now())
            await self.world.run(*(stages or self.stages))

    async def claim(self) -> Dispatched:
        """A worker takes a task and vanishes, and the task is not delivered to another worker."""
        [task] = await self.queue.take(1, wait=0)
        fact = subjects.decode(task.subject, task.body)
        assert isinstance(fact, Dispatched)
        await self.world.given(started(fact))
        await task.ack()
        return fact

    async def lose(self) -> None:
        """A task is acknowledged without a claim."""
        [task] = await self.queue.take(1, wait=0)
        await task.ack()

    async def only(self, kind: type[Message]) -> Any:  # noqa: ANN401 - of that kind
        [fact] = await self.world.stored(kind)
        return fact


def started(task: Dispatched, delivery: int = 1) -> Started:
    return Started(
        job=task.job,
        execution_id=task.execution_id,
        step=task.step,
        attempt=task.attempt,
        delivery=delivery,
        worker="w",
    )


def succeeded(task: Dispatched, delivery: int | None = 1, *, key: bytes = KEY, outcome: str = "completed") -> Report:
    return Report.model_validate(
        {
            "job": task.job,
            "execution_id": task.execution_id,
            "outcome": outcome,
            "step": task.step,
            "attempt": task.attempt,
            "delivery": delivery,
            "token": ids.report_token(key, task.execution_id, task.step, task.attempt),
        }
    )


async def store(world: World, report: Report) -> None:
    subject = subjects.subject_of(report)
    await world.log.publish(subject, report, message_id=subject)


@asynccontextmanager
async def recovering(
    world: World, policy: Policy = POLICY, *, outside: frozenset[str] = frozenset()
) -> AsyncIterator[Scene]:
    it = world.recoverer(policy, outside=outside)
    following = asyncio.create_task(it.open.follow())
    try:
        yield Scene(world, it)
    finally:
        following.cancel()


async def begin(scene: Scene, message_id: str = "m") -> None:
    """Trigger a run, and let the stages handle it."""
    await scene.world.trigger("nightly", message_id)
    await scene.world.run(*scene.stages)
