"""Queues by name: created at the first request, paused and resumed for every worker."""

import asyncio

from tests.conformance.given import dispatched
from tests.conformance.worlds import World
from tocsin.ports import QueueStatus, TaskQueue

PLENTY = 10.0


async def put(world: World, execution_id: str, queue: str) -> None:
    await world.log.append(dispatched(execution_id).model_copy(update={"queue": queue}), expect=0)


async def taken(queue: TaskQueue, number: int = 1, *, wait: float = PLENTY) -> int:
    found = 0
    while found < number and (some := await queue.take(number - found, wait=wait)):
        for delivery in some:
            await delivery.ack()
        found += len(some)
    return found


async def test_queue_is_created_at_the_first_request(world: World) -> None:
    queues = await world.queues()
    assert await queues.standing("new") is None
    assert "new" not in await queues.names()
    await put(world, "e1", "new")
    queue = await queues.open("new")
    assert "new" in await queues.names()
    assert await queues.standing("new") == QueueStatus("new", is_paused=False, waiting=1, in_hand=0)
    assert await taken(queue) == 1


async def test_queues_are_separate_and_named_in_order(world: World) -> None:
    queues = await world.queues()
    names = ("default", "b.c-d", "a")
    for number, name in enumerate(names):
        await put(world, f"e{number}", name)
        await queues.open(name)
    assert list(await queues.names()) == sorted(names)
    for name in names:
        assert await taken(await queues.open(name)) == 1


async def test_paused_queue_hands_out_nothing_until_resumed(world: World) -> None:
    queues = await world.queues()
    queue = await queues.open("q")
    await queues.pause("q")
    await put(world, "e1", "q")
    assert list(await queue.take(1, wait=0)) == []
    assert await queues.standing("q") == QueueStatus("q", is_paused=True, waiting=1, in_hand=0)
    await queues.resume("q")
    assert await taken(queue) == 1
    standing = await queues.standing("q")
    assert standing is not None
    assert not standing.is_paused


async def test_unopened_queue_can_be_paused(world: World) -> None:
    queues = await world.queues()
    await queues.pause("unheard-of")
    await queues.pause("unheard-of")
    await put(world, "e1", "unheard-of")
    assert list(await (await queues.open("unheard-of")).take(1, wait=0)) == []


async def test_waiting_for_one_queue_blocks_no_other_caller(world: World) -> None:
    """Neither who is not to wait, nor who waits as well."""
    queue = await (await world.queues()).open("q")
    waiting = [asyncio.ensure_future(queue.take(1, wait=PLENTY)) for _ in range(2)]
    await asyncio.sleep(0)
    assert list(await queue.take(1, wait=0)) == []
    assert not any(one.done() for one in waiting)
    for number in range(2):
        await put(world, f"e{number}", "q")

    async def all_done() -> bool:
        return all(one.done() for one in waiting)

    await world.until(all_done)
    assert [len(one.result()) for one in waiting] == [1, 1]
