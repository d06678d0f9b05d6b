"""The notary on a real server, beside all other stages: what an administrator of the server changes is found."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.system.clustered import clustered, kill
from tests.system.running import Running, running
from tocsin import Context, Worker, bootstrap
from tocsin.adapters.nats.admin.provision import NatsStreamPurge
from tocsin.archive.archive import Origin, State
from tocsin.archive.checkpoints import SIGNED_STREAMS, CheckpointStore, stored_checkpoints
from tocsin.archive.signing_keys import PublicKey, SigningKey
from tocsin.bootstrap import Installation
from tocsin.domain.events import Completed
from tocsin.ports import LogUnavailable, StoredMessage
from tocsin.services.log_verification import LogVerification, Proof
from tocsin.settings import Settings
from tocsin.subjects import Stream

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
            end = (await tocsin.installation.stored.extent(stream)).last

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


async def test_log_is_proven_while_it_is_archived(nats_url: str, tmp_path: Path, key: SigningKey) -> None:
    async with signing(nats_url, tmp_path, (*OTHERS, "archiver")) as tocsin:

        async def is_archived() -> bool:
            state, _ = await tocsin.installation.archive.state()
            return state.number > 1 and state.purged is not None

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
    archive = installation.archive
    state, revision = await archive.state()
    assert state.head is not None
    segment = await archive.segment(state.head)
    messages = list(await archive.messages(segment))
    at = next(n for n, message in enumerate(messages) if message.stream is Stream.LOG)
    messages[at] = replace(messages[at], body=messages[at].body + b" ")
    before = State(head=segment.previous, number=segment.number - 1)
    forged = await archive.write(messages, before, segment.upto, Origin(installation="i", root="r", version="0"))
    head = {"head": forged.name, "head_sha256": await archive.digest(forged), "purged": forged.name}
    await archive.move(state.model_copy(update=head), expect=revision)
    # The archiver was stopped, maybe before it had purged the newest segment; what the stream still holds is read there.
    purge = NatsStreamPurge(installation.connection, installation.names)
    await purge.purge(messages[at].subject, upto=messages[at].sequence)
    proof = await verified(installation, key)
    assert [covers(f.entity, Stream.LOG, messages[at].sequence) for f in proof.findings] == [True]
    assert "changed" in proof.findings[0].reason


async def test_purged_message_is_named(nats_url: str, tmp_path: Path, key: SigningKey) -> None:
    settings = await all_signed(nats_url, tmp_path, OTHERS)
    async with bootstrap.connect(settings) as installation:
        assert (await verified(installation, key.public)).findings == ()
        messages = await held(installation, Stream.LOG)
        victim = messages[len(messages) // 2]
        wire = installation.names.to_wire(victim.subject)
        request = json.dumps({"filter": wire, "seq": victim.sequence + 1}).encode()
        name = installation.names.stream(Stream.LOG)
        removed = (await installation.connection.manage(f"STREAM.PURGE.{name}", request))["purged"]
        proof = await verified(installation, key.public)
        named = [finding for finding in proof.findings if covers(finding.entity, Stream.LOG, victim.sequence)]
        assert len(named) == 1
        assert str(victim.sequence) in named[0].reason
        assert removed >= proof.total

        result = _audit(nats_url, settings, tmp_path)
        assert result.returncode == 1
        violations = json.loads(result.stdout)["violations"]
        assert [v["entity"] for v in violations if v["invariant"] == "SIGNED"] == [f.entity for f in proof.findings]


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
    """An administrator who stores all messages again cannot give them their times, and so cannot hide it."""
    settings = await all_signed(nats_url, tmp_path, OTHERS)
    async with bootstrap.connect(settings) as installation:
        messages = await held(installation, Stream.LEDGER)
        name = installation.names.stream(Stream.LEDGER)
        await installation.connection.manage(f"STREAM.DELETE.{name}")
        await bootstrap.initialize(installation)
        if change == "changed":
            messages[1] = replace(messages[1], body=b"{}")
        elif change == "inserted":
            messages.insert(1, messages[0])
        for message in messages:
            headers = {k: v for k, v in message.headers.items() if not k.startswith("Nats-Expected")}
            headers.pop("Nats-Msg-Id", None)
            await installation.connection.store(installation.names.to_wire(message.subject), message.body, headers)
        proof = await verified(installation, key.public)
        assert any(covers(finding.entity, Stream.LEDGER, 2) for finding in proof.findings)


async def test_restored_checkpoints_of_a_shorter_log_are_refused(
    nats_url: str, tmp_path: Path, key: SigningKey
) -> None:
    settings = await all_signed(nats_url, tmp_path, OTHERS)
    async with bootstrap.connect(settings) as installation:
        name = installation.names.stream(Stream.LOG)
        end = (await installation.stored.extent(Stream.LOG)).last
        request = json.dumps({"keep": 0}).encode()
        await installation.connection.manage(f"STREAM.PURGE.{name}", request)
        proof = await verified(installation, key.public)
        assert covers(proof.findings[-1].entity, Stream.LOG, min(end, await signed_upto(installation, Stream.LOG)))
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
                end = (await tocsin.installation.stored.extent(Stream.LEDGER)).last
                if await signed_upto(tocsin.installation, Stream.LEDGER) < end:
                    return None
                return await verified(tocsin.installation, key.public)
            except LogUnavailable:
                return None

        assert (await tocsin.until(is_signed)).findings == ()  # type: ignore[union-attr]
