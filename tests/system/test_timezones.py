"""`tocsin tz refresh` on a real server: a running installation takes over new time-zone data."""

import asyncio
import json
import os
import signal
import subprocess
from datetime import datetime
from pathlib import Path

import pytest

from tests.domain.schedule.databases import decreed
from tests.services.health.test_status import program
from tests.system.running import DEADLINE, Running, running
from tocsin import Worker
from tocsin.cli.runtime import event_loop
from tocsin.domain.schedule import TimezoneDatabase, install, timezone_database, timezones

NINE = {"name": "nine", "schedule": "0 9 * * *", "timezone": "Europe/Berlin", "function": "f"}


async def refresh(tocsin: Running, *options: str) -> "subprocess.CompletedProcess[str]":
    answer = await program(tocsin.settings, "tz", "refresh", *options, "--wait", str(DEADLINE / 2))
    assert answer.returncode == 0, answer.stderr
    return answer


async def test_refresh_reports_what_moved(nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = timezone_database()
    decreed(tmp_path / "tzdata", Berlin="Asia/Tokyo")
    try:
        async with running(nats_url, tmp_path, worker=Worker()) as tocsin:
            await tocsin.apply(NINE, {**NINE, "name": "paris", "timezone": "Europe/Paris"})
            monkeypatch.setattr(timezones, "packaged", lambda: TimezoneDatabase(tmp_path / "tzdata"))
            report = json.loads((await refresh(tocsin, "-o", "json")).stdout)
            assert (report["before"], report["after"], report["jobs"]) == (before.version, "2042z", 1)
            [moved] = report["moved"]
            assert (moved["job"], moved["timezone"]) == ("nine", "Europe/Berlin")
            assert {datetime.fromisoformat(at).hour for at in moved["added"]} == {0}
            monkeypatch.setattr(timezones, "packaged", lambda: before)
            page = (await refresh(tocsin)).stdout
            assert f"time-zone data 2042z -> {before.version}: 1 job moved" in page
            assert all(text in page for text in ("nine", "Europe/Berlin", "T00:00:00Z"))
    finally:
        install(before)


def test_signal_refreshes() -> None:
    received = asyncio.Event()

    async def work() -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        await received.wait()

    event_loop.serve(work(), on_refresh=received.set)
    assert received.is_set()
