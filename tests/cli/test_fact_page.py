"""The facts of one thing, on a terminal of any width."""

from datetime import timedelta
from io import StringIO

import pytest
from rich.console import Console

from tests.domain.given import ID, JOB, NOON, admitted, started
from tocsin.cli.output.event_lines import FactPage
from tocsin.domain.events import Cancelled, Message, Recorded

WHY = "the disk of the machine on which it would have run is full, and nobody has time to look"


def shown(*facts: Message, width: int, apart: timedelta = timedelta(seconds=1)) -> list[str]:
    recorded = [Recorded(fact, "", number, NOON + number * apart) for number, fact in enumerate(facts)]
    console = Console(file=StringIO(), width=width)
    console.print(FactPage(recorded))
    file = console.file
    assert isinstance(file, StringIO)
    return file.getvalue().splitlines()


def cancelled(reason: str = WHY) -> Cancelled:
    return Cancelled(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron", reason=reason)


def test_event_lines_omit_the_job_and_the_execution() -> None:
    lines = shown(admitted(), started(), cancelled(), width=10_000)
    assert [line[8:].split(maxsplit=2)[1:] for line in lines] == [
        ["triggered", "cron"],
        ["started", "main #1 by w"],
        ["cancelled", WHY],
    ]


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize("reason", [WHY, WHY.replace(" ", "-")])
def test_long_events_continue_on_the_next_line(width: int, reason: str) -> None:
    first, *rest = shown(cancelled(reason), width=width)
    begin = first.index(reason[:8])
    assert rest
    assert all(len(line) <= width and line[:begin].isspace() for line in rest)
    assert "".join([first[begin:], *(line[begin:] for line in rest)]).replace(" ", "") == reason.replace(" ", "")


def test_date_is_shown_if_events_span_days() -> None:
    assert [line[:10] for line in shown(admitted(), started(), width=80, apart=timedelta(days=30))] == [
        "2026-11-20",
        "2026-12-20",
    ]
    assert shown(admitted(), started(), width=80)[0][2] == ":"


def test_there_may_be_none() -> None:
    assert shown(width=80) == []
