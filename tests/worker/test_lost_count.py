"""Deliveries that a crashed server counts from 1 again.

The server may forget that it delivered a task. A task that a worker claimed as delivery 1 then arrives as delivery 1 again, at the same worker or at another.
"""

import pytest

from tests.worker.given import FUNCTION, WORKER, Bench, Watched
from tocsin import subjects
from tocsin.domain.events import Started
from tocsin.worker.held_tasks import HeldTask


class FirstAgain(Watched):
    """A redelivery that the server counts as the first delivery."""

    @property
    def delivered(self) -> int:
        return 1


@pytest.fixture
def ran() -> list[int]:
    """Return the deliveries that a handler ran."""
    return []


@pytest.fixture
def bench(ran: list[int]) -> Bench:
    it = Bench()
    it.handlers.add(FUNCTION, lambda context: ran.append(context.delivery))
    return it


async def test_reported_task_is_not_run_again(bench: Bench, ran: list[int]) -> None:
    await bench.given_task()
    first = await bench.delivery(deaf=True)
    await bench.executor.run(HeldTask(first))
    again = FirstAgain(await bench.again(first))
    await bench.executor.run(HeldTask(again))
    assert ran == [1]
    assert again.settled == ("ack", 0)


async def test_task_with_unknown_holder_is_not_acknowledged(bench: Bench, ran: list[int]) -> None:
    task = await bench.given_task()
    first = await bench.delivery()
    fields = {"job": task.job, "execution_id": task.execution_id, "step": task.step, "attempt": task.attempt}
    await bench.given(Started.model_validate({**fields, "delivery": 1, "worker": "gone"}))
    again = FirstAgain(await bench.again(first))
    await bench.executor.run(HeldTask(again))
    assert again.settled != ("ack", 0)
    assert ran == []


async def test_late_worker_does_not_acknowledge_a_held_task(bench: Bench) -> None:
    """The server would count the acknowledgement for the newest delivery, whose holder may die."""
    task = await bench.given_task()
    late = await bench.delivery()
    fields = {"job": task.job, "execution_id": task.execution_id, "step": task.step, "attempt": task.attempt}
    await bench.given(Started.model_validate({**fields, "delivery": 2, "worker": "another"}))
    await bench.executor.run(HeldTask(late))
    assert late.settled is None


@pytest.mark.parametrize("is_newest", [True, False])
async def test_old_claim_has_no_known_predecessor(
    bench: Bench,
    is_newest: bool,  # noqa: FBT001 - pytest's
) -> None:
    """A reader of a wrong predecessor would miss the facts between."""
    main, other = await bench.given_tasks({"main": (), "other": ()})
    first = await bench.delivery()
    fields = {"job": main.job, "execution_id": main.execution_id, "attempt": 1, "delivery": 1}
    await bench.given(Started.model_validate({**fields, "step": "main", "worker": WORKER}))
    if not is_newest:
        await bench.given(Started.model_validate({**fields, "step": "other", "worker": "another"}))
    await bench.executor.run(HeldTask(FirstAgain(first)))
    before = (await bench.log.read(subjects.subject_of(other)))[0].sequence
    report = await bench.report()
    assert report.claimed_after == (before if is_newest else None)
