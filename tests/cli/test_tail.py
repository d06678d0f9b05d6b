"""Following: the facts of both streams as they come, and what of them is worth a line of the live view."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from typing_extensions import override

from tests.domain.given import ID, JOB, admitted, started
from tocsin import subjects
from tocsin.cli.dev.live import LiveView
from tocsin.cli.output import Format
from tocsin.cli.output.format import Output
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Completed, Defined, Failed, Message, Passed, Recorded, Trigger, validated
from tocsin.ports import Batch, Decode, LogUnavailable
from tocsin.services import tail
from tocsin.subjects import Stream
from tocsin.testing import START, InMemoryEventLog, ManualClock

DEFINED = Defined(job=JOB, definition=JobDefinition(name=JOB, schedule="0 3 * * *", function="f"))
COMPLETED = Completed(job=JOB, execution_id=ID, scheduled_time=START, trigger="cron")


@pytest.fixture
def log() -> InMemoryEventLog:
    return InMemoryEventLog(ManualClock())


async def some(log: InMemoryEventLog, count: int, job: str | None = None, *, after: dict[Stream, int]) -> list[Message]:
    found: list[Message] = []
    async with asyncio.timeout(5), aclosing(tail.follow(log, job, after=after)) as follower:
        async for recorded in follower:
            found.append(recorded.message)
            if len(found) == count:
                break
    return found


async def test_events_of_both_streams_and_nothing_else_arrive(log: InMemoryEventLog) -> None:
    await log.append(DEFINED, expect=0)
    await log.publish(subjects.trigger(JOB), Trigger(), message_id="1")
    await log.append(admitted(), expect=0)
    assert sorted(type(fact).__name__ for fact in await some(log, 2, after={})) == ["Admitted", "Defined"]


async def test_of_one_job_only_its_own_facts_come(log: InMemoryEventLog) -> None:
    other = DEFINED.model_copy(update={"job": "other"})
    await log.append(other, expect=0)
    await log.append(DEFINED, expect=0)
    assert await some(log, 1, JOB, after={}) == [DEFINED]


async def test_from_now_on_means_behind_what_is_stored(log: InMemoryEventLog) -> None:
    await log.append(DEFINED, expect=0)
    first = await log.append(admitted(), expect=0)
    after = await tail.newest(log)
    assert after == {Stream.LEDGER: 1, Stream.LOG: first}
    await log.append(started(), expect=first)
    assert await some(log, 1, after=after) == [started()]


async def test_trouble_of_either_stream_ends_the_following(log: InMemoryEventLog) -> None:
    class Troubled(InMemoryEventLog):
        @override
        async def follow(
            self, stream: Stream, *filters: str, after: int | None, decode: Decode = subjects.decode
        ) -> AsyncGenerator[Batch, None]:
            yield Batch((), caught_up=True, upto=0)
            raise LogUnavailable("gone")

    with pytest.raises(LogUnavailable, match="gone"):
        await some(Troubled(log.clock), 1, after={})


def show(*facts: Message, form: Format = "table") -> None:
    view = LiveView(Output(form))
    for seconds, fact in enumerate(facts):
        at = START.replace(second=seconds)
        view.show(Recorded(fact, "subject", seconds + 1, at))


def test_view_shows_outcome_and_duration_of_an_execution(capsys: pytest.CaptureFixture[str]) -> None:
    show(admitted(), started(), COMPLETED)
    first, second = capsys.readouterr().out.splitlines()
    assert "▶ triggered" in first
    assert "✓ completed" in second
    assert "in 2.0s" in second
    assert second.endswith(ID)


def test_missed_is_shown_and_paused_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    passed = Passed(job=JOB, start=START, until=START.replace(hour=3), count=2, reason="missed", definition=1)
    show(passed, passed.model_copy(update={"reason": "paused"}))
    (line,) = capsys.readouterr().out.splitlines()
    assert "passed" in line
    assert line.endswith("2 without firing: missed")


def test_failure_is_printed_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    error = {"type": "Boom", "message": "line one\nline two " + "x" * 500}
    show(validated(Failed, {**COMPLETED.document(exclude={"type"}), "step": "main", "error": error}))
    (line,) = capsys.readouterr().out.splitlines()
    assert "main: Boom: line one" in line


def test_the_view_is_json_lines_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    show(admitted(), form="json")
    assert '"sequence": 1' in capsys.readouterr().out


def test_what_passed_before_the_view_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    began = START.replace(hour=2)
    view = LiveView(Output(), began)
    passed = Passed(job=JOB, start=START, until=START.replace(hour=3), count=2, reason="missed", definition=1)
    view.show(Recorded(passed, "subject", 1, began))
    assert capsys.readouterr().out == ""
    view.show(Recorded(passed.model_copy(update={"start": began}), "subject", 2, began))
    assert "missed" in capsys.readouterr().out
