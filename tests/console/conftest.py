"""A real browser, and an installation for it."""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, ConsoleMessage, Page, StorageState, sync_playwright

from tests.console.served import Console, served
from tests.ojs.served import PATIENCE

BROWSER: Final = "TOCSIN_TEST_BROWSER"
"""The variable that names the program of a browser of Chromium's kind."""
PROGRAMS: Final = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
"""In this order, since a program without windows takes a sixth less of the processor."""
OPTIONS: Final = (
    "--no-sandbox",  # root has none
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SERIOUS: Final = frozenset({"serious", "critical"})

SignIn = Callable[..., Page]


def browser_program() -> str | None:
    """Return the program of a browser; None: this machine has none."""
    return os.environ.get(BROWSER) or next((found for name in PROGRAMS if (found := shutil.which(name))), None)


@pytest.fixture(scope="package")
def running_browser() -> Iterator[Callable[[], Browser]]:
    """Return a function that returns the browser of this package.

    It starts another if the browser has ended, so that its end fails one test and not all that follow. The event loop runs until the
    browser is closed, and no other test can run meanwhile.
    """
    program = browser_program()
    if program is None:
        pytest.skip(f"no browser: install chromium, or name one with {BROWSER}")
    with sync_playwright() as playwright:
        started: list[Browser] = []

        def running() -> Browser:
            if not (started and started[-1].is_connected()):
                chromium = playwright.chromium
                started.append(chromium.launch(executable_path=program, args=OPTIONS, timeout=PATIENCE * 1000))
            return started[-1]

        yield running
        for browser in started:
            browser.close()


@pytest.fixture
def browser(running_browser: Callable[[], Browser]) -> Browser:
    return running_browser()


@pytest.fixture(scope="package")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    with served(tmp_path_factory.mktemp("console")) as running:
        yield running


@pytest.fixture(scope="module")
def tidied(console: Console) -> Iterator[Console]:
    """Delete the jobs that a module adds, so that those of `served` stay on the first page of the list."""
    before = _names(console)
    yield console
    for name in _names(console) - before:
        console.api("DELETE", f"/v1/jobs/{name}")


def _names(console: Console) -> set[str]:
    return {job["name"] for job in console.api("GET", "/v1/jobs", params={"limit": 10_000})["jobs"]}


@pytest.fixture(scope="package")
def sessions(running_browser: Callable[[], Browser], console: Console) -> Mapping[str, StorageState]:
    """The cookie of a session of each role."""
    states = dict[str, StorageState]()
    for role, token in console.tokens.items():
        context = running_browser().new_context(base_url=console.url)
        _by_form(context.new_page(), token)
        context.pages[0].get_by_role("navigation", name="Pages").wait_for()
        states[role] = context.storage_state()
        context.close()
    return states


def _by_form(page: Page, token: str) -> None:
    page.set_default_timeout(PATIENCE * 1000)
    page.goto("/console")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in", exact=True).click()


@pytest.fixture
def sign_in(browser: Browser, tidied: Console, sessions: Mapping[str, StorageState]) -> Iterator[SignIn]:
    """Return a function that opens a page in the session of a role, or types a token into the form.

    Every error that a page logs fails the test.
    """
    contexts = []
    errors: list[str] = []

    def open_as(
        role: str = "scheduler-admin",
        path: str = "/console",
        *,
        token: str | None = None,
        scheme: Literal["light", "dark"] = "light",
        width: int = 1280,
    ) -> Page:
        context = browser.new_context(
            base_url=tidied.url,
            color_scheme=scheme,
            viewport={"width": width, "height": 900},
            timezone_id="Asia/Tokyo",
            storage_state=None if token else sessions[role],
        )
        contexts.append(context)
        context.set_default_timeout(PATIENCE * 1000)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(f"{error}"))
        page.on("console", lambda message: errors.extend(_error(message)))
        if token:
            _by_form(page, token)
        else:
            page.goto(path)
        return page

    yield open_as
    for context in contexts:
        context.close()
    assert errors == []


def _error(message: ConsoleMessage) -> list[str]:
    # A refused request is logged by the browser itself; tests that provoke one look at the page.
    is_of_page = message.type == "error" and "Failed to load resource" not in message.text
    return [f"{message.text} ({message.location})"] if is_of_page else []


def violations(page: Page) -> list[str]:
    """Return the serious violations of accessibility that axe-core finds."""
    found = Axe().run(page).response["violations"]
    return [
        f"{one['id']}: {one['help']}: {[node['target'] for node in one['nodes']][:3]}"
        for one in found
        if one["impact"] in SERIOUS
    ]
