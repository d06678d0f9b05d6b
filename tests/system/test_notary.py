"""The notary on a real server, beside all other stages: what an administrator of the server changes is found."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from tests.system.clustered import clustered, kill
from tests.system.running import Running, running
from tocsin import Context, Worker, bootstrap, subjects
from tocsin.archive.checkpoints import SIGNED_STREAMS, CheckpointStore, stored_checkpoints
from tocsin.archive.commit_reader import events_of
from tocsin.archive.log_archive import Newest, Origin, commits_of
from tocsin.archive.signing_keys import PublicKey, SigningKey
from tocsin.bootstrap import Installation
from tocsin.domain.commit import Commit, LogHead
from tocsin.domain.events import Completed
from tocsin.ports import LogUnavailable, StoredMessage
from tocsin.ports.commit_log import StoredBody
from tocsin.services.log_verification import LogVerification, Proof
from tocsin.settings import Settings
from tocsin.subjects import Stream

SOURCE = commits_of(0)
OTHERS = tuple(stage for stage in bootstrap.STAGE_NAMES if stage not in {"archiver", "mq_bridge"})


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    key = SigningKey.generate()
    (tmp_path / "notary.pem").write_text(key.as_pem())
    (tmp_path / "notary.pub").write_text(key.public.as_pem())
    return key


@asynccontextmanager
async def signing(url: str, folder: Path, stages: tuple[str, ...]) -> AsyncIterator[Running]:
    """An installation that runs a job each second, in short ranges of checkpoints."""
    worker = Worker()

    @worker.task("works")
    async def works(_: Context) -> None: ...

    hasty = {"hot_window": 2, "interval": 0.3}
    notary = {"key": folder / "notary.pem", "interval": 0.2}
    async with running(url, folder, stages=stages, worker=worker, archive=hasty, notary=notary) as tocsin:
        await tocsin.apply({"name": "timed", "function": "works", "schedule": "* * * * * *"})
        await tocsin.ended("timed", Completed, 3)
        yield tocsin


async def verified(installation: Installation, key: PublicKey) -> Proof:
    verification = LogVerification([key], await stored_checkpoints(installation.projections))
    for stream in SIGNED_STREAMS:
        upto = (await installation.stored.extent(stream)).last
        async for portion in installation.stored.messages(stream, upto=upto):
            for message in portion:
                verification.take(message)
    return verification.finish()


async def signed_upto(installation: Installation, stream: Stream) -> int:
    page = await CheckpointStore(installation.projections).newest(stream)
    return page.checkpoints[-1].content().last if page.checkpoints else 0


async def all_signed(url: str, folder: Path, stages: tuple[str, ...]) -> Settings:
    """Run until there are several checkpoints of each stream, and the last messages are signed."""
    async with signing(url, folder, stages) as tocsin:
        for stream in SIGNED_STREAMS:
            end = (await held(tocsin.installation, stream))[-1].sequence

            async def is_signed(stream: Stream = stream, end: int = end) -> bool:
                return await signed_upto(tocsin.installation, stream) >= end

            await tocsin.until(is_signed)
        return tocsin.settings


async def held(installation: Installation, stream: Stream) -> list[StoredMessage]:
    upto = (await installation.stored.extent(stream)).last
    return [m async for portion in installation.stored.messages(stream, upto=upto) for m in portion]


def covers(entity: str, stream: Stream, sequence: int) -> bool:
    name, _, span = entity.partition(" ")
    first, _, last = span.partition("–")
    return name == stream and int(first) <= sequence <= int(last or first)


async def middle(installation: Installation) -> tuple[StoredBody, int]:
    """Return a commit with an event of an execution in the middle of the log, and the number of the event."""
    reader, found = installation.commits.reader, list[tuple[StoredBody, int]]()
    seal, head = await reader.seal(), LogHead(reader.key)
    async for stored in reader.bodies():
        head, commit = seal.read(head, stored.sequence, stored.body)
        assert isinstance(commit, Commit)
        numbers = [event.sequence for event in events_of(commit, stored.time) if event.stream is Stream.LOG]
        found += [(stored, numbers[0])] if numbers else []
    return found[len(found) // 2]


async def test_log_is_proven_while_it_is_archived(nats_url: str, tmp_path: Path, key: SigningKey) -> None:
    async with signing(nats_url, tmp_path, (*OTHERS, "archiver")) as tocsin:
        archive = tocsin.installation.commits.archive

        async def is_archived() -> bool:
            return len(await archive.segments(SOURCE)) > 1

        await tocsin.until(is_archived)
        for _ in range(5):
            proof = await verified(tocsin.installation, key.public)
            assert proof.findings == ()
            await asyncio.sleep(0.2)
        settings = tocsin.settings
    async with bootstrap.connect(settings) as installation:
        await _archive_is_forged(installation, key.public)


async def _archive_is_forged(installation: Installation, key: PublicKey) -> None:
    """Replace the newest segment by another, with a manifest and a head that fit it."""
    archive = installation.commits.archive
    state, revision = await archive.state()
    *_, before, segment = await archive.segments(SOURCE)
    messages = await archive.messages(segment)
    seal, head = await installation.commits.reader.seal(), before.head
    assert head is not None
    numbers = list[int]()
    for at, message in enumerate(messages):
        head, commit = seal.read(head, message.sequence, message.body)
        assert isinstance(commit, Commit)
        numbers = [event.sequence for event in events_of(commit, message.time) if event.stream is Stream.LOG]
        if numbers:
            messages[at] = msgspec.structs.replace(message, body=message.body + b" ")
            break
    at_before = Newest(before.name, segment.previous_sha256 or "", before.last)
    base = msgspec.structs.replace(state, newest={**state.newest, SOURCE: at_before})
    origin = Origin(installation="i", root="r", version="0")
    await archive.move(await archive.write(SOURCE, messages, base, origin, segment.head), expect=revision)
    proof = await verified(installation, key)
    assert any(covers(finding.entity, Stream.LOG, numbers[0]) for finding in proof.findings)


async def test_purged_commits_are_named(nats_url: str, tmp_path: Path, key: SigningKey) -> None:
    settings = await all_signed(nats_url, tmp_path, OTHERS)
    async with bootstrap.connect(settings) as installation:
        assert (await verified(installation, key.public)).findings == ()
        victim, number = await middle(installation)
        request = json.dumps({"seq": victim.sequence + 1}).encode()
        await installation.connection.manage(f"STREAM.PURGE.{installation.names.commits_stream}", request)
        proof = await verified(installation, key.public)
        named = [finding for finding in proof.findings if covers(finding.entity, Stream.LOG, number)]
        assert len(named) == 1
        assert "removed" in named[0].reason

        result = _audit(nats_url, settings, tmp_path)
        assert result.returncode == 1
        violations = json.loads(result.stdout)["violations"]
        signed = [each["entity"] for each in violations if each["invariant"] == "SIGNED"]
        assert any(covers(entity, Stream.LOG, number) for entity in signed)


def _audit(url: str, settings: Settings, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Audit as a stranger with a public key would, in a process of its own."""
    command = ["audit", "--public-key", str(folder / "notary.pub"), "-o", "json"]
    names = {
        "TOCSIN_ROOT": settings.root,
        "TOCSIN_PUBLIC_PREFIX": settings.public_prefix,
        "TOCSIN_TRIGGER_PREFIX": settings.trigger_prefix,
        "TOCSIN_MQ_PREFIX": settings.mq_prefix,
        "TOCSIN_DATA_DIR": str(folder / "elsewhere"),
    }
    return subprocess.run(
        [sys.executable, "-m", "tocsin", "--nats", url, *command],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **names},
    )


@pytest.mark.parametrize("change", ["changed", "inserted", "none"])
async def test_recreated_stream_is_found(nats_url: str, tmp_path: Path, key: SigningKey, change: str) -> None:
    """An administrator who stores all commits again cannot give them their times, and so cannot hide it."""
    settings = await all_signed(nats_url, tmp_path, OTHERS)
    async with bootstrap.connect(settings) as installation:
        bodies = [stored.body async for stored in installation.commits.reader.bodies()]
        names = installation.names
        await installation.connection.manage(f"STREAM.DELETE.{names.commits_stream}")
        await bootstrap.initialize(installation)
        if change == "changed":
            bodies[1] = bodies[1].replace(b"timed", b"other")
        elif change == "inserted":
            bodies.insert(1, bodies[0])
        for body in bodies:
            await installation.connection.store(f"{names.commits_prefix}.0", body, {})
        proof = await verified(installation, key.public)
        assert {finding.entity.split()[0] for finding in proof.findings} == {*SIGNED_STREAMS}


async def test_restored_checkpoints_of_a_shorter_log_are_refused(
    nats_url: str, tmp_path: Path, key: SigningKey
) -> None:
    settings = await all_signed(nats_url, tmp_path, OTHERS)
    async with bootstrap.connect(settings) as installation:
        name = installation.names.commits_stream
        request = json.dumps({"keep": 0}).encode()
        await installation.connection.manage(f"STREAM.PURGE.{name}", request)
        proof = await verified(installation, key.public)
        end = await signed_upto(installation, Stream.LOG)
        assert any(covers(finding.entity, Stream.LOG, end) for finding in proof.findings)
        assert all("removed" in finding.reason for finding in proof.findings)


@pytest.mark.slow
async def test_chain_survives_deaths_of_notaries_and_node(tmp_path: Path, key: SigningKey) -> None:
    """Two notaries are killed in turn, and then a server of three; the chain is one, and the log is proven."""
    async with clustered(tmp_path, notary={"key": str(tmp_path / "notary.pem"), "interval": 0.2}) as (tocsin, cluster):
        notaries = [tocsin.start("notary"), tocsin.start("notary")]
        await tocsin.ready()
        for death in range(4):
            await tocsin.apply({"name": f"job-{death}", "function": "f"})
            notary = notaries[death % 2]
            notary.kill()
            notary.start()
            await tocsin.ready()
        await kill(cluster.nodes[-1])

        async def is_signed() -> Proof | None:
            """The proof of the log, after one more job was signed; None while streams choose their leaders."""
            try:
                await tocsin.apply({"name": "last", "function": "f"})
                end = await tocsin.log.tail(subjects.ledger("last"))
                if await signed_upto(tocsin.installation, Stream.LEDGER) < end:
                    return None
                return await verified(tocsin.installation, key.public)
            except LogUnavailable:
                return None

        assert (await tocsin.until(is_signed)).findings == ()  # type: ignore[union-attr]
