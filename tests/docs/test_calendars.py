"""The page on calendars: its job file is read, and fires as the page says."""

import json
import re
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from tocsin.adapters.files import load
from tocsin.domain.formats import read_job
from tocsin.domain.schedule import next_instants, parse

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "calendars.md").read_text("utf-8")
NOW = datetime(2026, 11, 20, tzinfo=UTC)


def test_jobs_of_the_page_fire(tmp_path: Path) -> None:
    found = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    path = tmp_path / "jobs.yaml"
    path.write_text(found[1], "utf-8")
    jobs = {job.name: job for job in load(path, today=date(2026, 11, 20))}
    coming = {}
    for name, job in jobs.items():
        schedule = parse(job.schedule or "", job.timezone, days=job.day_rules)
        coming[name] = [f"{at:%Y-%m-%d %H:%M}" for at in next_instants(schedule, NOW, 3)]
    # 1 January is a holiday, and 2 January a Saturday.
    assert coming["payroll"] == ["2026-12-01 08:00", "2027-01-04 08:00", "2027-02-01 08:00"]
    assert coming["close-of-trade"] == ["2026-11-30 22:30", "2026-12-01 22:30", "2026-12-02 22:30"]
    sync = parse(jobs["sync"].schedule or "", jobs["sync"].timezone, days=jobs["sync"].day_rules)
    before, after = datetime(2026, 12, 20, 20, 58, tzinfo=UTC), datetime(2026, 12, 21, 3, tzinfo=UTC)
    assert sync.next_after(before, anchor=before) == after


def test_application_of_the_page_has_its_calendars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [block] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "inventory.ics").write_text(
        "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:a\r\nBEGIN:VEVENT\r\nUID:1\r\nDTSTAMP:20260101T000000Z\r\n"
        "DTSTART;VALUE=DATE:20261201\r\nSUMMARY:inventory\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n"
    )
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(block, "calendars.md", "exec"), names)  # noqa: S102 - our own page
    [job] = names["app"].definitions
    schedule = parse(job.schedule, job.timezone, days=job.day_rules)
    coming = [f"{at:%Y-%m-%d %H:%M}" for at in next_instants(schedule, NOW, 2)]
    assert coming == ["2026-12-02 08:00", "2027-01-04 08:00"]


def test_inline_calendar_of_the_page_is_read() -> None:
    found = re.search(r'`"exclude": (\[.*?\])`', PAGE)
    assert found is not None
    exclude = json.loads(found[1])
    job = read_job({"name": "a", "schedule": "@daily", "function": "f", "exclude": exclude})
    assert job.exclude[0].days == ("2026-12-28/2026-12-31",)
