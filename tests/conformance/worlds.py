"""The two worlds that every behaviour is shown in: memory, and a real server."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from itertools import count
from secrets import token_hex
from typing import Protocol, Self, TypeVar

import msgspec
from nats.errors import NoRespondersError

from tests.durables import NatsDurable, Reader
from tests.servers import FAST_CLIENT, REPLICAS
from tocsin.adapters.commit_stored import CommitStoredLog
from tocsin.adapters.commit_view import CommitView
from tocsin.adapters.memory.agents import InMemoryTurnChannel
from tocsin.adapters.memory.archive import InMemoryArchiveStore, InMemoryStreamPurge
from tocsin.adapters.memory.clock import LoopClock
from tocsin.adapters.memory.commit_log import InMemoryCommitLog
from tocsin.adapters.nats.admin.provision import NatsStreamPurge, provision
from tocsin.adapters.nats.client.connection import Connection, connect
from tocsin.adapters.nats.client.names import Names
from tocsin.adapters.nats.client.wire import STREAM_NOT_FOUND
from tocsin.adapters.nats.log.commit_log import NatsCommitLog, NatsTurnChannel
from tocsin.adapters.nats.log.direct_get import DirectGet
from tocsin.adapters.nats.log.event_log import NatsEventLog
from tocsin.adapters.nats.log.projections import NatsProjections
from tocsin.adapters.nats.log.stored_log import NatsStoredLog
from tocsin.adapters.routed_log import RoutedLog
from tocsin.adapters.system_clock import SystemClock
from tocsin.archive.commit_reader import CommitReader
from tocsin.archive.log_archive import LogArchive
from tocsin.bootstrap.commit_process import KEY, PARTITION, CommitProcess
from tocsin.domain.commit import CommitEvent, LogHead, Seal
from tocsin.domain.events import Message
from tocsin.engine.commit_writer import Chain, CommitWriter
from tocsin.engine.snapshots import Snapshots
from tocsin.ports import (
    Append,
    DurableSpec,
    EventLog,
    InputLog,
    LogUnavailable,
    Projections,
    Publish,
    StoredLog,
    StreamPurge,
    Write,
    Written,
)
from tocsin.ports.commit_log import CommitLog, TurnChannel
from tocsin.settings import Settings
from tocsin.subjects import Bucket, Stream, scope_of, stream_of
from tocsin.testing import InMemoryEventLog, InMemoryProjections, InMemoryStoredLog

SETTINGS = Settings.model_validate({"replicas": REPLICAS, "queues": {"outside": {"transport": "mq"}}})
PATIENCE = 20.0
SETTLING = 10.0
READS = 4
T = TypeVar("T")


class World(Protocol):
    """The ports that a behaviour needs; all of them are empty at first."""

    @property
    def log(self) -> EventLog: ...
    @property
    def stored(self) -> StoredLog: ...
    @property
    def housekeeping(self) -> StreamPurge: ...
    @property
    def projections(self) -> Projections: ...

    def now(self) -> datetime:
        """The log's clock."""

    async def durable(self, spec: DurableSpec) -> Reader:
        """One reader of a durable."""

    async def receive(self, subject: str, body: bytes, message_id: str | None = None) -> int:
        """Store arbitrary bytes, as a foreign publisher could."""

    async def decide(self, subject: str, body: bytes) -> int:
        """Store an event as a stage of another version could."""

    async def ask(self, job: str, body: bytes, message_id: str) -> int:
        """Store a trigger that a program outside published."""

    async def until(self, look: Callable[[], Awaitable[T]]) -> T:
        """Let time pass until `look` finds something, and no longer than `PATIENCE`."""


KEY_OF_INSTALLATION = b"1" * 32


class CommitsWorld:
    """An installation whose decisions are commits, over a log of commits and the streams beside it."""

    log: RoutedLog
    stored: CommitStoredLog

    def __init__(
        self, base: InputLog, streams: StoredLog, commits: CommitLog, turns: TurnChannel, projections: Projections
    ) -> None:
        self.base = base
        self._streams = streams
        self.commits = commits
        self._turns = turns
        self.projections = projections

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        process = CommitProcess(
            self.commits,
            self.base,
            SystemClock(),
            KEY_OF_INSTALLATION,
            installation="tocsin",
            name="test",
            turns=self._turns,
        )
        snapshots = Snapshots(self.projections, KEY_OF_INSTALLATION)
        view = CommitView(self.commits, PARTITION, process.seal, snapshots)
        self.seal = process.seal

        async def shown() -> CommitView:
            return view

        self.log = RoutedLog(self.base, shown)

        async def sealed() -> Seal:
            return process.seal

        async def newest() -> int:
            return await view.end(Stream.LOG)

        archive = LogArchive(InMemoryArchiveStore(), InMemoryProjections())
        reader = CommitReader(self.commits, PARTITION, sealed, KEY)
        self.stored = CommitStoredLog(self._streams, reader, archive, newest)
        async with process.running([], view) as self.loop:
            yield self

    def now(self) -> datetime:
        return datetime.now(UTC)  # a server runs on this machine

    async def decide(self, subject: str, body: bytes) -> int:
        chain = Chain(self.seal, LogHead(KEY))
        writer = CommitWriter(self.commits, PARTITION, chain, SystemClock())
        while (stored := await self.commits.next(PARTITION, after=chain.head.sequence)) is not None:
            chain.take(stored)
        event = CommitEvent(subject, "other", "0-0", msgspec.Raw(body))
        await writer.append(self.seal.write(chain.head, writer="other", at=self.now(), taken={}, events=[event]))
        while self.loop.head.number < chain.head.number:  # noqa: ASYNC110 - the process reads it
            await asyncio.sleep(0.01)
        return chain.head.number

    async def until(self, look: Callable[[], Awaitable[T]]) -> T:
        async with asyncio.timeout(PATIENCE):
            while not (found := await look()):  # noqa: ASYNC110 - another process or the server stores it
                await asyncio.sleep(0.02)
        return found


class MemoryWorld(CommitsWorld):
    def __init__(self) -> None:
        self.streams = InMemoryEventLog(LoopClock())
        self.housekeeping = InMemoryStreamPurge(self.streams)
        stored, projections = InMemoryStoredLog(self.streams), InMemoryProjections(LoopClock())
        super().__init__(self.streams, stored, InMemoryCommitLog(SystemClock()), InMemoryTurnChannel(), projections)

    async def durable(self, spec: DurableSpec) -> Reader:
        return self.streams.durable(spec)

    async def receive(self, subject: str, body: bytes, message_id: str | None = None) -> int:
        return self.streams.receive(subject, body, message_id=message_id)

    async def ask(self, job: str, body: bytes, message_id: str) -> int:
        return self.streams.receive(f"public.trigger.{job}", body, message_id=message_id)


async def until_replicated(stream: DirectGet, sequence: int) -> None:
    """Wait until several reads in a row find a message: each replica answers some, if the nearest is busy."""
    found = 0
    while found < READS:
        found = 0 if await stream.by_sequence(sequence) is None else found + 1
        await asyncio.sleep(0 if found else 0.02)


class _SettledLog(NatsEventLog):
    """A log on a cluster whose writes end when the replicas that answer the test's reads have them."""

    async def append(self, fact: Message, *, expect: int) -> int:
        sequence = await super().append(fact, expect=expect)
        await self._settle(scope_of(fact), sequence)
        return sequence

    async def publish(self, subject: str, message: Message, *, message_id: str, ttl: float | None = None) -> int:
        sequence = await super().publish(subject, message, message_id=message_id, ttl=ttl)
        await self._settle(subject, sequence)
        return sequence

    async def publish_together(self, inputs: Sequence[Publish]) -> None:
        await super().publish_together(inputs)
        await self._settle(inputs[0].subject, await self.end(stream_of(inputs[0].subject)))

    async def write(self, writes: Sequence[Write]) -> list[Written]:
        written = await super().write(writes)
        for write, result in zip(writes, written, strict=True):
            if result.sequences:
                subject = write.scope if isinstance(write, Append) else write.subject
                await self._settle(subject, result.sequences[-1])
        return written

    async def _settle(self, subject: str, sequence: int) -> None:
        with suppress(TimeoutError):  # perhaps it was removed since
            async with asyncio.timeout(SETTLING):
                await until_replicated(self._of(subject), sequence)


class NatsWorld(CommitsWorld):
    def __init__(self, connection: Connection, names: Names) -> None:
        self.connection = connection
        self.names = names
        self.streams = (NatsEventLog if REPLICAS is None else _SettledLog)(connection, names)
        self.housekeeping = NatsStreamPurge(connection, names)
        commits = NatsCommitLog(connection, names.commits_stream, names.commits_prefix)
        turns = NatsTurnChannel(connection, names.turns)
        projections = NatsProjections(connection, names)
        super().__init__(self.streams, NatsStoredLog(connection, names), commits, turns, projections)
        self._open: list[NatsDurable] = []

    async def durable(self, spec: DurableSpec) -> Reader:
        await provision(self.connection, self.names, SETTINGS, durables=(spec,))
        reader = NatsDurable(self.connection, self.names, spec.stream, spec.name)
        self._open.append(reader)
        return reader

    async def receive(self, subject: str, body: bytes, message_id: str | None = None) -> int:
        return await self._publish(self.names.to_wire(subject), body, message_id)

    async def ask(self, job: str, body: bytes, message_id: str) -> int:
        return await self._publish(f"{self.names.trigger_prefix}.{job}", body, message_id)

    async def _publish(self, wire_subject: str, body: bytes, message_id: str | None) -> int:
        headers = {"Nats-Msg-Id": message_id} if message_id else {}
        try:
            # Without the connection's retries: a subject that no stream captures is not captured later either.
            reply = await self.connection.client.request(wire_subject, body, timeout=PATIENCE, headers=headers)
        except NoRespondersError as error:
            raise LogUnavailable(str(error)) from error
        stored = json.loads(reply.data)
        sequence: int = stored["seq"]
        if REPLICAS is not None:  # the server of this connection may lag, and answers the test's reads
            async with asyncio.timeout(PATIENCE):
                await until_replicated(DirectGet(self.connection, stored["stream"]), sequence)
        return sequence

    async def close(self) -> None:
        for queue in self._open:
            await queue.close()

    async def remove(self) -> None:
        """Remove the streams and buckets, unless the test closed the connection."""
        buckets = map(self.names.bucket_stream, Bucket)
        streams = (*self.names.own_streams(), self.names.commits_stream, *buckets, self.names.archive_stream)
        requests = [(f"STREAM.DELETE.{stream}", b"") for stream in streams]
        with suppress(LogUnavailable):
            await self.connection.find_each(requests, absent=STREAM_NOT_FOUND)


_numbers = count()


def fresh_names() -> Names:
    """Names that no other test shares, so that all can share a server."""
    unique = f"{token_hex(4)}-{next(_numbers)}"
    return Names(
        root=f"t{unique}",
        trigger_prefix=f"in-{unique}.trigger",
        public_prefix=f"out-{unique}",
        mq_prefix=f"mq-{unique}",
    )


@asynccontextmanager
async def nats_world(url: str) -> AsyncIterator[NatsWorld]:
    """A provisioned installation of its own, with a process that stores decisions."""
    async with nats_streams(url) as world, world.running():
        yield world


@asynccontextmanager
async def nats_streams(url: str) -> AsyncIterator[NatsWorld]:
    """A provisioned installation of its own, of which no process reads the log.

    Its requests wait as long as a test does: on a busy machine a second try of a stored append would be a conflict.
    """
    async with connect(url, fast_client=FAST_CLIENT) as connected:
        connection = Connection(connected.client, timeout=PATIENCE, fast_client=FAST_CLIENT)
        connected.on_interrupt(connection.interrupt)
        names = fresh_names()
        await provision(connection, names, SETTINGS)
        world = NatsWorld(connection, names)
        yield world
        await world.close()
        if REPLICAS is not None:  # a cluster that keeps the streams of all tests answers too late
            await world.remove()
