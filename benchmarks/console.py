"""The console in a browser, with many jobs and executions, beside an empty page.

    python -m benchmarks.console [--jobs 100000] [--executions 1000000] [--rounds 9]

The history is a SQLite file, and the jobs are registered in an installation on a private nats-server. For each page it prints the
first contentful paint, its ratio to that of a page without data, and the time of the requests for the page's data. The times
include the browser, which shares the machine with the servers.
"""

import argparse
import asyncio
import os
import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from playwright.async_api import Page, async_playwright

from benchmarks.history_lists import BEGAN, fill
from benchmarks.registered import BEAT
from benchmarks.servers import initialized, servers
from benchmarks.system import System
from tocsin.bootstrap import Installation
from tocsin.bootstrap.api_server import serving
from tocsin.bootstrap.stage_runner import run_stages
from tocsin.domain.definition import JobDefinition
from tocsin.settings import Settings
from tocsin.subjects import Bucket

BLANK: Final = "no data"
PAGES: Final[Mapping[str, str]] = {
    BLANK: "/console/nothing",
    "now": "/console",
    "jobs": "/console/jobs",
    "jobs, searched": "/console/jobs?search=job-77",
    "job": "/console/jobs/job-7",
    "executions": "/console/executions",
    "executions, failed": "/console/executions?status=failed",
    "dead letters": "/console/dead-letters",
    "schedule": "/console/schedule",
    "changes": "/console/changes",
}
TIMELINE: Final = f"/v1/jobs/job-7/timeline?since={BEGAN:%Y-%m-%d}&until={BEGAN.replace(month=2):%Y-%m-%d}&buckets=120"
PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")
SETTLED_MS: Final = 400
"""Milliseconds without a request after which a page is settled."""
FIGURES: Final = """() => ({
    paint: performance.getEntriesByName("first-contentful-paint")[0]?.startTime,
    data: performance.getEntriesByType("resource")
        .filter((entry) => entry.name.includes("/v1/") && !entry.name.includes("/v1/events"))
        .map((entry) => entry.duration),
    scripts: performance.getEntriesByType("resource")
        .filter((entry) => entry.name.endsWith(".js")).reduce((all, entry) => all + entry.encodedBodySize, 0),
})"""


async def measure(jobs: int, executions: int, rounds: int) -> None:
    """Fill an installation, open its pages, and print the figures."""
    async with servers() as nats:
        settings = _settings(nats.settings)
        async with initialized(settings) as installation:
            async with installation.history() as history:
                await fill(history, executions)
            await _register(installation, jobs)
            async with serving(installation) as url:
                await _browse(url, rounds)


def _settings(settings: Settings) -> Settings:
    given = settings.model_dump(exclude_unset=True)
    more = {"server": {"port": 0, "rate": None}, "metrics": {"enabled": False}}
    return Settings.model_validate({**given, **more})


async def _register(installation: Installation, number: int) -> None:
    jobs = [
        JobDefinition(
            name=f"job-{n}",
            schedule=f"{n % 60} {n // 60 % 24} * * *",
            function="f",
            tags=(f"team-{n % 50}",),
            dead_letter=True,
        )
        for n in range(number)
    ]
    registrar = asyncio.create_task(run_stages(installation, ["registrar"]))
    await System(installation, {}, parts=0).define(*jobs, BEAT)
    while len(await installation.projections.entries(Bucket.DEFINITIONS)) <= number:  # noqa: ASYNC110 - the bucket has no event
        await asyncio.sleep(2)
    registrar.cancel()
    await asyncio.gather(registrar, return_exceptions=True)


async def _browse(url: str, rounds: int) -> None:
    program = os.environ.get("TOCSIN_TEST_BROWSER") or next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        sys.exit("no browser: install chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        page = await (await browser.new_context(base_url=url)).new_page()
        page.set_default_timeout(120_000)
        for path in PAGES.values():  # the first visits fill the caches of both sides
            await _visit(page, path)
        print(f"{'page':<22}{'paint, ms':>11}{'ratio':>8}{'data p50':>10}{'data p95':>10}{'scripts, kB':>13}")
        blank = 1.0
        for name, path in PAGES.items():
            visits = [await _visit(page, path) for _ in range(rounds)]
            paint = statistics.median(visit["paint"] for visit in visits)
            blank = paint if name == BLANK else blank
            data = sorted(took for visit in visits for took in visit["data"])
            scripts = max(visit["scripts"] for visit in visits) / 1_000
            shown = f"{_share(data, 0.5):>10.0f}{_share(data, 0.95):>10.0f}"
            print(f"{name:<22}{paint:>11.0f}{paint / blank:>8.2f}{shown}{scripts:>13.0f}")
        took = [await page.evaluate(_TIMED, TIMELINE) for _ in range(rounds)]
        print(
            f"{'timeline of a month':<22}{'':>19}{_share(sorted(took), 0.5):>10.0f}{_share(sorted(took), 0.95):>10.0f}"
        )
        await browser.close()


_TIMED: Final = "async (url) => { const begun = performance.now(); await (await fetch(url)).text(); return performance.now() - begun; }"


async def _visit(page: Page, path: str) -> dict[str, Any]:
    """Open a page, and return its figures when it shows its data."""
    await page.goto(path)
    await page.locator("h1").first.wait_for()
    await page.wait_for_function("document.querySelectorAll('.loading').length === 0")
    await page.wait_for_timeout(SETTLED_MS)
    figures: dict[str, Any] = await page.evaluate(FIGURES)
    return figures


def _share(ordered: Sequence[float], share: float) -> float:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.console", description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--executions", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    asyncio.run(measure(arguments.jobs, arguments.executions, arguments.rounds))


if __name__ == "__main__":
    main()
