"""The loop of commits on a real server gets its messages through FastStream's subscribers: a middleware sees what a stage decides."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager

import pytest
from faststream import BaseMiddleware
from faststream.specification import AsyncAPI
from nats.aio.client import Client
from typing_extensions import override

from tests.commits.processes import NAMES, bound, until
from tests.commits.test_restart import Place, Watching
from tests.commits.test_restart import place as place  # noqa: PLC0414 - a fixture
from tocsin import subjects
from tocsin.adapters.nats.consumers import fed_subscribers
from tocsin.adapters.nats.consumers.fed_subscribers import FedSubscribers
from tocsin.bootstrap.stage_runner import _Broker
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Defined, Trigger
from tocsin.engine.commit_loop import CommitLoop
from tocsin.ports.commit_log import StoredBody
from tocsin.subjects import Stream

seen = Counter[str]()


class Counting(BaseMiddleware):
    """Count what passes: inputs by their subjects, and commits."""

    refuses = 0

    @override
    async def on_receive(self) -> None:
        for one in self.msg or ():
            seen["commit" if isinstance(one, StoredBody) else one.subject] += 1
        if Counting.refuses:
            Counting.refuses -= 1
            raise ZeroDivisionError
        await super().on_receive()


class Site:
    """A process, and the broker of its subscribers."""

    def __init__(self, place: Place, names: Collection[str] = NAMES) -> None:
        self.place = place
        client: Client = place.world.connection.client
        self.broker = _Broker(client)
        self.broker.add_middleware(Counting)
        self.stages = bound(names)
        self.fed = FedSubscribers(self.broker, place.world.names, "COMMITS", self.stages)

    @asynccontextmanager
    async def running(self, name: str = "process") -> AsyncIterator[CommitLoop]:
        process = self.place.process(name)
        process.passes = self.fed
        await self.broker.start()
        try:
            async with process.running(self.fed.present(self.stages), Watching()) as loop:
                if not loop.fold.definitions and self.stages:
                    definition = JobDefinition(name="nightly", function="f", overlap_policy="allow")
                    await loop.propose("test", [Defined(job="nightly", definition=definition)], expect=0)
                yield loop
        finally:
            await self.broker.stop()

    async def trigger(self, name: str) -> str:
        subject = subjects.trigger("nightly")
        await self.place.world.streams.publish(subject, Trigger(), message_id=name)
        return subject


@pytest.fixture
def site(place: Place) -> Site:
    seen.clear()
    return Site(place)


def has_open(place: Place, loop: CommitLoop, number: int) -> Callable[[], bool]:
    return lambda: len(place.open(loop)) == number


async def test_middleware_sees_what_a_stage_decides(site: Site) -> None:
    async with site.running() as loop:
        [subject] = {await site.trigger(f"t{number}") for number in range(5)}
        await until(has_open(site.place, loop, 5))
    assert seen[subject] == 5
    assert not seen["commit"]  # its own are decided in the cascade


async def test_stage_whose_subscriber_is_taken_out_gets_nothing(site: Site) -> None:
    [planner] = [fed for fed in site.fed._inputs[Stream.REQUESTS] if fed.title == "planner"]
    site.broker._subscribers.remove(planner._subscriber)
    async with site.running() as loop:
        await site.trigger("t")
        await asyncio.sleep(0.5)
        assert not site.place.open(loop)
        assert not seen
    async with Site(site.place).running() as loop:
        await until(has_open(site.place, loop, 1))  # it waited in the stream


async def test_message_that_a_middleware_refused_comes_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fed_subscribers, "RETRY_S", 0.01)
    async with site.running() as loop:
        monkeypatch.setattr(Counting, "refuses", 2)
        subject = await site.trigger("t")
        await until(has_open(site.place, loop, 1))
    assert seen[subject] == 3


async def test_commits_of_other_processes_pass(site: Site) -> None:
    rest = Site(site.place, ["retrier", "dead_letter_sink"])
    async with site.running() as loop, rest.running("rest") as other:
        await site.trigger("t")
        await until(has_open(site.place, loop, 1))
        await until(lambda: other.head.number >= loop.head.number and seen["commit"] > 0)


def test_each_stage_has_a_subscriber_for_each_stream(site: Site) -> None:
    titles = {(fed.title, stream) for stream, of_stream in site.fed._inputs.items() for fed in of_stream}
    assert {("planner", Stream.REQUESTS), ("planner", Stream.INPUTS), ("retrier", Stream.REPORTS)} <= titles
    document = AsyncAPI(site.broker).to_specification().to_json()
    assert all(title in document for title in ("planner: ", "retrier: ", "dead_letter_sink"))
