"""Starting executions have priority over ending executions, which are not forgotten."""

import asyncio
from contextlib import suppress

import pytest

from tocsin.adapters.nats.consumers.priority import RUSH_SIZE, PriorityGate, Turns

FOR_EVER = 1e9


async def begun(turns: Turns) -> asyncio.Task[None]:
    """Start a caller that requests a turn, as far as it goes without time passing."""
    task = asyncio.create_task(turns.come())
    await asyncio.sleep(0)
    return task


async def test_without_a_rush_every_turn_is_immediate() -> None:
    precedence = PriorityGate(patience=FOR_EVER)
    first, waiting = Turns(precedence, low_priority=False), Turns(precedence, low_priority=True)
    for messages in (0, 1, RUSH_SIZE - 1):
        with first.handling(messages), waiting.handling(messages):
            assert (await begun(first)).done()
            assert (await begun(waiting)).done()


async def test_low_priority_waits_until_a_rush_ends() -> None:
    precedence = PriorityGate(patience=FOR_EVER)
    first, waiting = Turns(precedence, low_priority=False), Turns(precedence, low_priority=True)
    with first.handling(RUSH_SIZE):
        with first.handling(RUSH_SIZE):
            turn = await begun(waiting)
            assert (await begun(first)).done()
        await asyncio.sleep(0.05)
        assert not turn.done()
    await turn


async def test_no_rush_is_made_by_what_can_wait() -> None:
    waiting = Turns(PriorityGate(patience=FOR_EVER), low_priority=True)
    with waiting.handling(10 * RUSH_SIZE):
        assert (await begun(waiting)).done()


async def test_endless_rush_delays_only_for_the_patience() -> None:
    precedence = PriorityGate(patience=0.03)
    with Turns(precedence, low_priority=False).handling(RUSH_SIZE):
        await Turns(precedence, low_priority=True).come()


async def test_one_rush_delays_a_subscription_only_once() -> None:
    precedence = PriorityGate(patience=0.03, recovery=FOR_EVER)
    first, waiting = Turns(precedence, low_priority=False), Turns(precedence, low_priority=True)
    with first.handling(RUSH_SIZE):
        await waiting.come()
    with first.handling(RUSH_SIZE):
        assert (await begun(waiting)).done()


async def test_the_next_rush_is_waited_for_again() -> None:
    precedence = PriorityGate(patience=0.03, recovery=0)
    first, waiting = Turns(precedence, low_priority=False), Turns(precedence, low_priority=True)
    with first.handling(RUSH_SIZE):
        await waiting.come()
    with first.handling(RUSH_SIZE):
        assert not (await begun(waiting)).done()


async def test_a_handler_that_fails_ends_its_rush() -> None:
    precedence = PriorityGate(patience=FOR_EVER)
    with suppress(ZeroDivisionError), Turns(precedence, low_priority=False).handling(RUSH_SIZE):
        _ = 1 / 0
    await Turns(precedence, low_priority=True).come()


async def test_low_priority_waits_while_its_backlog_grows() -> None:
    sizes = [0, 100, 200, 300, 300, 900]

    async def measured() -> int:
        return sizes.pop(0)

    turns = Turns(PriorityGate(), low_priority=True, patience=FOR_EVER)
    await turns.await_starts(RUSH_SIZE - 1, measured)
    assert len(sizes) == 6
    await turns.await_starts(1, measured)
    assert sizes == [900]


async def test_wait_for_a_growing_backlog_is_bounded() -> None:
    size = 0

    async def growing() -> int:
        nonlocal size
        size += 100
        return size

    turns = Turns(PriorityGate(), low_priority=True, patience=0.1)
    await asyncio.wait_for(turns.await_starts(RUSH_SIZE, growing), 10)
    assert size >= 200


@pytest.mark.parametrize(("low_priority", "messages"), [(True, RUSH_SIZE - 1), (False, RUSH_SIZE)])
async def test_few_or_urgent_messages_wait_for_nothing(low_priority: bool, messages: int) -> None:  # noqa: FBT001
    async def unread() -> int:
        raise AssertionError("the backlog does not matter")

    await Turns(PriorityGate(), low_priority=low_priority).await_starts(messages, unread)


async def test_steady_load_waits_for_its_backlog_once() -> None:
    measured = 0

    async def count() -> int:
        nonlocal measured
        measured += 1
        return 0

    turns = Turns(PriorityGate(), low_priority=True, recovery=FOR_EVER)
    for _ in range(3):
        await turns.await_starts(RUSH_SIZE, count)
    assert measured == 2
