"""Tasks that this worker cannot run: they have no handler, or are unreadable."""

import pytest

from tests.domain.given import ID, JOB
from tests.worker.given import FUNCTION, Bench, Watched
from tocsin.domain.events import Failure, Message
from tocsin.worker.executor import DELIVERIES_TO_FIND_A_HANDLER
from tocsin.worker.held_tasks import HeldTask


async def delivered(bench: Bench, times: int) -> Watched:
    watched = await bench.delivery()
    for _ in range(times - 1):
        watched = await bench.again(watched)
    return watched


@pytest.mark.parametrize(("times", "delay"), [(1, 0.1), (2, 0.2), (3, 0.4), (4, 0.8)])
async def test_task_without_handler_is_handed_back(bench: Bench, times: int, delay: float) -> None:
    await bench.given_task()
    watched = await delivered(bench, times)
    await bench.executor.run(HeldTask(watched))
    assert watched.settled == ("nak", delay)
    assert await bench.claims() == []


async def test_missing_handler_fails_with_a_suggestion(bench: Bench) -> None:
    bench.handlers.add("hanzo/iam/credit-reconciler", lambda _: None)
    await bench.given_task()
    watched = await delivered(bench, DELIVERIES_TO_FIND_A_HANDLER)
    await bench.executor.run(HeldTask(watched))
    report = await bench.report()
    assert report.error is not None
    message = report.error.message
    assert report.error == Failure(type="handler_not_found", message=message, retryable=False)
    assert f"queue 'default' has a handler for '{FUNCTION}'" in message
    assert message.endswith("did you mean 'hanzo/iam/credit-reconciler'?")
    assert [fact.delivery for _, fact in await bench.claims()] == [DELIVERIES_TO_FIND_A_HANDLER]
    assert watched.settled == ("ack", 0)


@pytest.mark.parametrize(
    ("known", "text"),
    [
        ([], "it has nothing"),
        (["a", "b"], "it has 'a', 'b'"),
        ([str(n) for n in range(12)], "'8', '9' and 2 more"),
    ],
)
async def test_missing_handler_lists_the_known_handlers(bench: Bench, known: list[str], text: str) -> None:
    for name in known:
        bench.handlers.add(name, lambda _: None)
    await bench.given_task()
    await bench.executor.run(HeldTask(await delivered(bench, DELIVERIES_TO_FIND_A_HANDLER)))
    error = (await bench.report()).error
    assert error is not None
    assert error.message.endswith(text)


class FromTheFuture(Message):
    """A task of an unknown version."""

    v: int = 99


async def test_unreadable_task_is_handed_back(bench: Bench) -> None:
    await bench.log.publish(f"execution.{JOB}.{ID}.dispatched.main.1", FromTheFuture(), message_id="future")
    watched = await bench.delivery()
    await bench.executor.run(HeldTask(watched))
    assert watched.settled == ("nak", 30.0)
    assert await bench.reports() == []
