"""`tocsin tz refresh` on a real server: a running installation takes over new time-zone data."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.domain.schedule.databases import decreed
from tests.system.running import DEADLINE, running
from tocsin import Worker
from tocsin.cli.installation.commands import _requested
from tocsin.cli.runtime import event_loop
from tocsin.domain.schedule import TimezoneDatabase, install, timezone_database, timezones

NINE = {"name": "nine", "schedule": "0 9 * * *", "timezone": "Europe/Berlin", "function": "f"}


async def test_refresh_reports_what_moved(nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = timezone_database()
    decreed(tmp_path / "tzdata", Berlin="Asia/Tokyo")
    try:
        async with running(nats_url, tmp_path, worker=Worker()) as tocsin:
            await tocsin.apply(NINE, {**NINE, "name": "paris", "timezone": "Europe/Paris"})
            monkeypatch.setattr(timezones, "packaged", lambda: TimezoneDatabase(tmp_path / "tzdata"))
            report = await _requested(tocsin.installation.projections, DEADLINE)
            assert (report.before, report.after, report.jobs) == (before.version, "2042z", 1)
            assert [one.job for one in report.moved] == ["nine"]
            assert {at.hour for at in report.moved[0].added} == {0}
            again = await _requested(tocsin.installation.projections, DEADLINE)
            assert (again.before, again.after, again.jobs) == ("2042z", "2042z", 0)
    finally:
        install(before)


def test_signal_refreshes() -> None:
    received = asyncio.Event()

    async def work() -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        await received.wait()

    event_loop.serve(work(), on_refresh=received.set)
    assert received.is_set()
