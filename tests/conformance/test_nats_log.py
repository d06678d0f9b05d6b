"""The behaviour of the log on a real server only: public subjects, and recovery from trouble."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from itertools import count
from pathlib import Path
from random import Random

import pytest

from tests.conformance.given import cron_triggered, delivered, raised, report
from tests.conformance.test_event_log import Following
from tests.conformance.worlds import NatsWorld, fresh_names
from tests.durables import NatsDurable, take
from tocsin import subjects
from tocsin.adapters.nats.admin.provision import provision
from tocsin.adapters.nats.client import connection as connections
from tocsin.adapters.nats.client import wire
from tocsin.adapters.nats.client.connection import connect
from tocsin.adapters.nats.client.transport import Outgoing
from tocsin.adapters.nats.client.wire import Reply
from tocsin.adapters.nats.log import follow
from tocsin.adapters.nats.log.event_log import NatsEventLog
from tocsin.adapters.nats.server.embedded import ANY_PORT, EmbeddedServer
from tocsin.domain.events import CancelRequest, Trigger
from tocsin.ports import Batch, DurableSpec, LogUnavailable, NotAllowed, SequenceConflict
from tocsin.settings import Settings
from tocsin.subjects import Stream

SCOPE = subjects.notification("a.job", "n1")
REPORTS = DurableSpec("reports", Stream.REPORTS, ("report.>",), ack_wait=30.0)


async def test_only_stored_public_events_are_republished(nats: NatsWorld) -> None:
    heard = await nats.connection.client.subscribe(f"{nats.names.public_prefix}.>")
    subject = nats.names.to_wire("cron.triggered.a_job")

    async def announce(run: int, expect: int) -> int:
        return await nats.connection.store(subject, cron_triggered(run=run).encode(), {wire.EXPECTED_LAST: str(expect)})

    first = await announce(1, 0)
    with pytest.raises(SequenceConflict):
        await announce(2, 0)
    await announce(3, first)

    messages = [await heard.next_msg(timeout=10) for _ in range(2)]
    await nats.connection.client.flush()

    assert [message.data for message in messages] == [cron_triggered(run=n).encode() for n in (1, 3)]
    assert {message.subject for message in messages} == {f"{nats.names.public_prefix}.triggered.a_job"}
    assert heard.pending_msgs == 0


async def test_public_trigger_arrives_as_a_trigger(nats: NatsWorld) -> None:
    durable = await nats.durable(DurableSpec("triggers", Stream.INPUTS, ("public.trigger.>",)))
    stored = await nats.connection.store(f"{nats.names.trigger_prefix}.a.job", b'{"reason": "r"}', {"Nats-Msg-Id": "b"})
    [read] = await nats.log.read("public.trigger.>")
    assert (read.sequence, read.subject, read.message) == (stored, "public.trigger.a.job", Trigger(reason="r"))
    assert await nats.log.last("public.trigger.a.job") == read
    [taken] = await durable.take(1, wait=10)
    assert (taken.sequence, taken.subject, subjects.job_of(taken.subject)) == (stored, read.subject, "a.job")
    async with aclosing(nats.log.follow(Stream.INPUTS, "public.trigger.>", after=0)) as batches:
        assert [*(await _messages(batches)).messages] == [read]


async def test_public_cancel_arrives_as_a_request(nats: NatsWorld) -> None:
    """A plain publish, the dots of the job's name as they are, and nothing in it."""
    durable = await nats.durable(DurableSpec("cancels", Stream.INPUTS, (subjects.filter_for("public.cancel"),)))
    await nats.connection.store(f"{nats.names.public_prefix}.cancel.a.job.id-1", b"", {"Nats-Msg-Id": "a"})
    [taken] = await durable.take(1, wait=10)
    assert subjects.parse_cancel(taken.subject) == ("a.job", "id-1")
    assert subjects.decode(taken.subject, taken.body) == CancelRequest()


async def test_streams_of_requests_are_apart(nats: NatsWorld) -> None:
    public = await nats.connection.store(f"{nats.names.trigger_prefix}.a_job", b"", {"Nats-Msg-Id": "same"})
    own = await nats.log.publish(subjects.trigger("a.job"), Trigger(reason="own"), message_id="same")
    assert (public, own) == (1, 1)
    assert [one.message for one in await nats.log.read("trigger.>")] == [Trigger(reason="own")]


async def test_append_with_a_lost_answer_is_stored_once(nats: NatsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    _lose_the_first_answer(nats, monkeypatch)
    with pytest.raises(SequenceConflict):
        await nats.log.append(raised(), expect=0)

    assert [found.message for found in await nats.log.load(SCOPE)] == [raised()]


async def test_input_with_a_lost_answer_is_stored_once(nats: NatsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    _lose_the_first_answer(nats, monkeypatch)

    assert await nats.log.publish("trigger.j", Trigger(), message_id="a") == 1
    assert len(await nats.log.read("trigger.j")) == 1


async def test_writes_of_one_moment_are_one_request(nats: NatsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[int] = []
    store_each = nats.connection.store_each

    async def counted(messages: Sequence[Outgoing]) -> list[int | Exception]:
        requests.append(len(messages))
        return await store_each(messages)

    monkeypatch.setattr(nats.connection, "store_each", counted)
    first, second, third, other, conflict = [
        asyncio.ensure_future(work)
        for work in (
            *(nats.streams.publish("trigger.j", Trigger(), message_id=id_) for id_ in ("a", "b", "c")),
            nats.streams.append(raised(), expect=0),
            nats.streams.append(delivered(), expect=7),
        )
    ]
    await asyncio.sleep(0)
    second.cancel()
    assert {await first, await third} == {1, 3}
    assert await other == 1
    with pytest.raises(SequenceConflict):
        await conflict
    with pytest.raises(asyncio.CancelledError):
        await second
    assert sorted(requests) == [2, 3]


async def test_reading_no_scope_sends_no_request(nats: NatsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    async def sent(messages: Sequence[Outgoing]) -> None:
        raise AssertionError(f"no reply would end the wait for {messages}")

    monkeypatch.setattr(nats.connection.transport, "send", sent)
    assert await nats.connection.request_each([]) == []


async def test_repeated_id_is_believed_without_a_look(nats: NatsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some leaders store events in the ledger, and may not read it."""

    async def refuse(*_: object, **__: object) -> None:
        raise NotAllowed("no right to read")

    first = await nats.log.publish("trigger.a", Trigger(), message_id="once")
    monkeypatch.setattr(nats.connection, "find", refuse)
    assert await nats.log.publish("trigger.a", Trigger(), message_id="once") == first


async def test_missing_answer_is_reported(nats: NatsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "PUBLISH_TIMEOUT_S", 0.0)
    monkeypatch.setattr(connections, "_FIRST_PAUSE_S", 0.0)
    await nats.connection.manage(f"STREAM.DELETE.{nats.names.stream(Stream.REQUESTS)}")

    with pytest.raises(LogUnavailable):
        await nats.log.publish("trigger.j", Trigger(), message_id="a")

    async def is_reported() -> bool:
        try:
            await nats.log.load("trigger.j")
        except LogUnavailable:
            return True
        return False

    assert await nats.until(is_reported)  # a replica that still has the stream may answer


async def test_closed_connection_is_reported_immediately(nats: NatsWorld) -> None:
    """Also to a follower: a closed connection does not come back."""
    assert nats.connection.client.connected_url is not None
    async with connect(nats.connection.client.connected_url.geturl()) as connection:
        log = NatsEventLog(connection, nats.names)
        async with aclosing(log.follow(Stream.REQUESTS, after=0)) as batches:
            await anext(batches)
            waiting = asyncio.ensure_future(anext(batches))
            await asyncio.sleep(0)
            await connection.client.close()
            with pytest.raises(LogUnavailable):
                await waiting
        with pytest.raises(LogUnavailable):
            await log.publish("trigger.j", Trigger(), message_id="a")
        with pytest.raises(LogUnavailable):
            await log.last("public.trigger.j")


async def test_a_follower_outlives_its_consumer(nats: NatsWorld) -> None:
    stream = nats.names.stream(Stream.REQUESTS)
    async with aclosing(nats.log.follow(Stream.REQUESTS, "trigger.>", after=0)) as batches:
        first = await nats.log.publish("trigger.j", Trigger(), message_id="a")
        assert [one.sequence for one in (await _messages(batches)).messages] == [first]

        waiting = asyncio.ensure_future(_messages(batches))
        (name,) = (await nats.connection.manage(f"CONSUMER.NAMES.{stream}"))["consumers"][-1:]
        await nats.connection.manage(f"CONSUMER.DELETE.{stream}.{name}")
        second = await nats.log.publish("trigger.j", Trigger(), message_id="b")

        assert [one.sequence for one in (await waiting).messages] == [second]


async def test_a_follower_removes_its_consumer_when_it_ends(nats: NatsWorld) -> None:
    stream = nats.names.stream(Stream.REQUESTS)

    async def consumers() -> int:
        total: int = (await nats.connection.manage(f"CONSUMER.NAMES.{stream}"))["total"]
        return total

    async def is_gone() -> bool:
        return await consumers() == before

    before = await consumers()
    async with aclosing(nats.log.follow(Stream.REQUESTS, after=None)) as batches:
        await anext(batches)
        assert await consumers() == before + 1

    await nats.until(is_gone)


def _any(subject: str, body: bytes) -> Trigger:  # noqa: ARG001 - as `decode`
    return Trigger()


@pytest.mark.parametrize("seed", range(6))
async def test_follower_far_behind_brings_every_kind_in_order(
    nats: NatsWorld, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each filter is read by itself first."""
    monkeypatch.setattr(follow, "FAR", 3)
    monkeypatch.setattr(follow, "PORTION", 4)
    chance, numbers = Random(seed), count()  # noqa: S311 - a test
    kinds = ("completed", "failed", "lost", "other")
    followed = [f"report.*.*.{kind}.>" for kind in kinds[:3]]

    async def store(kind: str) -> tuple[int, str]:
        subject = f"report.a_job.e{next(numbers)}.{kind}.main.1"
        return await nats.receive(subject, b"{}"), subject

    stored = [await store(chance.choice(kinds[chance.randrange(3) :])) for _ in range(60)]
    gone = chance.sample(stored, k=8)
    for sequence, subject in gone:
        await nats.housekeeping.purge(subject, upto=sequence)
    after = chance.randrange(20)
    expected = [
        (sequence, subject)
        for sequence, subject in stored
        if sequence > after and (sequence, subject) not in gone and ".other." not in subject
    ]
    found: list[tuple[int, str]] = []
    reached: list[int] = []
    async with aclosing(nats.log.follow(Stream.REPORTS, *followed, after=after, decode=_any)) as batches:
        async for batch in batches:
            found += [(one.sequence, one.subject) for one in batch.messages]
            reached.append(batch.upto)
            if batch.caught_up:
                break
        assert found == expected
        assert reached == sorted(reached)
        assert reached[-1] == stored[-1][0]
        late = [await store(chance.choice(kinds[:3])) for _ in range(20)]
        newer = list[tuple[int, str]]()
        async for batch in batches:
            newer += [(one.sequence, one.subject) for one in batch.messages]
            if len(newer) >= len(late) and batch.caught_up:
                break
        assert newer == late


async def test_follower_of_newest_messages_gets_these_alone(nats: NatsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if many are pending."""
    monkeypatch.setattr(follow, "FAR", 3)
    monkeypatch.setattr(follow, "PORTION", 4)
    subjects_ = [f"report.a_job.e{number}.{kind}.main.1" for number in range(10) for kind in ("completed", "failed")]
    stored = [(await nats.receive(one, b"{}"), one) for one in subjects_ + subjects_[8:]]
    found: list[tuple[int, str]] = []
    filters = ("report.*.*.completed.>", "report.*.*.failed.>")
    async with aclosing(nats.log.follow(Stream.REPORTS, *filters, after=None, decode=_any)) as batches:
        async for batch in batches:
            found += [(one.sequence, one.subject) for one in batch.messages]
            if batch.caught_up:
                break
    assert found == stored[:8] + stored[len(subjects_) :]


async def test_writers_followers_and_readers_survive_a_restart(tmp_path: Path) -> None:
    names = fresh_names()
    with EmbeddedServer(tmp_path, port=ANY_PORT).start() as server:
        port, url = server.port, server.url
        async with connect(url, reconnect_time_wait=0.05) as connection:
            await provision(connection, names, Settings(), durables=[REPORTS])
            log, queue = NatsEventLog(connection, names), NatsDurable(connection, names, REPORTS.stream, REPORTS.name)

            async def publish(name: str) -> int:
                one = report(name)
                return await log.publish(subjects.subject_of(one), one, message_id=name)

            first = await publish("e1")
            async with aclosing(log.follow(Stream.REPORTS, "report.>", after=0)) as batches:
                assert (await _messages(batches)).upto == first
                (task,) = await queue.take(1, wait=10)
                await task.ack()
                await connection.client.flush()
                following = asyncio.ensure_future(_messages(batches))
                taking = asyncio.ensure_future(queue.take(10, wait=60))
                await asyncio.to_thread(server.stop)
                with pytest.raises(LogUnavailable):
                    await taking
                publishing = asyncio.ensure_future(publish("e2"))
                with EmbeddedServer(tmp_path, port=port).start():
                    second = await publishing
                    assert [one.message for one in (await following).messages] == [report("e2")]
                    third = await publish("e3")
                    assert [one.sequence for one in await take(queue, 2)] == [second, third]
                    assert second < third


async def _messages(batches: Following) -> Batch:
    """The next batch that holds any."""
    async for batch in batches:
        if batch.messages:
            return batch
    raise AssertionError("the follower ended")


def _lose_the_first_answer(nats: NatsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, calls = nats.connection.request_each, count(1)

    async def losing(messages: Sequence[Outgoing]) -> list[Reply | LogUnavailable]:
        replies = await ask(messages)
        return [LogUnavailable("the answer is lost")] * len(replies) if next(calls) == 1 else replies

    monkeypatch.setattr(nats.connection, "request_each", losing)
