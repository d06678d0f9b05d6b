"""The product's ports, as one process has them: every call goes over the network."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from tocsin import subjects
from tocsin.domain.events import Message, Recorded, Started
from tocsin.ports import (
    Batch,
    Decode,
    DurableSpec,
    Encoded,
    EntryWrite,
    Loaded,
    LogUnavailable,
    Publish,
    SequenceConflict,
    Write,
    Written,
    acknowledge_each,
    check_keys,
    write_each,
    write_entry,
)
from tocsin.subjects import Bucket, Stream
from tocsin.testing import InMemoryDelivery, InMemoryDurable

from .history import InMemoryHistory
from .network import PATIENCE, InFlight, Network, at_once
from .process import Process
from .server import Replica, SentClaim, SimulatedBuckets, SimulatedServer

T = TypeVar("T")


class SimulatedLog:
    """Implements `ports.EventLog`."""

    def __init__(self, server: SimulatedServer, network: Network, process: Process) -> None:
        """The server's log, as seen from a process."""
        self._server = server
        self._network = network
        self._process = process
        self._decisions_upto: int | None = None
        self._tasks_upto = 0

    async def append(self, fact: Message, *, expect: int) -> int:
        raise NotImplementedError("decisions are commits")

    async def publish(self, subject: str, message: Message, *, message_id: str, ttl: float | None = None) -> int:
        del ttl  # every message stays, so that the judgement sees it
        publish = partial(self._server.receive, subject, message.encode(), message_id=message_id)
        return await self._ask(f"publish {subject}", publish)

    async def publish_together(self, inputs: Sequence[Publish]) -> None:
        what = f"publish together {' and '.join(write.subject for write in inputs)}"
        await self._ask(what, lambda: at_once(self._server.publish_together(inputs)))

    async def remove(self, subject: str, sequence: int) -> None:
        await self._ask(f"remove {subject} {sequence}", lambda: at_once(self._server.remove(subject, sequence)))

    async def write(self, writes: Sequence[Write]) -> list[Written]:
        return await write_each(self, writes)

    async def load(self, scope: str, *, after: int = 0) -> list[Recorded[Message]]:
        raise NotImplementedError("a scope is of decisions")

    async def load_each(self, *scopes: str, after: Mapping[str, int] | None = None) -> Loaded:
        raise NotImplementedError("a scope is of decisions")

    async def tail(self, scope: str) -> int:
        return await self._ask(f"tail {scope}", lambda: at_once(self._server.tail(scope)), is_read=True)

    async def tails(self, *scopes: str) -> list[int]:
        return await asyncio.gather(*map(self.tail, scopes))

    async def end(self, stream: Stream) -> int:
        return await self._ask(f"end {stream}", lambda: at_once(self._server.end(stream)), is_read=True)

    async def replicas(self) -> int:
        return await self._ask("replicas", lambda: at_once(self._server.replicas()), is_read=True)

    async def has_newer(self, *filters: str, after: int) -> bool:
        def answer() -> bool:
            return at_once(self._server.has_newer(*filters, after=after))

        return await self._ask(f"newer than {after}", answer, is_read=True)

    async def now(self) -> datetime:
        return await self._ask("now", lambda: at_once(self._server.now()), is_read=True)

    async def last(self, subject: str) -> Recorded[Message] | None:
        return await self._read(f"last {subject}", subject, lambda replica: replica.last(subject))

    async def get(self, subject: str, sequence: int) -> Recorded[Message] | None:
        return await self._read(
            f"get {subjects.stream_of(subject)} {sequence}", subject, lambda replica: replica.get(sequence)
        )

    async def read(
        self, subject: str, *, after: int = 0, limit: int = 1_000, confirm: bool = False
    ) -> list[Recorded[Message]]:
        del confirm  # no stage confirms a read
        return await self._read(
            f"read {subject} after {after}", subject, lambda replica: replica.read(subject, after=after, limit=limit)
        )

    async def follow(
        self, stream: Stream, *filters: str, after: int | None, decode: Decode = subjects.decode
    ) -> AsyncGenerator[Batch, None]:
        async with aclosing(self._server.follow(stream, *filters, after=after, decode=decode)) as followed:
            async for batch in followed:
                await self._process.wait(self._network.following(self._process))
                self.note_reading(filters, batch)
                yield batch

    def note_reading(self, filters: Sequence[str], batch: Batch) -> None:
        """Note how far the matcher of the process has read."""
        if subjects.queue_events() in filters and (batch.caught_up or self._decisions_upto is not None):
            self._decisions_upto = batch.upto
        elif subjects.ALL_TASKS[0] in filters:
            self._tasks_upto = batch.upto

    def note_claims(self, events: Sequence[Message]) -> None:
        at = self._network.loop.time()
        self._server.sent_claims += (
            SentClaim(event, self._process.name, at, self._decisions_upto, self._tasks_upto)
            for event in events
            if isinstance(event, Started)
        )

    async def _ask(self, what: str, answer: Callable[[], T | InFlight], *, is_read: bool = False) -> T:
        return await self._network.ask(self._process, what, answer, is_read=is_read)

    async def _read(self, what: str, of: str, asked: Callable[[Replica], T]) -> T:
        """Read from a random replica."""
        network, stream = self._network, subjects.stream_of(of)

        def answer() -> T:
            lags = network.chance.random() < network.faults.stale
            replica = self._server.replica(stream, network.chance, lags=lags)
            if lags:
                network.trace.note(network.loop.time(), self._process.name, f"{what} is answered as of {replica.upto}")
            return asked(replica)

        return await self._ask(what, answer, is_read=True)


class SimulatedProjections:
    """Implements `ports.Projections`."""

    def __init__(self, buckets: SimulatedBuckets, network: Network, process: Process) -> None:
        """The server's buckets, as seen from a process."""
        self._buckets = buckets
        self._network = network
        self._process = process

    async def get(self, bucket: Bucket, key: str) -> tuple[bytes, int] | None:
        network = self._network

        def answer() -> tuple[bytes, int] | None:
            # A late cursor would let an archived execution run again; the archiver relies on replicas that keep up.
            if network.chance.random() < network.faults.stale and bucket is not Bucket.CURSORS:
                return self._buckets.get_before(bucket, key)
            return at_once(self._buckets.get(bucket, key))

        return await network.ask(self._process, f"get {bucket}/{key}", answer, is_read=True)

    async def put(
        self, bucket: Bucket, key: str, value: bytes, *, expect: int | None = None, ttl: float | None = None
    ) -> int:
        sent = self._network.loop.time()

        def answer() -> int:
            is_late = self._network.loop.time() > sent + PATIENCE
            if is_late and expect == 0 and self._buckets.was_removed(bucket, key):
                raise SequenceConflict("its mark is there")  # a waiting caller sees the mark, and tries again
            return at_once(self._buckets.put(bucket, key, value, expect=expect, ttl=ttl))

        return await self._network.ask(self._process, f"put {bucket}/{key} behind {expect}", answer)

    async def remove(self, bucket: Bucket, key: str, *, expect: int | None = None) -> None:
        def answer() -> None:
            at_once(self._buckets.remove(bucket, key, expect=expect))

        await self._network.ask(self._process, f"remove {bucket}/{key} behind {expect}", answer)

    async def get_each(self, bucket: Bucket, keys: Sequence[str]) -> list[tuple[bytes, int] | None]:
        return await asyncio.gather(*(self.get(bucket, key) for key in keys))

    async def write(self, bucket: Bucket, writes: Sequence[EntryWrite]) -> list[Written]:
        check_keys(writes)
        return await asyncio.gather(*(write_entry(self, bucket, write) for write in writes))

    async def entries(self, bucket: Bucket, keys: str = ">") -> dict[str, bytes]:
        def answer() -> dict[str, bytes]:
            return at_once(self._buckets.entries(bucket, keys))

        return await self._network.ask(self._process, f"entries {bucket}", answer, is_read=True)


class SimulatedDelivery:
    """Implements `ports.Delivery`. An acknowledgement may be lost without a notice."""

    def __init__(
        self, delivery: InMemoryDelivery, durable: InMemoryDurable, network: Network, process: Process
    ) -> None:
        """A message in the hands of a process."""
        self._delivery = delivery
        self._durable = durable
        self._network = network
        self._process = process
        self._is_answered = False
        self.subject = delivery.subject
        self.body = delivery.body
        self.sequence = delivery.sequence
        self.time = delivery.time
        self.headers = delivery.headers
        self.message_id = delivery.message_id
        self.delivered = delivery.delivered

    async def ack(self) -> None:
        await self._answer("ack", partial(self._durable.done, self.sequence))

    async def nak(self, delay: float) -> None:
        await self._answer("nak", partial(self._durable.back, self.sequence, delay))

    async def in_progress(self) -> None:
        await self._say("in progress", partial(self._durable.keep, self.sequence))

    @staticmethod
    async def ack_many(deliveries: Sequence["SimulatedDelivery"]) -> None:
        await acknowledge_each(deliveries)

    async def _answer(self, what: str, do: Callable[[], None]) -> None:
        if self._is_answered:
            raise RuntimeError(f"{self.subject}, delivery {self.delivered}: already settled")
        self._is_answered = True
        await self._say(what, do)

    async def _say(self, what: str, do: Callable[[], None]) -> None:
        process, network = self._process, self._network
        process.check()
        network.befall(process)
        told = f"{what} {self.subject} to {self._durable.spec.name}, delivery {self.delivered}"
        draw = network.chance.random()
        if draw < network.faults.unacknowledged:
            network.trace.note(network.loop.time(), process.name, f"{told} is lost")
            if draw < network.faults.unacknowledged / 4:
                raise LogUnavailable(told)
        else:
            network.loop.call_later(network.latency(process), self._arrive, told, do)
        await process.wait(0.0001)

    def _arrive(self, told: str, do: Callable[[], None]) -> None:
        self._network.trace.note(self._network.loop.time(), self._process.name, told)
        do()


class Intake:
    """A durable, as a process takes from it."""

    def __init__(self, server: SimulatedServer, spec: DurableSpec, network: Network, process: Process) -> None:
        """Take from the durable of that name."""
        self._durable = server.durable(spec)
        self._network = network
        self._process = process

    async def take(self, limit: int, *, wait: float | None) -> Sequence[SimulatedDelivery]:
        """Take available tasks, waiting for the first (`None`: without a limit). The taker may have died meanwhile."""
        self._process.check()
        if wait is None:
            while not (found := self._durable._hand_out(limit)):
                await self._durable._changed.wait()
        else:
            found = list(await self._durable.take(limit, wait=wait))
        name, now = self._durable.spec.name, self._network.loop.time()
        for delivery in found:
            what = f"is handed {delivery.subject} by {name}, delivery {delivery.delivered}"
            self._network.trace.note(now, self._process.name, what)
        if found:
            self._network.befall(self._process)
        await self._process.wait(self._network.latency(self._process))
        return [SimulatedDelivery(one, self._durable, self._network, self._process) for one in found]


class SimulatedHistory:
    """Implements `ports.History` for recorders: a database that may fail before or after its commit."""

    def __init__(self, history: InMemoryHistory, network: Network, process: Process) -> None:
        """A database, as seen from a process."""
        self._history = history
        self._network = network
        self._process = process

    async def offset(self, stream: Stream) -> int:
        answer = partial(self._history.offset_now, stream)
        return await self._network.ask(self._process, f"offset of {stream}", answer, is_read=True)

    async def record(
        self,
        stream: Stream,
        messages: Sequence[Recorded[Message]],
        *,
        after: int,
        upto: int,
        opens: bool = True,
        encoded: Sequence[Encoded] = (),
    ) -> None:
        del encoded
        assert opens, "no simulated operator switches the history off"
        answer = partial(self._history.record_now, stream, messages, after=after, upto=upto)
        await self._network.ask(self._process, f"record {stream} {after}..{upto}", answer)

    async def expire(self, now: datetime, *, after: timedelta) -> int:  # noqa: ARG002 - the port's
        """Nothing is that old."""
        return 0
