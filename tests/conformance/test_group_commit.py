"""Atomic batches on a real server: what is stored together, what is refused, and that no batch is stored in part."""

import asyncio
import os
import random
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.conformance.given import dispatched, started
from tests.conformance.worlds import NatsWorld, fresh_names, until_replicated
from tests.servers import REPLICAS
from tocsin import subjects
from tocsin.adapters.nats.admin.provision import provision
from tocsin.adapters.nats.client.connection import Connection, connect
from tocsin.adapters.nats.client.transport import Outgoing
from tocsin.adapters.nats.log.direct_get import DirectGet
from tocsin.adapters.nats.log.event_log import NatsEventLog
from tocsin.adapters.nats.log.group_commits import MANY, SEVERAL, GroupCommit
from tocsin.adapters.nats.server.embedded import ANY_PORT, EmbeddedServer
from tocsin.domain.events import Message
from tocsin.ports import Append, SequenceConflict
from tocsin.subjects import Stream, execution, scope_of, subject_of

LEAST: Final = MANY if REPLICAS is None else SEVERAL


class Batches:
    """The sizes of the batches that a connection sent."""

    def __init__(self, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self._store = connection.store_together
        monkeypatch.setattr(connection, "store_together", self.store)

    async def store(self, messages: Sequence[Outgoing]) -> int:
        self.sizes.append(len(messages))
        return await self._store(messages)


@pytest.mark.parametrize(("number", "sizes"), [(LEAST - 1, []), (LEAST, [LEAST]), (2_300, [1_000, 1_000, 300])])
async def test_one_decision_of_many_events_is_a_batch(
    nats: NatsWorld, monkeypatch: pytest.MonkeyPatch, number: int, sizes: list[int]
) -> None:
    batches = Batches(nats.connection, monkeypatch)
    first = await nats.log.append(dispatched(), expect=0)

    (written,) = await nats.log.write([Append(tuple(started(delivery=n) for n in range(number)), first)])

    assert batches.sizes == sizes
    assert written.error is None
    assert written.sequences == tuple(range(first + 1, first + 1 + number))
    found = await nats.log.read("execution.*.*.started.>", limit=number + 1)
    assert [recorded.message for recorded in found] == [started(delivery=n) for n in range(number)]


@pytest.mark.parametrize(("mode", "sizes"), [("always", [33]), ("auto", []), ("off", [])])
async def test_single_events_are_a_batch_if_flushed(
    nats: NatsWorld, monkeypatch: pytest.MonkeyPatch, mode: GroupCommit, sizes: list[int]
) -> None:
    log = NatsEventLog(nats.connection, nats.names, group_commit=mode)
    batches = Batches(nats.connection, monkeypatch)
    written = await log.write([Append((dispatched(f"e{n}"),), 0) for n in range(33)])
    assert batches.sizes == sizes
    assert sorted(sequence for one in written for sequence in one.sequences) == list(range(1, 34))


async def test_refused_batch_is_stored_one_by_one(nats: NatsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    log = NatsEventLog(nats.connection, nats.names, group_commit="always")
    batches = Batches(nats.connection, monkeypatch)
    await log.append(dispatched("e5"), expect=0)

    written = await log.write([Append((dispatched(f"e{n}"), started(f"e{n}")), 0) for n in range(20)])

    assert batches.sizes == [40]
    assert [n for n, one in enumerate(written) if one.error is not None] == [5]
    assert isinstance(written[5].error, SequenceConflict)
    assert written[5].sequences == ()
    await until_replicated(DirectGet(nats.connection, nats.names.stream(Stream.LOG)), await log.end(Stream.LOG))
    for n, one in enumerate(written):
        found = await log.load(execution("a.job", f"e{n}"))
        assert len(found) == (1 if n == 5 else 2)
        assert n == 5 or tuple(recorded.sequence for recorded in found) == one.sequences


def _guarded(nats: NatsWorld, fact: Message, expect: int, number: int, *, is_last: bool) -> Outgoing:
    headers = {
        "Nats-Expected-Last-Subject-Sequence": str(expect),
        "Nats-Expected-Last-Subject-Sequence-Subject": nats.names.to_wire(scope_of(fact)),
        "Nats-Batch-Id": "both",
        "Nats-Batch-Sequence": str(number),
    }
    if is_last:
        headers["Nats-Batch-Commit"] = "1"
    return Outgoing(nats.names.to_wire(subject_of(fact)), fact.encode(), headers)


async def test_batch_would_store_two_decisions_of_a_scope(nats: NatsWorld) -> None:
    """The reason why a batch never holds two decisions of one scope."""
    last = await nats.log.append(dispatched(), expect=0)
    claims = [started(delivery=1), started(delivery=2)]

    with pytest.raises(ValueError, match="guarded by"):
        await nats.log.write([Append((claim,), last) for claim in claims])
    assert await nats.log.tail(execution("a.job", "e1")) == last

    await nats.connection.store_together(
        [_guarded(nats, claim, last, n, is_last=n == 2) for n, claim in enumerate(claims, 1)]
    )
    assert [recorded.message for recorded in (await nats.log.load(execution("a.job", "e1")))[1:]] == claims

    for claim in (started(delivery=3), started(delivery=4)):  # one by one, a guard refuses both
        with pytest.raises(SequenceConflict):
            await nats.log.append(claim, expect=last)


KILLS: Final = 25
SIZE: Final = 200
WRITERS: Final = 6


@pytest.mark.parametrize("sync_always", [False, True])
async def test_killed_server_stores_no_partial_batch(tmp_path: Path, *, sync_always: bool) -> None:
    await _kill_often(tmp_path, KILLS, sync_always=sync_always)


@pytest.mark.full
@pytest.mark.slow
async def test_often_killed_server_stores_no_partial_batch(tmp_path: Path) -> None:
    await _kill_often(tmp_path, 5 * KILLS, sync_always=True)


async def _kill_often(tmp_path: Path, kills: int, *, sync_always: bool) -> None:
    names, chance = fresh_names(), random.Random(7)  # noqa: S311 - a repeatable test
    acknowledged: set[str] = set()
    sent = 0
    for number in range(kills):
        with EmbeddedServer(tmp_path, port=ANY_PORT, sync_always=sync_always).start() as server:
            async with connect(server.url, allow_reconnect=False) as connection:
                await provision(connection, names)
                connection._patience = 0.0
                log, left = NatsEventLog(connection, names), asyncio.Semaphore(0)

                async def write(execution_id: str, log: NatsEventLog = log, left: asyncio.Semaphore = left) -> None:
                    events = tuple(started(execution_id, delivery=n) for n in range(SIZE))
                    (written,) = await log.write([Append(events, 0)])
                    if written.error is None:
                        acknowledged.add(execution_id)
                        left.release()

                async with asyncio.TaskGroup() as group:
                    for n in range(WRITERS):
                        group.create_task(write(f"e{number}-{n}"))
                        sent += 1
                    if number % 2:
                        await asyncio.sleep(chance.uniform(0.0, 0.02))  # while the first batches are sent
                    else:
                        for _ in range(chance.randrange(1, WRITERS)):  # while others are stored
                            await left.acquire()
                    os.kill(server.pid, signal.SIGKILL)
    with EmbeddedServer(tmp_path, port=ANY_PORT).start() as server:
        async with connect(server.url) as connection:
            log = NatsEventLog(connection, names)
            found = [recorded for n in range(kills) for recorded in [await _sizes(log, n)]]
    sizes = {execution_id: size for each in found for execution_id, size in each.items()}
    assert set(sizes.values()) <= {0, SIZE}
    assert len(sizes) == sent
    assert {execution_id for execution_id, size in sizes.items() if size} >= acknowledged
    assert 0 < len(acknowledged) < sent  # some kills came before the end of a batch, some after it


async def _sizes(log: NatsEventLog, number: int) -> dict[str, int]:
    ids = [f"e{number}-{n}" for n in range(WRITERS)]
    return {name: len(await log.load(subjects.execution("a.job", name))) for name in ids}
