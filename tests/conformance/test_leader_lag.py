"""Messages that a process received before the leader of their stream stored them.

All replicas of a stream store what was committed, each at its own pace. A consumer is served by one of them, so that its
messages may be ahead of the leader, which confirms states and guards appends.
"""

import asyncio
import json
from collections.abc import Sequence
from contextlib import aclosing

import pytest
from faststream.nats import NatsBroker
from typing_extensions import override

from tests.conformance.worlds import NatsWorld
from tests.domain.given import ID, JOB, KEY, admitted, plan, started
from tests.servers import FAST_CLIENT
from tocsin import subjects
from tocsin.adapters.nats.client import wire
from tocsin.adapters.nats.client.connection import Connection
from tocsin.adapters.nats.client.transport import Headers, Outgoing
from tocsin.adapters.nats.client.wire import Reply
from tocsin.adapters.nats.consumers.stage_router import stage_router
from tocsin.adapters.nats.log.event_log import NatsEventLog
from tocsin.adapters.nats.log.leader_lag import LeaderLag, ReceivedMarks
from tocsin.domain.events import Dispatched
from tocsin.engine.delivery_policy import DeliveryPolicy
from tocsin.engine.stage import BoundStage, BoundSubscription
from tocsin.engine.states import StateStore
from tocsin.engine.step import Sources
from tocsin.ports import DurableSpec, LogUnavailable
from tocsin.stages.dag_advancer.stage import DagAdvancer
from tocsin.subjects import Stream
from tocsin.testing import ManualClock

SCOPE = subjects.execution(JOB, ID)


class LateLeader(Connection):
    """A connection to a server that answers as if its streams were empty, until their ends were requested often enough."""

    looks_left = 3

    @override
    async def request_each(self, messages: Sequence[Outgoing]) -> list[Reply | LogUnavailable]:
        if not self.looks_left:
            return await super().request_each(messages)
        return [_absent() if ".MSG.GET." in message.subject else _conflict() for message in messages]

    @override
    async def request_many(self, subject: str, body: bytes) -> tuple[list[Reply], Reply]:
        if not self.looks_left:
            return await super().request_many(subject, body)
        return [], Reply(b"", {wire.STATUS: wire.NO_MESSAGES})

    @override
    async def request(self, subject: str, body: bytes = b"", headers: Headers | None = None) -> Reply:
        reply = await super().request(subject, body, headers)
        if not self.looks_left:
            return reply
        assert ".STREAM.INFO." in subject
        self.looks_left -= 1
        return Reply(json.dumps({"state": {"last_seq": 0}}).encode())


def _absent() -> Reply:
    return Reply(b'{"error": {"code": 404, "err_code": 10037, "description": "no message found"}}')


def _conflict() -> Reply:
    return Reply(b'{"error": {"code": 400, "err_code": 10071, "description": "wrong last sequence: 0"}}')


async def test_late_leader_leaves_no_step_undispatched(nats: NatsWorld, nats_url: str) -> None:
    marks = ReceivedMarks()
    log = NatsEventLog(LateLeader(nats.connection.client), nats.names, marks=marks)
    store = StateStore(Sources.of(log, nats.projections, ManualClock()))
    advancer = DagAdvancer(store, KEY)
    filters = (subjects.filter_for("execution.admitted"),)
    subscription = BoundSubscription("late", Stream.LOG, filters, advancer.on_admitted, learn=advancer.admission)
    await nats.durable(DurableSpec(subscription.durable, Stream.LOG, filters))
    await nats.log.append(admitted(plan({"a": (), "b": ("a",)})), expect=0)
    broker = NatsBroker(nats_url, logger=None, apply_types=False)
    router = stage_router(
        BoundStage("late", (subscription,)),
        DeliveryPolicy(store),
        nats.names,
        marks=marks,
        fast_client=FAST_CLIENT,
    )
    broker.include_router(router)

    async def is_acknowledged() -> bool:
        progress = await nats.log.progress(Stream.LOG, subscription.durable)
        return progress is not None and progress.floor > 0

    async with broker:
        await broker.start()
        await nats.until(is_acknowledged)
    assert [type(recorded.message) for recorded in await nats.log.load(SCOPE, after=1)] == [Dispatched]


async def test_leader_is_awaited_for_received_messages(nats: NatsWorld) -> None:
    await nats.log.append(admitted(), expect=0)
    nats.marks.note(Stream.LOG, 2)
    reads = [asyncio.create_task(nats.log.tail(SCOPE)), asyncio.create_task(nats.log.end(Stream.LOG))]
    later = asyncio.create_task(nats.log.has_newer(SCOPE, after=1))
    await nats.log.append(started(), expect=1)
    assert [*(await asyncio.gather(*reads)), await later] == [2, 2, True]


async def test_follower_notes_what_it_received(nats: NatsWorld) -> None:
    await nats.log.append(admitted(), expect=0)
    assert nats.marks[Stream.LOG] == 0
    async with aclosing(nats.log.follow(Stream.LOG, after=0)) as batches:
        await anext(batches)
    assert nats.marks[Stream.LOG] == 1


async def test_watcher_notes_what_it_received(nats: NatsWorld) -> None:
    await nats.log.append(admitted(), expect=0)
    async with aclosing(nats.log.watch(Stream.LOG, after=0)) as headings:
        await anext(headings)
    assert nats.marks[Stream.LOG] == 1


async def _ends_at_seven(stream: Stream) -> int:
    assert stream is Stream.LOG
    return 7


async def test_late_leader_answers_no_read() -> None:
    marks = ReceivedMarks()
    lag = LeaderLag(marks, _ends_at_seven, patience=0)
    marks.note(Stream.LOG, 8)
    for _ in range(3):
        with pytest.raises(LogUnavailable):
            await lag.await_leader(Stream.LOG, stored=7)
    await lag.await_leader(Stream.LOG, stored=8)


async def test_leader_without_the_messages_is_believed_at_last() -> None:
    """As after the stream was restored from an older backup."""
    marks = ReceivedMarks()
    lag = LeaderLag(marks, _ends_at_seven, limit=0)
    marks.note(Stream.LOG, 8)
    with pytest.raises(LogUnavailable):
        await lag.end(Stream.LOG)
    await lag.await_leader(Stream.LOG, stored=0)
    assert (await lag.end(Stream.LOG), marks[Stream.LOG]) == (7, 7)


async def test_current_leader_costs_no_request() -> None:
    requests: list[Stream] = []

    async def read_end(stream: Stream) -> int:
        requests.append(stream)
        return 9

    marks = ReceivedMarks()
    lag = LeaderLag(marks, read_end)
    await lag.await_leader(Stream.LOG, stored=0)
    marks.note(Stream.LOG, 5)
    await lag.await_leader(Stream.LOG, stored=5)
    assert not requests
    await lag.await_leader(Stream.LOG, stored=4)
    marks.note(Stream.LOG, 9)
    await lag.await_leader(Stream.LOG, stored=4)
    assert requests == [Stream.LOG]
    marks.note(Stream.LEDGER, 1)
    await lag.await_leader(Stream.LEDGER, stored=0)
    assert requests == [Stream.LOG, Stream.LEDGER]
