"""The role matrix through the console: each role is offered exactly what the API permits."""

import time
from collections.abc import Iterator
from typing import Final

import pytest
from playwright.sync_api import Page, expect

from tests.console.conftest import SignIn
from tests.console.served import Console
from tests.ojs.served import PATIENCE

pytestmark = pytest.mark.slow
expect.set_options(timeout=PATIENCE * 1000)

ADMIN: Final = "scheduler-admin"
OPERATOR: Final = "scheduler-operator"
AUTHOR: Final = "scheduler-author"
VIEWER: Final = "scheduler-viewer"
NEUTRAL: Final = frozenset(
    {
        "←",
        "→",
        "Now",
        "1 h",
        "6 h",
        "1 d",
        "7 d",
        "30 d",
        "90 d",
        "Hold",
        "Clear",
        "Ask",
        "All",
        "Back",
        "Show the plan",
    }
)
"""Buttons that change nothing in the installation."""
LETTERS: Final = {"Replay all that match", "Replay", "Resolve"}
MATRIX: Final[dict[str, dict[str, set[str]]]] = {
    "/console": {},
    "/console/jobs": {ADMIN: {"New job", "Actions"}, OPERATOR: {"Actions"}, AUTHOR: {"New job", "Actions"}},
    "/console/jobs/owned": {
        ADMIN: {"Trigger", "Silence", "Pause", "Delete", "Edit", "What if", "Roll back"},
        OPERATOR: {"Trigger", "Silence"},
        AUTHOR: {"Trigger", "Silence", "Pause", "Delete", "Edit", "What if", "Roll back"},
    },
    "/console/jobs/minutely": {
        ADMIN: {"Trigger", "Silence", "Pause", "Delete", "Edit", "What if"},
        OPERATOR: {"Trigger", "Silence"},
    },
    "/console/executions": {},
    "/console/executions/{slow}": {ADMIN: {"Cancel"}, OPERATOR: {"Cancel"}},
    "/console/executions/{owned}": {ADMIN: {"Run again"}, OPERATOR: {"Run again"}, AUTHOR: {"Run again"}},
    "/console/dead-letters?job=broken": {ADMIN: LETTERS, OPERATOR: LETTERS},
    "/console/dead-letters?job=owned": {ADMIN: LETTERS, OPERATOR: LETTERS, AUTHOR: LETTERS},
    "/console/dead-letters/{letter}": {ADMIN: {"Replay", "Resolve"}, OPERATOR: {"Replay", "Resolve"}},
    "/console/queues": {ADMIN: {"Pause", "Purge"}, OPERATOR: {"Pause", "Purge"}},
    "/console/agents": {ADMIN: {"Drain", "Disable"}, OPERATOR: {"Drain", "Disable"}},
    "/console/silences": {role: {"Start a silence", "End"} for role in (ADMIN, OPERATOR, AUTHOR)},
    "/console/schedule": {},
    "/console/events": {},
    "/console/changes": {},
    "/console/what-if": {},
}


@pytest.fixture(scope="module")
def made(console: Console) -> Iterator[dict[str, str]]:
    """A job of the author, and an execution of each kind."""
    for schedule in ("0 4 * * *", "0 5 * * *"):
        body = {"schedule": schedule, "function": "broken", "retry": {"max_attempts": 1}, "dead_letter": True}
        console.api("PUT", "/v1/jobs/owned", AUTHOR, json=body)
    broken = console.run("broken", "failed")
    made = {"slow": console.run("slow", "running"), "owned": console.run("owned", "failed")}
    begun = time.monotonic()
    for job in ("broken", "owned"):
        while not console.api("GET", f"/v1/dead-letters?job={job}")["dead_letters"]:
            assert time.monotonic() - begun < PATIENCE
            time.sleep(0.1)
    letters = console.api("GET", f"/v1/dead-letters?job=broken&id_prefix={broken}")["dead_letters"]
    silences = [
        console.api("POST", "/v1/silences", role, json={"job": job, "duration": "1d", "reason": "a test"})["id"]
        for job, role in (("owned", AUTHOR), ("minutely", OPERATOR))
    ]
    yield made | {"letter": letters[0]["id"]}
    for silence in silences:
        console.api("DELETE", f"/v1/silences/{silence}")
    console.api("POST", f"/v1/executions/{made['slow']}/cancel", json={})


def shown(page: Page, path: str) -> set[str]:
    """Return the labels of the buttons and button-like links that change something."""
    page.goto(path)
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.locator(".loading")).to_have_count(0)
    expect(page.locator(".refusal[role=alert]")).to_have_count(0)
    texts = {text.strip() for text in page.locator("main button, main a.button").all_inner_texts()}
    return {text for text in texts if text and not text.isdigit() and "run" not in text.split()} - NEUTRAL


@pytest.mark.parametrize(
    "role", [ADMIN, *(pytest.param(role, marks=pytest.mark.full) for role in (OPERATOR, AUTHOR)), VIEWER]
)
def test_role_is_offered_what_it_may(role: str, sign_in: SignIn, made: dict[str, str]) -> None:
    page = sign_in(role=role)
    # a list may have more than a page, of what other tests ran
    offered = {path: shown(page, path.format(**made)) - {"Next page", "Older"} for path in MATRIX}
    assert offered == {path: of_roles.get(role, set()) for path, of_roles in MATRIX.items()}


@pytest.mark.usefixtures("made")
def test_author_selects_only_letters_of_its_jobs(sign_in: SignIn) -> None:
    page = sign_in(role=AUTHOR, path="/console/dead-letters")
    rows = page.get_by_role("region", name="dead letters", exact=True).locator("tbody tr")
    of_others, own = rows.filter(has_text="broken").first, rows.filter(has_text="owned").first
    expect(own.get_by_role("checkbox")).to_be_visible()
    expect(of_others).to_be_visible()
    expect(of_others.get_by_role("checkbox")).to_have_count(0)
    expect(of_others.get_by_role("button")).to_have_count(0)


@pytest.mark.usefixtures("made")
def test_author_ends_only_silences_of_its_jobs(sign_in: SignIn) -> None:
    page = sign_in(role=AUTHOR, path="/console/silences")
    rows = page.get_by_role("region", name="silences", exact=True).locator("tbody tr")
    expect(rows.filter(has_text="owned").get_by_role("button", name="End")).to_be_visible()
    expect(rows.filter(has_text="minutely")).to_contain_text("token:scheduler-operator")
    expect(rows.filter(has_text="minutely").get_by_role("button")).to_have_count(0)
    page.get_by_role("button", name="Start a silence").click()
    expect(page.get_by_role("dialog").locator("[name=of]")).to_be_visible()
    expect(page.get_by_role("dialog").locator("[name=kind]")).to_have_count(0)  # a tag or all jobs are for operators


def letter_of(console: Console, job: str) -> str:
    """Let a job of the author fail, and return its dead letter."""
    body = {"function": "broken", "retry": {"max_attempts": 1}, "dead_letter": True}
    console.api("PUT", f"/v1/jobs/{job}", AUTHOR, json=body)
    console.run(job, "failed")
    begun = time.monotonic()
    while not (letters := console.api("GET", f"/v1/dead-letters?job={job}")["dead_letters"]):
        assert time.monotonic() - begun < PATIENCE
        time.sleep(0.1)
    return str(letters[0]["id"])


@pytest.mark.parametrize("action", ["Replay", "Resolve"])
def test_letter_is_settled_in_its_row(action: str, sign_in: SignIn, console: Console) -> None:
    job = f"settled-{action.lower()}"
    letter = letter_of(console, job)
    console.api("PUT", f"/v1/jobs/{job}", AUTHOR, json={"function": "ok"})
    page = sign_in(role=AUTHOR, path=f"/console/dead-letters?job={job}")
    row = page.get_by_role("region", name="dead letters", exact=True).locator("tbody tr")
    row.get_by_role("button", name=action).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("mended")
    dialog.get_by_role("button", name=action).click()
    expect(dialog).to_have_count(0)
    details = console.api("GET", f"/v1/dead-letters/{letter}")
    if action == "Replay":
        assert [replay["reason"] for replay in details["replays"]] == ["mended"]
    else:
        assert (details["resolved"], details["resolution"]["reason"]) == (True, "mended")
    expect(page.get_by_text("No dead letter matches.")).to_be_visible()  # a completed replay resolves it, too


def test_quotas_of_namespaces_are_shown(sign_in: SignIn, console: Console) -> None:
    page = sign_in(role=VIEWER, path="/console/queues")
    expect(page.get_by_role("region", name="quotas of namespaces")).to_have_count(0)
    namespaces = [{"name": "shop", "max_jobs": 1, "max_running": 5, "description": "<b>the shop</b>"}, {"name": "free"}]
    console.api("PUT", "/v1/namespaces", json={"namespaces": namespaces})
    console.api("PUT", "/v1/jobs/shop.nightly", json={"function": "ok", "queue": "shop.mail"})
    try:
        rows = page.get_by_role("region", name="quotas of namespaces").locator("tbody tr")
        expect(rows.filter(has_text="shop")).to_contain_text("1 of 1: used up")
        expect(rows.filter(has_text="shop")).to_contain_text("0 of 5")
        expect(rows.filter(has_text="shop")).to_contain_text("<b>the shop</b>")
        expect(rows.filter(has_text="free")).to_contain_text("0 of any number")
        bound = console.api("POST", "/v1/tokens", json={"identity": "b", "roles": [VIEWER], "namespaces": ["free"]})[
            "token"
        ]
        page = sign_in(token=bound)
        page.get_by_role("link", name="Queues").click()
        expect(page.get_by_role("region", name="quotas of namespaces").locator("tbody tr")).to_have_count(1)
    finally:
        console.api("DELETE", "/v1/jobs/shop.nightly")
        console.api("PUT", "/v1/namespaces", json={"namespaces": []})


def test_catalog_shows_no_executions(sign_in: SignIn, console: Console) -> None:
    console.run("broken", "failed")
    body = {"identity": "catalog", "roles": ["scheduler-catalog"]}
    page = sign_in(token=console.api("POST", "/v1/tokens", json=body)["token"])
    expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
    expect(page.get_by_role("link", name="broken")).to_be_visible()
    expect(page.get_by_text("no runs yet")).to_have_count(0)
    expect(page.get_by_role("link", name="Now")).to_have_count(0)
    expect(page.locator(".refusal")).to_have_count(0)
    sent = list[str]()
    page.on("request", lambda request: sent.append(request.url))
    page.reload()
    expect(page.get_by_role("link", name="broken")).to_be_visible()
    page.wait_for_load_state("networkidle")
    assert not [url for url in sent if url.endswith("/v1/events") or "/v1/outcomes" in url]
