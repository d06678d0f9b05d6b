"""A waiter receives an event when it is stored, or finds it by a read."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

import pytest
import structlog.testing

from tests.domain.given import ID, JOB, KEY, admitted
from tocsin import subjects
from tocsin.domain import execution
from tocsin.domain.events import Admitted, Cancelled, Message, Recorded, Recovered
from tocsin.ports import Batch, Decode, Loaded
from tocsin.services.operations import event_waiter
from tocsin.services.operations.event_waiter import EventWaiter, Facts
from tocsin.services.operations.execution_requests import has_begun
from tocsin.subjects import Stream
from tocsin.testing import InMemoryEventLog

SCOPE = subjects.execution(JOB, ID)


class WatchedLog(InMemoryEventLog):
    """Counts the reads; a lagging replica answers up to `upto`."""

    looks = 0
    upto: int | None = None
    followable = True

    async def load(self, scope: str) -> list[Recorded[Message]]:
        self.looks += 1
        found = await super().load(scope)
        return [fact for fact in found if self.upto is None or fact.sequence <= self.upto]

    async def load_each(self, *scopes: str) -> Loaded:
        self.looks += 1
        found = await super().load_each(*scopes)
        seen = [[fact for fact in facts if self.upto is None or fact.sequence <= self.upto] for facts in found.facts]
        return Loaded(seen, found.upto)

    async def follow(
        self, stream: Stream, *filters: str, after: int | None, decode: Decode = subjects.decode
    ) -> AsyncGenerator[Batch, None]:
        if not self.followable:
            raise PermissionError("not you")
        async for batch in super().follow(stream, *filters, after=after, decode=decode):
            yield batch


@pytest.fixture
async def log() -> WatchedLog:
    it = WatchedLog()
    await it.append(admitted(), expect=0)
    return it


@pytest.fixture
async def heard(log: WatchedLog) -> AsyncIterator[EventWaiter]:
    async with aclosing(EventWaiter(log)) as it:
        yield it


async def hearing(it: EventWaiter) -> None:
    with it.of("another.>"):
        async with asyncio.timeout(10):
            while not it.is_following:  # noqa: ASYNC110 - it says it no other way
                await asyncio.sleep(0)


def is_over(facts: Facts) -> bool:
    return execution.fold(facts).is_over


def of(facts: Sequence[Recorded[Message]]) -> list[type[Message]]:
    return [type(fact.message) for fact in facts]


async def cancel(log: WatchedLog, expect: int) -> None:
    [fact] = execution.cancel(execution.fold(await InMemoryEventLog.load(log, SCOPE)))
    await log.append(fact, expect=expect)


async def test_stored_event_is_received_without_polling(log: WatchedLog, heard: EventWaiter) -> None:
    await hearing(heard)
    known = await InMemoryEventLog.load(log, SCOPE)
    with heard.of(SCOPE, known) as one, heard.of(SCOPE, known) as other:
        waiting = asyncio.gather(one.until(is_over), other.until(is_over))
        await asyncio.sleep(0)
        await cancel(log, expect=1)
        first, second = await waiting
    assert first == second == await InMemoryEventLog.load(log, SCOPE)
    assert log.looks == 0


async def test_event_stored_before_the_wait_is_received(log: WatchedLog, heard: EventWaiter) -> None:
    await hearing(heard)
    with heard.of(SCOPE, await InMemoryEventLog.load(log, SCOPE)) as awaited:
        await cancel(log, expect=1)
        await asyncio.sleep(0.01)
        assert of(await awaited.until(is_over))[-1] is Cancelled
    assert log.looks == 0


async def test_what_does_not_suffice_takes_nobodys_patience(
    log: WatchedLog, heard: EventWaiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_waiter, "FALLBACK_PAUSES_S", (30.0,))
    await hearing(heard)
    [task] = execution.dispatch(execution.fold(await InMemoryEventLog.load(log, SCOPE)), key=KEY)
    await log.append(task, expect=1)
    with heard.of(SCOPE, await InMemoryEventLog.load(log, SCOPE)) as awaited:
        waiting = asyncio.create_task(awaited.until(is_over))
        for number in range(1, 4):
            fact = Recovered(job=JOB, execution_id=ID, recovery=number, lost=(), recovered_at=log.clock.now())
            await log.append(fact, expect=number + 1)
            await asyncio.sleep(0.01)
        await cancel(log, expect=5)
        assert of(await waiting)[-4:] == [Recovered, Recovered, Recovered, Cancelled]
    assert log.looks == 0


async def test_later_event_alone_is_no_beginning(
    log: WatchedLog, heard: EventWaiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a job that another replaces while the waiter begins to follow the log."""
    monkeypatch.setattr(event_waiter, "FALLBACK_PAUSES_S", (0.01,))
    await hearing(heard)
    with heard.of(SCOPE) as awaited:  # the execution was admitted before, and only its end is received
        await cancel(log, expect=1)
        facts = await awaited.until(has_begun)
    assert of(facts) == [Admitted, Cancelled]


async def test_what_cannot_be_heard_is_looked_for(log: WatchedLog, heard: EventWaiter) -> None:
    log.followable = False
    with structlog.testing.capture_logs() as said, heard.of(SCOPE) as awaited:
        await cancel(log, expect=1)
        assert of(await awaited.until(is_over))[-1] is Cancelled
    assert log.looks == 1
    assert {line["event"] for line in said} == {"the log cannot be followed"}


async def test_lagging_replica_takes_back_no_received_event(
    log: WatchedLog, heard: EventWaiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_waiter, "FALLBACK_PAUSES_S", (0.01,))
    await hearing(heard)
    log.upto = 1
    with heard.of(SCOPE, await log.load(SCOPE)) as awaited:
        await cancel(log, expect=1)
        facts = await awaited.until(lambda _: False)
    assert of(facts)[-1] is Cancelled
    assert log.looks == 2


async def test_wait_for_a_missing_event_returns_stored_events(
    log: WatchedLog, heard: EventWaiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_waiter, "FALLBACK_PAUSES_S", (0.01, 0.01))
    monkeypatch.setattr(event_waiter, "POLL_PAUSES_S", (0.01,))
    await hearing(heard)
    with heard.of(SCOPE) as awaited:
        assert await awaited.until(is_over) == await log.load(SCOPE)
    assert log.looks == 3


async def test_missing_events_of_many_are_read_at_once(
    log: WatchedLog, heard: EventWaiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_waiter, "FALLBACK_PAUSES_S", (0.01, 30.0))
    await hearing(heard)
    other = subjects.execution("b.job", ID)
    with heard.of(SCOPE, await InMemoryEventLog.load(log, SCOPE)) as first, heard.of(other) as second:
        waiting = asyncio.create_task(event_waiter.until_each(log, [first, second], bool))
        while not log.looks:  # noqa: ASYNC110 - it says it no other way
            await asyncio.sleep(0.01)
        await log.append(admitted().changed(job="b.job"), expect=0)
        assert [of(facts) for facts in await waiting] == [of(first.facts), of(second.facts)]
    assert log.looks == 1
