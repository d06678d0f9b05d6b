"""The keyboard alone reaches and operates every control of each page, with visible focus."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.console.conftest import SignIn
from tests.console.served import Console
from tests.console.test_pages import PAGES, runs, shown
from tests.ojs.served import PATIENCE

pytestmark = pytest.mark.slow
expect.set_options(timeout=PATIENCE * 1000)
__all__ = ["runs"]  # a fixture

REMEMBER = """() => {
  const natively = "a[href], button, input, select, textarea, summary, [tabindex='0']";
  const isSeen = (one) => one.checkVisibility({ visibilityProperty: true }) && !one.disabled;
  window.controls = [...document.querySelectorAll(natively)].filter(isSeen);
  window.reached = new Set();
  window.unseen = new Set();
  document.activeElement?.blur();
}"""
"""Remember all controls of the page, and put the focus before the first."""
REACHED = """() => {
  const control = document.activeElement;
  if (control === null || control === document.body) return false;
  window.reached.add(control);
  const style = getComputedStyle(control);
  const { left, right, top, bottom } = control.getBoundingClientRect();
  const isOnScreen = right > 0 && left < innerWidth && bottom > 0 && top < innerHeight;
  if (style.outlineStyle === "none" || parseFloat(style.outlineWidth) === 0 || !isOnScreen) window.unseen.add(control);
  return true;
}"""
"""Remember the control that has the focus. False: none has, so the focus has left the page."""
WORDS = "(all) => [...all].map((one) => one.cloneNode(false).outerHTML.slice(0, 200) + one.textContent.slice(0, 40))"
MISSED = f"({WORDS})(window.controls.filter((one) => one.isConnected && !window.reached.has(one)))"
UNSEEN = f"({WORDS})(window.unseen)"
MOUSE_ONLY = f"""({WORDS})([...document.querySelectorAll("main *")].filter((one) =>
  Object.keys(one.__a ?? {{}}).some((name) => /click|mouse|pointer/i.test(name))
  && !one.closest("a[href], button, input, select, textarea, summary, svg.ledger")))"""
"""Elements that listen to the mouse, and are no control. The ledger has a table with the same actions."""
OPENED_AGAIN = """async (first) => {
  first.%s;
  await null; // the page is rendered
  const opener = document.querySelector("main .actions button");
  opener.focus();
  opener.click();
  for (let frame = 0; frame < 5; frame += 1) await new Promise((next) => requestAnimationFrame(() => setTimeout(next)));
  return [Boolean(document.querySelector("dialog")?.open), first.isConnected];
}"""
"""Leave a dialog and open another before the browser reports, with its next frame, that the first is closed; return which are there."""
MOST_STOPS = 900
QUICK = ("now", "jobs", "job", "execution", "dead letters", "what if", "queues")
"""Pages whose controls are reached in every run; those of the others are much the same."""
WIDE, NARROW = 1280, 360
NARROW_QUICK = ("jobs", "execution")


@pytest.mark.parametrize(
    ("name", "width"),
    [
        (name, width) if name in quick else pytest.param(name, width, marks=pytest.mark.full)
        for width, quick in ((WIDE, QUICK), (NARROW, NARROW_QUICK))
        for name in PAGES
        if name != "events"
    ],
)
def test_tab_reaches_each_control(name: str, width: int, sign_in: SignIn, runs: dict[str, str]) -> None:
    path, heading = PAGES[name]
    page = sign_in(width=width)
    shown(page, path.format(**runs), heading)
    for summary in page.locator("main summary").all():
        summary.press("Enter")  # its content has controls, too
    page.evaluate(REMEMBER)
    for _ in range(MOST_STOPS):  # from where the last key was pressed, over the end to the beginning
        page.keyboard.press("Tab")
        if not page.evaluate(REACHED) and page.evaluate(MISSED) == []:
            break
    assert page.evaluate(MISSED) == []
    assert page.evaluate(UNSEEN) == []
    assert page.evaluate(MOUSE_ONLY) == []
    assert page.evaluate("window.reached.size") > 10  # the navigation, at least


def test_mouse_is_seen_to_be_needed(sign_in: SignIn) -> None:
    page = sign_in(path="/console/jobs")
    expect(page.get_by_role("link", name="nightly")).to_be_visible()
    page.evaluate("""async () => {
      const { h, render } = await import("/console/assets/vendor/preact.js");
      const place = document.querySelector("main").appendChild(document.createElement("div"));
      render(h("span", { onClick: () => {} }, "only by mouse"), place);
    }""")
    [found] = page.evaluate(MOUSE_ONLY)
    assert "only by mouse" in found


def test_dialog_gives_the_focus_back(sign_in: SignIn) -> None:
    page = sign_in(path="/console/jobs/nightly")
    for leave in ("Escape", "Back"):
        page.get_by_role("button", name="Trigger").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog")).to_be_visible()
        assert page.evaluate("document.querySelector('dialog').contains(document.activeElement)")
        if leave == "Escape":
            page.keyboard.press("Escape")
        else:
            page.get_by_role("dialog").get_by_role("button", name="Back").focus()
            page.keyboard.press("Space")
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(page.get_by_role("button", name="Trigger")).to_be_focused()  # a moment after the dialog is gone


@pytest.mark.parametrize("leave", ["requestClose()", "querySelector('[type=button]').click()"])
def test_dialog_that_is_opened_again_at_once_stays(leave: str, sign_in: SignIn) -> None:
    page = sign_in(path="/console/jobs/nightly")
    opener, dialog = page.get_by_role("button", name="Trigger"), page.get_by_role("dialog")
    opener.click()
    expect(dialog).to_be_visible()
    assert dialog.evaluate(OPENED_AGAIN % leave) == [True, False]
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(opener).to_be_focused()


def test_job_is_paused_by_keyboard(sign_in: SignIn, console: Console) -> None:
    console.api("PUT", "/v1/jobs/keyed", json={"function": "ok", "schedule": "0 3 * * *"})
    page = sign_in(path="/console/jobs/keyed")
    page.get_by_role("button", name="Pause").focus()
    page.keyboard.press("Space")
    expect(page.get_by_role("dialog")).to_be_visible()
    while page.evaluate("document.activeElement.name") != "reason":
        page.keyboard.press("Tab")
    page.keyboard.type("by hand")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    page.wait_for_function("document.activeElement !== document.body")
    [change] = console.api("GET", "/v1/changes?job=keyed&type=paused")["changes"]
    assert change["reason"] == "by hand"


def test_filter_is_chosen_by_arrow(sign_in: SignIn) -> None:
    page = sign_in(path="/console/jobs")
    expect(page.get_by_role("link", name="nightly")).to_be_visible()
    page.get_by_label("State").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(page).to_have_url(re.compile("state=paused"))
    expect(page.get_by_role("link", name="nightly")).to_have_count(0)


def test_ledger_is_read_by_keyboard(sign_in: SignIn, console: Console) -> None:
    console.api("PUT", "/v1/jobs/ledgered", json={"function": "ok", "schedule": "* * * * *"})
    page = sign_in(path="/console/jobs/ledgered")
    ledger = page.get_by_role("group", name=re.compile("timeline"))
    expect(ledger.locator("svg")).to_be_visible()
    region = page.get_by_role("region", name="Ledger of time", exact=True)
    span = region.locator(".hint").first
    ledger.focus()
    for key in ("ArrowRight", "ArrowLeft", "-", "+", "Home"):
        before = span.inner_text()
        page.keyboard.press(key)
        if key != "Home":
            expect(span).not_to_have_text(before)
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("at="))
    expect(page.locator(".why h3")).not_to_have_count(0)
    page.get_by_role("button", name="30 d").focus()
    page.keyboard.press("Enter")  # so many instants are columns
    region.locator("summary").focus()
    page.keyboard.press("Enter")
    columns = page.get_by_role("region", name="instants by time")
    columns.get_by_role("button").last.focus()
    before = span.inner_text()
    page.keyboard.press("Space")
    expect(span).not_to_have_text(before)
    expect(ledger).to_be_focused()  # the column is gone


def test_next_answer_to_why_keeps_the_focus(sign_in: SignIn) -> None:
    between = (datetime.now(UTC) + timedelta(hours=1)).replace(second=30)
    page = sign_in(path=f"/console/jobs/minutely?at={between:%Y-%m-%dT%H:%M:%SZ}")
    address = page.url
    page.locator(".why").get_by_role("button").last.focus()
    page.keyboard.press("Enter")
    expect(page).not_to_have_url(address)
    expect(page.get_by_role("group", name=re.compile("timeline"))).to_be_focused()


def test_next_page_is_read_from_its_beginning(sign_in: SignIn, console: Console) -> None:
    for number in range(51):
        console.api("PUT", f"/v1/jobs/paged-{number}", json={"function": "ok"})
    page = sign_in(path="/console/jobs?search=paged-")
    for label in ("Next page", "First page"):
        page.get_by_role("button", name=label).focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name=label)).to_have_count(0)
        expect(page.get_by_role("main")).to_be_focused()


def test_days_are_read_without_a_mouse(sign_in: SignIn, console: Console) -> None:
    console.run("etl", "completed")
    page = sign_in(path="/console/jobs/etl")
    days = page.get_by_role("region", name="Days", exact=True)
    days.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(days.get_by_role("row").last).to_contain_text(re.compile(r"20\d\d-\d\d-\d\d"))


def tab_to(page: Page, control: Locator) -> None:
    """Press Tab until a control has the focus."""
    expect(control).to_be_visible()
    for _ in range(MOST_STOPS):
        if control.evaluate("(one) => one === document.activeElement"):
            return
        page.keyboard.press("Tab")
    pytest.fail(f"Tab does not reach {control}")


def press(page: Page, control: Locator, key: str = "Enter") -> None:
    """Reach a control with Tab, and press a key on it."""
    tab_to(page, control)
    expect(control).to_be_in_viewport()
    page.keyboard.press(key)


@pytest.mark.full
def test_phone_is_used_by_keyboard_alone(sign_in: SignIn, console: Console) -> None:
    name = "walked"
    schema = {"type": "object", "properties": {"day": {"type": "string", "title": "Day"}}, "required": ["day"]}
    body = {"function": "broken", "retry": {"max_attempts": 1}, "dead_letter": True, "input_schema": schema}
    console.api("PUT", f"/v1/jobs/{name}", json=body)
    page = sign_in(token=console.token("scheduler-operator"), width=NARROW)

    def open_page(title: str) -> None:
        press(page, page.get_by_role("navigation", name="Pages").get_by_role("link", name=title, exact=True))
        expect(page.get_by_role("heading", level=1)).to_have_text(title)

    def confirm(label: str, reason: str) -> None:
        dialog = page.get_by_role("dialog")
        tab_to(page, dialog.get_by_label("Reason"))
        page.keyboard.type(reason)
        press(page, dialog.get_by_role("button", name=label, exact=True))
        expect(dialog).to_have_count(0)

    open_page("Jobs")
    tab_to(page, page.get_by_label("Search"))
    page.keyboard.type(name)
    expect(page).to_have_url(re.compile(f"search={name}"))
    press(page, page.get_by_role("link", name=name, exact=True))
    press(page, page.get_by_role("button", name="Trigger"))
    tab_to(page, page.get_by_role("dialog").get_by_label("Day"))
    page.keyboard.type("monday")
    confirm("Trigger", "by hand")
    expect(page.locator("h1 .state-failed")).to_be_visible()
    press(page, page.get_by_role("link", name="Dead letter", exact=True))
    press(page, page.get_by_role("button", name="Replay", exact=True))
    confirm("Replay", "once more")
    expect(page.locator("h1 .state-failed")).to_be_visible()
    open_page("Dead letters")
    tab_to(page, page.get_by_label("Job", exact=True))
    page.keyboard.type(name)
    expect(page).to_have_url(re.compile(f"job={name}"))
    rows = page.get_by_role("region", name="dead letters", exact=True)
    press(page, rows.get_by_role("checkbox").first, "Space")
    press(page, page.get_by_role("button", name="Replay 1 selected"))
    confirm("Replay 1 selected", "a selection")
    press(page, rows.get_by_role("button", name="Resolve").first)
    confirm("Resolve", "known")
    open_page("Queues")
    press(page, page.get_by_role("button", name="Pause").first)
    confirm("Pause", "for a moment")
    press(page, page.get_by_role("button", name="Resume").first)
    confirm("Resume", "it was long enough")
    press(page, page.get_by_role("button", name="Sign out"))
    expect(page.get_by_label("Token")).to_be_visible()
    reasons = {change["reason"] for change in console.api("GET", "/v1/changes?limit=50")["changes"]}
    assert reasons >= {"for a moment", "it was long enough"}
