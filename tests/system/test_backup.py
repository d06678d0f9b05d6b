"""Backups of a running installation, and what runs after one was restored."""

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from functools import partial, reduce
from operator import getitem
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.system.restoring import (
    DECISIONS,
    at,
    at_work,
    audited,
    called,
    empty_nats,
    everything,
    new_installation,
    restored,
    settings,
)
from tests.system.running import Running
from tocsin import Context, Worker, bootstrap
from tocsin.adapters.nats.admin.provision_errors import ServerTooOld, StreamUnchangeable
from tocsin.adapters.nats.backup.errors import (
    BackupDamaged,
    BackupExists,
    BackupOfOtherNames,
    BackupUnreadable,
    BackupUnwritable,
    InstallationNotEmpty,
)
from tocsin.adapters.nats.backup.folder import MANIFEST, FileRecord
from tocsin.adapters.nats.backup.verification import verify_backup
from tocsin.adapters.nats.server.cluster import EmbeddedCluster
from tocsin.adapters.nats.server.embedded import ANY_PORT
from tocsin.bootstrap import Installation
from tocsin.domain import ledger
from tocsin.domain.events import Completed
from tocsin.services.repair import LEAST_GAP, MOST_GAP, gap
from tocsin.subjects import Stream

LOAD = 300
JOBS = (
    {"name": "asked", "function": "quick", "overlap_policy": "allow"},
    {"name": "every", "schedule": "* * * * * *", "function": "quick", "catch_up": "once"},
)


def quick() -> Worker:
    worker = Worker(concurrency=20)

    @worker.task("quick")
    async def run(_: Context) -> None:
        await asyncio.sleep(0.01)

    return worker


async def is_idle(installation: Installation) -> bool:
    """Return whether every execution is over."""
    stored = await everything(installation)
    return set(stored.ends) == set(stored.executions)


@pytest.mark.slow
@pytest.mark.full
async def test_backup_of_one_server_fits_a_cluster(tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    chosen = settings(tmp_path)
    async with new_installation(chosen) as lost, at_work(lost, quick()) as tocsin:
        await tocsin.apply(*JOBS)
        await asyncio.gather(*(tocsin.trigger("asked") for _ in range(LOAD)))
        await tocsin.ended("asked", Completed, 10)
        await bootstrap.create_backup(lost, backup)
    async with (
        EmbeddedCluster(tmp_path / "cluster", port=ANY_PORT).running() as cluster,
        bootstrap.connect(at(chosen, cluster.url, replicas=3)) as installation,
    ):
        await restored(installation, backup)
        async with at_work(installation, quick()) as tocsin:
            tocsin.patience = 120
            await tocsin.ended("asked", Completed, LOAD)
            await tocsin.change("every", partial(ledger.pause, job="every"))
            await tocsin.until(partial(is_idle, installation))
            report = await audited(installation)
            await bootstrap.create_backup(installation, tmp_path / "of-the-cluster")
        info = await installation.connection.manage("STREAM.INFO.TOCSIN_LOG")
    assert (report["clean"], report["violations"]) == (True, [])
    assert (await verify_backup(tmp_path / "of-the-cluster")).is_clean
    assert info["config"]["num_replicas"] == 3
    assert [replica["current"] for replica in info["cluster"]["replicas"]] == [True, True]


async def test_restore_corrects_a_value_that_init_refuses(tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    async with new_installation(settings(tmp_path)) as installation:
        manage, reports = installation.connection.manage, installation.names.stream(Stream.REPORTS)
        config = (await manage(f"STREAM.INFO.{reports}"))["config"]
        await manage(f"STREAM.UPDATE.{reports}", json.dumps(config | {"deny_delete": True}).encode())
        with pytest.raises(StreamUnchangeable):
            await bootstrap.initialize(installation)
        await bootstrap.create_backup(installation, backup)
    async with empty_nats(settings(tmp_path)) as there, bootstrap.connect(there) as installation:
        await bootstrap.restore_backup(installation, backup)
        assert {change.action for change in await bootstrap.initialize(installation)} == {"unchanged"}


@pytest.fixture
async def backup(tmp_path: Path) -> Path:
    """The backup of an installation with a job and a request for it."""
    async with new_installation(settings(tmp_path)) as installation:
        tocsin = Running(installation)
        await tocsin.apply(JOBS[0])
        await tocsin.trigger("asked")
        await bootstrap.create_backup(installation, tmp_path / "backup")
    return tmp_path / "backup"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


LEDGER = f"streams/{DECISIONS}.s2"


@pytest.mark.parametrize(
    ("seconds", "expected"), [(-5, LEAST_GAP), (0, LEAST_GAP), (3_600, 36_000_000), (86_400 * 7, MOST_GAP)]
)
def test_gap_grows_with_the_age_of_the_backup(seconds: int, expected: int) -> None:
    assert gap(timedelta(seconds=seconds)) == expected


NOTHING = {"size": 0, "sha256": "0" * 64}
Change: TypeAlias = Callable[[Path], object]


@pytest.mark.parametrize(
    ("change", "file", "reason"),
    [
        (lambda folder: flip(folder / LEDGER), LEDGER, "SHA-256 differs"),
        (lambda folder: cut(folder / LEDGER), LEDGER, "bytes in place of"),
        (lambda folder: (folder / LEDGER).unlink(), LEDGER, "missing"),
        (lambda folder: (folder / "streams/notes").touch(), "streams/notes", "does not name it"),
        (lambda folder: recorded(folder, cut), LEDGER, "ends within a chunk"),
        (lambda folder: rewritten(folder, ["streams", DECISIONS, "messages"], 2), LEDGER, "messages: 1,"),
        (lambda folder: rewritten(folder, ["streams", DECISIONS, "last"], 9), LEDGER, "last: 1,"),
        (lambda folder: rewritten(folder, ["streams", DECISIONS], None), LEDGER, "does not name it"),
    ],
    ids=["changed", "cut", "missing", "added", "truncated", "count", "range", "unnamed"],
)
async def test_damage_is_named(backup: Path, change: Change, file: str, reason: str) -> None:
    change(backup)
    verification = await verify_backup(backup)
    assert not verification.is_clean
    assert verification.audit is None
    assert (verification.damage[0].file, reason in verification.damage[0].reason) == (file, True)


def recorded(folder: Path, change: Change) -> None:
    """Change a file, and record its new digest."""
    change(folder / LEDGER)
    rewritten(folder, ["streams", DECISIONS, "file"], FileRecord.of(folder / LEDGER).model_dump())


def rewritten(folder: Path, path: list[str], value: object) -> None:
    """Change a field of the manifest; None removes it."""
    manifest = json.loads((folder / MANIFEST).read_text())
    *parents, last = path
    within = reduce(getitem, parents, manifest)
    if value is None:
        del within[last]
    else:
        within[last] = value
    (folder / MANIFEST).write_text(json.dumps(manifest))


async def test_existing_path_is_never_overwritten(backup: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    async with new_installation(settings(tmp_path)) as installation:
        for path in (backup, tmp_path / "empty"):
            with pytest.raises(BackupExists):
                await bootstrap.create_backup(installation, path)
    assert (await verify_backup(backup)).is_clean
    assert names_in(tmp_path) == {"backup", "empty"}


async def test_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    async with new_installation(settings(tmp_path)) as installation:
        with pytest.raises(BackupUnwritable, match="absent"):
            await bootstrap.create_backup(installation, tmp_path / "absent" / "backup")


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_only_its_owner_may_read_a_backup(backup: Path) -> None:
    paths = [backup, *backup.rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o600, 0o700}


async def test_restore_is_refused_beside_other_streams(backup: Path, tmp_path: Path) -> None:
    async with new_installation(settings(tmp_path)) as installation:
        with pytest.raises(InstallationNotEmpty) as refused:
            await bootstrap.restore_backup(installation, backup)
    assert "TOCSIN_LOG" in refused.value.streams
    assert f"{DECISIONS} (0 messages)" in str(refused.value)


async def test_damaged_backup_is_not_restored(backup: Path, tmp_path: Path) -> None:
    flip(backup / LEDGER)
    async with empty_nats(settings(tmp_path)) as there, bootstrap.connect(there) as installation:
        with pytest.raises(BackupDamaged):
            await bootstrap.restore_backup(installation, backup)
        assert (await installation.connection.manage("STREAM.NAMES"))["streams"] is None


@pytest.mark.parametrize(
    ("path", "value", "error"),
    [
        (["format"], 2, BackupUnreadable),
        (["tocsin"], "export", BackupUnreadable),
        (["objects", "../secret"], NOTHING, BackupUnreadable),
        (["objects", "/secret"], NOTHING, BackupUnreadable),
        (["objects", "sec\0ret"], NOTHING, BackupUnreadable),
        (["streams", "/TOCSIN_LOG"], {"file": NOTHING, "first": 0, "last": 0, "messages": 0}, BackupUnreadable),
        (["streams", "TOCSIN_MINE"], {"file": NOTHING, "first": 0, "last": 0, "messages": 0}, BackupUnreadable),
        (["root"], "other", BackupOfOtherNames),
        (["layout"], 9, BackupOfOtherNames),
        (["nats_server"], "99.0.0", ServerTooOld),
    ],
)
async def test_other_backup_is_refused(
    backup: Path, tmp_path: Path, path: list[str], value: object, error: type[Exception]
) -> None:
    rewritten(backup, path, value)
    async with empty_nats(settings(tmp_path)) as there, bootstrap.connect(there) as installation:
        with pytest.raises(error):
            await bootstrap.restore_backup(installation, backup)
        assert (await installation.connection.manage("STREAM.NAMES"))["streams"] is None


@pytest.mark.slow
async def test_command_line_makes_verifies_and_restores(tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    async with new_installation(settings(tmp_path)) as installation:
        await Running(installation).apply(JOBS[0])
        code, made = await called(installation.settings, "backup", "create", str(backup))
        assert (code, made["streams"][DECISIONS]["messages"]) == (0, 1)
        code, error = await called(installation.settings, "backup", "create", str(backup))
        assert (code, error["error"]["error_code"]) == (2, "backup-exists")
        code, error = await called(installation.settings, "backup", "restore", str(backup), "--yes")
        assert (code, error["error"]["error_code"]) == (1, "installation-not-empty")
    code, found = await called(settings(tmp_path), "backup", "verify", str(backup))
    assert (code, found["clean"], found["damage"]) == (0, True, [])
    async with empty_nats(settings(tmp_path)) as there:
        code, done = await called(there, "backup", "restore", str(backup), "--yes")
        assert (code, done["executions"]) == (0, 0)
        code, jobs = await called(there, "jobs", "list")
        assert (code, [job["name"] for job in jobs]) == (0, ["asked"])
    flip(backup / LEDGER)
    code, found = await called(settings(tmp_path), "backup", "verify", str(backup))
    assert (code, found["clean"], found["damage"][0]["file"]) == (1, False, LEDGER)
    code, error = await called(settings(tmp_path), "backup", "verify", str(tmp_path))
    assert (code, error["error"]["error_code"]) == (2, "backup-unreadable")
