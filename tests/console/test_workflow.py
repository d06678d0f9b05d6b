"""The page of an execution that is a workflow, or has callbacks."""

import time

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.console.conftest import SignIn
from tests.console.served import HOSTILE, Console
from tests.ojs.served import PATIENCE

pytestmark = pytest.mark.slow
expect.set_options(timeout=PATIENCE * 1000)

MAIL = {"type": "mail.send", "args": [], "options": {"queue": "default", "retry": {"max_attempts": 1}}}


def created(console: Console, name: str) -> str:
    """Create a batch with callbacks; return its id."""
    callbacks = {"on_success": {**MAIL, "type": "mail.thanks"}, "on_failure": {**MAIL, "type": "mail.alert"}}
    body = {"type": "batch", "name": name, "jobs": [MAIL, MAIL], "callbacks": callbacks}
    id_: str = console.api("POST", "/ojs/v1/workflows", json=body)["workflow"]["id"]
    return id_


def work(console: Console, *, fails: bool = False) -> None:
    """Take the next job, and end it."""
    begun = time.monotonic()
    while not (
        tasks := console.api("POST", "/ojs/v1/workers/fetch", json={"queues": ["default"], "wait_ms": 1_000})["jobs"]
    ):
        assert time.monotonic() - begun < PATIENCE
    verb, more = ("nack", {"error": {"code": "x", "message": "no route"}}) if fails else ("ack", {})
    console.api("POST", f"/ojs/v1/workers/{verb}", json={"job_id": tasks[0]["id"], **more})


def step(page: Page, name: str) -> Locator:
    """Return the row of a step."""
    row = page.get_by_role("region", name="steps").get_by_role("row")
    return row.filter(has=page.locator("td:first-child").get_by_text(name, exact=True))


def test_batch_shows_its_name_and_callbacks(sign_in: SignIn, console: Console) -> None:
    id_ = created(console, HOSTILE)
    work(console)
    work(console, fails=True)
    work(console)
    page = sign_in(path=f"/console/executions/{id_}")
    expect(page.locator("dl.facts")).to_contain_text(f"batch “{HOSTILE}”")
    expect(step(page, "0")).to_contain_text("completed")
    expect(step(page, "1")).to_contain_text("failed")
    expect(step(page, "on_failure")).to_contain_text("completed")
    expect(step(page, "on_success")).to_contain_text("cancelled")
    expect(page.locator("h1")).to_contain_text("completed")
    expect(page.get_by_role("button", name="Run again")).to_have_count(0)


def test_workflow_is_cancelled(sign_in: SignIn, console: Console) -> None:
    id_ = created(console, "mails")
    page = sign_in(role="scheduler-operator", path=f"/console/executions/{id_}")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the execution").click()
    expect(page.locator("h1")).to_contain_text("cancelled")
    assert console.api("GET", f"/ojs/v1/workflows/{id_}")["workflow"]["state"] == "cancelled"


def test_callback_of_a_job_is_marked(sign_in: SignIn, console: Console) -> None:
    id_ = console.run("guarded", "failed")
    page = sign_in(path=f"/console/executions/{id_}")
    expect(step(page, "alert (on_failure)")).to_contain_text("completed")
    expect(step(page, "work")).to_contain_text("failed")
