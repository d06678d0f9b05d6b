"""Requests of nats-py that are cancelled at the moment of their answer."""

import asyncio

import pytest

from tocsin.adapters.nats.client import cancellations
from tocsin.adapters.nats.client.cancellations import WAITING, keep_cancellations


async def _cancelled_with_its_answer(wait_for: object) -> bool:
    """Return whether a task ends that is cancelled in the moment in which its answer is there."""
    answer = asyncio.get_running_loop().create_future()

    async def request() -> None:
        await wait_for(answer, 10.0)  # type: ignore[operator]
        await asyncio.Event().wait()

    task = asyncio.create_task(request())
    await asyncio.sleep(0)
    answer.set_result("answer")
    await asyncio.sleep(0)  # the answer is on its way to the task
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=0.2)
    task.cancel()
    return task in done


@pytest.mark.parametrize("module", WAITING, ids=lambda module: module.__name__)
async def test_cancellation_with_an_answer_is_kept(module: object) -> None:
    keep_cancellations()
    assert await _cancelled_with_its_answer(module.asyncio.wait_for)  # type: ignore[attr-defined]


@pytest.mark.skipif(not cancellations.IS_NEEDED, reason="this Python keeps cancellations")
async def test_python_itself_still_loses_one() -> None:
    assert not await _cancelled_with_its_answer(asyncio.wait_for)


async def test_waits_still_end_in_time() -> None:
    keep_cancellations()
    with pytest.raises(TimeoutError):
        await cancellations.client.asyncio.wait_for(asyncio.Event().wait(), 0.01)  # type: ignore[attr-defined]
    with pytest.raises(TimeoutError):
        await cancellations.client.asyncio.wait_for(asyncio.get_running_loop().create_future(), 0)  # type: ignore[attr-defined]
