"""The console with thousands of dead letters of a job."""

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest
from playwright.sync_api import expect

from tests.console.conftest import SignIn
from tests.console.served import Console
from tests.console.test_dead_letters import define
from tests.ojs.served import PATIENCE
from tocsin.adapters.http.api.job_past import MAX_PER_REQUEST

pytestmark = [pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(1800)]
expect.set_options(timeout=PATIENCE * 1000)

LETTERS: Final = 2_000
PAGE: Final = 50
JOB: Final = "often-dead"
PATIENT_S: Final = 1_200
"""Seconds in which all of them run again."""


def fail(console: Console) -> None:
    """Let the job fail for seconds of yesterday, as many as dead letters are wanted."""
    first = (datetime.now(UTC) - timedelta(days=1)).replace(hour=3, minute=0, second=0, microsecond=0)
    schedule = f"* * {first.hour} {first.day} {first.month} *"  # next in a year
    define(console, JOB, "broken", schedule=schedule, overlap_policy="allow")
    for number in range(0, LETTERS, MAX_PER_REQUEST):
        start, end = (first + timedelta(seconds=second) for second in (number, number + MAX_PER_REQUEST))
        console.api("POST", f"/v1/jobs/{JOB}/backfill", json={"start": start.isoformat(), "end": end.isoformat()})


def await_unresolved(console: Console, number: int) -> None:
    """Wait until a number of dead letters wait for a decision."""
    started, path = time.monotonic(), f"/v1/dead-letters/groups?job={JOB}"
    while sum(group["count"] for group in console.api("GET", path)["groups"]) != number:
        assert time.monotonic() - started < PATIENT_S
        time.sleep(1)


def test_thousands_of_letters_are_replayed(sign_in: SignIn, console: Console) -> None:
    fail(console)
    await_unresolved(console, LETTERS)
    define(console, JOB, "ok")
    page = sign_in("scheduler-operator", f"/console/dead-letters?job={JOB}")
    group = page.get_by_role("region", name="groups of dead letters").locator("tbody tr")
    expect(group).to_have_count(1)
    expect(group.get_by_role("cell").first).to_have_text(f"{LETTERS}")
    rows = page.get_by_role("region", name="dead letters", exact=True).locator("tbody tr")
    expect(rows).to_have_count(PAGE)
    newest = rows.first.inner_text()
    page.get_by_role("button", name="Next page").click()
    expect(rows.first).not_to_have_text(newest)
    expect(rows).to_have_count(PAGE)
    page.get_by_role("button", name="First page").click()

    page.get_by_role("button", name="Replay all that match").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"{LETTERS:,} dead letters.")
    dialog.get_by_label("Reason").fill("mended")
    dialog.get_by_role("button", name="Replay all that match").click()
    expect(dialog.get_by_role("status")).to_have_text(re.compile(rf"of {LETTERS:,} replayed so far"))
    expect(dialog).to_have_count(0, timeout=PATIENT_S * 1000)
    expect(page.get_by_text(f"{LETTERS:,} dead letters replayed.")).to_be_visible()
    await_unresolved(console, 0)
    expect(page.get_by_text("No dead letter matches.")).to_be_visible()
    days = console.api("GET", f"/v1/jobs/{JOB}/calendar")["days"]
    assert sum(day["completed"] for day in days) == LETTERS
