"""The screen over answers that are hostile, huge or late: text stays text, and keys stay quick."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from rich.text import Text
from textual.geometry import Region
from textual.widgets import DataTable
from textual.widgets.data_table import RowKey

from tests.top.given import Screen, screen_of
from tocsin.cli.top.head import MAX_CELL, age, failure_text, plain
from tocsin.cli.top.operator_thread import OperatorThread
from tocsin.cli.top.panels import MAX_ROWS
from tocsin.domain.agent import AgentRecord, AgentState
from tocsin.domain.definition import JobDefinition
from tocsin.domain.ledger import initial
from tocsin.ports import ExecutionRow
from tocsin.ports.queries import ExecutionQuery, Page
from tocsin.services.jobs import Job
from tocsin.services.operations.errors import OperationError
from tocsin.services.operations.execution_output import ExecutionOutput, Line, Progress
from tocsin.services.operations.lookup import ExecutionMatch
from tocsin.services.operator import Operator
from tocsin.services.queues import QueueDetails

AT = datetime(2026, 1, 1, tzinfo=UTC)
MARK = "[link=https://x.invalid]a[/link]"
HOSTILE = f"{MARK}\x1b]0;owned\x07\x1b[2J\x9b31m\u202edrow\u2066\x7f\r\x08 漢字e\u0301 \ud800 [/]" + "x" * 1_000_000


def job(name: str) -> Job:
    definition = JobDefinition.model_validate({"name": "job", "function": "f"}).model_copy(update={"name": name})
    return Job(definition, AT, 1, initial)


class Answers:
    """The answers of an operator, as an API may send them."""

    def __init__(self) -> None:
        self.text = HOSTILE
        self.answered_jobs: tuple[Job, ...] = (job(HOSTILE),)
        self.permitted = asyncio.Event()
        self.permitted.set()
        self.may_trigger = asyncio.Event()
        self.may_trigger.set()
        self.reads = 0
        self.most_reads = 0

    async def status(self) -> Mapping[str, Any]:
        return {"root": self.text, "leases": [], "problems": [self.text] * 1_000}

    async def jobs(self) -> tuple[Job, ...]:
        self.reads += 1
        self.most_reads = max(self.most_reads, self.reads)
        await self.permitted.wait()
        self.reads -= 1
        return self.answered_jobs

    async def executions(self, query: ExecutionQuery) -> Page[ExecutionRow]:
        assert query.limit <= MAX_ROWS
        row = ExecutionRow(
            job_name=self.text,
            execution_id=self.text,
            trigger="cron",
            status=query.status or self.text,
            scheduled_time=AT,
            started_at=AT,
            completed_at=None,
            duration_ms=None,
            attempt=1,
            worker=self.text,
            error=self.text,
            dag_state={self.text: {"status": "running"}, "odd": "running"},
        )
        return Page([row], "more")

    async def last_outcomes(self, jobs: Collection[str]) -> Mapping[str, str]:
        return dict.fromkeys(jobs, self.text)

    async def execution(self, given: str) -> ExecutionMatch:
        return ExecutionMatch("job", given, ())

    async def output(self, match: ExecutionMatch, *, after: int = 0) -> ExecutionOutput:
        line = Line(1, AT, self.text, 1, self.text, self.text)
        progress = {self.text: Progress(AT, 1, 0.5, self.text)}
        return ExecutionOutput("job", match.execution_id, () if after else (line,), 1, is_over=True, progress=progress)

    async def queues(self) -> tuple[QueueDetails, ...]:
        return (QueueDetails(self.text, "matched", waiting=10**30, oldest=AT),)

    async def agents(self, _: str | None = None) -> tuple[AgentRecord, ...]:
        agent = AgentRecord(name=self.text, agent_id=self.text, state=AgentState.ENABLED, queues=[self.text] * 9)
        return (agent, agent)

    async def trigger(self, job: str, *, reason: str | None = None) -> str:
        await self.may_trigger.wait()
        raise OperationError(f"{reason}{job}", code=self.text)


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
async def screen(answers: Answers) -> AsyncIterator[Screen]:
    threaded = OperatorThread(cast("Operator", answers), asyncio.get_running_loop())
    async with screen_of(threaded) as screen:
        yield screen


def check(screen: Screen, text: str) -> None:
    """Nothing of the text is a control sequence or markup."""
    assert all(line.isprintable() for line in text.splitlines())
    styles = [s.style for strip in screen.app.screen._compositor.render_strips() for s in strip if s.style]
    assert not any(style.link for style in styles)


async def test_hostile_text_is_plain_in_every_table(screen: Screen) -> None:
    text = await screen.until("Running 1", MARK, "and 998 more")
    check(screen, text)
    for key, title in (("2", "Jobs 1"), ("3", "Queues 1"), ("4", "Agents 2")):
        await screen.press(key)
        check(screen, await screen.until(title, f" {MARK[:20]}"))


async def test_hostile_log_line_is_plain(screen: Screen) -> None:
    await screen.until("Running 1", MARK)
    await screen.press("l")
    check(screen, await screen.until("the execution has ended"))


async def test_hostile_error_is_plain(screen: Screen) -> None:
    await screen.press("2")
    await screen.until("Jobs 1", MARK)
    await screen.press("t")
    check(screen, await screen.until("trigger job", "Escape declines"))
    await screen.press("enter")
    text = await screen.until_that(lambda text: text.count(MARK) > 2 and "Escape declines" not in text)
    check(screen, text)


async def test_many_jobs_are_cut(screen: Screen, answers: Answers) -> None:
    answers.answered_jobs = tuple(job(f"job-{number:05}") for number in range(10_000))
    await screen.press("2")
    await screen.until("Jobs 10,000", "and 9,800 more", "job-00000")
    await screen.press("slash", *"job-09999")
    await screen.until("Jobs 1", "job-09999")


async def test_row_drawn_at_once_has_its_width(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    add_row = DataTable.add_row

    def add_and_draw(table: DataTable[Text], *cells: Text) -> RowKey:
        key = add_row(table, *cells)
        table.render_lines(Region(0, 0, 80, 20))
        return key

    monkeypatch.setattr(DataTable, "add_row", add_and_draw)
    answers.text = "short"
    answers.answered_jobs = (job("a-name-longer-than-its-heading"),)
    async with screen_of(OperatorThread(cast("Operator", answers), asyncio.get_running_loop())) as screen:
        await screen.press("2")
        await screen.until("Jobs 1", "a-name-longer-than-its-heading  on demand")
        answers.answered_jobs = (job("longer"),)
        await screen.until("longer  on demand")


async def test_slow_read_delays_no_key(screen: Screen, answers: Answers) -> None:
    await screen.until("Jobs 1")
    answers.permitted.clear()
    answers.text = "later"
    await screen.press("3")
    await screen.until(" later ")
    await screen.press("2")
    await screen.until(MARK)
    answers.answered_jobs = ()
    answers.permitted.set()
    await screen.until("Jobs 0", "no jobs.")
    assert answers.most_reads == 1


async def test_next_key_does_not_end_an_action(screen: Screen, answers: Answers) -> None:
    answers.may_trigger.clear()
    await screen.press("2")
    await screen.until("Jobs 1", MARK)
    for answer in ("enter", "escape"):
        await screen.press("t")
        await screen.until("trigger job", "Escape declines")
        await screen.press(answer)
        await screen.until_that(lambda text: "Escape declines" not in text)
    answers.text = "refused"
    answers.may_trigger.set()
    await screen.until("refused:", "None[link")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("a" * MAX_CELL, "a" * MAX_CELL),
        ("a" * (MAX_CELL + 1), "a" * (MAX_CELL - 1) + "…"),
        ("first\nsecond", "first…"),
        ("\x1b[2J", "\\x1b[2J"),
    ],
)
def test_cell_is_one_short_line(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_unexpected_error_has_a_text() -> None:
    assert failure_text(KeyError(HOSTILE)).isprintable()


@pytest.mark.parametrize(
    ("seconds", "shown"), [(-5, "0s"), (0.9, "0s"), (59, "59s"), (3_599, "59m59s"), (3_661, "1h1m"), (90_000, "25h")]
)
def test_age_is_short(seconds: float, shown: str) -> None:
    assert age(AT, AT + timedelta(seconds=seconds)) == shown
