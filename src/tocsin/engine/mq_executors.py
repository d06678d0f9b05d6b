"""The executors of hip-62's queue that the MQ bridge hears, by name."""

from dataclasses import dataclass

from ..domain.execution import Execution
from ..domain.mq_answer import Answer
from ..ports import Clock, Projections
from .outside_workers import INTERVAL_S, OutsideName, OutsideWorkers


@dataclass(frozen=True, slots=True)
class Heard:
    """Signal: an executor answered for a task."""

    executor: str
    queue: str
    function: str


def heard(answer: Answer, state: Execution, step: str) -> tuple[Heard, ...]:
    """Return the signal of an answer; none if its executor names itself in no way."""
    if answer.executor is None:
        return ()
    return tuple(
        Heard(answer.executor, planned.queue, planned.function)
        for planned in state.request.plan.steps
        if planned.name == step
    )


class MqExecutors:
    """Shows the executors by the answers that were believed."""

    def __init__(self, projections: Projections, clock: Clock) -> None:
        self._workers = OutsideWorkers("mq", projections, clock)
        self._clock = clock

    def take(self, signal: object) -> None:
        """Note the executor of a signal."""
        if isinstance(signal, Heard):
            self._workers.hear(OutsideName("", signal.executor), (signal.queue,), (signal.function,))

    async def run(self) -> None:
        """Show the executors in a loop."""
        while True:
            await self._clock.sleep(INTERVAL_S)
            await self._workers.show()
