"""Views of the log of commits in a process that has read less of it than another."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

import msgspec
import pytest

from tests.conformance.worlds import MemoryWorld
from tocsin import subjects, telemetry
from tocsin.adapters import commit_view
from tocsin.adapters.commit_view import CommitView
from tocsin.domain.commit import CommitEvent
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Defined, Message, Recorded
from tocsin.engine.fold import Fold
from tocsin.ports import SequenceConflict
from tocsin.subjects import Stream

AFTER = 48
DEFINED = "ledger.*.defined"


async def test_follower_of_a_lagging_process_keeps_its_place() -> None:
    async with MemoryWorld().running() as world, aclosing(world.log.follow(Stream.LOG, after=AFTER)) as batches:
        assert (await anext(batches)).upto == AFTER


async def test_news_of_a_follower_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fact = Defined(job="nightly", definition=JobDefinition(name="nightly", function="f"))
    async with (
        MemoryWorld().running() as world,
        aclosing(world.log.follow(Stream.LEDGER, DEFINED, after=0)) as batches,
    ):
        await anext(batches)
        view = await world.log._view()
        monkeypatch.setattr(view, "past", None)
        assert not await world.log.has_newer(DEFINED, after=view.number)
        number = await world.log.append(fact, expect=0)
        assert await world.log.has_newer(DEFINED, after=number - 1)
        await anext(batches)
        assert await world.log.has_newer(DEFINED, after=number - 1)  # the follower may still be at it
        assert not await world.log.has_newer(DEFINED, after=number)


async def test_process_that_folds_nothing_takes_nothing_back() -> None:
    async with MemoryWorld().running() as world:
        view = await world.log._view()
        view._early, view.is_folding = ("ledger.>",), False
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


async def test_follower_stores_nothing_on_undone_events() -> None:
    """Another event of the scope has the number of an undone event that the follower still knows."""
    async with MemoryWorld().running() as world:
        view = await world.log._view()
        view._early, view.is_folding = ("ledger.>",), True
        one, two = (
            Defined(job="nightly", definition=JobDefinition(name="nightly", function=name)) for name in ("f", "g")
        )
        async with aclosing(view.follow(Stream.LEDGER, "ledger.>", after=0)) as batches:
            await anext(batches)
            view.is_folding = False  # no stage of this process folds
            number = await world.log.append(one, expect=0)
            view.undone([subjects.scope_of(one)], number - 1)
            with pytest.raises(SequenceConflict):
                await world.log.append(two, expect=number)
            assert (await anext(batches)).undone
            with pytest.raises(SequenceConflict):  # the follower did not come back for more
                await world.log.append(two, expect=number)
            following = asyncio.ensure_future(anext(batches))
            await asyncio.sleep(0)
            await world.log.append(two, expect=number)
            await following


@asynccontextmanager
async def storing() -> AsyncIterator[tuple[CommitView, Message, Callable[[], None]]]:
    """Yield the view of a process, a stored event, and a call that refuses the commit of the next event."""
    async with MemoryWorld().running() as world:
        view = await world.log._view()
        one, two = (
            Defined(job="nightly", definition=JobDefinition(name="nightly", function=name)) for name in ("f", "g")
        )
        scope, number = subjects.scope_of(one), await world.log.append(one, expect=0)
        fold = Fold()
        fold.evolve(Recorded(one, subjects.subject_of(one), number, world.now()), scope)
        fold.keep(world.now())
        view.reader, view.fold, view.is_folding = None, fold, True
        fold.evolve(Recorded(two, subjects.subject_of(two), number + 1, world.now()), scope)

        def refuse() -> None:
            fold.undo()
            view.undone([scope], number)

        yield view, one, refuse


async def test_follower_without_early_events_waits_for_the_store() -> None:
    """A follower that begins during a commit would hear of nothing that is undone."""
    async with storing() as (view, one, refuse), aclosing(view.follow(Stream.LEDGER, DEFINED, after=None)) as batches:
        first = asyncio.ensure_future(anext(batches))
        await asyncio.sleep(0)
        assert not first.done()
        refuse()
        assert [recorded.message for recorded in (await first).messages] == [one]


async def test_reader_sees_no_event_that_is_not_stored() -> None:
    """An answer could be undone; a stage of the process decides on such an event, and is undone too."""
    async with storing() as (view, one, refuse):
        with telemetry.bound(stage="planner"):
            assert [recorded.message for recorded in await view.load("ledger.nightly.>")] != [one]
        first = asyncio.ensure_future(view.load("ledger.nightly.>"))
        await asyncio.sleep(0.01)
        assert not first.done()
        refuse()
        assert [recorded.message for recorded in await first] == [one]


async def test_reader_reads_the_log_while_nothing_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_view, "SETTLES_WITHIN_S", 0.01)
    async with storing() as (view, one, _):
        assert [recorded.message for recorded in await view.load("ledger.nightly.>")] == [one]
        assert await view.tail("ledger.nightly.>") == view.number
