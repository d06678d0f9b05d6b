"""The parts of each page, seen in a browser."""

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.cli.test_acceptance import environment
from tests.console.conftest import SignIn
from tests.console.served import HOSTILE, Console
from tests.ojs.served import PATIENCE
from tocsin import bootstrap
from tocsin.engine.leader_election import RENEW_INTERVAL_S
from tocsin.engine.presence import processes
from tocsin.settings import Settings
from tocsin.subjects import Bucket

pytestmark = pytest.mark.slow
expect.set_options(timeout=PATIENCE * 1000)

HERD = 12
"""Jobs that fire at the same second."""


def define(console: Console, name: str, **fields: object) -> None:
    console.api("PUT", f"/v1/jobs/{name}", json={"function": "ok", **fields})


def region(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=name, exact=True)


def test_now_shows_each_part(sign_in: SignIn, console: Console) -> None:
    define(console, "contents-failing", function="broken", retry={"max_attempts": 1})
    define(console, "contents-waiting", function="none", queue="unmanned")
    define(console, "contents-locked", function="slow", overlap_policy="enqueue")
    console.run("contents-failing", "failed")
    console.run("contents-waiting", "pending")
    running = console.run("contents-locked", "running")
    console.run("contents-locked", "pending")
    page = sign_in()
    try:
        expect(region(page, "Running")).to_contain_text("contents-locked")
        waiting = region(page, "Waiting")
        expect(waiting).to_contain_text("for the lock of their job")
        expect(waiting).to_contain_text("for a worker")
        expect(waiting).to_contain_text("contents-waiting")
        expect(region(page, "Failing jobs")).to_contain_text("contents-failing")
        expect(region(page, "Failing jobs")).to_contain_text(HOSTILE)
        expect(region(page, "Next hour")).to_contain_text(re.compile("[0-9] jobs?.*minutely", re.DOTALL))
        expect(region(page, "Last hour")).to_contain_text(re.compile("[1-9][0-9]* failed"))
        expect(region(page, "Leaders")).to_contain_text("ticker")
        finding = region(page, "Health").locator(".finding").filter(has_text="replicas")  # of each single server
        expect(finding.locator(".remedy")).to_contain_text("run three servers as a cluster")
        for label in ("running", "waiting", "failing jobs"):
            expect(page.locator(".figure").filter(has_text=label).locator("strong")).not_to_have_text("0")
    finally:
        for execution in (running, *pending(console, "contents-locked"), *pending(console, "contents-waiting")):
            console.api("POST", f"/v1/executions/{execution}/cancel", json={})


def pending(console: Console, job: str) -> list[str]:
    rows = console.api("GET", f"/v1/executions?job={job}&status=pending")["executions"]
    return [row["execution_id"] for row in rows]


def test_jobs_are_filtered_and_show_outcomes(sign_in: SignIn, console: Console) -> None:
    zoned = {"schedule": "0 2 * * *", "timezone": "Europe/Prague"}
    define(console, "contents-found", tags=["rare"], owner="user:ada", queue="rare", **zoned)
    page = sign_in(path="/console/jobs")
    for label, text in (("Tag", "rare"), ("Owner", "user:ada"), ("Queue", "rare")):
        page.goto("/console/jobs")
        expect(page.get_by_role("link", name="nightly")).to_be_visible()
        page.get_by_label(label, exact=True).fill(text)
        expect(page.get_by_role("link", name="nightly")).to_have_count(0)
        row = page.get_by_role("row").filter(has_text="contents-found")
        expect(row).to_contain_text("02:00")  # the job's zone
        expect(row).to_contain_text("Europe/Prague")
        expect(row).to_contain_text(re.compile("(09|10):00"))  # the viewer's, Asia/Tokyo
    define(console, "contents-run")
    console.run("contents-run", "completed")
    console.run("contents-run", "completed")
    page.goto("/console/jobs?search=contents-run")
    expect(page.locator(".strip a.mark-completed")).to_have_count(2)


def test_job_shows_durations_and_differences(sign_in: SignIn, console: Console) -> None:
    for fields in ({"schedule": "0 3 * * *"}, {"schedule": "0 4 * * *", "concurrency": {"limit": 2}}):
        define(console, "contents-revised", timezone="Europe/Prague", **fields)
    console.run("contents-revised", "completed")
    page = sign_in(path="/console/jobs/contents-revised")
    expect(region(page, "Durations").get_by_role("img")).to_be_visible()
    expect(region(page, "Durations")).to_contain_text(re.compile("p50.*p95"))
    expect(region(page, "Days").locator(".heat-completed")).to_have_count(1)
    revisions = region(page, "Revisions")
    revisions.get_by_role("row").last.get_by_role("button").first.click()
    expect(region(page, "differences")).to_contain_text("0 3 * * *")
    expect(region(page, "differences")).to_contain_text("0 4 * * *")
    expect(region(page, "differences")).to_contain_text('{"limit":2}')
    expect(region(page, "differences").locator("tbody tr")).to_have_count(2)


def test_null_in_an_input_is_a_difference(sign_in: SignIn, console: Console) -> None:
    for fields in ({"input": {"until": None, "rows": 1}}, {"input": {"rows": 1}}):
        define(console, "contents-nullable", **fields)
    page = sign_in(path="/console/jobs/contents-nullable")
    region(page, "Revisions").get_by_role("row").last.get_by_role("button").first.click()
    expect(region(page, "differences").locator("tbody tr")).to_have_count(1)
    expect(region(page, "differences")).to_contain_text('"until":null')


def instant(console: Console, job: str, status: str) -> str:
    """Wait for an execution of a status, and return its instant."""
    begun = time.monotonic()
    while not (rows := console.api("GET", f"/v1/executions?job={job}&status={status}&limit=1")["executions"]):
        assert time.monotonic() - begun < PATIENCE
        time.sleep(0.1)
    at: str = rows[0]["scheduled_time"]
    return at


@pytest.mark.full
def test_ledger_shows_other_decisions(sign_in: SignIn, console: Console) -> None:
    define(console, "contents-secondly", schedule="* * * * * *", function="broken", retry={"max_attempts": 1})
    page = sign_in(path="/console/jobs/contents-secondly")
    expect(page.locator(".ledger .instant-failed").first).to_be_attached()
    page.goto(f"/console/jobs/contents-secondly?at={instant(console, 'contents-secondly', 'failed')}")
    expect(page.locator(".why dl").first).to_contain_text(f"ValueError: {HOSTILE}")
    console.api("POST", "/v1/jobs/contents-secondly/pause", json={})
    expect(page.locator(".ledger .version-paused").first).to_be_attached()
    expect(page.locator(".ledger").locator(".instant-paused, .instant-future-paused").first).to_be_attached()
    console.api("DELETE", "/v1/jobs/contents-secondly")


def test_ledger_says_why_a_run_was_skipped(sign_in: SignIn, console: Console) -> None:
    define(console, "contents-skipped", schedule="* * * * * *", function="slow", overlap_policy="skip")
    page = sign_in(path="/console/jobs/contents-skipped")
    try:
        expect(page.locator(".ledger .instant-skipped").first).to_be_attached()
        skipped = instant(console, "contents-skipped", "skipped")
        page.goto(f"/console/jobs/contents-skipped?at={skipped}")
        expect(page.locator(".why").first).to_contain_text("skipped")
        expect(page.locator(".why dl").first).to_contain_text("was active")
        expect(page.locator(".why dl").first.get_by_role("link")).to_have_count(1)
        page.goto("/console/jobs/nightly")
        page.locator(".ledger").click(position={"x": 40, "y": 4})  # between the marks
        expect(page).to_have_url(re.compile("at="))
        expect(page.locator(".why .state").first).to_be_visible()
    finally:
        console.api("DELETE", "/v1/jobs/contents-skipped")
        for row in console.api("GET", "/v1/executions?job=contents-skipped&status=running")["executions"]:
            console.api("POST", f"/v1/executions/{row['execution_id']}/cancel", json={})


def test_execution_shows_its_values(sign_in: SignIn, console: Console) -> None:
    first, second = console.run("etl", "completed"), console.run("etl", "completed")
    page = sign_in(path=f"/console/executions/{second}")
    expect(region(page, "Input")).to_contain_text("monday")
    expect(region(page, "Result")).to_be_visible()
    expect(region(page, "Events")).to_contain_text("completed")
    page.get_by_role("link", name="Previous run").click()
    expect(page.locator("h1")).to_contain_text(first)
    page.get_by_role("button", name="Run again").click()
    page.get_by_role("dialog").get_by_role("button", name="Run again").click()
    expect(page.locator("h1")).not_to_contain_text(first)
    again = page.url.rpartition("/")[2]
    assert console.api("GET", f"/v1/executions/{again}")["job_name"] == "etl"


def test_failed_execution_shows_traceback(sign_in: SignIn, console: Console) -> None:
    execution = console.run("broken", "failed")
    page = sign_in(path=f"/console/executions/{execution}")
    page.get_by_text("Traceback", exact=True).click()
    expect(page.locator(".refusal pre")).to_contain_text("ValueError")


def test_retry_to_come_has_its_time(sign_in: SignIn, console: Console) -> None:
    retry = {"max_attempts": 3, "initial_delay": "1h", "max_delay": "1h"}
    define(console, "contents-retried", function="broken", retry=retry)
    execution: str = console.api("POST", "/v1/jobs/contents-retried/trigger", json={})["execution_id"]
    page = sign_in(path="/console")
    begun = time.monotonic()
    while not console.api("GET", f"/v1/executions?id_prefix={execution}")["executions"]:
        assert time.monotonic() - begun < PATIENCE
        time.sleep(0.1)
    expect(region(page, "Waiting")).to_contain_text("for the end of a delay")
    page.goto(f"/console/executions/{execution}")
    expect(region(page, "steps").locator("time")).to_contain_text(re.compile("in (59|[1-9]?[0-9]) min|in 1 h"))
    console.api("POST", f"/v1/executions/{execution}/cancel", json={})


def test_function_without_worker_stands_out(sign_in: SignIn, console: Console) -> None:
    define(console, "contents-unserved", function="nowhere")
    execution = console.run("contents-unserved", "pending")
    page = sign_in(path="/console/queues")
    row = page.get_by_role("row").filter(has=page.locator("#queue-default"))
    expect(row).to_contain_text("nowhere (1): no agent has it")
    expect(row.locator("time").first).to_be_visible()  # the oldest
    expect(row.locator("td.number").nth(2)).not_to_have_text("0")  # slots
    console.api("POST", f"/v1/executions/{execution}/cancel", json={})


@pytest.mark.full
def test_agent_is_disabled_and_enabled(sign_in: SignIn, console: Console) -> None:
    page = sign_in(role="scheduler-operator", path="/console/agents")
    for action, state in (("Disable", "DISABLED"), ("Enable", "ENABLED")):
        page.get_by_role("button", name=action, exact=True).first.click()
        page.get_by_role("dialog").get_by_role("button", name=action, exact=True).click()
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(region(page, "agents")).to_contain_text(state.lower())
        assert console.api("GET", "/v1/agents")["agents"][0]["state"] == state


def test_agent_is_drained(sign_in: SignIn, console: Console, tmp_path: Path) -> None:
    (tmp_path / "idle.py").write_text("""from tocsin import Worker
worker = Worker(name="zz-drained")  # the last in the list, where other tests use the first
worker.task("idle")(print)
""")
    command = [sys.executable, "-m", "tocsin", "worker", "idle.py:worker"]
    with subprocess.Popen([*command, "--nats", console.dev.url], cwd=tmp_path, env=environment()) as process:
        try:
            page = sign_in(role="scheduler-operator", path="/console/agents")
            row = page.get_by_role("row").filter(has_text="zz-drained")
            row.get_by_role("button", name="Drain", exact=True).click()
            page.get_by_label("Reason").fill("a new version")
            page.get_by_role("dialog").get_by_role("button", name="Drain", exact=True).click()
            expect(page.get_by_role("dialog")).to_have_count(0)
            expect(row).to_contain_text("draining")
            expect(row.get_by_role("button", name="Drain", exact=True)).to_have_count(0)
        finally:
            process.kill()
    [change] = console.api("GET", "/v1/changes?type=agent-drained")["changes"]
    assert (change["name"], change["reason"]) == ("zz-drained", "a new version")


def test_execution_leads_to_its_trace(sign_in: SignIn, console: Console) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    execution = console.api("POST", "/v1/jobs/nightly/trigger", json={}, headers=headers)["execution_id"]
    link = sign_in(path=f"/console/executions/{execution}").get_by_role("link", name=trace)
    expect(link).to_have_attribute("href", f"https://traces.example.com/trace/{trace}")
    expect(link).to_have_attribute("rel", "noopener noreferrer")


@contextmanager
def frozen_ticker(console: Console) -> Iterator[str]:
    """Have another process lead the ticker, freeze it, and renew its lease. Yield a part of its name."""
    released, frozen = Event(), Event()

    async def hold(process: subprocess.Popen[bytes]) -> None:
        async with bootstrap.connect(Settings.model_validate({"nats": {"url": console.dev.url}})) as installation:
            projections, lease = installation.projections, {"holder": "", "renewed_at": "2026-01-01T00:00:00Z"}
            while not await asyncio.to_thread(released.wait, RENEW_INTERVAL_S):
                for one in await processes(projections):
                    if f"-{process.pid}-" in one.name:
                        lease["holder"] = one.name  # a candidate takes a lease that names it
                        if "ticker" in one.led:
                            process.send_signal(signal.SIGSTOP)
                            frozen.set()
                if lease["holder"]:
                    await projections.put(Bucket.LEADER, "ticker", json.dumps(lease).encode(), ttl=2 * PATIENCE)
            await projections.remove(Bucket.LEADER, "ticker")

    command = [sys.executable, "-m", "tocsin", "run", "ticker", "--nats", console.dev.url]
    with subprocess.Popen(command, env=environment()) as process, ThreadPoolExecutor(1) as pool:
        holding = pool.submit(asyncio.run, hold(process))
        try:
            assert frozen.wait(PATIENCE)
            yield f"-{process.pid}-"
        finally:
            process.kill()
            released.set()
            holding.result()


@pytest.mark.full
def test_absence_of_the_leader_is_drawn(sign_in: SignIn, console: Console) -> None:
    define(console, "contents-absent", schedule="*/10 * * * * *", catch_up="skip")
    try:
        page = sign_in(path="/console/jobs/contents-absent")
        expect(page.locator(".ledger .instant-completed").first).to_be_attached()
        with frozen_ticker(console) as frozen:
            now = sign_in()
            expect(region(now, "Late")).to_contain_text("contents-absent")
            expect(now.locator(".figure-late strong")).not_to_have_text("0")
            expect(region(now, "Leaders")).to_contain_text(frozen)
        expect(page.locator(".ledger .instant-missed").first).to_be_attached()
        page.reload()
        expect(page.locator(".ledger .gap title").first).to_contain_text("no leading ticker")
        page.locator(".ledger .instant-missed").first.click()
        expect(page.locator(".why").first).to_contain_text("missed")
        expect(page.locator(".why").first).to_contain_text("No leader")
    finally:
        console.api("DELETE", "/v1/jobs/contents-absent")


@pytest.mark.full
def test_herd_is_named_with_a_spread(sign_in: SignIn, console: Console) -> None:
    for number in range(HERD):
        define(console, f"contents-herd-{number:02}", schedule="0 5 * * *")
    page = sign_in(path="/console/schedule")
    herd = region(page, "herds").get_by_role("row").filter(has_text="contents-herd")
    expect(herd.locator("td.number").first).to_have_text(re.compile(f"^{HERD}$|^[1-9][0-9]+$"))
    expect(region(page, "suggested schedules")).to_contain_text("contents-herd")
    expect(region(page, "Density").get_by_role("img")).to_be_visible()
    page.get_by_label("Next").select_option("168")
    expect(region(page, "Density")).to_contain_text("in the next 7 days")
    for number in range(HERD):
        console.api("DELETE", f"/v1/jobs/contents-herd-{number:02}")


@pytest.mark.full
def test_local_time_that_does_not_exist(sign_in: SignIn, console: Console) -> None:
    define(console, "contents-gap", schedule="30 2 * * *", timezone="Europe/Prague")
    page = sign_in(path="/console/jobs/contents-gap?at=2099-03-29T01:30:00Z")
    expect(page.locator(".ledger .instant-no-such-local-time")).to_have_count(1)
    page.locator(".ledger .instant-no-such-local-time").click()
    expect(page.locator(".why").first).to_contain_text("no-such-local-time")
    page.goto("/console/edit-job/contents-gap")
    editor = page.get_by_label("Definition, as YAML")
    expect(editor).to_have_value(re.compile("30 2"))
    editor.fill(editor.input_value().replace("30 2", "15 2"))
    page.get_by_role("button", name="Show the plan").click()
    expect(page.locator("form .warning").first).to_contain_text("does not exist")


def test_run_that_waits_for_another_job(sign_in: SignIn, console: Console) -> None:
    define(console, "contents-before")
    define(console, "contents-after", depends_on=[{"job": "contents-before", "within": "6h"}])
    console.run("contents-after", "pending")
    page = sign_in()
    try:
        expect(region(page, "Waiting")).to_contain_text("for runs of other jobs")
    finally:
        for execution in pending(console, "contents-after"):
            console.api("POST", f"/v1/executions/{execution}/cancel", json={})


def test_shards_are_counted_together(sign_in: SignIn, console: Console) -> None:
    """The page of an occurrence follows the executions on its shards."""
    console.api("PUT", "/v1/shards", json={"shards": [{"shard_id": name} for name in ("eu-1", "us-1", "us-2")]})
    define(console, "contents-divided", function="nowhere", partition="all_shards")
    id_ = console.api("POST", "/v1/jobs/contents-divided/trigger", json={})["execution_id"]
    page = sign_in(path=f"/console/executions/{id_}")
    facts, shards = page.locator("dl.facts"), region(page, "executions on shards")
    expect(facts).to_contain_text("0 of 3 completed, 3 pending")
    expect(shards.get_by_role("row")).to_have_count(4)
    begun = time.monotonic()
    while len(pending(console, "contents-divided")) < 3:
        assert time.monotonic() - begun < PATIENCE
        time.sleep(0.1)
    [first, *others] = pending(console, "contents-divided")
    console.api("POST", f"/v1/executions/{first}/cancel", json={})
    expect(facts).to_contain_text("1 cancelled")
    for execution in others:
        console.api("POST", f"/v1/executions/{execution}/cancel", json={})
    expect(facts).to_contain_text("0 of 3 completed, 3 cancelled")
    expect(page.locator("h1")).to_contain_text("cancelled")
    shards.get_by_role("link").first.click()
    expect(facts.locator("dt").filter(has_text=re.compile("^Shard$"))).to_be_visible()


@pytest.mark.full
def test_link_to_a_queue_leads_to_its_row(sign_in: SignIn, console: Console) -> None:
    define(console, "contents-main", queue="main")  # also the id of the part of each page
    for number in range(8):
        define(console, f"contents-queued-{number}", queue=f"a-{number}")
    page = sign_in(path="/console/jobs/contents-main")
    page.set_viewport_size({"width": 1280, "height": 240})
    page.get_by_role("link", name="main", exact=True).click()
    expect(page).to_have_url(re.compile("/console/queues#main$"))
    expect(page.locator("#queue-main")).to_be_in_viewport()
    expect(page.locator("[id=main]")).to_have_count(1)
    for name in ("contents-main", *(f"contents-queued-{number}" for number in range(8))):
        console.api("DELETE", f"/v1/jobs/{name}")


def test_now_says_what_it_does_not_count(sign_in: SignIn) -> None:
    page = sign_in()
    lacking = {"are_open_complete": False, "are_jobs_complete": False}
    page.route("**/v1/overview", lambda route: route.fulfill(json=route.fetch().json() | lacking))
    page.goto("/console")
    expect(page.locator(".figure", has_text="waiting").locator("strong")).to_have_text(re.compile(r"^[\d,]+\+$"))
    expect(page.get_by_text("More executions are open than are counted here.")).to_be_visible()
    expect(page.get_by_text("Late and coming instants of some jobs are missing")).to_be_visible()


@pytest.mark.full
def test_runs_of_one_instant_are_neighbours(sign_in: SignIn, console: Console) -> None:
    define(console, "contents-replayed", function="broken", retry={"max_attempts": 1}, dead_letter=True)
    first = console.run("contents-replayed", "failed")
    define(console, "contents-replayed")
    replay = console.api("POST", f"/v1/dead-letters/{first}/replay", json={})["execution_id"]
    console.run("contents-replayed", "completed")
    path, seen = "/console/executions?job=contents-replayed", set[str]()
    page = sign_in(path=path)
    expect(page.get_by_role("region", name="executions").locator("tbody tr")).to_have_count(3)
    page.get_by_role("region", name="executions").locator("tbody tr").last.locator("a.id").click()
    while (execution := page.url.rpartition("/")[2]) not in seen:
        seen.add(execution)
        if len(seen) < 3:
            page.get_by_role("link", name="Next run").click()
            expect(page).not_to_have_url(re.compile(execution))
    assert seen >= {first, replay}
