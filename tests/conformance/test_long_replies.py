"""Reads whose replies have many bytes: in pages, few at a time, and again after a lost connection."""

import asyncio

import pytest
from pydantic_core import from_json

from tests.conformance.given import report
from tests.conformance.worlds import NatsWorld
from tocsin import subjects
from tocsin.adapters.nats.client import wire
from tocsin.adapters.nats.client.wire import Reply
from tocsin.adapters.nats.log import direct_get
from tocsin.adapters.nats.log.direct_get import DirectGet
from tocsin.ports import LaggingReplica
from tocsin.subjects import Stream

SCOPE = "report.a_job.e1.>"
SIZE = 60_000


async def stored(nats: NatsWorld, count: int, size: int = SIZE) -> list[int]:
    """Store reports on one execution, each of `size` bytes."""
    return [await publish(nats, number, size) for number in range(count)]


async def publish(nats: NatsWorld, claim: int, size: int) -> int:
    large = report(claim=claim).changed(result="x" * size)
    return await nats.log.publish(subjects.subject_of(large), large, message_id=f"{claim} {size}")


async def test_long_reply_is_read_in_pages(nats: NatsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    sequences = await stored(nats, 9, size=1_000)
    for size in (1, 2_500, 4_000, 100_000):
        monkeypatch.setattr(direct_get, "PAGE_BYTES", size)
        assert [event.sequence for event in await nats.log.load(SCOPE)] == sequences
        assert [event.sequence for event in await nats.log.read("report.>")] == sequences
        loaded = await nats.log.load_each(SCOPE, "report.a_job.e2.>")
        assert [[event.sequence for event in facts] for facts in loaded.facts] == [sequences, []]


async def test_change_between_pages_is_not_missed(nats: NatsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    sequences = await stored(nats, 4, size=1_000)
    newest = sequences[-1]
    request_many = nats.connection.request_many

    async def then_changed(subject: str, body: bytes) -> object:
        nonlocal newest
        answer = await request_many(subject, body)
        if newest == sequences[-1]:  # after the first page, a message that the next page would have is replaced
            newest = await publish(nats, 2, 10)
        return answer

    monkeypatch.setattr(direct_get, "PAGE_BYTES", 2_500)
    monkeypatch.setattr(nats.connection, "request_many", then_changed)
    loaded = await nats.log.load(SCOPE)
    assert [event.sequence for event in loaded] == [sequences[0], sequences[1], sequences[3], newest]


@pytest.mark.parametrize("lags", [1, 99])
async def test_page_of_a_lagging_replica_is_read_again(
    nats: NatsWorld, monkeypatch: pytest.MonkeyPatch, lags: int
) -> None:
    """Such a page may lack a subject that the first page left to it."""
    sequences = await stored(nats, 4, size=1_000)
    request_many, left = nats.connection.request_many, lags

    async def behind(subject: str, body: bytes) -> tuple[list[Reply], Reply]:
        nonlocal left
        messages, end = await request_many(subject, body)
        if "seq" in from_json(body) and left:
            left -= 1
            return [], end._replace(headers={**(end.headers or {}), wire.UP_TO: str(sequences[1])})
        return messages, end

    monkeypatch.setattr(direct_get, "PAGE_BYTES", 2_500)
    monkeypatch.setattr(nats.connection, "request_many", behind)
    reading = DirectGet(nats.connection, nats.names.stream(Stream.REPORTS)).last_of_each([nats.names.to_wire(SCOPE)])
    if lags > 1:
        with pytest.raises(LaggingReplica):
            await reading
    else:
        assert [message.sequence for message in await reading] == sequences


async def test_long_replies_keep_the_connection(nats: NatsWorld) -> None:
    """The server disconnects a client that has more than 64 MiB to read."""
    sequences = await stored(nats, 50)
    before = nats.connection.client.stats["reconnects"]
    loads = await asyncio.gather(*(nats.log.load_each(SCOPE) for _ in range(40)))
    assert {len(loaded.facts[0]) for loaded in loads} == {len(sequences)}
    assert nats.connection.client.stats["reconnects"] == before


async def test_read_is_repeated_after_a_lost_connection(nats: NatsWorld) -> None:
    sequences = await stored(nats, 2)
    stream = DirectGet(nats.connection, nats.names.stream(Stream.REPORTS))
    reading = asyncio.create_task(stream.last_of_each([nats.names.to_wire(SCOPE)]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    nats.connection.interrupt()  # before the reply is read, as the client does when its connection is lost
    assert [message.sequence for message in await reading] == sequences
