"""A world in which workers vanish, and tasks are lost."""

from dataclasses import replace
from typing import Any, Final

from tests.domain.given import KEY, proven
from tests.stages.world import World
from tocsin import subjects
from tocsin.domain import ids
from tocsin.domain.events import Dispatched, Message, Report, Started, validated
from tocsin.domain.recovery import Policy
from tocsin.engine.stage import BoundStage
from tocsin.engine.step import DONE

MINUTE: Final = 60.0
SILENCE: Final = 30 + Policy().grace.total_seconds() + 1
"""Seconds after which an attempt of `JOB` has failed that reports nothing."""
LOSS: Final = Policy().threshold.total_seconds() + 1
"""Seconds after which an execution is recovered after which nothing follows."""
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
    """A world with a worker that takes tasks."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._taken: set[tuple[str, str, int]] = set()
        self.stages = (
            *(world.planner, world.lock_keeper, world.dag_advancer),
            *(world.retrier, world.dead_letter_sink, world.recoverer),
        )
        idle = tuple(replace(each, decide=lambda *_: DONE) for each in world.dag_advancer.subscriptions)
        self._defective: BoundStage = replace(world.dag_advancer, subscriptions=idle, deadlines=())

    async def begin(self, message_id: str = "m") -> None:
        """Trigger a run, and let the stages handle it."""
        await self.world.trigger("nightly", message_id)
        await self.world.run(*self.stages)

    async def begin_and_lose(self, message_id: str = "m") -> None:
        """Trigger a run of a graph whose admission a defective DAG advancer takes without effect."""
        await self.world.trigger("nightly", message_id)
        await self.world.run(self.world.planner, self.world.lock_keeper)
        await self.lose()

    async def lose(self) -> None:
        """Let a defective DAG advancer take what has come."""
        await self.world.run(self._defective)
        self.world.clock.advance(1.5)  # its position is stored without an event
        await self.world.run(self._defective)

    async def passes(self, seconds: float) -> None:
        """Let time pass, and the stages decide."""
        self.world.clock.advance(seconds)
        await self.world.run(*self.stages)

    async def passes_in_vain(self, seconds: float) -> None:
        """Let time pass, and the execution be recovered and lost again."""
        self.world.clock.advance(seconds)
        await self.world.run(*(stage for stage in self.stages if stage is not self.world.dag_advancer))
        await self.lose()

    async def claim(self) -> Dispatched:
        """A worker takes the oldest task that none has, and vanishes."""
        for task in await self.world.stored(Dispatched):
            attempt = task.execution_id, task.step, task.attempt
            if attempt not in self._taken:
                self._taken.add(attempt)
                await self.world.given(started(task))
                return task
        raise AssertionError("no task is open")

    async def report(self, task: Dispatched, outcome: str = "completed") -> None:
        """The worker of a task reports."""
        [claim] = [r for r in await self.world.recorded(Started) if r.message == started(task)]
        fields = {"job": task.job, "execution_id": task.execution_id, "step": task.step, "attempt": task.attempt}
        token = ids.report_token(KEY, task.execution_id, task.step, task.attempt)
        answer = {**fields, "outcome": outcome, "delivery": 1, "token": token, "claim": claim.sequence}
        report = proven(validated(Report, answer))
        await self.world.log.publish(
            subjects.subject_of(report), report, message_id=f"{task.execution_id}-{claim.sequence}"
        )
        await self.world.run(*self.stages)

    async def only(self, kind: type[Message]) -> Any:  # noqa: ANN401 - of that kind
        [fact] = await self.world.stored(kind)
        return fact


def started(task: Dispatched) -> Started:
    return Started(
        job=task.job, execution_id=task.execution_id, step=task.step, attempt=task.attempt, delivery=1, worker="w"
    )
