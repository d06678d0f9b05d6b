"""Tables in a terminal that is too narrow for all of them, and lines about facts in one."""

import io
from datetime import timedelta

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType

from tests.domain.given import ID, admitted
from tocsin.cli.output import event_lines
from tocsin.cli.output.format import local
from tocsin.cli.output.tables import table, this_year, unique_beginnings
from tocsin.domain.events import Acquired, Attempt, DeadLettered, Failure, Recorded, Released, Resolved, Skipped
from tocsin.domain.events.execution import Refusal
from tocsin.domain.events.message import ReleasedReason
from tocsin.testing import START

ROWS = [("one", "a long sentence about it", "x"), ("two", "short", "y")]
HEADINGS = ("NAME", "ABOUT", "LAST")
IDS = ("01a20026-9be0-7001-8000-000000000001", "01a20026-9be0-7002-8000-000000000001")


def shown(renderable: RenderableType, width: int, *, is_terminal: bool = True) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=is_terminal)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_where_all_fits_all_is_shown() -> None:
    assert shown(table(HEADINGS, ROWS, empty="", least=("LAST", "ABOUT")), 80) == [
        "NAME   ABOUT                      LAST",
        "──────────────────────────────────────",
        "one    a long sentence about it   x",
        "two    short                      y",
    ]


def test_least_important_column_is_shortened_first() -> None:
    lines = shown(table(HEADINGS, ROWS, empty="", least=("LAST", "ABOUT")), 30)
    assert lines[2:] == ["one    a long sentence…   x", "two    short              y"]
    assert all(len(line) <= 30 for line in lines)


def test_columns_without_room_are_left_out_and_named() -> None:
    lines = shown(table(HEADINGS, ROWS, empty="", least=("LAST", "ABOUT")), 20)
    assert lines[2:4] == ["one    a long sente…", "two    short"]
    assert " ".join(lines[4:]) == "columns hidden: LAST (widen the terminal or use -o json)"


def test_short_form_is_used_before_cutting() -> None:
    rows = [(one, "failed") for one in IDS]
    narrow = table(("ID", "STATE"), rows, empty="", least=("STATE",), brief={"ID": unique_beginnings})
    assert shown(narrow, 80)[2] == f"{IDS[0]}   failed"
    assert shown(narrow, 30)[2:] == ["01a20026-9be0-7001   failed", "01a20026-9be0-7002   failed"]


def test_wide_characters_count_as_two() -> None:
    rows = [("夜間バックアップ", "毎晩二時に実行する")]
    lines = shown(table(("NAME", "ABOUT"), rows, empty="", least=("ABOUT",)), 34)
    assert lines[2] == "夜間バックアップ   毎晩二時に実行…"
    assert max(map(cell_len, lines)) <= 34


def test_pipe_gets_a_line_per_row() -> None:
    lines = shown(table(HEADINGS, ROWS, empty="", least=("LAST", "ABOUT")), 80, is_terminal=False)
    assert [line.split()[0] for line in lines] == ["NAME", "one", "two"]


def test_an_empty_table_is_a_sentence() -> None:
    assert shown(table(HEADINGS, [], empty="nothing"), 20) == ["nothing"]


def test_beginnings_tell_each_id_from_the_others() -> None:
    alike = (IDS[0], IDS[0][:-1] + "2")
    assert unique_beginnings(IDS) == ["01a20026-9be0-7001", "01a20026-9be0-7002"]
    assert unique_beginnings(alike) == list(alike)
    assert unique_beginnings([]) == []


def test_short_instant_has_neither_year_nor_zone() -> None:
    instants = ["2026-11-21 22:08:06 UTC", "2026-11-21 22:08:06.125 UTC", ""]
    assert this_year(instants) == ["11-21 22:08:06", "11-21 22:08:06.125", ""]


def test_instants_of_one_second_differ() -> None:
    instants = [START, START + timedelta(milliseconds=500), START + timedelta(milliseconds=501, microseconds=999)]
    assert [local(at).split()[1].rpartition(":")[2] for at in instants] == ["00", "00.500", "00.501"]


def test_event_line_keeps_details_and_shortens_the_id() -> None:
    recorded = Recorded(admitted(), "", 1, START)
    assert event_lines.line(recorded).plain.endswith(ID)
    narrow = event_lines.line(recorded, width=80).plain
    assert narrow.endswith(f"  {ID[:18]}")
    assert len(narrow) <= 80
    assert ID[:8] not in event_lines.line(recorded, width=60).plain


def test_event_without_execution_has_a_line_too() -> None:
    resolved = Recorded(Resolved(job="j", id="planner-7"), "", 1, START)
    assert event_lines.line(resolved, width=80).plain[8:].split() == ["✓", "resolved", "j"]
    assert event_lines.line(resolved).plain[8:].split() == ["✓", "resolved", "j"]


def attempt(step: str, number: int, *, has_failed: bool) -> Attempt:
    return Attempt(step=step, attempt=number, error=Failure(type="E", message="") if has_failed else None)


def test_dead_letter_counts_attempts_of_the_failed_step() -> None:
    def said(*attempts: Attempt) -> str:
        letter = DeadLettered(
            job="j",
            id=ID,
            execution_id=ID,
            scheduled_time=START,
            trigger="cron",
            attempts=attempts,
            first_attempt=START,
            last_attempt=START,
        )
        return event_lines.describe(letter).detail

    extract = attempt("extract", 1, has_failed=False)
    assert said(extract, attempt("load", 1, has_failed=True), attempt("load", 2, has_failed=True)) == (
        "load failed at 2 attempts"
    )
    assert said(extract, attempt("load", 1, has_failed=True)) == "load failed at its only attempt"
    assert said(extract) == "without an attempt that failed"


def test_lock_without_expiry_shows_none() -> None:
    lock = Acquired(job="j", execution_id=ID, scheduled_time=START, ttl=70)
    assert event_lines.describe(lock).detail == "until it ends; looked into after 1m10s"


def test_refused_trigger_shows_the_error() -> None:
    refusal = Refusal(
        code="invalid-definition", message="job `j`: `input`: 'day' is required\njob `j`: `args`: too many"
    )
    skipped = Skipped(
        job="j",
        execution_id=ID,
        reason="refused",
        scheduled_time=START,
        trigger="event",
        definition=1,
        refusal=refusal,
    )
    assert event_lines.describe(skipped).detail == (
        "refused: job `j`: `input`: 'day' is required; job `j`: `args`: too many"
    )


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        ("lease_over", "its worker gave no sign of life in time"),
        ("handed_back", "its worker returned it or did not listen"),
    ],
)
def test_release_says_why(reason: ReleasedReason, why: str) -> None:
    released = Released(job="j", execution_id=ID, step="main", attempt=1, delivery=1, task=7, reason=reason)
    assert event_lines.describe(released).detail == f"main #1: {why}"
