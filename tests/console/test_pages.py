"""Each page of the console in a real browser: what it shows, that it is accessible, and that no content runs."""

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.console.conftest import SignIn, violations
from tests.console.served import HOSTILE, Console
from tests.ojs.served import PATIENCE

pytestmark = pytest.mark.slow
expect.set_options(timeout=PATIENCE * 1000)


@pytest.fixture(scope="module")
def runs(console: Console) -> dict[str, str]:
    """Executions of some jobs, by job, and a dead letter."""
    runs = {
        "etl": console.run("etl", "completed"),
        "broken": console.run("broken", "failed"),
        "slow": console.run("slow", "running"),
    }
    begun = time.monotonic()
    while not (letters := console.api("GET", "/v1/dead-letters?job=broken")["dead_letters"]):
        assert time.monotonic() - begun < PATIENCE
        time.sleep(0.1)
    return runs | {"letter": letters[0]["id"]}


PAGES: Final = {
    "now": ("/console", "Now"),
    "jobs": ("/console/jobs", "Jobs"),
    "job": ("/console/jobs/minutely", "minutely"),
    "job of a graph": ("/console/jobs/etl", "etl"),
    "new job": ("/console/new-job", "New job"),
    "edited job": ("/console/edit-job/nightly", "Edit nightly"),
    "executions": ("/console/executions", "Executions"),
    "execution": ("/console/executions/{etl}", "etl"),
    "failed execution": ("/console/executions/{broken}", "broken"),
    "running execution": ("/console/executions/{slow}", "slow"),
    "dead letters": ("/console/dead-letters", "Dead letters"),
    "dead letter": ("/console/dead-letters/{letter}", "Dead letter"),
    "schedule": ("/console/schedule", "Schedule"),
    "what if": ("/console/what-if?job=nightly", "What if"),
    "changes": ("/console/changes", "Changes"),
    "queues": ("/console/queues", "Queues"),
    "agents": ("/console/agents", "Agents"),
    "silences": ("/console/silences", "Silences"),
    "events": ("/console/events", "Events"),
    "unknown page": ("/console/nothing", "No such page"),
}


def shown(page: Page, path: str, heading: str) -> None:
    """Open a page, and wait until it shows its data, of which nothing may run."""
    page.goto(path)
    expect(page.get_by_role("heading", level=1)).to_contain_text(heading)
    expect(page.locator(".loading")).to_have_count(0)
    expect(page.locator(".refusal[role=alert]")).to_have_count(0)
    assert page.evaluate("window.hacked") is None, path


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.full)])
def test_pages_are_accessible(scheme: Literal["light", "dark"], sign_in: SignIn, runs: dict[str, str]) -> None:
    page = sign_in(scheme=scheme)
    found = list[str]()
    for name, (path, heading) in PAGES.items():
        shown(page, path.format(**runs), heading)
        found += [f"{name}: {violation}" for violation in violations(page)]
    assert found == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_sign_in_is_accessible_and_by_keyboard(
    scheme: Literal["light", "dark"], browser: Browser, console: Console
) -> None:
    context = browser.new_context(
        base_url=console.url, color_scheme=scheme, viewport={"width": 360, "height": 700}, reduced_motion="reduce"
    )
    page = context.new_page()
    page.goto("/console/jobs")
    token = page.get_by_label("Token")
    expect(token).to_be_visible()
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.keyboard.press("Tab")
    expect(token).to_be_focused()
    page.keyboard.type(console.tokens["scheduler-viewer"])
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="nightly")).to_be_visible()
    context.close()


def test_dialog_is_accessible(sign_in: SignIn) -> None:
    page = sign_in(path="/console/jobs/etl")
    page.get_by_role("button", name="Trigger").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert violations(page) == []


def test_dev_names_the_console(console: Console) -> None:
    [api] = [line for line in console.dev.lines if line.get("event") == "api"]
    assert api["console"] == f"{api['url']}/console"


@pytest.mark.parametrize("width", [360, pytest.param(2560, marks=pytest.mark.full)])
def test_pages_fit_their_width(width: int, sign_in: SignIn, runs: dict[str, str]) -> None:
    page = sign_in(width=width)
    for path, heading in PAGES.values():
        shown(page, path.format(**runs), heading)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path


def test_hostile_content_is_text(sign_in: SignIn, runs: dict[str, str]) -> None:
    """Of all pages, `shown` looks for what ran."""
    page = sign_in()
    for path, heading in (PAGES["job of a graph"], PAGES["failed execution"]):
        shown(page, path.format(**runs), heading)
        assert page.get_by_text(HOSTILE).count() > 0, path


def test_execution_shows_its_steps(sign_in: SignIn, runs: dict[str, str]) -> None:
    page = sign_in(path=f"/console/executions/{runs['etl']}")
    expect(page.locator(".graph .node-completed")).to_have_count(4)
    expect(page.locator(".graph .edge")).to_have_count(4)
    expect(page.locator(".lane .bar-wait")).to_have_count(4)
    expect(page.locator(".lane .bar-completed")).to_have_count(4)
    expect(page.get_by_role("log")).to_contain_text(HOSTILE)


def test_page_follows_events(sign_in: SignIn, console: Console) -> None:
    page = sign_in(path="/console/executions?job=slow&status=running")
    execution = console.run("slow", "running")
    link = page.locator(f'a[title="{execution}"]')
    expect(link).to_be_visible()
    console.api("POST", f"/v1/executions/{execution}/cancel", json={})
    expect(link).to_have_count(0)


def test_running_execution_is_cancelled(sign_in: SignIn, console: Console) -> None:
    execution = console.run("slow", "running")
    page = sign_in(role="scheduler-operator", path=f"/console/executions/{execution}")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_label("Reason").fill("not needed")
    page.get_by_role("button", name="Cancel the execution").click()
    expect(page.locator("h1 .state-cancelled")).to_be_visible()


def test_viewer_sees_no_action(sign_in: SignIn, runs: dict[str, str]) -> None:
    page = sign_in(role="scheduler-viewer", path=f"/console/executions/{runs['slow']}")
    expect(page.locator("h1")).to_contain_text("slow")
    expect(page.locator("main button")).to_have_count(0)
    page.goto("/console/jobs")
    expect(page.get_by_role("link", name="nightly")).to_be_visible()
    expect(page.get_by_role("link", name="hidden")).to_have_count(0)
    expect(page.locator("main button")).to_have_count(0)


def test_jobs_are_found_by_keyboard(sign_in: SignIn) -> None:
    page = sign_in(path="/console/jobs")
    expect(page.get_by_role("link", name="minutely")).to_be_visible()
    page.get_by_label("Search").focus()
    page.keyboard.type("nightly")
    expect(page.get_by_role("link", name="minutely")).to_have_count(0)
    expect(page).to_have_url(re.compile("search=nightly"))
    link = page.get_by_role("link", name="nightly")
    link.focus()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/console/jobs/nightly$"))


def test_search_does_not_follow_to_the_next_page(sign_in: SignIn) -> None:
    page = sign_in(path="/console/jobs")
    expect(page.get_by_role("link", name="minutely")).to_be_visible()
    search, link = (
        page.get_by_label("Search").element_handle(),
        page.get_by_role("link", name="Queues").element_handle(),
    )
    page.clock.install()
    page.clock.pause_at(datetime.now(UTC) + timedelta(hours=1))  # no frame passes before the timer of the field is due
    page.evaluate(
        """([search, link]) => {
          search.value = "nightly";
          search.dispatchEvent(new Event("input", { bubbles: true }));
          link.click();
        }""",
        [search, link],
    )
    page.clock.fast_forward(60_000)
    page.clock.resume()
    expect(page.locator("h1")).to_contain_text("Queues")
    expect(page).to_have_url(re.compile("/console/queues$"))


def test_change_is_on_the_audit_trail(sign_in: SignIn, console: Console) -> None:
    console.api("POST", "/v1/jobs/slow/pause", json={"reason": HOSTILE})
    page = sign_in(path="/console/changes?job=slow&type=paused")
    row = page.get_by_role("row").filter(has_text=HOSTILE)
    expect(row).to_contain_text("token:conformance")
    assert page.evaluate("window.hacked") is None
    console.api("POST", "/v1/jobs/slow/resume", json={})
