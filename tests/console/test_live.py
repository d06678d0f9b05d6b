"""Each page follows what happens without being loaded again, and all documents of a browser follow its session."""

import re
import time
from collections.abc import Callable
from typing import Any, Final, cast
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, Request, Route, expect

from tests.console.conftest import SignIn, violations
from tests.console.served import Console
from tests.console.vendored import VENDOR
from tests.ojs.served import PATIENCE
from tocsin import subjects
from tocsin.domain.events import model_of
from tocsin.services import tail
from tocsin.subjects import Stream, codec

pytestmark = pytest.mark.slow
expect.set_options(timeout=PATIENCE * 1000)

Change = Callable[[Console], str]
"""Changes something by the API, and returns a text that the page is to show."""


def fresh(name: str) -> str:
    """Return a name that no earlier test has used."""
    return f"{name}-{time.monotonic_ns()}"


def defined(console: Console, schedule: str | None = "0 3 * * *", **fields: object) -> str:
    """Register a job; return its name."""
    name = fresh("live")
    console.api("PUT", f"/v1/jobs/{name}", json={"schedule": schedule, "function": "ok", **fields})
    return name


def runs(console: Console) -> str:
    name = defined(console, None, function="slow")
    console.run(name, "running")
    return name


def fails(console: Console) -> str:
    name = defined(console, None, function="broken", retry={"max_attempts": 1}, dead_letter=True)
    console.run(name, "failed")
    return name


def paused(console: Console) -> str:
    reason = fresh("reason")
    console.api("POST", "/v1/queues/default/pause", json={"reason": reason})
    return reason


def disabled(console: Console) -> str:
    [agent] = console.api("GET", "/v1/agents")["agents"][:1]
    console.api("POST", f"/v1/agents/{agent['name']}/disable", json={})
    return "disabled"


def policy(console: Console) -> str:
    reason = fresh("policy")
    console.api("PUT", "/v1/policy", json={"job_history_retention_days": 400, "reason": reason})
    return reason


OWN_STREAM: Final = "delete window.SharedWorker;"
"""Let the page have a stream of its own, as in a browser without shared workers: a test does not reach a worker."""
SOURCES: Final = (
    OWN_STREAM
    + """
window.EventSource = class extends window.EventSource {
  constructor(...given) {
    super(...given);
    window.source = this;
  }
};
"""
)
"""Keep the event stream of the page where a test finds it."""
LIVE: Final[dict[str, tuple[str, Change]]] = {
    "now": ("/console", runs),
    "jobs": ("/console/jobs?search=live", defined),
    "executions": ("/console/executions", runs),
    "dead letters": ("/console/dead-letters", fails),
    "queues": ("/console/queues", paused),
    "agents": ("/console/agents", disabled),
    "events": ("/console/events", defined),
    "changes": ("/console/changes", defined),
    "changes of others": ("/console/changes", policy),
}


@pytest.mark.parametrize("name", LIVE)
def test_page_shows_a_change_by_itself(name: str, sign_in: SignIn, console: Console) -> None:
    path, change = LIVE[name]
    page = opened(sign_in, path)
    shown = change(console)
    try:
        expect(page.locator("main")).to_contain_text(shown)
        assert not was_reloaded(page)
    finally:
        console.api("POST", "/v1/queues/default/resume", json={})
        for agent in console.api("GET", "/v1/agents")["agents"]:
            console.api("POST", f"/v1/agents/{agent['name']}/enable", json={})


def opened(sign_in: SignIn, path: str) -> Page:
    """Open a page with its data, and mark the document."""
    page = sign_in(path=path)
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.locator(".loading")).to_have_count(0)
    expect(page.locator(".live-live")).to_be_visible()
    page.evaluate("window.isTheSame = true")
    return page


def was_reloaded(page: Page) -> bool:
    return page.evaluate("window.isTheSame") is not True


def test_schedule_follows_definitions(sign_in: SignIn, console: Console) -> None:
    page = opened(sign_in, "/console/schedule")
    number = page.locator("main .card p").first
    before = number.inner_text()
    defined(console, "* * * * *")
    expect(number).not_to_have_text(before)
    assert not was_reloaded(page)


def test_job_page_follows_its_job(sign_in: SignIn, console: Console) -> None:
    name = defined(console)
    page = opened(sign_in, f"/console/jobs/{name}")
    console.api("POST", f"/v1/jobs/{name}/pause", json={"reason": "a trial"})
    expect(page.locator("h1")).to_contain_text("paused")
    execution = console.run(name, "completed")
    runs = page.get_by_role("region", name="Last runs")
    expect(runs.locator(f'a[title="{execution}"]')).to_be_visible()
    expect(page.get_by_role("region", name="Days", exact=True).locator(".heat-completed")).to_have_count(1)
    expect(page.get_by_role("region", name="Durations", exact=True).get_by_role("img")).to_be_visible()
    revisions = page.get_by_role("region", name="Revisions", exact=True)
    expect(revisions).to_contain_text("a trial")
    pause = revisions.get_by_role("row").filter(has_text="paused")
    expect(pause.get_by_role("button")).to_have_count(0)  # it has no definition to compare
    expect(revisions.get_by_role("button", name="Roll back")).to_have_count(0)  # a pause changes no definition
    assert not was_reloaded(page)


@pytest.mark.full
def test_answer_to_why_follows_its_job(sign_in: SignIn, console: Console) -> None:
    name = defined(console)
    at = console.api("GET", f"/v1/jobs/{name}")["next_fire_times"][0]
    page = opened(sign_in, f"/console/jobs/{name}?at={at}")
    expect(page.locator(".why")).to_contain_text("future")
    console.api("POST", f"/v1/jobs/{name}/pause", json={})
    expect(page.locator(".why")).to_contain_text("paused")
    assert not was_reloaded(page)


def test_page_is_current_after_a_lost_stream(sign_in: SignIn, console: Console) -> None:
    name = defined(console, None, function="slow")
    page = sign_in()
    page.add_init_script(SOURCES)
    page.goto(f"/console/jobs/{name}")
    expect(page.get_by_text("No execution matches.")).to_be_visible()
    expect(page.locator(".live-live")).to_be_visible()
    page.route("**/v1/events", lambda route: route.fulfill(status=503))
    page.evaluate("window.source.close(); window.source.onerror()")
    expect(page.locator(".live-reconnecting")).to_be_visible()
    execution = console.run(name, "running")
    page.unroute("**/v1/events")
    runs = page.get_by_role("region", name="Last runs")
    expect(runs.locator(f'a[title="{execution}"]')).to_be_visible()
    console.api("POST", f"/v1/executions/{execution}/cancel", json={})


@pytest.mark.parametrize("delay", [5, 30])
def test_page_is_current_after_a_late_history(delay: int, sign_in: SignIn, console: Console) -> None:
    name = defined(console, None)
    page = sign_in()
    page.clock.install()
    page.goto(f"/console/jobs/{name}")  # its runs follow no event of another job
    nothing = page.get_by_text("No execution matches.")
    expect(nothing).to_be_visible()
    expect(page.locator(".live-live")).to_be_visible()
    listed = re.compile(r"/v1/executions\?")
    page.route(listed, lambda route: route.fulfill(json={"executions": [], "next": None}))
    with page.expect_request(listed):
        console.run(name, "completed")
    pass_time(page, delay)
    expect(nothing).to_be_visible()
    page.unroute(listed)
    pass_time(page, 45 - delay)
    expect(nothing).to_have_count(0, timeout=10_000)


def lose(page: Page, path: str, failure: str) -> None:
    """Lose the next answer to the requests of a path."""
    if failure == "refused":
        page.route(
            path, lambda route: route.fulfill(status=503, json={"type": "urn:tocsin:problem:unavailable"}), times=1
        )
    else:
        page.route(path, lambda route: route.abort(), times=1)


@pytest.mark.parametrize("failure", ["refused", "lost"])
def test_failure_that_passes_is_tried_again(sign_in: SignIn, console: Console, failure: str) -> None:
    name = fails(console)
    page = sign_in()
    for path in ("**/me", "**/durations?*", "**/revisions?*", "**/dead-letters?*"):
        lose(page, path, failure)
    page.goto(f"/console/jobs/{name}")
    for region, text in (("Durations", "p95"), ("Revisions", "defined")):
        expect(page.get_by_role("region", name=region, exact=True)).to_contain_text(text)
    page.get_by_role("link", name="Dead letters", exact=True).click()
    expect(page.get_by_role("region", name="dead letters", exact=True)).to_be_visible()
    expect(page.locator(".refusal")).to_have_count(0)


def requests_of(page: Page, path: str) -> list[str]:
    """Return a list that the requests of a path are added to."""
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url) if urlsplit(request.url).path == path else None)
    return sent


def pass_time(page: Page, seconds: int) -> None:
    """Let time pass in the page, with room for the answer to each request."""
    for _ in range(seconds):
        page.clock.run_for(1_000)
        page.evaluate("fetch('/v1/me')")  # an answer comes after those of requests before it


UNFORESEEN: Final = {"type": "urn:tocsin:problem:unforeseen"}


def test_error_of_the_server_is_not_repeated(sign_in: SignIn) -> None:
    page = sign_in()
    page.clock.install()
    sent = requests_of(page, "/v1/jobs/nightly/durations")
    page.route("**/durations?*", lambda route: route.fulfill(status=500, json=UNFORESEEN))
    page.goto("/console/jobs/nightly")
    expect(page.locator(".refusal")).to_be_visible()
    pass_time(page, 10)
    assert len(sent) == 1


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(
    ("page_path", "path", "status"),
    [("/console", "/v1/overview", 500), ("/console", "/v1/doctor", 500), ("/console/queues", "/v1/queues", 403)],
)
def test_alert_goes_with_the_next_good_answer(
    sign_in: SignIn, page_path: str, path: str, status: int, *, is_first: bool
) -> None:
    page = sign_in()
    page.clock.install()
    page.add_init_script(OWN_STREAM)
    page.route("**/v1/events", lambda route: route.fulfill(status=503))  # no event lets a page ask again
    if not is_first:
        page.goto(page_path)
        expect(page.locator(".loading")).to_have_count(0)
    page.route(f"**{path}*", lambda route: route.fulfill(status=status, json=UNFORESEEN))
    if is_first:
        page.goto(page_path)
    else:
        pass_time(page, 62)
    expect(page.locator(".refusal")).to_be_visible()
    page.unroute(f"**{path}*")
    pass_time(page, 62)
    expect(page.locator(".refusal")).to_have_count(0)


@pytest.mark.parametrize("status", [429, 503])
def test_retry_waits_as_long_as_the_server_says(sign_in: SignIn, status: int) -> None:
    page = sign_in()
    page.clock.install()
    sent = requests_of(page, "/v1/jobs/nightly/durations")
    page.route("**/durations?*", lambda route: route.fulfill(status=status, json={}, headers={"Retry-After": "500"}))
    page.goto("/console/jobs/nightly")
    expect(page.locator(".refusal")).to_be_visible()
    page.clock.run_for(490_000)
    page.evaluate("fetch('/v1/me')")
    assert len(sent) == 1
    with page.expect_request("**/durations?*"):
        page.clock.run_for(20_000)


@pytest.mark.parametrize(("page_path", "path"), [("/console/queues", "/v1/queues"), ("/console", "/v1/doctor")])
def test_page_is_current_soon_after_an_outage(sign_in: SignIn, page_path: str, path: str) -> None:
    page = sign_in()
    page.clock.install()
    page.add_init_script(SOURCES)
    requests = re.compile(re.escape(path))
    page.route(requests, lambda route: route.fulfill(status=503, json={}))
    page.route("**/v1/me", lambda route: route.continue_())  # its answer comes after those of the test, also under load
    page.goto(page_path)
    expect(page.locator(".live-live")).to_be_visible()
    expect(page.locator(".refusal")).to_have_count(1)
    pass_time(page, 100)  # the pauses between tries have grown
    page.unroute(requests)
    with page.expect_request(requests):  # it may be seen after the time has passed
        page.evaluate("window.source.onopen()")
        pass_time(page, 7)
    expect(page.locator(".refusal")).to_have_count(0)


def test_page_says_that_jobs_are_being_read(sign_in: SignIn) -> None:
    page = sign_in()
    are_read = list[bool]()

    def answer(route: Route) -> None:
        answer = route.fetch()
        assert answer.json()["jobs_read"] is True
        route.fulfill(response=answer, json=answer.json() | {"jobs_read": bool(are_read)})

    page.route("**/v1/health", answer)
    page.goto("/console/jobs?search=etl")
    said = page.get_by_text("reads the ledgers of all jobs")
    expect(said).to_be_visible()
    expect(page.get_by_role("link", name="etl", exact=True)).to_be_visible()  # axe looks at the page that stays
    expect(page.locator(".live-live")).to_be_visible()
    assert violations(page) == []
    are_read.append(True)
    expect(said).to_have_count(0)


@pytest.mark.full
def test_lost_stream_costs_one_request(sign_in: SignIn, console: Console) -> None:
    execution = console.run(defined(console, None), "completed")
    page = sign_in()
    page.clock.install()
    page.add_init_script(SOURCES)
    sent = requests_of(page, f"/v1/executions/{execution}/events")
    page.goto(f"/console/executions/{execution}")
    expect(page.locator(".live-live")).to_be_visible()
    expect(page.get_by_role("region", name="Events", exact=True)).to_contain_text("completed")
    assert len(sent) == 1
    page.evaluate("window.source.onopen()")
    pass_time(page, 9)
    assert len(sent) == 2


@pytest.mark.full
def test_unknown_execution_is_requested_once(sign_in: SignIn) -> None:
    execution = "77777777-7777-7777-8777-777777777777"
    page = sign_in()
    page.clock.install()
    sent = requests_of(page, f"/v1/executions/{execution}")
    page.goto(f"/console/executions/{execution}")
    expect(page.locator(".refusal")).to_be_visible()
    pass_time(page, 20)
    assert len(sent) == 1


def test_log_and_progress_go_on(sign_in: SignIn, console: Console) -> None:
    execution = console.run(defined(console, None, function="chatty"), "running")
    page = opened(sign_in, f"/console/executions/{execution}")
    log, steps = page.get_by_role("log"), page.get_by_role("region", name="steps", exact=True)
    expect(log).to_contain_text("line ")
    page.route("**/logs?*", lambda route: route.abort(), times=1)
    with page.expect_event("requestfailed", lambda request: "/logs" in request.url):
        pass
    last, parts = re.findall(r"line (\d+)\.", log.inner_text())[-1], steps.inner_text()
    expect(log).to_contain_text(f"line {int(last) + 10}.")
    expect(steps).to_contain_text("part ")
    expect(steps).not_to_have_text(parts, use_inner_text=True)
    assert not was_reloaded(page)
    console.api("POST", f"/v1/executions/{execution}/cancel", json={})
    expect(page.locator("h1 .state-cancelled")).to_be_visible()


def test_execution_page_follows_its_end(sign_in: SignIn, console: Console) -> None:
    name = fresh("live")
    steps = [{"step": "first", "function": "slow"}, {"step": "second", "function": "ok", "depends_on": ["first"]}]
    console.api("PUT", f"/v1/jobs/{name}", json={"dag": steps})
    page = opened(sign_in, f"/console/executions/{console.run(name, 'running')}")
    expect(page.locator(".graph .node-running")).to_have_count(1)
    [row] = console.api("GET", f"/v1/executions?job={name}")["executions"]
    console.api("POST", f"/v1/jobs/{name}/trigger", json={})
    expect(page.get_by_role("link", name="Next run")).to_be_visible()
    console.api("POST", f"/v1/executions/{row['execution_id']}/cancel", json={})
    expect(page.locator("h1 .state-cancelled")).to_be_visible()
    expect(page.locator(".graph .node-running")).to_have_count(0)
    assert not was_reloaded(page)


def test_dead_letter_page_follows_its_end(sign_in: SignIn, console: Console) -> None:
    name = fails(console)
    page = opened(sign_in, f"/console/dead-letters/{letter_of(console, name)}")
    console.api("PATCH", f"/v1/dead-letters/{letter_of(console, name)}", json={"resolved": True, "reason": "known"})
    expect(page.locator("h1")).to_contain_text("resolved")
    expect(page.get_by_role("button", name="Resolve")).to_have_count(0)
    assert not was_reloaded(page)


def letter_of(console: Console, job: str) -> str:
    """Return the id of the dead letter of a job."""
    begun = time.monotonic()
    while not (letters := console.api("GET", f"/v1/dead-letters?job={job}&unresolved=false")["dead_letters"]):
        assert time.monotonic() - begun < PATIENCE
        time.sleep(0.1)
    return str(letters[0]["id"])


def test_failed_execution_leads_to_its_dead_letter(sign_in: SignIn, console: Console) -> None:
    name = fails(console)
    letter = letter_of(console, name)
    [row] = console.api("GET", f"/v1/executions?job={name}")["executions"]
    page = sign_in(path=f"/console/executions/{row['execution_id']}")
    page.get_by_role("link", name="Dead letter", exact=True).click()
    expect(page).to_have_url(re.compile(rf"/console/dead-letters/{letter}\?job={name}$"))


def test_sign_out_reaches_all_documents(sign_in: SignIn, console: Console) -> None:
    created = console.api("POST", "/v1/tokens", json={"identity": "leaver", "roles": ["scheduler-viewer"]})
    first = sign_in(token=created["token"])
    first.get_by_role("navigation", name="Pages").wait_for()
    second = first.context.new_page()
    second.goto("/console/jobs")
    expect(second.get_by_role("link", name="nightly")).to_be_visible()
    first.get_by_role("button", name="Sign out").click()
    for page in (first, second):
        expect(page.get_by_label("Token")).to_be_visible()
    expect(second.get_by_role("link", name="nightly")).to_have_count(0)
    second.get_by_label("Token").fill(created["token"])
    second.get_by_role("button", name="Sign in", exact=True).click()
    for page in (first, second):
        expect(page.get_by_role("navigation", name="Pages")).to_be_visible()


@pytest.mark.parametrize("is_heard", [True, False])
def test_page_acts_as_no_other_caller(sign_in: SignIn, console: Console, *, is_heard: bool) -> None:
    name = defined(console)
    first = sign_in(path=f"/console/jobs/{name}")
    if not is_heard:
        first.add_init_script("window.BroadcastChannel = class { postMessage() {} };")
        first.reload()
    first.get_by_role("button", name="Pause").wait_for()
    second = first.context.new_page()
    sign_in_again(second, console, "scheduler-operator")
    if not is_heard:  # the CSRF token of the first session is refused
        first.get_by_role("button", name="Pause").click()
        first.get_by_role("dialog").get_by_role("button", name="Pause").click()
    told = first.get_by_role("alert")
    expect(told).to_contain_text("Another window signed this browser in as scheduler-operator (scheduler-operator).")
    expect(told).to_contain_text("This page was opened as")
    expect(first.get_by_role("navigation", name="Pages")).to_have_count(0)
    assert not console.api("GET", f"/v1/jobs/{name}")["paused"]
    assert not violations(first)
    first.get_by_role("button", name="Continue as scheduler-operator").click()
    expect(first.get_by_role("heading", name=name)).to_be_visible()
    expect(first.get_by_role("banner")).to_contain_text("scheduler-operator")


POST_SESSION: Final = """async (body) => {
    const given = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
    const answer = await fetch("/console/session", given);
    if (!answer.ok) throw new Error(await answer.text());
}"""


TYPE_AT_ONCE: Final = """() => new Promise((typed) => {
    new MutationObserver((_, observer) => {
        const field = document.querySelector("textarea");
        if (!field) return;
        observer.disconnect();
        field.value = "typed at once";
        field.dispatchEvent(new Event("input", { bubbles: true }));
        setTimeout(typed, 500); // effects run after a frame
    }).observe(document.body, { childList: true, subtree: true });
    [...document.querySelectorAll("nav a")].find((link) => link.textContent.trim() === "What if").click();
})"""


def test_page_keeps_what_is_typed_before_its_effects(sign_in: SignIn) -> None:
    page = sign_in()
    page.get_by_role("navigation", name="Pages").wait_for()
    page.evaluate(TYPE_AT_ONCE)
    assert page.locator("textarea").input_value() == "typed at once"


@pytest.mark.parametrize("is_late", [False, True])
def test_page_goes_on_as_the_same_caller(sign_in: SignIn, console: Console, *, is_late: bool) -> None:
    """An identity provider issues another token at each sign-in. The server may be busy then."""
    first = sign_in(token=console.token("scheduler-admin"))
    first.get_by_role("navigation", name="Pages").wait_for()
    first.get_by_role("link", name="What if").click()
    first.locator("textarea").fill("not sent yet")
    second = first.context.new_page()
    if is_late:
        lose(first, "**/console/session", "refused")
    with first.expect_response(re.compile(r"/v1/me$")):
        sign_in_again(second, console, "scheduler-admin")
    expect(first.locator("textarea")).to_have_value("not sent yet")
    name = defined(console)
    first.get_by_role("link", name="Jobs", exact=True).click()
    first.get_by_label("Search").fill(name)
    first.get_by_role("link", name=name).click()
    first.get_by_role("button", name="Pause").click()
    first.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(first.get_by_role("button", name="Resume")).to_be_visible()


@pytest.mark.full
def test_late_window_keeps_no_other_busy(sign_in: SignIn, console: Console) -> None:
    """A window that loads while another caller signs in names the older session to the other windows."""
    first = sign_in()
    first.get_by_role("navigation", name="Pages").wait_for()  # or the hold is of the document that it leaves
    release = hold_caller(first)
    with first.expect_request("**/v1/me"):
        first.goto("/console")
    second = first.context.new_page()
    sign_in_again(second, console, "scheduler-operator")
    sent = list[str]()

    def note(request: Request) -> None:
        sent.append(request.url)

    second.on("request", note)
    with second.expect_request("**/console/session"):
        release()
    expect(first.get_by_role("alert")).to_contain_text("signed this browser in as scheduler-operator")
    for _ in range(20):
        second.evaluate("fetch('/v1/me')")
    assert len([url for url in sent if url.endswith("/console/session")]) == 1
    expect(second.get_by_role("banner")).to_contain_text("scheduler-operator")


def test_late_answer_revives_no_older_session(sign_in: SignIn, console: Console) -> None:
    first = sign_in(token=console.token("scheduler-admin"))
    first.get_by_role("navigation", name="Pages").wait_for()
    release = hold_caller(first)
    second = first.context.new_page()
    with first.expect_request("**/v1/me"):
        sign_in_again(second, console, "scheduler-admin")
    sign_in_again(second, console, "scheduler-operator")
    expect(first.get_by_role("alert")).to_contain_text("signed this browser in as scheduler-operator")
    second.close()  # it would correct the first window
    with first.expect_response("**/v1/me"):
        release()
    first.evaluate("fetch('/v1/me')")
    expect(first.get_by_role("alert")).to_contain_text("signed this browser in as scheduler-operator")


def hold_caller(page: Page) -> Callable[[], None]:
    """Hold back the next answer that names the caller; return what lets it through."""
    held = list[Callable[[], None]]()

    def hold(route: Route) -> None:
        if held:
            route.continue_()
            return
        answer = route.fetch()
        held.append(lambda: route.fulfill(response=answer))

    def release() -> None:
        [let_through] = held
        let_through()

    page.route("**/v1/me", hold)
    return release


def sign_in_again(page: Page, console: Console, role: str) -> None:
    """Replace the session of a browser, as a callback of an identity provider does: only the next page loads a script."""
    page.goto("/console/assets/icon.svg")
    body = {"token": console.token(role)}
    page.evaluate(POST_SESSION, body)
    page.goto("/console")
    expect(page.get_by_role("banner")).to_contain_text(role)


@pytest.mark.full
def test_stream_changes_with_the_session(sign_in: SignIn, console: Console) -> None:
    """Windows share a stream, but not with an identity that was signed in before."""
    first = opened(sign_in, "/console/events")
    second = first.context.new_page()
    second.goto("/console/events")
    expect(second.locator(".live-live")).to_be_visible()
    first.get_by_role("button", name="Sign out").click()
    first.get_by_label("Token").fill(console.token("scheduler-viewer"))
    first.get_by_role("button", name="Sign in", exact=True).click()
    for page in (first, second):
        expect(page.locator(".live-live")).to_be_visible()
        expect(page.get_by_text("scheduler-viewer").first).to_be_visible()
    hidden = defined(console, viewers=["token:another"])
    shown = defined(console)
    for page in (first, second):
        expect(page.locator("main")).to_contain_text(shown)
        expect(page.locator("main")).not_to_contain_text(hidden)


def place(scope: str) -> tuple[Stream, str]:
    """Return the stream of a scope, and the first part of its subjects."""
    return subjects.stream_of(scope), scope.partition(".")[0]


def test_pages_hear_all_types_of_events() -> None:
    text = (VENDOR.parent / "lib/live.js").read_text()
    listed = re.findall(r'"([^"]+)"', text.partition("const TYPES = [")[2].partition("]")[0])
    followed = {
        (stream, scope.partition(".")[0]) for stream, scopes in tail.filters(public=True).items() for scope in scopes
    }
    kinds = [kind for kind in codec._MODELS.values() if followed & set(map(place, subjects.filters_of(kind)))]
    fields = [getattr(model_of(cast("Any", kind)), "model_fields", {}) for kind in kinds]
    types = {of[name].default for of in fields for name in ("type", "event") if name in of}
    assert sorted(listed) == sorted(types - {None, "cron.alert"})  # no stream stores an alert


HIDING: Final = (
    OWN_STREAM
    + """
window.streams = [];
const Source = window.EventSource;
window.EventSource = class extends Source {
  constructor(...given) {
    super(...given);
    window.streams.push(this);
  }
};
window.isHidden = false;
Object.defineProperty(document, "hidden", { get: () => window.isHidden });
window.hide = (is) => {
  window.isHidden = is;
  document.dispatchEvent(new Event("visibilitychange"));
};
"""
)


@pytest.mark.full
def test_hidden_page_has_no_stream(sign_in: SignIn, console: Console) -> None:
    page = sign_in()
    page.add_init_script(HIDING)
    page.goto("/console/jobs?search=live")
    expect(page.locator(".live-live")).to_be_visible()
    page.evaluate("window.hide(true)")
    assert page.evaluate("window.streams.map((stream) => stream.readyState)") == [2]
    name = defined(console)
    page.evaluate("window.hide(false)")
    expect(page.get_by_role("link", name=name)).to_be_visible()
    expect(page.locator(".live-live")).to_be_visible()
    assert page.evaluate("window.streams.map((stream) => stream.readyState)") == [2, 1]


WINDOWS: Final = 8
"""More than a browser has connections to a server over HTTP/1.1."""


@pytest.mark.full
def test_many_windows_share_a_stream(sign_in: SignIn, console: Console) -> None:
    """A stream for each of them would leave no connection for requests."""
    pages = [sign_in(path="/console/jobs?search=live")]
    for _ in range(WINDOWS - 1):
        page = pages[0].context.new_page()
        page.goto("/console/jobs?search=live")
        pages.append(page)
    for page in pages:
        assert page.evaluate("document.hidden") is False
        expect(page.locator(".live-live")).to_be_visible()
    pages.pop(0).close()
    name = defined(console)
    for page in pages:
        expect(page.get_by_role("link", name=name)).to_be_visible()


def end_worker(page: Page) -> None:
    """End the shared worker of a window, as a browser does that needs its memory."""
    context = page.context.new_cdp_session(page).send("Target.getTargetInfo")["targetInfo"]["browserContextId"]
    assert page.context.browser is not None
    devtools = page.context.browser.new_browser_cdp_session()
    targets = devtools.send("Target.getTargets", {"filter": [{"type": "shared_worker"}]})["targetInfos"]
    [worker] = [target for target in targets if target["browserContextId"] == context]
    devtools.send("Target.closeTarget", {"targetId": worker["targetId"]})


def test_worker_that_the_browser_ended_is_replaced(sign_in: SignIn, console: Console) -> None:
    name = defined(console, None)
    first = sign_in()
    pages = [first, first.context.new_page()]
    for page in pages:
        page.clock.install()
        page.goto(f"/console/executions?job={name}")
        expect(page.get_by_text("No execution matches.")).to_be_visible()
        expect(page.locator(".live-live")).to_be_visible()
    end_worker(first)
    missed = console.run(name, "completed")
    for page in pages:
        pass_time(page, 30)
        expect(page.locator(f'a[title="{missed}"]')).to_be_visible()
        expect(page.locator(".live-live")).to_be_visible()
    later = console.run(name, "completed")
    for page in pages:
        expect(page.locator(f'a[title="{later}"]')).to_be_visible()


WORKER_ANSWERS = """async () => {
  const { csrf_token } = await (await fetch("/console/session")).json();
  const { port } = new SharedWorker("/console/assets/lib/stream-worker.js", { name: csrf_token });
  await new Promise((answer) => { port.onmessage = answer; port.postMessage({ follow: [] }); });
  port.postMessage({ leave: true });
}"""
"""Wait for an answer of the shared worker, which comes after those to messages before."""


def test_beat_loads_no_data(sign_in: SignIn, console: Console) -> None:
    page = sign_in()
    page.clock.install()
    page.goto(f"/console/jobs/{defined(console, None)}")  # its runs follow no event of another job
    expect(page.get_by_text("No execution matches.")).to_be_visible()
    expect(page.locator(".live-live")).to_be_visible()
    sent = requests_of(page, "/v1/executions")
    for _ in range(12):
        pass_time(page, 5)
        page.evaluate(WORKER_ANSWERS)  # no real time passes for a beat otherwise
    expect(page.locator(".live-live")).to_be_visible()
    assert sent == []


WORKER: Final = """
(windows) => {
  const self = {}, sources = [], sent = Array.from({ length: windows }, () => []);
  class EventSource extends EventTarget {
    static OPEN = 1;
    static CLOSED = 2;
    constructor() {
      super();
      this.readyState = 0;
      sources.push(this);
    }
    close() {
      this.readyState = 2;
    }
  }
  %s
  const ports = sent.map((messages) => ({ postMessage: (message) => messages.push(message) }));
  for (const port of ports) self.onconnect({ ports: [port] });
  window.worker = {
    sources,
    sent,
    say: (number, data) => ports[number].onmessage({ data }),
    open: () => {
      sources.at(-1).readyState = 1;
      sources.at(-1).onopen();
    },
    end: () => {
      sources.at(-1).readyState = 2;
      sources.at(-1).onerror();
    },
    event: (type) => sources.at(-1).dispatchEvent(new MessageEvent(type, { data: "{}" })),
  };
}
"""
"""The shared worker's script with streams that a test opens and ends, for some windows."""


@pytest.fixture
def worker(sign_in: SignIn) -> Page:
    """A page that runs the script of the shared worker for two windows."""
    page = sign_in()
    script = (VENDOR.parent / "lib/stream-worker.js").read_text()
    page.evaluate(WORKER % script, 2)
    return page


CONNECTING: Final = {"state": "connecting"}


def states(page: Page) -> list[int]:
    """Return the state of each stream that the worker has opened: 0 connecting, 1 open, 2 closed."""
    found: list[int] = page.evaluate("worker.sources.map((source) => source.readyState)")
    return found


def test_stream_is_open_while_a_window_follows(worker: Page) -> None:
    worker.evaluate("worker.say(0, { follow: ['due'] }); worker.open(); worker.say(1, { follow: ['due', 'newer'] })")
    worker.evaluate("worker.event('due'); worker.event('newer'); worker.say(0, { leave: true }); worker.event('due')")
    assert states(worker) == [1]
    due, newer, opened = {"type": "due", "data": "{}"}, {"type": "newer", "data": "{}"}, {"state": "open"}
    assert worker.evaluate("worker.sent") == [[CONNECTING, opened, due, newer], [opened, due, newer, due]]
    worker.evaluate("worker.say(1, { leave: true })")
    assert states(worker) == [2]
    worker.evaluate("worker.say(0, { follow: ['due'] }); worker.open(); worker.event('due')")
    assert states(worker) == [2, 1]
    assert worker.evaluate("worker.sent[0].length") == 7


def test_worker_answers_each_beat(worker: Page) -> None:
    worker.evaluate("worker.say(0, { follow: ['due'] }); worker.say(0, { follow: ['due'] }); worker.open()")
    worker.evaluate("worker.say(0, { follow: ['due'] }); worker.event('due')")
    due, opened = {"type": "due", "data": "{}"}, {"state": "open"}
    assert worker.evaluate("worker.sent") == [[CONNECTING, CONNECTING, opened, opened, due], []]
    assert states(worker) == [1]


def test_refused_stream_is_opened_again_on_request(worker: Page) -> None:
    worker.evaluate("worker.say(0, { follow: ['due'] }); worker.say(1, { follow: ['due'] }); worker.end()")
    assert states(worker) == [2]
    assert worker.evaluate("worker.sent") == [[CONNECTING, {"state": "lost", "isOver": True}]] * 2
    worker.evaluate("worker.say(0, { leave: true }); worker.say(1, { follow: ['due'] }); worker.open()")
    assert states(worker) == [2, 1]
    assert worker.evaluate("worker.sent.map((messages) => messages.length)") == [2, 4]


NO_WORKER: Final = {
    "blocked": "window.SharedWorker = class { constructor() { throw new Error('blocked'); } };",
    "not loaded": """
window.SharedWorker = class {
  port = new MessageChannel().port1;
  constructor() {
    setTimeout(() => this.onerror());
  }
};
""",
    "silent": "window.SharedWorker = class { port = new MessageChannel().port1; };",
}


@pytest.mark.parametrize("reason", NO_WORKER)
def test_page_without_the_worker_has_its_own_stream(reason: str, sign_in: SignIn, console: Console) -> None:
    page = sign_in()
    page.clock.install()
    page.add_init_script(NO_WORKER[reason])
    page.goto("/console/jobs?search=live")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    pass_time(page, 11)
    expect(page.locator(".live-live")).to_be_visible()
    expect(page.get_by_role("link", name=defined(console))).to_be_visible()


def test_distance_of_a_time_grows(sign_in: SignIn, console: Console) -> None:
    name = defined(console, None)
    console.run(name, "completed")
    page = sign_in()
    page.add_init_script(OWN_STREAM)
    page.route("**/v1/events", lambda route: route.fulfill(status=503))
    page.clock.install()
    page.goto(f"/console/executions?job={name}")
    expect(page.locator("main time")).to_contain_text("ago")
    page.clock.fast_forward(3_600_000)
    expect(page.locator("main time")).to_contain_text("1 h")
