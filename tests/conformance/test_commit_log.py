"""The log of commits, in memory and in a real stream: guards of partitions, foreign messages, followers, purges."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import cast

import msgspec
import pytest

from tests.conformance.worlds import fresh_names
from tests.servers import FAST_CLIENT, REPLICAS
from tocsin.adapters.memory.commit_log import InMemoryCommitLog
from tocsin.adapters.nats.client.connection import connect
from tocsin.adapters.nats.log.commit_log import NatsCommitLog
from tocsin.adapters.system_clock import SystemClock
from tocsin.domain.commit import CommitEvent, LogHead, Seal
from tocsin.engine.commit_writer import Appended, Chain, CommitWriter
from tocsin.ports import Clock, LogUnavailable, MessageTooLarge
from tocsin.ports.commit_log import CommitLog, CommitRefused, StoredBody

SEAL = Seal("tocsin", 0, {"k1": b"1" * 32})
MIB = 1_048_576


@dataclass
class Place:
    log: CommitLog
    receive: Callable[[int, bytes], Awaitable[int]]
    """Store bytes as a foreign publisher does, without a guard."""


@pytest.fixture(params=["memory", "nats"])
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    if request.param == "memory":
        memory = InMemoryCommitLog(SystemClock())
        yield Place(memory, memory.receive)
        return
    async with connect(request.getfixturevalue("nats_url"), fast_client=FAST_CLIENT) as connection:
        root = fresh_names().root
        jetstream = connection.client.jetstream()
        await jetstream.add_stream(name=root, subjects=[f"{root}.log.*"], num_replicas=REPLICAS or 1)

        async def receive(partition: int, body: bytes) -> int:
            return (await jetstream.publish(f"{root}.log.{partition}", body)).seq

        yield Place(NatsCommitLog(connection, root, f"{root}.log"), receive)
        await jetstream.delete_stream(root)


async def test_commit_is_stored_under_its_guard(place: Place) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    one = await place.log.append(0, b"one", expect=0)
    two = await place.log.append(0, b"two", expect=one)
    assert two > one
    stored = await place.log.next(0, after=one)
    assert stored is not None
    assert (stored.sequence, stored.body) == (two, b"two")
    assert before <= stored.time <= datetime.now(UTC) + timedelta(seconds=1)


@pytest.mark.parametrize("expect", ["older", "none", "newer"])
async def test_wrong_guard_is_refused_with_the_last_sequence(place: Place, expect: str) -> None:
    one = await place.log.append(0, b"one", expect=0)
    two = await place.log.append(0, b"two", expect=one)
    with pytest.raises(CommitRefused) as refused:
        await place.log.append(0, b"three", expect={"older": one, "none": 0, "newer": two + 7}[expect])
    assert refused.value.last == two
    assert await place.log.next(0, after=two) is None


async def test_guard_counts_foreign_messages(place: Place) -> None:
    one = await place.log.append(0, b"one", expect=0)
    foreign = await place.receive(0, b"junk")
    with pytest.raises(CommitRefused):
        await place.log.append(0, b"two", expect=one)
    assert await place.log.append(0, b"two", expect=foreign) > foreign


async def test_partitions_have_guards_of_their_own(place: Place) -> None:
    zero = await place.log.append(0, b"zero", expect=0)
    one = await place.log.append(1, b"one", expect=0)
    assert await place.log.append(0, b"more", expect=zero) > one
    stored = await place.log.next(1, after=0)
    assert stored is not None
    assert stored.body == b"one"
    assert await place.log.next(1, after=one) is None


async def test_one_of_many_writers_stores_at_an_end(place: Place) -> None:
    first = await place.log.append(0, b"first", expect=0)
    racers = [place.log.append(0, b"%d" % number, expect=first) for number in range(16)]
    results = await asyncio.gather(*racers, return_exceptions=True)
    assert sum(isinstance(result, int) for result in results) == 1
    assert all(isinstance(result, int | CommitRefused) for result in results)


async def test_body_beyond_the_servers_limit_is_not_sent(place: Place) -> None:
    with pytest.raises(MessageTooLarge):
        await place.log.append(0, b"x" * MIB, expect=0)
    assert await place.log.append(0, b"one", expect=0) >= 1  # the connection lives


async def test_newest_message_survives_every_purge(place: Place) -> None:
    await place.log.purge(0, upto=10)
    sequences = [0]
    for body in (b"1", b"2", b"3"):
        sequences.append(await place.log.append(0, body, expect=sequences[-1]))
    await place.log.append(1, b"other", expect=0)
    await place.log.purge(0, upto=sequences[1])
    kept = await place.log.next(0, after=0)
    assert kept is not None
    assert kept.body == b"2"
    await place.log.purge(0, upto=sequences[3] + 100)
    kept = await place.log.next(0, after=0)
    assert kept is not None
    assert kept.body == b"3"
    with pytest.raises(CommitRefused):
        await place.log.append(0, b"stale", expect=0)
    assert await place.log.append(0, b"4", expect=sequences[3])
    assert await place.log.next(1, after=0) is not None


async def test_follower_gets_all_messages_in_order(place: Place) -> None:
    last = 0
    for number in range(50):
        last = await place.log.append(0, b"%d" % number, expect=last)
    await place.log.append(1, b"other", expect=0)
    async with aclosing(place.log.follow(0, after=0)) as followed:
        bodies = list[StoredBody]()
        async for batch in followed:
            bodies += batch.bodies
            if batch.caught_up:
                break
        assert [stored.body for stored in bodies] == [b"%d" % number for number in range(50)]
        assert bodies[-1].sequence == last
        await place.receive(0, b"junk")
        batch = await anext(followed)
        assert [stored.body for stored in batch.bodies] == [b"junk"]


async def test_follower_begins_after_a_sequence(place: Place) -> None:
    one = await place.log.append(0, b"one", expect=0)
    await place.log.append(0, b"two", expect=one)
    async with aclosing(place.log.follow(0, after=one)) as followed:
        batch = await anext(followed)
        assert [stored.body for stored in batch.bodies] == [b"two"]


async def test_follower_of_an_empty_partition_has_caught_up(place: Place) -> None:
    await place.log.append(1, b"other", expect=0)
    async with aclosing(place.log.follow(0, after=0)) as followed:
        batch = await anext(followed)
        assert (list(batch.bodies), batch.caught_up) == ([], True)


class Faulty:
    """A log that loses answers, or whose leader lags, in front of a real one."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self.faults = list[str]()
        self.sent = list[bytes]()
        self.between: Callable[[], Awaitable[object]] | None = None
        """What happens between a commit and its lost answer, or before it is sent."""

    async def append(self, partition: int, body: bytes, *, expect: int) -> int:
        self.sent.append(body)
        fault = self.faults.pop(0) if self.faults else None
        match fault:
            case "lost answer":
                await self._log.append(partition, body, expect=expect)
                await self._happen()
                raise LogUnavailable("no answer")
            case "not sent":
                await self._happen()
                raise LogUnavailable("no answer")
            case "lagging leader":
                raise CommitRefused(partition, expect - 1)
            case "race":
                raise CommitRefused(partition, None)  # a message on its way, which is never stored
        return await self._log.append(partition, body, expect=expect)

    async def next(self, partition: int, *, after: int) -> StoredBody | None:
        return await self._log.next(partition, after=after)

    async def _happen(self) -> None:
        if self.between is not None:
            await self.between()


class Process:
    """A process that appends to partition 0."""

    def __init__(self, place: Place, name: str) -> None:
        self.name = name
        self.foreign = list[int]()
        self.log = Faulty(place.log)
        self.chain = Chain(SEAL, LogHead("k1"), lambda stored, _: self.foreign.append(stored.sequence))
        self.writer = CommitWriter(cast("CommitLog", self.log), 0, self.chain, cast("Clock", _Hasty()))

    async def append(self, *subjects: str) -> Appended:
        events = [CommitEvent(subject, self.name, "@", msgspec.Raw(b"{}")) for subject in subjects]
        now = datetime.now(UTC)
        return await self.writer.append(SEAL.write(self.chain.head, writer=self.name, at=now, taken={}, events=events))


class _Hasty(SystemClock):
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.01))


async def _subjects(place: Place) -> list[str]:
    """The events of all genuine commits, by a fresh reader."""
    chain, subjects, after = Chain(SEAL, LogHead("k1")), list[str](), 0
    while (stored := await place.log.next(0, after=after)) is not None:
        after = stored.sequence
        commit = chain.take(stored)
        subjects += [event.subject for event in commit.events] if commit else []
    return subjects


@pytest.mark.parametrize("fault", ["lost answer", "not sent", "lagging leader", "race"])
async def test_same_bytes_are_sent_until_they_are_stored(place: Place, fault: str) -> None:
    process = Process(place, "a")
    await process.append("one")
    process.log.faults = [fault, fault if fault != "lost answer" else "", fault if fault != "lost answer" else ""]
    appended = await process.append("two", "three")
    assert (appended.sequence is not None, appended.others) == (True, ())
    assert len(set(process.log.sent[1:])) == 1
    assert process.writer.unanswered_since is None
    await process.append("four")
    assert await _subjects(place) == ["one", "two", "three", "four"]
    assert process.chain.head.number == 4
    assert process.foreign == []


@pytest.mark.parametrize("fault", ["lost answer", "not sent"])
async def test_takeover_during_a_silence_is_noticed(place: Place, fault: str) -> None:
    process, other = Process(place, "a"), Process(place, "b")
    await process.append("one")
    process.log.faults, process.log.between = [fault], lambda: _take_over(place, other)
    appended = await process.append("two")
    assert (appended.sequence is not None) == (fault == "lost answer")
    assert [event.subject for other in appended.others for event in other.commit.events] == ["taken over"]
    assert process.chain.head == other.chain.head
    again = await process.append("two again" if fault == "not sent" else "three")
    assert again.others == ()
    expected = {
        "lost answer": ["one", "two", "taken over", "three"],
        "not sent": ["one", "taken over", "two again"],
    }
    assert await _subjects(place) == expected[fault]


async def _take_over(place: Place, other: Process) -> None:
    while (stored := await place.log.next(0, after=other.chain.head.sequence)) is not None:
        other.chain.take(stored)
    await other.append("taken over")


async def test_overtaken_commit_is_not_stored(place: Place) -> None:
    process, other = Process(place, "a"), Process(place, "b")
    await other.append("one")
    await other.append("two")
    appended = await process.append("stale")
    assert appended.sequence is None
    assert [event.subject for stored in appended.others for event in stored.commit.events] == ["one", "two"]
    assert await _subjects(place) == ["one", "two"]
    assert process.chain.head == other.chain.head


@pytest.mark.parametrize("junk", [b"", b"{}", b"\xff" * 1000])
async def test_same_bytes_go_behind_foreign_messages(place: Place, junk: bytes) -> None:
    process = Process(place, "a")
    await process.append("one")
    for _ in range(20):
        await place.receive(0, junk)
    appended = await process.append("two")
    assert (appended.sequence is not None, appended.others) == (True, ())
    assert len(set(process.log.sent[1:])) == 1
    assert len(process.foreign) == 20
    assert await _subjects(place) == ["one", "two"]


async def test_copied_commits_change_nothing(place: Place) -> None:
    process = Process(place, "a")
    await process.append("one")
    await process.append("two")
    for body in tuple(process.log.sent) * 3:
        await place.receive(0, body)
    await process.append("three")
    assert await _subjects(place) == ["one", "two", "three"]
    assert len(process.foreign) == 6


async def test_many_processes_store_every_commit_once(place: Place) -> None:
    """Each appends until its commit is stored, and folds what the others stored meanwhile."""
    processes = [Process(place, f"p{number}") for number in range(4)]

    async def work(process: Process) -> None:
        for number in range(5):
            process.log.faults = [["lost answer", "", "not sent", ""][number % 4]]
            while (await process.append(f"{process.name}-{number}")).sequence is None:
                pass

    await asyncio.gather(*map(work, processes))
    subjects = await _subjects(place)
    assert sorted(subjects) == sorted(f"p{process}-{number}" for process in range(4) for number in range(5))


async def test_reader_begins_at_saved_head_after_purge(place: Place) -> None:
    process = Process(place, "a")
    for subject in ("one", "two", "three"):
        await process.append(subject)
    saved = process.chain.head
    await process.append("four")
    await place.log.purge(0, upto=saved.sequence)
    chain = Chain(SEAL, saved)
    stored = await place.log.next(0, after=saved.sequence)
    assert stored is not None
    commit = chain.take(stored)
    assert commit is not None
    assert commit.first == 4
    late = Chain(SEAL, LogHead("k1"))
    assert late.take(stored) is None  # a reader without the head takes nothing for genuine
