"""Pictures of the console for the documentation, from the jobs of `examples/demo.yaml`.

python -m tests.console.screenshots         write docs/images/console/*.png
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from playwright.sync_api import Page, ViewportSize, sync_playwright

from tests.console.conftest import OPTIONS, browser_program
from tests.console.served import Console, served
from tests.ojs.served import PATIENCE

ROOT: Final = Path(__file__).parents[2]
IMAGES: Final = ROOT / "docs/images/console"
RUN_S: Final = 60.0
"""How long the jobs run first, so that there is something to see."""
EVENTS: Final = 15
SHOWN: Final = """rows => !document.querySelector(".loading")
    && document.querySelectorAll("main tbody tr").length >= rows
    && ![...document.querySelectorAll("main td")].some((one) => one.textContent === "…")"""
"""Whether a page shows its data."""
SIZE: Final[ViewportSize] = {"width": 1280, "height": 800}
PAGES: Final = {
    "now": "/console",
    "jobs": "/console/jobs",
    "job": "/console/jobs/provider-health-check",
    "execution": "/console/executions/{execution}",
    "executions": "/console/executions",
    "dead-letters": "/console/dead-letters",
    "dead-letter": "/console/dead-letters/{letter}",
    "queues": "/console/queues",
    "agents": "/console/agents",
    "silences": "/console/silences",
    "schedule": "/console/schedule",
    "events": "/console/events",
    "changes": "/console/changes",
    "what-if": "/console/what-if?job=provider-health-check&days=1",
    "edit-job": "/console/edit-job/provider-health-check",
}


def main() -> int:
    """Write the pictures."""
    program = browser_program()
    if program is None:
        sys.stderr.write("no browser: install chromium\n")
        return 1
    jobs, worker = ((ROOT / "examples" / name).read_text() for name in ("demo.yaml", "demo_worker.py"))
    with tempfile.TemporaryDirectory() as folder, served(Path(folder), jobs, worker) as console:
        silence = {"job": "provider-health-check", "duration": "2h", "reason": "the provider moves its API"}
        console.api("POST", "/v1/silences", "scheduler-operator", json=silence)
        time.sleep(RUN_S)
        execution = console.api("GET", "/v1/executions?job=daily-analytics-etl&status=completed&limit=1")["executions"][
            0
        ]
        [letter] = console.api("GET", "/v1/dead-letters?limit=1")["dead_letters"]
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=program, args=OPTIONS)
            context = browser.new_context(base_url=console.url, viewport=SIZE, timezone_id="UTC")
            page = context.new_page()
            _sign_in(page, console)
            IMAGES.mkdir(parents=True, exist_ok=True)
            for name, path in PAGES.items():
                page.goto(path.format(execution=execution["execution_id"], letter=letter["id"]))
                page.locator("h1").wait_for()
                if name == "what-if":
                    _ask(page)
                page.wait_for_function(SHOWN, arg=EVENTS if name == "events" else 0)
                page.wait_for_timeout(2_000)
                page.screenshot(path=IMAGES / f"{name}.png")
    return 0


def _ask(page: Page) -> None:
    """Try another schedule, and show the answer."""
    editor = page.get_by_label("Definition to try, as YAML")
    page.wait_for_function("() => document.querySelector('textarea').value.includes('*/5')")
    editor.fill(editor.input_value().replace("*/5", "*/20"))
    page.get_by_role("button", name="Ask").click()
    page.get_by_role("heading", level=2).first.scroll_into_view_if_needed()
    page.mouse.wheel(0, SIZE["height"])


def _sign_in(page: Page, console: Console) -> None:
    page.set_default_timeout(PATIENCE * 1000)
    page.goto("/console")
    page.get_by_label("Token").fill(console.tokens["scheduler-admin"])
    page.get_by_role("button", name="Sign in", exact=True).click()
    page.get_by_role("navigation", name="Pages").wait_for()


if __name__ == "__main__":
    sys.exit(main())
