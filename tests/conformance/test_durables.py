"""The behaviour of every durable."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from tests.conformance.given import report
from tests.conformance.worlds import World
from tests.durables import Reader, take
from tocsin import subjects
from tocsin.domain.events import Trigger
from tocsin.ports import Delivery, DurableSpec, acknowledge
from tocsin.subjects import Stream

ACK_WAIT = 1.0
PLENTY = 10.0
TRIGGERS = DurableSpec("triggers", Stream.REQUESTS, ("trigger.>",), 30.0)
CANCELS = DurableSpec("cancels", Stream.REQUESTS, ("cancel.>",), 30.0)
REPORTS = DurableSpec("reports", Stream.REPORTS, ("report.>",), ACK_WAIT)


async def test_tasks_arrive_in_order_and_unchanged(world: World) -> None:
    queue = await world.durable(TRIGGERS)
    for n in range(5):
        await world.log.publish("trigger.a_job", Trigger(reason=f"{n}"), message_id=f"{n}")

    tasks = await take(queue, 5)

    for n, task in enumerate(tasks):
        stored = await world.log.get(task.subject, task.sequence)
        assert stored is not None
        assert subjects.decode(task.subject, task.body) == stored.message == Trigger(reason=f"{n}")
        assert (task.subject, task.time, task.message_id) == (stored.subject, stored.time, stored.message_id)
        assert task.delivered == 1


async def test_a_message_keeps_its_id(world: World) -> None:
    durable = await world.durable(REPORTS)
    await world.log.publish(subjects.subject_of(report()), report(), message_id="an id")

    (found,) = await take(durable, 1)

    assert found.message_id == "an id"


async def test_no_more_than_the_limit_is_taken(world: World) -> None:
    one, other = await world.durable(TRIGGERS), await world.durable(TRIGGERS)
    for n in range(5):
        await world.log.publish("trigger.a_job", Trigger(), message_id=f"{n}")

    first = await one.take(2, wait=PLENTY)
    rest = await take(other, 3)

    assert [task.sequence for task in [*first, *rest]] == [1, 2, 3, 4, 5]


async def test_empty_take_waits_for_the_first_task(world: World) -> None:
    queue = await world.durable(TRIGGERS)
    taking = asyncio.ensure_future(queue.take(10, wait=PLENTY))
    await world.log.publish("trigger.a_job", Trigger(), message_id="a")

    (task,) = await taking

    assert task.sequence == 1


@pytest.mark.parametrize("wait", [0, 0.3])
async def test_empty_take_returns_nothing_after_its_time(world: World, wait: float) -> None:
    queue = await world.durable(TRIGGERS)
    taking = asyncio.ensure_future(queue.take(10, wait=wait))

    async def has_come_back() -> bool:
        return taking.done()

    await world.until(has_come_back)
    assert list(await taking) == []


async def test_cancelled_take_loses_no_task(world: World) -> None:
    queue = await world.durable(TRIGGERS)
    taking = asyncio.ensure_future(queue.take(10, wait=PLENTY))
    await asyncio.sleep(0)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    await world.log.publish("trigger.a_job", Trigger(), message_id="a")

    (task,) = await take(queue, 1)

    assert task.sequence == 1


async def test_each_durable_has_its_own_messages(world: World) -> None:
    triggers, cancels = await world.durable(TRIGGERS), await world.durable(CANCELS)
    await world.receive("cancel.a_job.e1", b"{}")
    await world.receive("trigger.a_job", b"{}", "1")
    await world.receive("trigger.another", b"{}", "2")
    await world.receive("enqueue.a_job.e1", b"{}")

    assert [task.sequence for task in await take(triggers, 2)] == [2, 3]
    assert [task.sequence for task in await take(cancels, 1)] == [1]
    assert list(await triggers.take(10, wait=0)) == list(await cancels.take(10, wait=0)) == []


async def test_only_tasks_handed_back_are_delivered_again(world: World) -> None:
    durable = await world.durable(REPORTS)
    for n in range(4):
        await world.receive(subjects.subject_of(report(delivery=n)), b"{}")
    acked, ended, back, later = await take(durable, 4)
    await acked.ack()
    await ended.ack()
    await back.nak(0)
    await later.nak(0.1)

    again = await world.until(_taking(durable, 2))

    assert [(task.sequence, task.delivered) for task in again] == [(back.sequence, 2), (later.sequence, 2)]
    for task in again:
        await task.ack()
    # Another round: any other due task would have arrived before it.
    await world.receive(subjects.subject_of(report()), b"{}")
    assert [task.sequence for task in await take(durable, 1)] == [5]


async def test_many_tasks_are_acknowledged_at_once(world: World) -> None:
    durable = await world.durable(REPORTS)
    for n in range(9):
        await world.receive(subjects.subject_of(report(delivery=n)), b"{}")
    tasks = await take(durable, 9)
    await acknowledge([])
    await acknowledge(tasks[:4] + tasks[5:])

    again = await world.until(_taking(durable, 1))

    assert [(task.sequence, task.delivered) for task in again] == [(tasks[4].sequence, 2)]
    await again[0].ack()
    await world.receive(subjects.subject_of(report()), b"{}")
    assert [task.sequence for task in await take(durable, 1)] == [10]


async def test_unacknowledged_task_returns_unless_kept(world: World) -> None:
    durable = await world.durable(REPORTS)
    for n in range(2):
        await world.receive(subjects.subject_of(report(delivery=n)), b"{}")
    kept, forgotten = await take(durable, 2)
    again: list[Delivery] = []

    async def keep_one_until_the_other_comes() -> bool:
        await kept.in_progress()
        again.extend(await durable.take(10, wait=0))
        return bool(again)

    await world.until(keep_one_until_the_other_comes)

    assert [(task.sequence, task.delivered) for task in again] == [(forgotten.sequence, 2)]
    await kept.ack()
    (again[0],) = await world.until(_taking(durable, 1))
    assert (again[0].sequence, again[0].delivered) == (forgotten.sequence, 3)


async def test_the_answer_of_an_older_delivery_counts(world: World) -> None:
    durable = await world.durable(REPORTS)
    await world.receive(subjects.subject_of(report()), b"{}")
    (first,) = await take(durable, 1)
    (second,) = await world.until(_taking(durable, 1))
    assert second.delivered == 2
    await first.ack()

    await world.receive(subjects.subject_of(report()), b"{}")
    (third,) = await world.until(_taking(durable, 1))
    assert third.sequence == 2


async def test_a_delivery_is_answered_once(world: World) -> None:
    durable = await world.durable(REPORTS)
    await world.receive(subjects.subject_of(report()), b"{}")
    (delivery,) = await take(durable, 1)
    await delivery.ack()

    for settlement in (delivery.ack(), delivery.nak(0)):
        with pytest.raises(RuntimeError, match="already settled"):
            await settlement
    with pytest.raises(RuntimeError, match="already settled"):
        await acknowledge([delivery])


async def test_only_so_many_are_out_at_once(world: World) -> None:
    durable = await world.durable(DurableSpec("narrow", Stream.REPORTS, ("report.>",), 60.0, max_ack_pending=2))
    for n in range(3):
        await world.receive(subjects.subject_of(report(delivery=n)), b"{}")

    first, second = await take(durable, 2)
    assert list(await durable.take(10, wait=0)) == []
    await first.ack()
    assert [task.sequence for task in await world.until(_taking(durable, 1))] == [3]
    await second.ack()


async def test_new_reader_continues_where_others_stopped(world: World) -> None:
    for n in range(3):
        await world.receive(subjects.subject_of(report(delivery=n)), b"{}")
    for task in await take(await world.durable(REPORTS), 2):
        await task.ack()

    assert [task.sequence for task in await take(await world.durable(REPORTS), 1)] == [3]


def _taking(queue: Reader, count: int) -> Callable[[], Awaitable[Sequence[Delivery]]]:
    taken: list[Delivery] = []

    async def look() -> Sequence[Delivery]:
        taken.extend(await queue.take(count - len(taken), wait=0))
        return taken if len(taken) == count else ()

    return look
