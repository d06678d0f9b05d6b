"""The behaviour of every archive store, and of the purge of every log."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nats.aio.client import ServerVersion

from tests.conformance.given import report
from tests.conformance.worlds import NatsWorld, World, nats_streams
from tests.domain.given import JOB
from tests.durables import take
from tests.s3_server import S3Server
from tocsin import subjects
from tocsin.adapters.files.archive_store import FileArchiveStore
from tocsin.adapters.memory.archive import InMemoryArchiveStore
from tocsin.adapters.nats.log import event_log, follow
from tocsin.adapters.nats.log.stored_log import NatsArchiveStore
from tocsin.adapters.s3.bucket import Bucket, S3ArchiveStore
from tocsin.domain.events import Message, Trigger
from tocsin.ports import ArchiveStore, ArchiveUnavailable, DurableSpec, pages
from tocsin.settings.s3 import s3_location
from tocsin.subjects import Stream


@pytest.fixture(params=["memory", "files", "nats", "s3", "s3-unconditional"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ArchiveStore]:
    if request.param == "memory":
        yield InMemoryArchiveStore()
    elif request.param == "files":
        yield FileArchiveStore(tmp_path / "not" / "there yet")
    elif request.param == "nats":
        async with nats_streams(request.getfixturevalue("nats_url")) as nats:
            yield NatsArchiveStore(nats.connection, nats.names)
    else:
        server: S3Server = request.getfixturevalue("s3")
        settings = server.settings(conditional_writes=request.param == "s3")
        place = s3_location(f"s3://{server.new_bucket()}/not/there-yet")
        yield S3ArchiveStore(Bucket(place, settings, part="this test"))


async def test_an_object_is_kept_byte_for_byte(store: ArchiveStore) -> None:
    large = os.urandom(1_000_000)
    assert await store.get("a.json") is None
    await store.put("a.json", b"{}")
    await store.put("b.gz", large)
    await store.put("b.gz", large)  # the same again, after a crash
    await store.put("empty", b"")
    assert (await store.get("a.json"), await store.get("b.gz"), await store.get("empty")) == (b"{}", large, b"")
    assert await store.get("c") is None


async def test_reading_leaves_no_consumer_behind(nats_url: str) -> None:
    """A stream takes a thousand consumers, and an archive has more segments."""
    async with nats_streams(nats_url) as nats:
        store = NatsArchiveStore(nats.connection, nats.names)
        await store.put("large.gz", os.urandom(500_000))
        for _ in range(3):
            assert await store.get("large.gz") is not None
        info = await nats.connection.manage(f"STREAM.INFO.{nats.names.archive_stream}")
        assert info["state"]["consumer_count"] == 0


async def test_several_writers_store_one_object(store: ArchiveStore) -> None:
    await asyncio.gather(*(store.put("a.gz", b"the same") for _ in range(8)))
    assert await store.get("a.gz") == b"the same"


async def test_truncated_file_is_not_an_object(tmp_path: Path) -> None:
    store = FileArchiveStore(tmp_path)
    (tmp_path / ".a.json.1234").write_bytes(b"half of")
    assert await store.get("a.json") is None
    await store.put("a.json", b"{}")
    assert await store.get("a.json") == b"{}"


async def test_only_the_owner_reads_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    await FileArchiveStore(folder).put("a", b"segment")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [file.stat().st_mode & 0o777 for file in folder.iterdir()] == [0o600]


@pytest.mark.parametrize(
    ("mode", "is_ours", "then"),
    [(0o755, True, 0o700), (0o2777, True, 0o2700), (0o500, True, 0o500), (0o755, False, 0o755), (0o1777, True, 0o1777)],
)
async def test_existing_folder_keeps_no_rights_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, then: int, *, is_ours: bool
) -> None:
    """If it is this user's, and not of all users."""
    folder = tmp_path / "archive"
    store = FileArchiveStore(folder)
    await store.put("a", b"segment")
    folder.chmod(mode)
    if not is_ours:
        monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    await store.put("a", b"segment")  # it exists
    assert folder.stat().st_mode & 0o7777 == then
    assert await store.get("a") == b"segment"


async def test_folder_that_is_no_folder_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "mount").write_text("")
    store = FileArchiveStore(tmp_path / "mount" / "archive")
    with pytest.raises(ArchiveUnavailable, match="mount/archive"):
        await store.put("a.json", b"{}")
    with pytest.raises(ArchiveUnavailable, match="mount/archive"):
        await store.get("a.json")


REPORTS = DurableSpec("reports", Stream.REPORTS, ("report.>",), ack_wait=60.0)


async def receive(world: World, *messages: Message) -> None:
    for message in messages:
        await world.receive(subjects.subject_of(message), message.encode())


async def test_position_is_decided_once_every_durable_acknowledged(world: World) -> None:
    durable = await world.durable(DurableSpec("some", Stream.REPORTS, ("report.*.e2.>",), ack_wait=60.0))
    await receive(world, report("e1"), report("e2"), report("e1"), report("e2"), report("e1"))
    assert await world.housekeeping.decided(Stream.REPORTS) < 2

    one, two = await take(durable, 2)
    await two.ack()
    assert await world.housekeeping.decided(Stream.REPORTS) < 2
    await one.ack()

    async def is_decided() -> bool:
        return await world.housekeeping.decided(Stream.REPORTS) == 5

    await world.until(is_decided)
    assert await world.housekeeping.decided(Stream.REQUESTS) == 0


async def test_purge_takes_matches_up_to_a_sequence(world: World) -> None:
    await receive(world, *(report(name) for name in ("e0", "e1", "e0", "e2", "e0", "e3")))
    for number in (1, 2, 3):
        await world.housekeeping.purge(f"report.*.e{number}.>", upto=4)
    await world.housekeeping.purge("report.a_job.e0.>", upto=3)
    await world.housekeeping.purge("report.a_job.another.>", upto=9)
    stored = [m async for some in world.stored.messages(Stream.REPORTS, upto=6) for m in some]
    assert [message.sequence for message in stored] == [5, 6]
    assert (await world.stored.extent(Stream.REPORTS)).last == 6


async def test_message_purged_while_held_is_not_delivered_again(world: World) -> None:
    durable = await world.durable(REPORTS)
    await receive(world, report("e1"), report("e2"))
    one, two = await take(durable, 2)
    await world.housekeeping.purge("report.>", upto=1)
    await one.nak(0)
    await two.nak(0.1)

    async def taken() -> int:
        return sum([task.sequence for task in await durable.take(2, wait=0)])

    assert await world.until(taken) == 2


async def test_purge_of_triggers_includes_public_triggers(nats: NatsWorld) -> None:
    await nats.log.publish(subjects.trigger(JOB), Trigger(), message_id="a")
    await nats.connection.store(f"{nats.names.trigger_prefix}.{JOB}", b"{}", {})
    await nats.housekeeping.purge("trigger.>", upto=2)
    assert (await nats.stored.extent(Stream.REQUESTS)).messages == 0


async def test_reader_of_purged_messages_reaches_the_end(nats: NatsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "PORTION", 4)
    await receive(nats, *(report(f"e{n}") for n in range(40)))
    read = 0
    async for some in nats.stored.messages(Stream.REPORTS, "report.>", upto=40):
        read += len(some)
        await nats.housekeeping.purge("report.>", upto=40)
    assert read < 40


async def test_follower_bounds_the_bytes_of_a_request(nats: NatsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server disconnects a client with too many unread bytes, so few large messages must not be sent at once."""
    monkeypatch.setattr(follow, "PORTION_BYTES", 60_000)
    for number in range(30):
        wide = Trigger(input={"x": "y" * 10_000})
        await nats.log.publish(subjects.trigger(JOB), wide, message_id=str(number))
    most, found = 0, list[int]()
    async for batch in nats.log.follow(Stream.REQUESTS, "trigger.>", after=0):
        most = max(most, len(batch.messages))
        found += [message.sequence for message in batch.messages]
        await asyncio.sleep(0.05)  # what the server sends meanwhile waits
        if batch.caught_up:
            break
    assert found == list(range(1, 31))
    assert most <= 12


async def test_follower_reads_a_message_larger_than_a_request(nats: NatsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "PORTION_BYTES", 30_000)
    sizes = [10, 50_000, 10, 10, 50_000, 50_000, 20_000, 20_000, 10]
    for number, size in enumerate(sizes):
        await nats.log.publish(subjects.trigger(JOB), Trigger(input={"x": "y" * size}), message_id=str(number))
    found = list[int]()
    async with asyncio.timeout(120):
        async for batch in nats.log.follow(Stream.REQUESTS, "trigger.>", after=0):
            found += [message.sequence for message in batch.messages]
            if batch.caught_up:
                break
    assert found == list(range(1, len(sizes) + 1))


async def test_read_ends_after_its_bytes(nats: NatsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "READ_BYTES", 1)
    for number in range(30):
        wide = Trigger(input={"x": "y" * 90_000})
        await nats.log.publish(subjects.trigger(JOB), wide, message_id=str(number))
    sizes = [len(page) async for page in pages(nats.log, "trigger.>")]
    assert sum(sizes) == 30
    assert max(sizes) <= 13  # a reply of the server ends after 1 MiB


@pytest.mark.parametrize("reason", ["409 Message Size Exceeds MaxBytes", "408 Request Timeout"])
async def test_end_of_a_request_leaves_the_other(nats: NatsWorld, reason: str) -> None:
    """Otherwise requests would pile up, each with its bytes."""
    consumer = follow._Consumer(nats.connection, nats.names, Stream.REPORTS, [])
    consumer._requested = 1_400  # of two requests for 1,000 messages, 600 arrived
    status, _, description = reason.partition(" ")
    ended = {"Status": status, "Description": description, "Nats-Pending-Messages": "400"}
    consumer._inbox._receive(consumer._inbox._inbox, "", b"", ended)
    consumer._read_statuses(consumer._inbox)
    assert consumer._requested == 1_000


async def test_purge_of_one_kind_spares_the_other(nats: NatsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    if nats.housekeeping.obstacle():
        pytest.skip("this server does: nothing is archived there")
    monkeypatch.setattr(follow, "PORTION", 4)
    await nats.receive(f"cancel.{JOB}.e1", b"{}")
    for number in range(1, 41):
        await nats.receive(f"trigger.{JOB}", b"{}", f"{number}")
    found: list[int] = []
    async for some in nats.stored.messages(Stream.REQUESTS, "cancel.>", "trigger.>", upto=42):
        if not found:
            await nats.housekeeping.purge("cancel.>", upto=1)
            await nats.receive(f"trigger.{JOB}", b"{}", "41")  # if the others were left out, no check would notice
        found += [message.sequence for message in some]
    assert found == list(range(1, 43))


async def test_server_that_loses_unread_messages_is_reported(nats: NatsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(nats.connection.client), "connected_server_version", ServerVersion("2.14.6"))
    obstacle = nats.housekeeping.obstacle()
    assert obstacle is not None
    assert "nats-server 2.14.6" in obstacle
    assert "the archive needs 2.15.1 or newer" in obstacle
