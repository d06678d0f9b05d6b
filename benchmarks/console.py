"""The console in a browser, with many jobs and executions, beside an empty page.

    python -m benchmarks.console [--jobs 100000] [--executions 1000000] [--rounds 9] [--folder FOLDER]

The history is a SQLite file, and the jobs are registered in an installation on a private nats-server. One job fires every second.
For each page it prints the first contentful paint, its ratio to that of a page without data, and the time of the requests for the
page's data. These times include the browser, which shares the machine with the servers. The CPU is that of this process, which
serves the API, for one visit. Then the same server stores events for the console, and a script counts the tasks of the page that
take longer than 50 ms. `--folder` keeps the data for the next call.
"""

import argparse
import asyncio
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from playwright.async_api import Page, async_playwright, expect

from benchmarks.history_lists import EVERY_S, JOBS, STEP, fill
from benchmarks.registered import BEAT
from benchmarks.servers import initialized, servers
from benchmarks.system import REGISTRAR, running
from tocsin import subjects
from tocsin.bootstrap import Installation
from tocsin.bootstrap.api_server import serving
from tocsin.cli.runtime.event_loop import collect_patiently
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Admitted, DeadLettered, Failure, Message, Plan, Recorded
from tocsin.ports import History
from tocsin.settings import Settings
from tocsin.subjects import Stream

BLANK: Final = "no data"
PAGES: Final[Mapping[str, str]] = {
    BLANK: "/console/nothing",
    "now": "/console",
    "jobs": "/console/jobs",
    "jobs, searched": "/console/jobs?search=job-77",
    "jobs, searched (none)": "/console/jobs?search=nothing",
    "jobs, paused (none)": "/console/jobs?state=paused",
    "job": "/console/jobs/job-7",
    "executions": "/console/executions",
    "executions, failed": "/console/executions?status=failed",
    "dead letters": "/console/dead-letters",
    "queues": "/console/queues",
    "agents": "/console/agents",
    "schedule": "/console/schedule",
    "changes": "/console/changes",
}
LETTERS: Final = 100_000
PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")
READY_WITHIN_MS: Final = 120_000
SETTLED_MS: Final = 400
"""Milliseconds without a request after which a page is settled."""
EVENTS_PER_S: Final = 500
AT_ONCE: Final = 25
"""Events that are stored together."""
LIVE_S: Final = 20
FIGURES: Final = """() => ({
    paint: performance.getEntriesByName("first-contentful-paint")[0]?.startTime,
    data: performance.getEntriesByType("resource")
        .filter((entry) => entry.name.includes("/v1/") && !entry.name.includes("/v1/events"))
        .map((entry) => entry.duration),
})"""
TIMED: Final = """async (url) => {
    const begun = performance.now();
    await (await fetch(url)).text();
    return performance.now() - begun;
}"""
OBSERVE: Final = """() => {
    window.long = [];
    new PerformanceObserver((list) => window.long.push(...list.getEntries().map((entry) => entry.duration)))
        .observe({ type: "longtask" });
    window.heard = 0;
    const source = new EventSource("/v1/events");
    source.addEventListener("admitted", () => (window.heard += 1));
    return new Promise((resolve) => (source.onopen = resolve));
}"""


async def measure(jobs: int, executions: int, rounds: int, folder: Path) -> None:
    """Fill an installation, open its pages, and print the figures."""
    async with servers(folder=folder) as nats, initialized(_settings(nats.settings)) as installation:
        if await installation.log.last(subjects.ledger(BEAT.name)) is None:
            async with running(installation, (REGISTRAR,), nats=nats.pids) as system:
                await system.define(*_jobs(jobs), BEAT)
        async with installation.history() as history:
            began = datetime.now(UTC) - timedelta(seconds=executions * EVERY_S)
            await fill(history, executions, began, await _definitions(installation))
            await _bury(history, executions)
        started = time.perf_counter()
        async with serving(installation) as url:
            await _browse(installation, url, rounds)
        print(f"measured for {time.perf_counter() - started:.0f} s; load {os.getloadavg()[0]:.1f}")


def _settings(settings: Settings) -> Settings:
    given = settings.model_dump(exclude_unset=True)
    more = {"server": {"port": 0, "rate": None}, "metrics": {"enabled": False}}
    return Settings.model_validate({**given, **more})


def _jobs(number: int) -> Iterator[JobDefinition]:
    for n in range(number):
        yield JobDefinition(
            name=f"job-{n}",
            schedule=f"{n % 60} {n // 60 % 24} * * *",
            function="f",
            tags=(f"team-{n % 50}",),
            dead_letter=True,
        )


async def _definitions(installation: Installation) -> dict[str, int]:
    """Return the sequences of the definitions of the jobs that have executions."""
    names = [f"job-{number}" for number in range(JOBS)]
    newest = [await installation.log.last(subjects.ledger(name)) for name in names]
    return {name: event.sequence for name, event in zip(names, newest, strict=True) if event is not None}


async def _bury(history: History, executions: int) -> None:
    """Record dead letters with errors of a few kinds, after the executions."""
    place = await history.offset(Stream.LOG)
    if place != executions * 4:
        return
    now = datetime.now(UTC)
    letters = list[Recorded[Message]]()
    for number in range(LETTERS):
        failed_at = now - timedelta(seconds=LETTERS - number)
        letter = DeadLettered(
            job=f"job-{number % 20}",
            id=f"letter-{number}",
            execution_id=f"letter-{number}",
            scheduled_time=failed_at,
            trigger="cron",
            attempts=(),
            last_error=Failure(type="ValueError", message=f"no rows for {number} in orders", traceback="Traceback …"),
            first_attempt=failed_at,
            last_attempt=failed_at,
            definition=1,
        )
        letters.append(Recorded(letter, subjects.subject_of(letter), place + number + 1, failed_at))
    await history.record(Stream.LOG, letters, after=place, upto=place + LETTERS)


async def _browse(installation: Installation, url: str, rounds: int) -> None:
    program = os.environ.get("TOCSIN_TEST_BROWSER") or next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        sys.exit("no browser: install chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        page = await (await browser.new_context(base_url=url)).new_page()
        page.set_default_timeout(READY_WITHIN_MS)
        for path in PAGES.values():  # the first visits fill the caches of both sides
            await _visit(page, path)
        print(f"{'page':<24}{'paint, ms':>10}{'ratio':>7}{'data p50':>10}{'p95':>6}{'CPU, ms':>9}")
        blank = 1.0
        for name, path in PAGES.items():
            used = _cpu_ms()
            visits = [await _visit(page, path) for _ in range(rounds)]
            used = (_cpu_ms() - used) / rounds
            paint = statistics.median(visit["paint"] for visit in visits)
            blank = paint if name == BLANK else blank
            data = [took for visit in visits for took in visit["data"]]
            print(f"{name:<24}{paint:>10.0f}{paint / blank:>7.2f}{_shares(data)}{used:>9.0f}")
        await _months(page, rounds)
        await _live(installation, page)
        await browser.close()


async def _months(page: Page, rounds: int) -> None:
    """Print how long a month of a job takes that fires every second."""
    now = datetime.now(UTC)
    for name, since, until in (("past", now - timedelta(days=30), now), ("future", now, now + timedelta(days=30))):
        path = f"/v1/jobs/{BEAT.name}/timeline?since={since:%Y-%m-%dT%H:%M:%SZ}&until={until:%Y-%m-%dT%H:%M:%SZ}&buckets=120"
        used = _cpu_ms()
        took = [await page.evaluate(TIMED, path) for _ in range(rounds)]
        print(f"{f'timeline, {name} month':<41}{_shares(took)}{(_cpu_ms() - used) / rounds:>9.0f}, first {took[0]:.0f}")


async def _live(installation: Installation, page: Page) -> None:
    """Print the long tasks of the page Now while many events arrive, and with none."""
    await _visit(page, PAGES["now"])
    await page.evaluate(OBSERVE)
    await page.wait_for_timeout(LIVE_S * 1_000)
    quiet = await page.evaluate("() => window.long.splice(0)")
    began = time.perf_counter()
    for first in range(0, EVENTS_PER_S * LIVE_S, AT_ONCE):
        facts = [_admission(number) for number in range(first, first + AT_ONCE)]
        await asyncio.gather(*(installation.log.append(fact, expect=0) for fact in facts))
        ahead = (first + AT_ONCE) / EVENTS_PER_S - (time.perf_counter() - began)
        if ahead > 0:
            await asyncio.sleep(ahead)
    took = time.perf_counter() - began
    await page.wait_for_timeout(1_000)
    heard = await page.evaluate("() => window.heard")
    busy = await page.evaluate("() => window.long")
    print(f"long tasks in {LIVE_S} s without events: {_long(quiet)}")
    print(
        f"long tasks with {EVENTS_PER_S * LIVE_S / took:.0f} events per second, of which {heard} arrived: {_long(busy)}"
    )


def _admission(number: int) -> Message:
    now = datetime.now(UTC)
    plan = Plan(definition=1, steps=(STEP,))
    return Admitted(
        job=f"job-{number % 100}",
        execution_id=f"live-{now:%H%M%S%f}-{number}",
        scheduled_time=now,
        trigger="api",
        plan=plan,
    )


def _long(tasks: Sequence[float]) -> str:
    return f"{len(tasks)}, the longest {max(tasks, default=0):.0f} ms"


async def _visit(page: Page, path: str) -> dict[str, Any]:
    """Open a page, and return its figures when it shows its data."""
    await page.goto(path)
    await page.locator("h1").first.wait_for()
    await expect(page.locator(".loading")).to_have_count(0, timeout=READY_WITHIN_MS)
    await page.wait_for_timeout(SETTLED_MS)
    figures: dict[str, Any] = await page.evaluate(FIGURES)
    return figures


def _shares(times: Sequence[float]) -> str:
    ordered = sorted(times)
    return "".join(
        f"{ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0:>{width}.0f}"
        for share, width in ((0.5, 10), (0.95, 6))
    )


def _cpu_ms() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * 1_000


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.console", description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--executions", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    collect_patiently()  # as `tocsin serve` does
    with tempfile.TemporaryDirectory(prefix="tocsin-benchmark-") as temporary:
        asyncio.run(measure(given.jobs, given.executions, given.rounds, given.folder or Path(temporary)))


if __name__ == "__main__":
    main()
