"""The users `backup` and `restore`: each does its own work with its own rules, and no other user can."""

from pathlib import Path
from typing import Final

import pytest

from tests.domain.given import proven, report
from tests.security.installations import accounts, connected, initialize
from tests.security.server import server
from tests.system.running import Running
from tocsin import bootstrap, subjects
from tocsin.adapters.nats.backup.verification import verify_backup
from tocsin.bootstrap import Installation
from tocsin.ports import NotAllowed
from tocsin.services.jobs import Registry
from tocsin.subjects import Stream

LATER: Final = 1_000
"""A sequence that the log has not reached."""
OTHERS = ("admin", "operator", "viewer", "api", "scheduler", "archiver", "worker")


async def test_users_copy_and_restore_an_installation(tmp_path: Path) -> None:
    backup, settings_folder = tmp_path / "backup", tmp_path / "settings"
    settings_folder.mkdir()
    config, environment = accounts(settings_folder)
    with server(tmp_path / "lost", config, environment=environment) as lost:
        await initialize(lost.url, settings_folder)
        async with connected(lost, settings_folder, "operator") as operator:
            await Running(operator).apply({"name": "nightly", "function": "f"})
        async with connected(lost, settings_folder, "scheduler") as stages:
            late = proven(report("completed", claim=LATER), key=await stages.report_key())
            await stages.log.publish(subjects.subject_of(late), late, message_id="late")
        async with connected(lost, settings_folder, "backup") as installation:
            manifest = await bootstrap.create_backup(installation, backup)
        assert manifest.streams["TOCSIN_REPORTS"].messages == 1
        for role in OTHERS:
            async with connected(lost, settings_folder, role) as installation:
                with pytest.raises(NotAllowed):
                    await bootstrap.create_backup(installation, tmp_path / "other")
    assert (await verify_backup(backup)).is_clean
    with server(tmp_path / "new", config, environment=environment) as there:
        async with connected(there, settings_folder, "restore") as installation:
            await bootstrap.restore_backup(installation, backup)
            assert await bootstrap.rebuild_history(installation) == 0
        async with connected(there, settings_folder, "viewer") as viewer:
            assert await jobs_of(viewer) == ["nightly"]
            assert (
                await viewer.stored.extent(Stream.REPORTS)
            ).messages == 1  # its claim was lost, and counts for nothing


async def jobs_of(installation: Installation) -> list[str]:
    registry = Registry(installation.log, installation.projections, installation.clock)
    return [job.name for job in await registry.jobs()]
