"""The actions of the console: edit, pause, and the end of a session."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from playwright.sync_api import Page, Route, expect

from tests.console.conftest import SignIn, violations
from tests.console.served import HOSTILE, Console
from tests.ojs.served import PATIENCE

pytestmark = pytest.mark.slow
expect.set_options(timeout=PATIENCE * 1000)


def define(console: Console, name: str, role: str = "scheduler-admin", **more: object) -> None:
    job = {"schedule": "0 3 * * *", "timezone": "Europe/Prague", "function": "ok", **more}
    console.api("PUT", f"/v1/jobs/{name}", role, json=job)


def edit(page: Page, before: str, after: str) -> None:
    """Change the text of the editor, and show the plan."""
    editor = page.get_by_label("Definition, as YAML")
    expect(editor).to_have_value(re.compile(re.escape(before)))
    editor.fill(editor.input_value().replace(before, after))
    page.get_by_role("button", name="Show the plan").click()


def test_edit_shows_its_plan_first(sign_in: SignIn, console: Console) -> None:
    define(console, "edited")
    page = sign_in(path="/console/edit-job/edited")
    edit(page, "0 3 * * *", "0 4 * * *")
    plan = page.get_by_role("region", name="Plan: update edited")
    expect(plan).to_contain_text("Instants that come: 14 instants")
    expect(plan).to_contain_text("Instants that go: 14 instants")
    assert console.api("GET", "/v1/jobs/edited")["schedule"] == "0 3 * * *"
    page.get_by_role("button", name="Apply").click()
    expect(page).to_have_url(re.compile("/console/jobs/edited$"))
    assert console.api("GET", "/v1/jobs/edited")["schedule"] == "0 4 * * *"


def test_editor_leaves_out_unused_fields_of_steps(sign_in: SignIn, console: Console) -> None:
    steps = [{"step": "first", "function": "ok", "input": {}}, {"step": "then", "function": "ok", "timeout": "5m"}]
    console.api("PUT", "/v1/jobs/stepwise", json={"dag": steps})
    page = sign_in(path="/console/edit-job/stepwise")
    editor = page.get_by_label("Definition, as YAML")
    expect(editor).to_have_value(re.compile("timeout: 300"))
    expect(editor).to_have_value(re.compile("input: {}"))
    expect(editor).not_to_have_value(re.compile("null"))
    page.get_by_role("button", name="Show the plan").click()
    expect(page.get_by_text("No field changes.")).to_be_visible()


def test_plan_names_a_queue_without_worker(sign_in: SignIn) -> None:
    page = sign_in(path="/console/new-job")
    page.get_by_label("Definition, as YAML").fill("name: unheard\nfunction: ok\nqueue: deserted\n")
    page.get_by_role("button", name="Show the plan").click()
    expect(page.locator(".warning")).to_contain_text("no worker reads queue `deserted` (job unheard)")


def test_job_is_paused_in_the_list(sign_in: SignIn, console: Console) -> None:
    define(console, "listed")
    page = sign_in(path="/console/jobs?search=listed")
    row = page.get_by_role("row").filter(has_text="listed")
    row.get_by_role("button", name="Actions of listed").click()
    row.get_by_role("button", name="Pause").click()
    page.get_by_label("Reason").fill("a trial")
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(row).to_contain_text("paused")
    expect(row.get_by_role("button", name="Resume")).to_be_visible()
    [change] = console.api("GET", "/v1/changes?job=listed&type=paused")["changes"]
    assert change["reason"] == "a trial"
    row.get_by_role("link", name="Edit").click()
    expect(page.get_by_label("Definition, as YAML")).to_have_value(re.compile("listed"))


def test_job_is_triggered_in_the_list(sign_in: SignIn, console: Console) -> None:
    page = sign_in(role="scheduler-operator", path="/console/jobs?search=etl")
    page.get_by_role("button", name="Actions of etl").click()
    page.get_by_role("button", name="Trigger").click()
    page.get_by_label("Day *").fill("friday")
    page.get_by_role("dialog").get_by_role("button", name="Trigger").click()
    expect(page).to_have_url(re.compile("/console/executions/"))
    assert console.api("GET", f"/v1/executions/{page.url.rpartition('/')[2]}")["job_name"] == "etl"


def test_lost_answer_triggers_once(sign_in: SignIn, console: Console) -> None:
    define(console, "triggered-once")
    page = sign_in(path="/console/jobs/triggered-once")

    def lose_the_answer(route: Route) -> None:
        route.fetch()
        route.abort()

    page.route("**/trigger", lose_the_answer, times=1)
    page.get_by_role("button", name="Trigger").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Trigger").click()
    expect(dialog.get_by_role("alert")).to_contain_text("The API cannot be reached.")
    dialog.get_by_role("button", name="Trigger").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("completed")
    page.get_by_role("button", name="Run again").click()
    page.route("**/trigger", lose_the_answer, times=1)
    dialog.get_by_role("button", name="Run again").click()
    expect(dialog.get_by_role("alert")).to_contain_text("The API cannot be reached.")
    first = page.url
    dialog.get_by_role("button", name="Run again").click()
    expect(page).not_to_have_url(first)
    expect(page.get_by_role("heading", level=1)).to_contain_text("completed")
    path = "/v1/executions?job=triggered-once"
    while (
        len(rows := console.api("GET", path)["executions"]) < 2
    ):  # the history follows the log, as the test's timeout bounds
        time.sleep(0.1)
    assert len(rows) == 2


def test_list_offers_only_what_the_job_permits(sign_in: SignIn, console: Console) -> None:
    define(console, "of-another")
    page = sign_in(role="scheduler-author", path="/console/jobs?search=of-another")
    row = page.get_by_role("row").filter(has_text="of-another")
    row.get_by_role("button", name="Actions of of-another").click()
    expect(row).to_contain_text("You may not act on this job.")
    expect(row.get_by_role("button")).to_have_count(1)


def test_second_editor_gets_a_conflict(sign_in: SignIn, console: Console) -> None:
    define(console, "contended")
    first, second = sign_in(path="/console/edit-job/contended"), sign_in(path="/console/edit-job/contended")
    for page, schedule in ((first, "0 4 * * *"), (second, "0 5 * * *")):
        edit(page, "0 3 * * *", schedule)
        page.get_by_role("button", name="Apply").click()
    expect(first).to_have_url(re.compile("/console/jobs/contended$"))
    expect(second.get_by_role("alert")).to_contain_text("Another person has changed this job")
    assert console.api("GET", "/v1/jobs/contended")["schedule"] == "0 4 * * *"


@pytest.mark.full
def test_new_job_replaces_no_other(sign_in: SignIn, console: Console) -> None:
    define(console, "existing")
    define(console, "renamed")
    page = sign_in(path="/console/new-job")
    edit(page, "my-job", "existing")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("alert")).to_contain_text("A job with the name existing exists already.")
    page.goto("/console/edit-job/renamed")
    edit(page, "name: renamed", "name: existing")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("alert")).to_contain_text("A job with the name existing exists already.")
    assert console.api("GET", "/v1/jobs/existing")["schedule"] == "0 3 * * *"
    editor = page.get_by_label("Definition, as YAML")
    editor.fill(editor.input_value().replace("existing", "of-another-name"))
    page.get_by_role("button", name="Show the plan").click()
    page.get_by_role("button", name="Apply").click()
    expect(page).to_have_url(re.compile("/console/jobs/of-another-name$"))


def test_wrong_definition_names_its_field(sign_in: SignIn, console: Console) -> None:
    define(console, "wronged")
    page = sign_in(path="/console/edit-job/wronged")
    edit(page, "0 3 * * *", "0 99 * * *")
    expect(page.get_by_role("alert")).to_contain_text("schedule")
    expect(page.get_by_role("button", name="Apply")).to_have_count(0)


def test_queue_is_paused_with_a_reason(sign_in: SignIn, console: Console) -> None:
    page = sign_in(role="scheduler-operator", path="/console/queues")
    row = page.get_by_role("row").filter(has_text="default")
    row.get_by_role("button", name="Pause").click()
    page.get_by_label("Reason").fill("maintenance")
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(row).to_contain_text("maintenance")
    assert console.api("GET", "/v1/queues/default")["paused"]["reason"] == "maintenance"
    row.get_by_role("button", name="Resume").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    expect(row.get_by_role("button", name="Pause")).to_be_visible()


def test_silence_is_started_and_ended(sign_in: SignIn, console: Console) -> None:
    page = sign_in(role="scheduler-operator", path="/console/silences")
    expect(page.get_by_text("No silence is in force")).to_be_visible()
    page.get_by_role("button", name="Start a silence").click()
    dialog = page.get_by_role("dialog")
    dialog.locator("[name=kind]").select_option("tag")
    dialog.locator("[name=of]").fill("billing")
    dialog.locator("[name=duration]").fill("soon")
    dialog.get_by_role("button", name="Start the silence").click()
    assert dialog.get_by_label("Reason").evaluate("field => field.validity.valueMissing")
    dialog.get_by_label("Reason").fill(HOSTILE)
    dialog.get_by_role("button", name="Start the silence").click()
    expect(dialog.get_by_role("alert")).to_contain_text("duration")
    dialog.locator("[name=duration]").fill("2h")
    dialog.get_by_role("button", name="Start the silence").click()
    expect(dialog).to_have_count(0)
    row = page.get_by_role("region", name="silences", exact=True).locator("tbody tr")
    for text in ("jobs with the tag billing", re.compile("in (2 h|1 h 59 min)"), "token:scheduler-operator", HOSTILE):
        expect(row).to_contain_text(text)
    assert violations(page) == []
    [silence] = console.api("GET", "/v1/silences")["silences"]
    assert (silence["tag"], silence["reason"]) == ("billing", HOSTILE)
    row.get_by_role("button", name="End").click()
    dialog.get_by_label("Reason").fill("it is over")
    dialog.get_by_role("button", name="End the silence").click()
    expect(page.get_by_text("No silence is in force")).to_be_visible()
    assert page.evaluate("window.hacked") is None
    [ended, _] = console.api("GET", "/v1/changes?type=silences-defined&limit=2")["changes"]
    assert (ended["by"]["identity"], ended["reason"]) == ("scheduler-operator", "it is over")


@pytest.mark.full
def test_job_is_silenced_on_its_page(sign_in: SignIn, console: Console) -> None:
    define(console, "silenced", "scheduler-author")
    page = sign_in(role="scheduler-author", path="/console/jobs/silenced")
    page.get_by_role("button", name="Silence", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.locator("[name=duration]").fill("30m")
    dialog.get_by_label("Reason").fill("the database moves")
    dialog.get_by_role("button", name="Start the silence").click()
    expect(page).to_have_url(re.compile("/console/silences$"))
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="silenced"))
    expect(row).to_contain_text("the database moves")
    row.get_by_role("button", name="End").click()
    dialog.get_by_role("button", name="End the silence").click()
    expect(row).to_have_count(0)
    assert console.api("GET", "/v1/silences")["silences"] == []


def test_session_ends_when_its_token_is_revoked(sign_in: SignIn, console: Console) -> None:
    created = console.api("POST", "/v1/tokens", json={"identity": "leaving", "roles": ["scheduler-viewer"]})
    page = sign_in(token=created["token"])
    page.get_by_role("navigation", name="Pages").wait_for()
    console.api("DELETE", f"/v1/tokens/{created['id']}")
    page.goto("/console/queues")
    expect(page.get_by_label("Token")).to_be_visible()


@pytest.mark.full
def test_revoked_token_ends_a_page_of_events(sign_in: SignIn, console: Console) -> None:
    created = console.api("POST", "/v1/tokens", json={"identity": "following", "roles": ["scheduler-viewer"]})
    page = sign_in(path="/console/events", token=created["token"])
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    console.api("DELETE", f"/v1/tokens/{created['id']}")
    expect(page.get_by_label("Token")).to_be_visible()


def test_wrong_token_is_refused(sign_in: SignIn) -> None:
    page = sign_in(token="tcsn_000000000000_wrong")
    expect(page.get_by_role("alert")).to_contain_text("not accepted")


LARGE: Final = 2**53 + 1
"""An integer that no number of JavaScript holds."""


def test_run_again_repeats_input_and_arguments(sign_in: SignIn, console: Console) -> None:
    console.api("PUT", "/v1/jobs/repeated", json={"function": "ok", "input": {"a": 1}, "args": [1]})
    first = console.run("repeated", "completed", input={"a": LARGE, "b": None}, args=[LARGE, 2.5])
    page = sign_in(path=f"/console/executions/{first}")
    expect(page.get_by_role("region", name="Input", exact=True)).to_contain_text(str(LARGE))
    expect(page.get_by_role("region", name="Arguments", exact=True)).to_contain_text(str(LARGE))
    page.get_by_role("button", name="Run again").click()
    page.get_by_role("dialog").get_by_role("button", name="Run again").click()
    expect(page).not_to_have_url(re.compile(first))
    again = page.url.rpartition("/")[2]
    console.wait(again, "completed")
    run = console.api("GET", f"/v1/executions/{again}")
    assert (run["input"], run["args"]) == ({"a": LARGE, "b": None}, [LARGE, 2.5])


STEPS: Final = [
    {"step": "first", "function": "ok", "input": {"mode": "quick", "own": LARGE}, "args": [7]},
    {"step": "second", "function": "ok"},
]


def plan_of(console: Console, execution: str) -> Any:  # noqa: ANN401 - JSON
    facts = console.api("GET", f"/v1/executions/{execution}/events")["facts"]
    [plan] = [one["fact"]["plan"] for one in facts if one["fact"].get("plan")]
    return [plan["input"], plan.get("args"), *((step.get("input"), step.get("args")) for step in plan["steps"])]


@pytest.mark.parametrize("given", [{}, {"mode": "full"}, {"own": LARGE + 2, "new": 0.1}, {"size": 1}])
@pytest.mark.full
def test_run_again_leaves_steps_their_input(given: dict[str, object], sign_in: SignIn, console: Console) -> None:
    console.api("PUT", "/v1/jobs/two-modes", json={"input": {"mode": "full", "size": 2}, "dag": STEPS})
    first = console.run("two-modes", "completed", input=given)
    page = sign_in(path=f"/console/executions/{first}")
    page.get_by_role("button", name="Run again").click()
    page.get_by_role("dialog").get_by_role("button", name="Run again").click()
    expect(page).not_to_have_url(re.compile(first))
    again = page.url.rpartition("/")[2]
    console.wait(again, "completed")
    assert plan_of(console, again) == plan_of(console, first)


NUMBERS: Final = [
    ("0.9523809523809523", "0.9523809523809523"),
    ("0.30000000000000004", "0.30000000000000004"),
    ("1e-17", "1e-17"),
    ("[1.2345678901234567e-17]", "[1.2345678901234567e-17]"),
    ("-12345678901234567.5", "-12345678901234568"),
    ("[1e400, 1234567890123456]", "[null,1234567890123456]"),
    (f"[{LARGE}, -{LARGE}]", f"[{LARGE},-{LARGE}]"),
    (f'"{LARGE}, 0.9523809523809523"', f'"{LARGE}, 0.9523809523809523"'),
    (rf'{{"\"{LARGE}": "\\", "b": {LARGE}}}', rf'{{"\"{LARGE}":"\\","b":{LARGE}}}'),
]
"""Texts as JSON, and as they are written after they were read."""


def test_numbers_are_read_as_they_are(sign_in: SignIn) -> None:
    page = sign_in(path="/console/jobs")
    through = """async (texts) => {
        const { jsonText, parseJson } = await import("/console/assets/lib/json.js");
        return texts.map((text) => jsonText(parseJson(text)));
    }"""
    assert page.evaluate(through, [text for text, _ in NUMBERS]) == [written for _, written in NUMBERS]


@pytest.mark.full
def test_long_fractions_are_shown(sign_in: SignIn, console: Console) -> None:
    define(console, "fractions", input={"share": 0.9523809523809523})
    page = sign_in(path="/console/jobs/fractions")
    page.get_by_role("button", name="Trigger").click()
    page.get_by_role("dialog").get_by_role("button", name="Trigger").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("completed")
    expect(page.get_by_role("region", name="Input", exact=True)).to_contain_text("0.9523809523809523")


@pytest.mark.full
def test_editor_keeps_large_integers(sign_in: SignIn, console: Console) -> None:
    console.api("PUT", "/v1/jobs/exact", json={"function": "ok", "input": {"id": LARGE, "text": f"{LARGE}"}})
    page = sign_in(path="/console/edit-job/exact")
    edit(page, "function: ok", "function: ok\ndescription: another")
    fields = page.get_by_role("region", name="changed fields")
    expect(fields.locator("tbody tr")).to_have_count(1)  # neither the input nor an owner
    expect(fields).to_contain_text("description")
    edit(page, "description: another", f"args: [{LARGE + 2}, 0x20000000000001, -{LARGE}]")
    expect(fields).to_contain_text(f"{LARGE + 2}")
    page.get_by_role("button", name="Apply").click()
    expect(page).to_have_url(re.compile("/console/jobs/exact$"))
    expect(page.get_by_label("definition", exact=True)).to_contain_text(f"id: {LARGE}")
    definition = console.api("GET", "/v1/jobs/exact")["definition"]
    assert definition["input"] == {"id": LARGE, "text": f"{LARGE}"}
    assert definition["args"] == [LARGE + 2, LARGE, -LARGE]


@pytest.mark.full
def test_roll_back_replaces_no_later_edit(sign_in: SignIn, console: Console) -> None:
    for text in ("one", "two"):
        console.api("PUT", "/v1/jobs/edited-meanwhile", json={"function": "ok", "description": text})
    page = sign_in(path="/console/jobs/edited-meanwhile")
    page.get_by_role("button", name="Roll back").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    console.api("PUT", "/v1/jobs/edited-meanwhile", json={"function": "ok", "description": "three"})
    expect(page.locator("main > p", has_text="three")).to_be_attached()
    dialog.get_by_role("button", name="Roll back").click()
    expect(dialog.get_by_role("alert")).to_contain_text("precondition-failed")
    assert console.api("GET", "/v1/jobs/edited-meanwhile")["definition"]["description"] == "three"


def test_dialog_does_what_it_said(sign_in: SignIn, console: Console) -> None:
    define(console, "paused-by-two")
    page = sign_in(path="/console/jobs/paused-by-two")
    page.get_by_role("button", name="Pause", exact=True).click()
    dialog = page.get_by_role("dialog", name="Pause paused-by-two")
    expect(dialog).to_be_visible()
    console.api("POST", "/v1/jobs/paused-by-two/pause", json={})
    expect(page.locator("h1 .state-paused")).to_be_attached()
    dialog.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert console.api("GET", "/v1/jobs/paused-by-two")["paused"]


@contextmanager
def held(page: Page, path: str) -> Iterator[list[Route]]:
    """Hold the changes of a path, of which the block sends one; yield their routes."""
    routes: list[Route] = []

    def hold(route: Route) -> None:
        if route.request.method == "GET":
            route.fallback()
        else:
            routes.append(route)

    page.route(path, hold)
    with page.expect_request(lambda request: request.method != "GET"):
        yield routes


def answer(page: Page, route: Route, status: int | None = None) -> None:
    """Answer a request, and let the page act on it. `status`: refuse it without asking the API."""
    with page.expect_response(lambda response: response.request.method != "GET") as answered:
        if status is None:
            route.continue_()
        else:
            route.fulfill(status=status, json={"title": "refused by the test", "type": "urn:tocsin:problem:conflict"})
    answered.value.finished()
    page.evaluate("new Promise((done) => setTimeout(done))")


@pytest.mark.parametrize("way", ["Escape", "another page"])
@pytest.mark.parametrize("label", ["Delete", "Silence"])
@pytest.mark.full
def test_refused_action_is_shown_after_its_dialog(label: str, way: str, sign_in: SignIn, console: Console) -> None:
    name = f"refused-{label}-{way}".lower().replace(" ", "-")
    define(console, name)
    page = sign_in(path="/console/queues")
    page.evaluate(VISIT, f"/console/jobs/{name}")
    page.get_by_role("button", name=label, exact=True).click()
    dialog = page.get_by_role("dialog")
    if label == "Silence":
        dialog.locator("[name=duration]").fill("30m")
    dialog.get_by_label("Reason").fill("a trial")
    with held(page, "**/v1/silences" if label == "Silence" else f"**/v1/jobs/{name}") as routes:
        dialog.locator("[type=submit]").click()
    left = leave(page, way)
    answer(page, routes[0], 409)
    refused = page.get_by_role("region", name="Refused action")
    expect(refused).to_contain_text(f"{label} {name}")
    expect(refused.get_by_role("alert")).to_contain_text("refused by the test")
    assert page.url == left
    refused.get_by_role("button", name="Dismiss").click()
    expect(refused).to_have_count(0)


VISIT: Final = "(path) => { history.pushState(null, '', path); dispatchEvent(new Event('popstate')); }"


def leave(page: Page, way: str) -> str:
    """Leave the dialog or the page while its action runs; return the address."""
    if way == "Escape":
        page.keyboard.press("Escape")
    else:
        page.go_back()
        expect(page).to_have_url(re.compile("/console/queues$"))
    expect(page.get_by_role("dialog")).to_have_count(0)
    return page.url


@pytest.mark.parametrize("label", ["Delete", "Trigger"])
@pytest.mark.full
def test_left_page_is_not_left_again(label: str, sign_in: SignIn, console: Console) -> None:
    name = f"left-{label.lower()}"
    define(console, name)
    page = sign_in(path="/console/queues")
    page.evaluate(VISIT, f"/console/jobs/{name}")
    page.get_by_role("button", name=label, exact=True).click()
    with held(page, f"**/v1/jobs/{name}" if label == "Delete" else f"**/v1/jobs/{name}/trigger") as routes:
        page.get_by_role("dialog").locator("[type=submit]").click()
    left = leave(page, "another page")
    answer(page, routes[0])
    assert page.url == left


@pytest.mark.full
def test_older_run_leaves_a_new_dialog(sign_in: SignIn, console: Console) -> None:
    define(console, "hanging")
    page = sign_in(path="/console/jobs/hanging")
    pause = page.get_by_role("button", name="Pause", exact=True)
    dialog = page.get_by_role("dialog")
    submit = dialog.locator("[type=submit]")
    pause.click()
    with held(page, "**/v1/jobs/hanging/pause") as first:
        submit.click()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    pause.click()
    expect(submit).to_be_enabled()
    with held(page, "**/v1/jobs/hanging/pause") as second:
        submit.click()
    answer(page, first[0], 409)
    expect(submit).to_be_disabled()  # the second run goes on
    answer(page, second[0])
    expect(dialog).to_have_count(0)
    assert console.api("GET", "/v1/jobs/hanging")["paused"] is True
