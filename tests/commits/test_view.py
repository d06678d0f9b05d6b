"""Views of the log of commits in a process that has read less of it than another."""

from contextlib import aclosing

import msgspec

from tests.conformance.worlds import MemoryWorld
from tocsin import subjects
from tocsin.domain.commit import CommitEvent
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Defined, Recorded
from tocsin.subjects import Stream

AFTER = 48


async def test_follower_of_a_lagging_process_keeps_its_place() -> None:
    async with MemoryWorld().running() as world, aclosing(world.log.follow(Stream.LOG, after=AFTER)) as batches:
        assert (await anext(batches)).upto == AFTER


async def test_process_that_folds_nothing_takes_nothing_back() -> None:
    async with MemoryWorld().running() as world:
        view = await world.log._view()
        view._early = ("ledger.>",)
        fact = Defined(job="nightly", definition=JobDefinition(name="nightly", function="f"))
        async with aclosing(world.log.follow(Stream.LEDGER, "ledger.>", after=0)) as batches:
            await anext(batches)
            subject = subjects.subject_of(fact)
            event = CommitEvent(subject, "test", "0-0", msgspec.Raw(fact.encode()))
            view.decided(event, Recorded(fact, subject, 1, world.now()))
            view.undone([subjects.scope_of(fact)], 0)  # the commit was refused
            number = await world.log.append(fact, expect=0)
            batch = await anext(batches)
            assert (batch.undone, [recorded.sequence for recorded in batch.messages]) == ((), [number])
