"""Tasks that this worker cannot run: they have no handler, or are unreadable."""

import pytest

from tests.domain.given import ID, JOB
from tests.worker.given import FUNCTION, WORKER, Bench, Watched
from tocsin import subjects
from tocsin.domain import execution
from tocsin.domain.events import Failure, Message
from tocsin.ports import Delivery
from tocsin.worker.executor import DELIVERIES_PER_LOOK
from tocsin.worker.held_tasks import HeldTask
from tocsin.worker.outcome import LONGEST_RETRY_DELAY_S

HOURS = 5_000
"""Deliveries of a task that waits for hours."""


async def delivered(bench: Bench, times: int) -> Watched:
    watched = await bench.delivery()
    for _ in range(times - 1):
        watched = await bench.again(watched)
    return watched


async def handed_back(bench: Bench, watched: Watched) -> float:
    """Run a delivery that is handed back; return its delay."""
    await bench.executor.run(HeldTask(watched))
    assert watched.settled is not None
    verb, delay = watched.settled
    assert verb == "nak"
    return delay


@pytest.mark.parametrize(("times", "delay"), [(1, 0.1), (2, 0.2), (3, 0.4), (7, 5.0), (8, 5.0), (HOURS, 5.0)])
async def test_task_without_handler_is_handed_back(bench: Bench, times: int, delay: float) -> None:
    await bench.given_task()
    assert delay / 2 <= await handed_back(bench, await delivered(bench, times)) <= delay
    assert await bench.claims() == []
    assert await bench.reports() == []


async def test_delays_are_spread(bench: Bench) -> None:
    await bench.given_tasks({f"s{n}": () for n in range(20)})
    delays = {await handed_back(bench, await bench.delivery()) for _ in range(20)}
    assert len(delays) > 1
    assert max(delays) <= LONGEST_RETRY_DELAY_S


async def test_worker_with_the_handler_runs_the_first_attempt(bench: Bench) -> None:
    await bench.given_task()
    watched = await delivered(bench, HOURS)
    await handed_back(bench, watched)
    bench.clock.advance(LONGEST_RETRY_DELAY_S)
    attempts: list[int] = []
    bench.handlers.add(FUNCTION, lambda context: attempts.append(context.attempt))
    await bench.executor.run(HeldTask(await bench.delivery()))
    assert attempts == [1]
    assert (await bench.report()).outcome == "completed"


async def test_task_of_an_ended_execution_is_dropped(bench: Bench) -> None:
    task = await bench.given_task()
    watched = await delivered(bench, DELIVERIES_PER_LOOK)
    state = execution.fold(await bench.log.load(subjects.scope_of(task)))
    await bench.given(*execution.give_up(state, reason="timed_out", error=Failure(type="timed_out")))
    await bench.executor.run(HeldTask(watched))
    assert watched.settled == ("ack", 0.0)


async def test_task_that_another_worker_holds_is_left(bench: Bench) -> None:
    task = await bench.given_task()
    watched = await delivered(bench, DELIVERIES_PER_LOOK)
    state = execution.fold(await bench.log.load(subjects.scope_of(task)))
    later = DELIVERIES_PER_LOOK + 1
    claim = execution.claim(
        state, step="main", attempt=1, delivery=later, task=watched.sequence, worker=f"not {WORKER}"
    )
    assert not isinstance(claim, execution.ClaimDenied)
    await bench.given(claim)
    await bench.executor.run(HeldTask(watched))
    assert watched.settled is None


async def test_task_that_was_answered_is_dropped(bench: Bench) -> None:
    bench.handlers.add(FUNCTION, lambda _: None)
    await bench.given_task()
    unheard = await bench.delivery(deaf=True)
    await bench.executor.run(HeldTask(unheard))
    other = Bench(bench.log, bench.clock)  # it has no handler
    watched: Delivery = unheard
    for _ in range(DELIVERIES_PER_LOOK - 1):
        watched = await bench.again(watched)
    assert isinstance(watched, Watched)
    await other.executor.run(HeldTask(watched))
    assert watched.settled == ("ack", 0.0)


class FromTheFuture(Message):
    """A task of an unknown version."""

    v: int = 99


async def test_unreadable_task_is_handed_back(bench: Bench) -> None:
    await bench.log.publish(f"execution.{JOB}.{ID}.dispatched.main.1", FromTheFuture(), message_id="future")
    watched = await bench.delivery()
    await bench.executor.run(HeldTask(watched))
    assert watched.settled == ("nak", 30.0)
    assert await bench.reports() == []
