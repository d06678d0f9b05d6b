"""The keys and tables of `tocsin top`, over an installation that runs."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from tests.system.running import Running, deciding, running, settings
from tests.top.given import Screen, screen_for, session_for
from tocsin import Context, Worker, bootstrap
from tocsin.adapters.nats.server.embedded import ANY_PORT, EmbeddedServer
from tocsin.domain import ledger
from tocsin.domain.events import Cancelled, Completed, Paused, Resumed, Started, Trigger


class Functions:
    """The functions of the worker."""

    def __init__(self) -> None:
        self.worker = Worker(concurrency=5)
        self.end = asyncio.Event()
        self.worker.task("hold")(self.hold)
        self.worker.task("f")(self.succeed)

    async def hold(self, context: Context) -> None:
        context.logger.info("loading [bold]rows[/bold]")
        await context.progress(0.25, "a quarter")
        await self.end.wait()

    async def succeed(self, _: Context) -> None: ...


@pytest.fixture
def functions() -> Functions:
    return Functions()


@pytest.fixture
async def tocsin(nats_url: str, tmp_path: Path, functions: Functions) -> AsyncIterator[Running]:
    """A job at work, and one that has completed."""
    async with running(nats_url, tmp_path, worker=functions.worker) as tocsin:
        await tocsin.apply(
            {"name": "nightly", "schedule": "0 4 * * *", "function": "f"}, {"name": "long", "function": "hold"}
        )
        await tocsin.trigger("nightly")
        await tocsin.trigger("long")
        await tocsin.ended("nightly", Completed)
        await tocsin.ended("long", Started)
        yield tocsin
        functions.end.set()


@pytest.fixture
async def screen(tocsin: Running) -> AsyncIterator[Screen]:
    async with screen_for(session_for(tocsin.settings)) as screen:
        yield screen


async def test_tables_show_the_installation(screen: Screen, tocsin: Running) -> None:
    [started] = await tocsin.of_executions("long", Started)
    await screen.until(tocsin.settings.root, "no problems", "leader ", "Running 1")
    text = await screen.until("25% a quarter")
    assert all(shown in text for shown in ("long", started.execution_id[:18], "main"))
    await screen.press("2")
    text = await screen.until("nightly  active", "completed")
    assert "long     on demand" in text
    await screen.press("3")
    await screen.until("default  open")
    await screen.press("4")
    await screen.until("ENABLED", "1 of 5")


async def test_job_is_paused_and_resumed(screen: Screen, tocsin: Running) -> None:
    await screen.press("2")
    await screen.until("nightly  active")
    await screen.press("down", "p")
    await screen.until("pause job nightly?")
    await screen.press(*"disk", "space", *"full", "enter")
    await screen.until("paused nightly", "nightly  paused")
    [paused] = await tocsin.stored("ledger.nightly.paused", Paused, 1)
    assert paused.message.reason == "disk full"
    assert paused.message.by is not None
    assert paused.message.by.source == "cli"
    await screen.press("p")
    await screen.until("resume job nightly?")
    await screen.press("enter")
    await screen.until("resumed nightly", "nightly  active")
    [resumed] = await tocsin.stored("ledger.nightly.resumed", Resumed, 1)
    assert resumed.message.reason is None


async def test_job_is_triggered(screen: Screen, tocsin: Running) -> None:
    await screen.press("2")
    await screen.until("nightly  active")
    await screen.press("down", "t")
    await screen.until("trigger job nightly?")
    await screen.press("enter")
    await screen.until("triggered nightly: execution ")
    assert len(await tocsin.ended("nightly", Completed, 2)) == 2


async def test_execution_is_cancelled(screen: Screen, tocsin: Running) -> None:
    await screen.until("Running 1", "25%")
    await screen.press("c")
    await screen.until("cancel execution ", "of long?")
    await screen.press("enter")
    await screen.until("cancelled ", "Running 0", "no running executions")
    assert await tocsin.ended("long", Cancelled)


async def test_declined_question_changes_nothing(screen: Screen, tocsin: Running) -> None:
    await screen.until("Running 1", "25%")
    for key in "cpt":
        await screen.press(key)
        await screen.until("Escape declines")
        await screen.press("escape")
        await screen.until_that(lambda text: "Escape declines" not in text)
    assert await tocsin.of_executions("long", Cancelled) == []
    assert await tocsin.facts("ledger.long.paused", Paused) == []
    assert len(await tocsin.facts("trigger.>", Trigger)) == 2  # those of the fixture


async def test_log_lines_are_followed_to_the_end(screen: Screen, functions: Functions) -> None:
    await screen.until("Running 1", "25%")
    await screen.press("l")
    await screen.until("loading [bold]rows[/bold]")
    functions.end.set()
    await screen.until("the execution has ended")
    await screen.press("q")
    await screen.until("Running 0")


async def test_newest_execution_of_a_job_is_followed(screen: Screen) -> None:
    await screen.press("2")
    await screen.until("long     on demand")
    await screen.press("l")
    await screen.until("loading [bold]rows[/bold]")


async def test_filter_selects_rows_of_all_tables(screen: Screen) -> None:
    await screen.press("2")
    await screen.until("Jobs 2", "nightly", "long")
    await screen.press("slash", *"NIGHT", "enter")
    text = await screen.until("Jobs 1", "Running 0")
    assert "long " not in text
    await screen.press("p")
    await screen.until("pause job nightly?")
    await screen.press("escape", "escape")
    await screen.until("Jobs 2", "Running 1")


async def test_cursor_stays_on_its_row(screen: Screen, tocsin: Running) -> None:
    await screen.press("2")
    await screen.until("nightly  active")
    await screen.press("down")
    await tocsin.apply({"name": "early", "function": "f"}, {"name": "latest", "function": "f"})
    await screen.until("Jobs 4")
    await screen.press("p")
    await screen.until("pause job nightly?")


async def test_refused_action_shows_code_and_text(screen: Screen, tocsin: Running) -> None:
    await screen.press("2")
    await screen.until("nightly  active")
    await screen.press("down", "t")
    await screen.until("trigger job nightly?")
    await tocsin.change("nightly", partial(ledger.delete, job="nightly"))
    await screen.press("enter")
    await screen.until("job-not-found: ", "Jobs 1")


async def test_key_without_a_row_says_what_to_select(screen: Screen) -> None:
    await screen.press("3")
    await screen.until("default  open")
    for key in "ptl":
        await screen.press(key)
        await screen.until("select a job in the table Jobs")
    await screen.press("2", "c")
    await screen.until("select an execution in the table Running")


async def test_keys_are_shown(screen: Screen) -> None:
    await screen.press("question_mark")
    await screen.until("follow the log lines")
    await screen.press("escape")
    await screen.until_that(lambda text: "follow the log lines" not in text)


async def test_outage_keeps_the_rows_and_ends(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "nats", ANY_PORT).start() as server:
        of = settings(server.url, tmp_path)
        async with bootstrap.connect(of) as installation:
            await bootstrap.initialize(installation)
            async with deciding(installation) as stage:
                await Running(stage).apply({"name": "nightly", "function": "f"})
        async with screen_for(session_for(of)) as screen:
            await screen.press("2")
            await screen.until("nightly  on demand")
            server.stop()
            text = await screen.until("log-unavailable: ", "(rows of ")
            assert "nightly  on demand" in text
            with EmbeddedServer(tmp_path / "nats", server.port).start():
                await screen.until_that(lambda text: "log-unavailable" not in text)
