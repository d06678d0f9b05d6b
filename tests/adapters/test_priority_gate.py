"""What begins goes first, and what ends is not forgotten for it."""

import asyncio
from contextlib import suppress

from tocsin.adapters.nats.consumers.priority_gate import MANY, PriorityGate, Turns

FOR_EVER = 1e9


async def begun(turns: Turns) -> asyncio.Task[None]:
    """Somebody who asks for a turn, as far as that goes without time passing."""
    task = asyncio.create_task(turns.come())
    await asyncio.sleep(0)
    return task


async def test_while_there_is_no_rush_everybody_has_a_turn_at_once() -> None:
    precedence = PriorityGate(patience=FOR_EVER)
    first, waiting = Turns(precedence, low_priority=False), Turns(precedence, low_priority=True)
    for messages in (0, 1, MANY - 1):
        with first.handling(messages), waiting.handling(messages):
            assert (await begun(first)).done()
            assert (await begun(waiting)).done()


async def test_what_can_wait_waits_for_the_end_of_a_rush() -> None:
    precedence = PriorityGate(patience=FOR_EVER)
    first, waiting = Turns(precedence, low_priority=False), Turns(precedence, low_priority=True)
    with first.handling(MANY):
        with first.handling(MANY):
            turn = await begun(waiting)
            assert (await begun(first)).done()
        await asyncio.sleep(0.05)
        assert not turn.done()
    await turn


async def test_no_rush_is_made_by_what_can_wait() -> None:
    waiting = Turns(PriorityGate(patience=FOR_EVER), low_priority=True)
    with waiting.handling(10 * MANY):
        assert (await begun(waiting)).done()


async def test_a_rush_that_does_not_end_is_waited_for_no_longer_than_patience_lasts() -> None:
    precedence = PriorityGate(patience=0.03)
    with Turns(precedence, low_priority=False).handling(MANY):
        await Turns(precedence, low_priority=True).come()


async def test_what_has_waited_for_a_rush_does_not_wait_for_it_again() -> None:
    precedence = PriorityGate(patience=0.03, recovery=FOR_EVER)
    first, waiting = Turns(precedence, low_priority=False), Turns(precedence, low_priority=True)
    with first.handling(MANY):
        await waiting.come()
    with first.handling(MANY):
        assert (await begun(waiting)).done()


async def test_the_next_rush_is_waited_for_again() -> None:
    precedence = PriorityGate(patience=0.03, recovery=0)
    first, waiting = Turns(precedence, low_priority=False), Turns(precedence, low_priority=True)
    with first.handling(MANY):
        await waiting.come()
    with first.handling(MANY):
        assert not (await begun(waiting)).done()


async def test_a_handler_that_fails_ends_its_rush() -> None:
    precedence = PriorityGate(patience=FOR_EVER)
    with suppress(ZeroDivisionError), Turns(precedence, low_priority=False).handling(MANY):
        _ = 1 / 0
    await Turns(precedence, low_priority=True).come()
