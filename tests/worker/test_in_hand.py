"""A task that comes again to the worker that is at it."""

from tests.worker.given import FUNCTION, Bench
from tocsin.worker.task_pool import _is_in_hand


async def test_a_task_that_is_in_hand_is_not_started_a_second_time() -> None:
    bench = Bench()
    bench.handlers.add(FUNCTION, lambda _: None)
    await bench.given_task()
    first = await bench.delivery(deaf=True)
    again = await bench.again(first)
    assert not _is_in_hand(first, set())
    assert _is_in_hand(again, {first.subject})
