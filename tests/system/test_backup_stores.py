"""Backups in S3 and in object stores of NATS, on real servers."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import nats
import pytest
from nats.js.errors import NotFoundError
from nats.js.object_store import ObjectStore

from tests.s3_server import S3Server
from tests.system.restoring import (
    DECISIONS,
    at_work,
    audited,
    called,
    empty_nats,
    everything,
    new_installation,
    settings,
)
from tests.system.running import Running
from tocsin import Context, Worker, bootstrap
from tocsin.adapters.nats.backup.errors import BackupExists, BackupPlaceInvalid, BackupUnreadable
from tocsin.adapters.nats.backup.folder import MANIFEST, STARTED
from tocsin.adapters.nats.backup.object_bucket import ObjectBucket
from tocsin.adapters.s3.bucket import Bucket
from tocsin.bootstrap.backups import BackupPlace, backup_place, verify_backup_at
from tocsin.domain.events import Completed
from tocsin.ports.errors import StoreUnavailable
from tocsin.settings import Settings

JOB = {"name": "plain", "function": "plain"}
LEDGER = f"streams/{DECISIONS}.s2"


@dataclass
class Outside:
    """A store outside the installation, and a look at what is in it."""

    section: dict[str, Any]
    """The settings `backup`."""
    bucket: str
    s3: S3Server | None
    objects: ObjectStore | None

    @property
    def url(self) -> str:
        return f"{'nats-object' if self.s3 is None else 's3'}://{self.bucket}/nightly/first"

    @property
    def place(self) -> BackupPlace:
        return backup_place(self.url)

    async def names(self) -> list[str]:
        if self.s3 is not None:
            return [key.removeprefix("nightly/first/") for key in self.s3.objects(self.bucket)]
        assert self.objects is not None
        try:
            found = await self.objects.list(ignore_deletes=True)
        except NotFoundError:
            return []
        return sorted(info.name.removeprefix("nightly/first/") for info in found)

    async def get(self, name: str) -> bytes:
        if self.s3 is not None:
            body: bytes = self.s3.client().get_object(Bucket=self.bucket, Key=f"nightly/first/{name}")["Body"].read()
            return body
        assert self.objects is not None
        return (await self.objects.get(f"nightly/first/{name}")).data or b""

    async def put(self, name: str, body: bytes) -> None:
        if self.s3 is not None:
            self.s3.client().put_object(Bucket=self.bucket, Key=f"nightly/first/{name}", Body=body)
        else:
            assert self.objects is not None
            await self.objects.put(f"nightly/first/{name}", body)


@pytest.fixture(params=["s3", pytest.param("nats-object", marks=pytest.mark.full)])
async def outside(request: pytest.FixtureRequest, nats_url: str) -> AsyncIterator[Outside]:
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3")
        yield Outside({"s3": server.section()}, server.new_bucket(), server, None)
        return
    client = await nats.connect(nats_url)
    name = f"backups-{uuid4().hex[:8]}"
    objects = await client.jetstream().create_object_store(name)
    yield Outside({"nats": {"url": nats_url}}, name, None, objects)
    await client.jetstream().delete_object_store(name)
    await client.close()


@asynccontextmanager
async def installed(chosen: Settings) -> AsyncIterator[Running]:
    async with new_installation(chosen) as installation:
        tocsin = Running(installation)
        await tocsin.apply(JOB)
        yield tocsin


def plain() -> Worker:
    worker = Worker()

    @worker.task("plain")
    async def run(_: Context) -> str:
        return "done"

    return worker


@pytest.mark.slow
async def test_restored_from_a_store_and_audited(outside: Outside, tmp_path: Path) -> None:
    chosen = settings(tmp_path, backup=outside.section)
    async with new_installation(chosen) as lost:
        async with at_work(lost, plain()) as tocsin:
            await tocsin.apply(JOB)
            await tocsin.trigger("plain")
            await tocsin.ended("plain", Completed, 1)
        code, made = await called(lost.settings, "backup", "create", outside.url)
        assert (code, made["place"]) == (0, outside.url)
        before = await everything(lost)
    code, found = await called(chosen, "backup", "verify", outside.url)
    assert (code, found["clean"], found["damage"]) == (0, True, [])
    async with empty_nats(chosen) as there:
        code, done = await called(there, "backup", "restore", outside.url, "--yes")
        assert (code, done["executions"], done["settings_differ"]) == (0, 1, False)
        async with bootstrap.connect(there) as installation, at_work(installation, plain()) as tocsin:
            await tocsin.trigger("plain")
            await tocsin.ended("plain", Completed, 2)
            report = await audited(installation)
            after = await everything(installation)
    assert (report["clean"], report["violations"]) == (True, [])
    assert set(before.executions) < set(after.executions)


@pytest.mark.parametrize("may_delete", [True, False])
async def test_interrupted_upload_is_no_backup(
    outside: Outside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, may_delete: bool
) -> None:
    kind = Bucket if outside.s3 is not None else ObjectBucket
    upload = kind.upload

    async def interrupted(self: Any, name: str, path: Path) -> None:  # noqa: ANN401 - one of both kinds
        if name == LEDGER:
            raise asyncio.CancelledError
        await upload(self, name, path)

    async def refuse(*_: object) -> None:
        raise StoreUnavailable("it may not delete")

    async with installed(settings(tmp_path, backup=outside.section)) as tocsin:
        with monkeypatch.context() as failing:
            failing.setattr(kind, "upload", interrupted)
            if not may_delete:
                failing.setattr(kind, "remove", refuse)
            with pytest.raises(asyncio.CancelledError):
                await bootstrap.create_backup(tocsin.installation, outside.place)
        with pytest.raises(BackupUnreadable, match="its upload did not end"):
            await verify_backup_at(tocsin.settings, outside.place)
        if may_delete:
            await bootstrap.create_backup(tocsin.installation, outside.place)
            assert (await verify_backup_at(tocsin.settings, outside.place)).is_clean
        else:
            assert STARTED in await outside.names()
            with pytest.raises(BackupExists):
                await bootstrap.create_backup(tocsin.installation, outside.place)


async def test_lost_answer_loses_no_backup(outside: Outside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest was stored, and the client learns only that a manifest exists."""
    kind = Bucket if outside.s3 is not None else ObjectBucket
    create = kind.create

    async def repeated(self: Any, name: str, body: bytes) -> bool:  # noqa: ANN401 - one of both kinds
        await create(self, name, body)
        return await create(self, name, body) if name == MANIFEST else True

    async with installed(settings(tmp_path, backup=outside.section)) as tocsin:
        monkeypatch.setattr(kind, "create", repeated)
        await bootstrap.create_backup(tocsin.installation, outside.place)
        assert (await verify_backup_at(tocsin.settings, outside.place)).is_clean


async def test_upload_that_seemed_to_fail_leaves_nothing(
    outside: Outside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = Bucket if outside.s3 is not None else ObjectBucket
    create = kind.create

    async def unanswered(self: Any, name: str, body: bytes) -> bool:  # noqa: ANN401 - one of both kinds
        is_stored = await create(self, name, body)
        if name == MANIFEST:
            raise StoreUnavailable("no answer in time")
        return is_stored

    async with installed(settings(tmp_path, backup=outside.section)) as tocsin:
        monkeypatch.setattr(kind, "create", unanswered)
        with pytest.raises(StoreUnavailable):
            await bootstrap.create_backup(tocsin.installation, outside.place)
    assert await outside.names() == []


async def test_of_two_uploads_one_is_made(outside: Outside, tmp_path: Path) -> None:
    async with installed(settings(tmp_path, backup=outside.section)) as tocsin:
        results = await asyncio.gather(
            *(bootstrap.create_backup(tocsin.installation, outside.place) for _ in range(2)), return_exceptions=True
        )
        assert sorted(type(result).__name__ for result in results) == ["BackupExists", "BackupManifest"]
        before = await outside.names()
        assert (await verify_backup_at(tocsin.settings, outside.place)).is_clean
        with pytest.raises(BackupExists):
            await bootstrap.create_backup(tocsin.installation, outside.place)
        assert await outside.names() == before


async def test_damage_in_a_store_is_named(outside: Outside, tmp_path: Path) -> None:
    chosen = settings(tmp_path, backup=outside.section)
    async with installed(chosen) as tocsin:
        await bootstrap.create_backup(tocsin.installation, outside.place)
    body = await outside.get(LEDGER)
    await outside.put("streams/other", b"x")
    verification = await verify_backup_at(chosen, outside.place)
    assert [damage.file for damage in verification.damage] == ["streams/other"]
    await outside.put(LEDGER, body[:-1] + bytes([body[-1] ^ 1]))
    verification = await verify_backup_at(chosen, outside.place)
    assert [damage.file for damage in verification.damage] == [LEDGER, "streams/other"]
    assert "SHA-256" in verification.damage[0].reason
    manifest = json.loads(await outside.get("manifest.json"))
    manifest["objects"]["00000009-absent.json"] = {"size": 1, "sha256": "0" * 64}
    await outside.put("manifest.json", json.dumps(manifest).encode())
    verification = await verify_backup_at(chosen, outside.place)
    assert verification.damage[1].reason == "it is missing"


async def test_absent_store_is_named(tmp_path: Path, nats_url: str, s3: S3Server) -> None:
    chosen = settings(tmp_path, backup={"s3": s3.section(), "nats": {"url": nats_url}})
    for url, reason in (("s3://absent-bucket/x", "NoSuchBucket"), ("nats-object://absent/x", "nats object add absent")):
        code, answer = await called(chosen, "backup", "verify", url)
        assert (code, answer["error"]["error_code"]) == (4, "store-unavailable")
        assert reason in answer["error"]["message"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("s3://bucket-a", "s3://bucket-a/2026-11-26"),
        ("s3://B/x", "BUCKET"),
        ("nats://127.0.0.1:4222/x", "nats-object://BUCKET/NAME"),
        ("nats-object://bucket", "nats-object://BUCKET/NAME"),
        ("nats-object://bucket/../x", "nats-object://BUCKET/NAME"),
        ("gs://bucket/x", "s3://BUCKET/NAME"),
        ("file://backups", "s3://BUCKET/NAME"),
    ],
)
def test_other_place_is_refused(text: str, reason: str) -> None:
    with pytest.raises(BackupPlaceInvalid, match=reason):
        backup_place(text)


def test_folder_may_be_a_url() -> None:
    assert backup_place("file:///backups/a") == backup_place("/backups/a") == Path("/backups/a")


async def test_bucket_of_the_installation_is_refused(tmp_path: Path) -> None:
    async with installed(settings(tmp_path)) as tocsin:
        with pytest.raises(BackupPlaceInvalid, match="of the installation"):
            await bootstrap.create_backup(tocsin.installation, backup_place("nats-object://tocsin_archive/a"))
