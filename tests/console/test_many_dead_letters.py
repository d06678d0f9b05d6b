"""The console with thousands of dead letters of a job."""

import asyncio
import re
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest
from playwright.sync_api import expect

from tests.console.conftest import SignIn
from tests.console.served import Console
from tests.console.test_dead_letters import define
from tests.ojs.served import PATIENCE
from tocsin.bootstrap import connect
from tocsin.domain.events import DeadLettered, Failure
from tocsin.domain.ids import occurrence_id
from tocsin.settings import Settings

pytestmark = [pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(1800)]
expect.set_options(timeout=PATIENCE * 1000)

LETTERS: Final = 2_000
AT_ONCE: Final = 500
PAGE: Final = 50
JOB: Final = "often-dead"
PATIENT_S: Final = 1_200
"""Seconds in which all of them run again."""


async def store(console: Console, definition: int) -> None:
    """Store the dead letters of executions that failed a second apart."""
    began = datetime.now(UTC) - timedelta(seconds=LETTERS)
    times = [began + timedelta(seconds=number) for number in range(LETTERS)]
    async with connect(Settings.model_validate({"nats": {"url": console.dev.url}})) as installation:
        for first in range(0, LETTERS, AT_ONCE):
            letters = (letter(at, definition) for at in times[first : first + AT_ONCE])
            await asyncio.gather(*(installation.log.append(one, expect=0) for one in letters))


def letter(at: datetime, definition: int) -> DeadLettered:
    execution = occurrence_id(JOB, at)
    return DeadLettered(
        job=JOB,
        id=execution,
        execution_id=execution,
        scheduled_time=at,
        trigger="cron",
        attempts=(),
        last_error=Failure(type="OSError", message=f"no rows at {at.timestamp():.0f}"),
        first_attempt=at,
        last_attempt=at,
        definition=definition,
    )


def unresolved(console: Console) -> int:
    """Return the number of dead letters that wait for a decision."""
    groups = console.api("GET", f"/v1/dead-letters/groups?job={JOB}")["groups"]
    return sum(group["count"] for group in groups)


def await_unresolved(console: Console, number: int) -> None:
    started = time.monotonic()
    while unresolved(console) != number:
        assert time.monotonic() - started < PATIENT_S
        time.sleep(1)


def test_thousands_of_letters_are_replayed(sign_in: SignIn, console: Console) -> None:
    define(console, JOB, "ok")
    definition = console.api("GET", f"/v1/jobs/{JOB}")["sequence"]
    with ThreadPoolExecutor() as pool:  # the event loop of the browser runs in this thread
        pool.submit(asyncio.run, store(console, definition)).result()
    await_unresolved(console, LETTERS)
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
