"""Messages of one entity after a message that was handed back."""

from datetime import datetime

import pytest

from tests.domain.given import admitted
from tests.stages.world import World
from tocsin.domain.events import Message, Recorded
from tocsin.engine.stage import BoundSubscription
from tocsin.engine.step import DONE, States, Step, wait
from tocsin.ports import LogUnavailable, SequenceConflict
from tocsin.subjects import Stream

COUNT = 5
MOMENT = 0.2
"""Seconds after which all messages but the failed one have come again."""


class FailsAt:
    """A decision that settles each message except at one sequence."""

    def __init__(self, sequence: int, failure: Exception | Step) -> None:
        self.sequence = sequence
        self.failure = failure
        self.handled: list[int] = []

    def __call__(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:
        del states, now
        if recorded.sequence not in self.handled:
            self.handled.append(recorded.sequence)
        if recorded.sequence != self.sequence:
            return DONE
        if isinstance(self.failure, Exception):
            raise self.failure
        return self.failure


@pytest.mark.parametrize("failing", range(1, COUNT + 1))
@pytest.mark.parametrize("failure", [LogUnavailable("no answer"), wait(1.0), SequenceConflict()])
async def test_every_message_behind_a_failure_comes_again(
    world: World, failing: int, failure: Exception | Step
) -> None:
    handler = FailsAt(failing, failure)
    subscription = BoundSubscription("scripted", Stream.LOG, ("execution.>",), handler)
    await world.given(*[admitted()] * COUNT)
    await world.handle(subscription)
    assert handler.handled == list(range(1, failing + 1))
    assert world.pending == COUNT - failing + 1
    world.clock.advance(MOMENT)
    again = {delivery.sequence for delivery in await world.durable(subscription).take(COUNT, wait=0)}
    assert again - {failing} == set(range(failing + 1, COUNT + 1))


async def test_messages_of_other_entities_are_not_handed_back(world: World) -> None:
    handler = FailsAt(1, LogUnavailable("no answer"))
    subscription = BoundSubscription("scripted", Stream.LOG, ("execution.>",), handler)
    others = [admitted().changed(execution_id=f"other-{n}") for n in range(COUNT)]
    await world.given(admitted(), *others)
    await world.handle(subscription)
    assert sorted(handler.handled) == list(range(1, COUNT + 2))
    assert world.pending == 1
