"""A server that crashed may forget that it delivered a task, and count its deliveries from 1 again (FACTS are in the claims).

What an executor claimed as delivery 1 then comes as delivery 1 once more: to itself, or to another.
"""

import pytest

from tests.worker.given import FUNCTION, WORKER, Bench, Watched
from tocsin import subjects
from tocsin.domain.events import Started
from tocsin.worker.held_tasks import HeldTask


class CountedAnew(Watched):
    """A delivery that the server takes for the first."""

    @property
    def delivered(self) -> int:
        return 1


@pytest.fixture
def ran() -> list[int]:
    """The deliveries that a handler ran."""
    return []


@pytest.fixture
def bench(ran: list[int]) -> Bench:
    it = Bench()
    it.handlers.add(FUNCTION, lambda context: ran.append(context.delivery))
    return it


async def test_what_was_reported_is_not_run_again(bench: Bench, ran: list[int]) -> None:
    await bench.given_task()
    first = await bench.delivery(deaf=True)
    await bench.executor.run(HeldTask(first))
    again = CountedAnew(await bench.again(first))
    await bench.executor.run(HeldTask(again))
    assert ran == [1]
    assert again.settled == ("ack", 0)


async def test_a_task_whose_holder_may_be_gone_is_not_acknowledged(bench: Bench, ran: list[int]) -> None:
    """Nobody would ever run it."""
    task = await bench.given_task()
    first = await bench.delivery()
    fields = {"job": task.job, "execution_id": task.execution_id, "step": task.step, "attempt": task.attempt}
    await bench.given(Started.model_validate({**fields, "delivery": 1, "worker": "gone"}))
    again = CountedAnew(await bench.again(first))
    await bench.executor.run(HeldTask(again))
    assert again.settled != ("ack", 0)
    assert ran == []


async def test_who_comes_too_late_does_not_acknowledge_what_another_holds(bench: Bench) -> None:
    """The server takes the acknowledgement of any delivery for one of the newest: its holder could die unnoticed."""
    task = await bench.given_task()
    late = await bench.delivery()
    fields = {"job": task.job, "execution_id": task.execution_id, "step": task.step, "attempt": task.attempt}
    await bench.given(Started.model_validate({**fields, "delivery": 2, "worker": "another"}))
    await bench.executor.run(HeldTask(late))
    assert late.settled is None


@pytest.mark.parametrize("is_newest", [True, False])
async def test_a_claim_of_long_ago_is_not_said_to_follow_what_it_does_not(
    bench: Bench,
    is_newest: bool,  # noqa: FBT001 - pytest's
) -> None:
    """Whoever believed it would decide on an execution without what lies between."""
    main, other = await bench.given_tasks({"main": (), "other": ()})
    first = await bench.delivery()
    fields = {"job": main.job, "execution_id": main.execution_id, "attempt": 1, "delivery": 1}
    await bench.given(Started.model_validate({**fields, "step": "main", "worker": WORKER}))
    if not is_newest:
        await bench.given(Started.model_validate({**fields, "step": "other", "worker": "another"}))
    await bench.executor.run(HeldTask(CountedAnew(first)))
    before = (await bench.log.read(subjects.subject_of(other)))[0].sequence
    report = await bench.report()
    assert report.claimed_after == (before if is_newest else None)
