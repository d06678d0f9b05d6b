"""A world that a recoverer follows, and executors who vanish."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

from tocsin.stages.recoverer.stage import RECOVERER, Recoverer

from tests.domain.given import KEY, proven
from tests.stages.world import World
from tocsin import subjects
from tocsin.domain import ids
from tocsin.domain.events import Dispatched, Message, Report, Started, validated
from tocsin.domain.recovery import Policy
from tocsin.engine.stage import BoundStage
from tocsin.subjects import Stream
from tocsin.testing import settle

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

GRAPH: Final[dict[str, Any]] = {
    **JOB,
    "function": None,
    "dag": [{"name": "main", "function": "f"}, {"name": "next", "function": "f", "depends_on": ["main"]}],
}
"""A job whose steps the DAG advancer dispatches."""


class Scene:
    """A world with a recoverer that follows it, and a worker that takes tasks."""

    def __init__(self, world: World, it: Recoverer) -> None:
        self.world = world
        self.it = it
        self._taken: set[tuple[str, str, int]] = set()
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
        """A worker takes the oldest task that none has, and vanishes."""
        for task in await self.world.stored(Dispatched):
            attempt = task.execution_id, task.step, task.attempt
            if attempt not in self._taken:
                self._taken.add(attempt)
                await self.world.given(started(task))
                return task
        raise AssertionError("no task is open")

    async def lose(self) -> None:
        """The DAG advancer acknowledges an admission, or its recovery, and stores nothing."""
        [delivery] = await self.world.durable(self.world.dag_advancer.subscriptions[0]).take(1, wait=0)
        await delivery.ack()

    async def passes_without_steps(self, seconds: float) -> None:
        """Let time pass as `passes` does, and let the DAG advancer lose what it is delivered."""
        await self.passes(seconds, *(stage for stage in self.stages if stage is not self.world.dag_advancer))

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
    report = validated(
        Report,
        {
            "job": task.job,
            "execution_id": task.execution_id,
            "outcome": outcome,
            "step": task.step,
            "attempt": task.attempt,
            "delivery": delivery,
            "token": ids.report_token(key, task.execution_id, task.step, task.attempt),
        },
    )
    return proven(report, key=key)


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


async def begin_and_lose(scene: Scene, message_id: str = "m") -> None:
    """Trigger a run of a graph whose admission the DAG advancer loses."""
    world = scene.world
    world.durable(world.dag_advancer.subscriptions[1])  # it has handled no report
    await world.trigger("nightly", message_id)
    await world.run(world.planner, world.lock_keeper)
    await scene.lose()


def lose_delay(scene: Scene) -> None:
    """Remove the only delay that is stored, as a server that loses its stream of timers."""
    log = scene.world.log
    [(_, (sequence, alarm))] = log._delays.items()
    alarm.cancel()
    log._streams[Stream.TIMERS].remove(sequence)
