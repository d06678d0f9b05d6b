"""The page of a job: its ledger of time, its revisions, and a trigger with a form made of its input schema."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Page, expect

from tests.console.conftest import SignIn
from tests.console.served import Console
from tests.ojs.served import PATIENCE

pytestmark = pytest.mark.slow
expect.set_options(timeout=PATIENCE * 1000)


def timeline(page: Page) -> str:
    """Return the label of the span that the timeline shows."""
    return page.get_by_role("region", name="Ledger of time").locator("p.hint").first.inner_text()


def test_timeline_shows_decisions(sign_in: SignIn, console: Console) -> None:
    console.run("minutely", "completed")
    page = sign_in(path="/console/jobs/minutely")
    expect(page.locator(".ledger .instant-completed").first).to_be_attached()
    expect(page.locator(".ledger .instant-future").first).to_be_attached()
    expect(page.locator(".ledger .version-defined")).to_have_count(1)


def test_timeline_says_why(sign_in: SignIn) -> None:
    page = sign_in(path="/console/jobs/minutely")
    page.get_by_role("region", name="Ledger of time").get_by_text("As a table").click()
    rows = page.get_by_role("region", name="instants").get_by_role("row").filter(has_text="future")
    row = rows.last  # the first may begin meanwhile
    row.get_by_role("button").click()
    expect(page).to_have_url(re.compile("[?&]at="))
    expect(page.locator(".why")).to_contain_text("future")
    page.reload()
    expect(page.locator(".why")).to_contain_text("future")


@pytest.mark.full
def test_timeline_marks_what_a_calendar_excludes(sign_in: SignIn, console: Console) -> None:
    today = datetime.now(UTC).date()
    fair = {"name": "fair", "days": [f"{today}/{today + timedelta(days=2)}"]}
    job = {"schedule": "0 * * * *", "function": "ok", "exclude": [fair], "shift": "next_business_day"}
    console.api("PUT", "/v1/jobs/closed", json=job)
    page = sign_in(path="/console/jobs/closed")
    expect(page.locator(".ledger .instant-excluded").first).to_be_attached()
    page.get_by_role("region", name="Ledger of time").get_by_text("As a table").click()
    row = page.get_by_role("region", name="instants").get_by_role("row").filter(has_text="excluded").first
    expect(row).to_contain_text("is a day of fair")
    row.get_by_role("button").click()
    expect(page.locator(".why")).to_contain_text("is a day of fair")
    expect(page.locator(".why")).to_contain_text("Moves to")


def test_timeline_shows_the_first_second(sign_in: SignIn) -> None:
    page = sign_in(path="/console/jobs/minutely?at=1970-01-01T00:30:00Z")
    expect(page.locator(".ledger")).to_be_visible()
    expect(page.locator(".tick-labels")).to_be_attached()


def test_timeline_moves_by_keyboard(sign_in: SignIn) -> None:
    page = sign_in(path="/console/jobs/minutely")
    expect(page.locator(".ledger")).to_be_visible()
    before = timeline(page)
    page.get_by_role("group", name=re.compile("^timeline")).focus()
    page.keyboard.press("-")
    assert timeline(page).endswith("2 h")
    page.keyboard.press("+")
    page.keyboard.press("ArrowLeft")
    assert timeline(page).endswith("1 h")
    assert timeline(page) != before


@pytest.mark.full
def test_long_time_is_counted_in_columns(sign_in: SignIn) -> None:
    page = sign_in(path="/console/jobs/minutely")
    page.get_by_role("button", name="30 d", exact=True).click()
    expect(page.locator(".ledger .column").first).to_be_attached()
    expect(page.locator(".ledger .instant-future").first).to_be_attached()


def test_job_is_rolled_back(sign_in: SignIn, console: Console) -> None:
    for schedule in ("0 3 * * *", "0 4 * * *"):
        console.api("PUT", "/v1/jobs/rolled", json={"schedule": schedule, "function": "ok"})
    page = sign_in(path="/console/jobs/rolled")
    page.get_by_role("button", name="Roll back").click()
    page.get_by_label("Reason").fill("as it was")
    page.get_by_role("dialog").get_by_role("button", name="Roll back").click()
    expect(page.locator(".facts").first).to_contain_text("0 3 * * *")
    assert console.api("GET", "/v1/jobs/rolled")["schedule"] == "0 3 * * *"
    expect(page.get_by_role("region", name="Revisions").first).to_contain_text("as it was")


def test_trigger_has_a_form(sign_in: SignIn, console: Console) -> None:
    page = sign_in(role="scheduler-operator", path="/console/jobs/etl")
    page.get_by_role("button", name="Trigger").click()
    page.get_by_label("Day *").fill("tuesday")
    page.get_by_label("rows").fill("3")
    page.get_by_label("kind").select_option("delta")
    page.get_by_role("dialog").get_by_role("button", name="Trigger").click()
    expect(page).to_have_url(re.compile("/console/executions/"))
    execution = page.url.rpartition("/")[2]
    expect(page.get_by_role("heading", level=1)).to_contain_text(execution)  # the planner has decided
    facts = console.api("GET", f"/v1/executions/{execution}/events")["facts"]
    assert facts[0]["fact"]["plan"]["input"] == {"day": "tuesday", "rows": 3, "deep": False, "kind": "delta"}


@pytest.mark.full
def test_input_that_the_schema_refuses_stays(sign_in: SignIn) -> None:
    page = sign_in(path="/console/jobs/etl")
    page.get_by_role("button", name="Trigger").click()
    page.get_by_label("rows").fill("0")
    page.get_by_role("dialog").get_by_role("button", name="Trigger").click()
    assert page.get_by_label("rows").evaluate("field => field.validity.rangeUnderflow")
    expect(page.get_by_role("dialog")).to_be_visible()


def test_job_is_paused_and_resumed(sign_in: SignIn, console: Console) -> None:
    page = sign_in(path="/console/jobs/nightly")
    for verb, state in (("Pause", "paused"), ("Resume", "active")):
        page.get_by_role("button", name=verb, exact=True).click()
        page.get_by_label("Reason").fill("a trial")
        page.get_by_role("dialog").get_by_role("button", name=verb).click()
        expect(page.locator("h1")).to_contain_text(state)
        assert console.api("GET", "/v1/jobs/nightly")["state"] == state


def test_what_if_shows_the_difference(sign_in: SignIn) -> None:
    page = sign_in(path="/console/what-if?job=minutely&days=-1")
    editor = page.get_by_label("Definition to try, as YAML")
    expect(editor).to_have_value(re.compile(re.escape("'* * * * *'") + "|" + re.escape("* * * * *")))
    editor.fill(editor.input_value().replace("* * * * *", "0 * * * *"))
    page.get_by_role("button", name="Ask").click()
    card = page.get_by_role("region", name="minutely").first
    expect(card).to_contain_text("Instants that go")
    expect(card).not_to_contain_text("Instants that come")


@pytest.mark.full
def test_what_if_counts_other_workers(sign_in: SignIn) -> None:
    page = sign_in(path="/console/what-if?days=-1")
    page.get_by_label("Slots of workers by queue").fill("default=0")
    page.get_by_role("button", name="Ask").click()
    expect(page.get_by_role("region", name="All jobs together")).to_contain_text("waits for a worker")
    expect(page.get_by_role("region", name="minutely").first).to_contain_text("Executions with another course")


def test_day_of_the_ledger_begins_in_its_zone(sign_in: SignIn, console: Console) -> None:
    schedule = {"schedule": "0 0 * * *", "timezone": "America/New_York", "function": "ok"}
    console.api("PUT", "/v1/jobs/midnight", json=schedule)
    page = sign_in(path="/console/jobs/midnight?at=2027-03-14T07:00:00Z")  # the clocks go forward at this time
    page.get_by_role("button", name="7 d", exact=True).click()
    expect(page.locator(".ledger rect.instant")).to_have_count(7)
    days, instants = (
        page.locator(query).evaluate_all(f"(found) => found.map((one) => {place})")
        for query, place in (
            (".tick-labels span", "[one.textContent, Math.round(10 * parseFloat(one.style.left))]"),
            (".ledger rect.instant", "[one.textContent.slice(5, 10), Math.round(+one.getAttribute('x')) + 2]"),
        )
    )
    assert [day for day, _ in days] == [day for day, _ in instants]
    assert all(abs(place - other) <= 1 for (_, place), (_, other) in zip(days, instants, strict=True))


@pytest.mark.full
def test_ledger_says_that_it_is_not_complete(sign_in: SignIn) -> None:
    page = sign_in()
    page.route("**/timeline?*", lambda route: route.fulfill(json=route.fetch().json() | {"truncated": True}))
    page.goto("/console/jobs/minutely")
    expect(page.get_by_text("Some instants, changes or gaps are missing")).to_be_visible()
