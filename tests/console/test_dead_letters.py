"""Dead letters in the console: replayed one by one, in a selection and again."""

import json
import re
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.console.conftest import SignIn
from tests.console.served import Console
from tests.ojs.served import PATIENCE

pytestmark = pytest.mark.slow
expect.set_options(timeout=PATIENCE * 1000)

OPERATOR = "scheduler-operator"


@pytest.fixture
def job(console: Console) -> Iterator[str]:
    """Return a job without dead letters, whose executions fail."""
    name = f"dead-{time.monotonic_ns()}"
    define(console, name, "broken")
    yield name
    for row in console.api("GET", f"/v1/executions?job={name}&status=running")["executions"]:
        console.api("POST", f"/v1/executions/{row['execution_id']}/cancel", json={})


def define(console: Console, job: str, function: str, **more: str) -> None:
    body = {"function": function, "retry": {"max_attempts": 1}, "dead_letter": True, **more}
    console.api("PUT", f"/v1/jobs/{job}", json=body)


def dead_letters(console: Console, job: str, number: int) -> list[str]:
    """Let a job fail a number of times; return the ids of its dead letters."""
    for _ in range(number):
        console.run(job, "failed")
    begun = time.monotonic()
    while len(rows := console.api("GET", f"/v1/dead-letters?job={job}&unresolved=false")["dead_letters"]) < number:
        assert time.monotonic() - begun < PATIENCE
        time.sleep(0.1)
    return [row["id"] for row in rows]


def resolve(console: Console, letter: str) -> None:
    console.api("PATCH", f"/v1/dead-letters/{letter}", json={"resolved": True, "reason": "known"})


def replays(console: Console, letter: str) -> list[str | None]:
    """Return the reasons of the replays of a dead letter."""
    return [replay["reason"] for replay in console.api("GET", f"/v1/dead-letters/{letter}")["replays"]]


def rows_of(page: Page) -> Locator:
    return page.get_by_role("region", name="dead letters", exact=True).locator("tbody tr")


def confirm(page: Page, label: str, reason: str) -> None:
    """Confirm the open dialog, and wait until it is closed."""
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill(reason)
    dialog.get_by_role("button", name=label, exact=True).click()
    expect(dialog).to_have_count(0)


def test_resolved_letter_is_replayed_again(sign_in: SignIn, console: Console, job: str) -> None:
    [letter] = dead_letters(console, job, 1)
    resolve(console, letter)
    page = sign_in(OPERATOR, f"/console/dead-letters?job={job}")
    expect(page.get_by_text("No dead letter matches.")).to_be_visible()
    page.get_by_label("Show").select_option("all")
    rows_of(page).get_by_role("button", name="Replay again", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("It is resolved. It will run again.")
    confirm(page, "Replay again", "once more")
    assert replays(console, letter) == ["once more"]


def test_resolved_letter_is_replayed_on_its_page(sign_in: SignIn, console: Console, job: str) -> None:
    [letter] = dead_letters(console, job, 1)
    resolve(console, letter)
    page = sign_in(OPERATOR, f"/console/dead-letters/{letter}")
    page.get_by_role("button", name="Replay again", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("once more")
    dialog.get_by_role("button", name="Replay again", exact=True).click()
    expect(page.locator("h1")).to_contain_text(job)  # the page of the execution
    assert replays(console, letter) == ["once more"]


def test_open_replay_needs_consent(sign_in: SignIn, console: Console, job: str) -> None:
    [letter] = dead_letters(console, job, 1)
    define(console, job, "slow")
    console.api("POST", f"/v1/dead-letters/{letter}/replay", json={"reason": "first"})
    page = sign_in(OPERATOR, f"/console/dead-letters?job={job}")
    rows_of(page).get_by_role("button", name="Replay", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Replay", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("is still open")
    assert replays(console, letter) == ["first"]
    dialog.get_by_label("Run it also if an earlier replay is still open").check()
    confirm(page, "Replay", "second")
    assert replays(console, letter) == ["first", "second"]


@pytest.mark.full
def test_lost_answer_repeats_no_replay(sign_in: SignIn, console: Console, job: str) -> None:
    [letter] = dead_letters(console, job, 1)
    resolve(console, letter)
    page = sign_in(OPERATOR, f"/console/dead-letters?job={job}&unresolved=false")

    def lose_the_answer(route: Route) -> None:
        route.fetch()
        route.abort()

    page.route(re.compile(r"/replay\?job="), lose_the_answer, times=1)
    page.get_by_label(f"select {letter}").check()
    page.get_by_role("button", name="Replay 1 selected").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("once")
    again = dialog.get_by_role("button", name="Replay 1 selected")
    again.click()
    expect(dialog.get_by_role("alert")).to_contain_text("The API cannot be reached.")
    again.click()
    expect(dialog).to_have_count(0)
    assert replays(console, letter) == ["once"]


@pytest.mark.full
def test_selection_contains_resolved_letters(sign_in: SignIn, console: Console, job: str) -> None:
    letters = dead_letters(console, job, 3)
    resolve(console, letters[0])
    page = sign_in(OPERATOR, f"/console/dead-letters?job={job}&unresolved=false")
    for letter in letters[:2]:
        page.get_by_label(f"select {letter}").check()
    page.get_by_role("button", name="Replay 2 selected").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("1 of them is resolved and will run again.")
    dialog.get_by_label("Reason").fill("mended")
    dialog.get_by_role("button", name="Replay 2 selected").click()
    expect(dialog).to_have_count(0)
    assert [replays(console, letter) for letter in letters] == [["mended"], ["mended"], []]


def test_refused_letter_stays_selected(sign_in: SignIn, console: Console, job: str) -> None:
    first, second = dead_letters(console, job, 2)
    define(console, job, "slow")
    console.api("POST", f"/v1/dead-letters/{first}/replay", json={"reason": "open"})
    page = sign_in(OPERATOR, f"/console/dead-letters?job={job}")
    for letter in (first, second):
        page.get_by_label(f"select {letter}").check()
    page.get_by_role("button", name="Replay 2 selected").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Replay 2 selected").click()
    expect(dialog.get_by_role("alert")).to_contain_text("1 dead letter not replayed")
    dialog.get_by_role("button", name="Back").click()
    expect(page.get_by_label(f"select {first}")).to_be_checked()
    expect(page.get_by_label(f"select {second}")).not_to_be_checked()
    assert (replays(console, first), replays(console, second)) == (["open"], [None])


def test_all_that_match_are_replayed_in_several_requests(sign_in: SignIn, console: Console, job: str) -> None:
    letters = dead_letters(console, job, 3)
    page = sign_in(OPERATOR, f"/console/dead-letters?job={job}")
    answers = 0

    def shorten(route: Route) -> None:
        """Let each request take two dead letters, and lose the answer to the second."""
        nonlocal answers
        body = json.loads(route.request.post_data or "")
        answer = route.fetch(post_data={**body, "limit": 2})
        answers += not body.get("dry_run")
        route.abort() if answers == 2 else route.fulfill(response=answer)

    page.route(re.compile(r"/replay-all$"), shorten)
    page.get_by_role("button", name="Replay all that match").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("3 dead letters.")
    dialog.get_by_label("Reason").fill("mended")
    again = dialog.get_by_role("button", name="Replay all that match")
    again.click()
    expect(dialog.get_by_role("alert")).to_contain_text("The API cannot be reached.")
    expect(dialog.get_by_role("status")).to_have_text("2 of 3 replayed so far.")
    again.click()
    expect(dialog).to_have_count(0)
    expect(page.get_by_text("3 dead letters replayed.")).to_be_visible()
    assert [replays(console, letter) for letter in letters] == [["mended"]] * 3


class HeldRequests:
    """Requests to replay two dead letters, each of which waits until it is answered."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.number = 0
        self._held: list[Route] = []
        page.route(re.compile(r"/replay-all$"), self._hold)

    def _hold(self, route: Route) -> None:
        body = json.loads(route.request.post_data or "")
        if body.get("dry_run"):
            route.continue_()
        else:
            self.number += 1
            self._held.append(route)

    def answer(self) -> None:
        """Answer a request, and let the page act on it."""
        route = self._held.pop()
        body = json.loads(route.request.post_data or "")
        with self._page.expect_response(re.compile(r"/replay-all$")) as answered:
            route.fulfill(response=route.fetch(post_data={**body, "limit": 2}))
        answered.value.finished()
        self._page.evaluate("new Promise((done) => setTimeout(done))")


@pytest.mark.full
def test_stopped_replay_of_all_goes_on(sign_in: SignIn, console: Console, job: str) -> None:
    letters = dead_letters(console, job, 3)
    page = sign_in(OPERATOR, f"/console/dead-letters?job={job}")
    requests = HeldRequests(page)
    page.get_by_role("button", name="Replay all that match").click()
    dialog = page.get_by_role("dialog")
    go_on = dialog.get_by_role("button", name="Replay all that match")
    expect(dialog).to_contain_text("3 dead letters")
    with page.expect_request(re.compile(r"/replay-all$")):
        go_on.click()
    dialog.get_by_role("button", name="Stop").click()
    requests.answer()
    expect(dialog.get_by_role("alert")).to_contain_text("Stopped before the last dead letter.")
    expect(dialog.get_by_role("status")).to_have_text("2 of 3 replayed so far.")
    assert requests.number == 1
    assert sorted(len(replays(console, letter)) for letter in letters) == [0, 1, 1]
    page.unroute_all()
    go_on.click()
    expect(dialog).to_have_count(0)
    assert [len(replays(console, letter)) for letter in letters] == [1, 1, 1]


@pytest.mark.parametrize("way", ["Escape", "another page"])
@pytest.mark.full
def test_left_replay_of_all_stops(sign_in: SignIn, console: Console, job: str, way: str) -> None:
    letters = dead_letters(console, job, 3)
    page = sign_in(OPERATOR, f"/console/jobs/{job}")
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Dead letters").click()
    page.get_by_label("Job", exact=True).fill(job)
    expect(page).to_have_url(re.compile(job))
    requests = HeldRequests(page)
    page.get_by_role("button", name="Replay all that match").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("3 dead letters")
    with page.expect_request(re.compile(r"/replay-all$")):
        dialog.get_by_role("button", name="Replay all that match").click()
    if way == "Escape":
        page.keyboard.press("Escape")
    else:
        page.go_back()
    expect(dialog).to_have_count(0)
    requests.answer()
    if way == "Escape":
        expect(page.get_by_text("2 dead letters replayed.")).to_be_visible()
    assert requests.number == 1
    assert sorted(len(replays(console, letter)) for letter in letters) == [0, 1, 1]


def test_filter_is_replayed_after_a_look(sign_in: SignIn, console: Console, job: str) -> None:
    [letter] = dead_letters(console, job, 1)
    page = sign_in(OPERATOR, f"/console/dead-letters?job={job}")
    expect(page.get_by_role("region", name="By error")).to_contain_text(job)
    page.get_by_role("button", name="Replay all that match").click()
    expect(page.get_by_role("dialog")).to_contain_text("1 dead letter.")
    confirm(page, "Replay all that match", "mended")
    page.goto(f"/console/dead-letters/{letter}")
    expect(page.get_by_role("region", name="Replays").get_by_role("link")).to_have_count(1)
    assert replays(console, letter) == ["mended"]
