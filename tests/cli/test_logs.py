"""`tocsin executions logs`, and what `executions show` says of a running step."""

import pytest

from tests.cli.conftest import World
from tests.domain.given import ID, JOB, admitted, first_tasks, output_subject, plan
from tocsin import subjects
from tocsin.cli.executions import commands
from tocsin.domain.events import Completed, OutputLine, OutputMessage, Started, StepProgress
from tocsin.testing import START


def line(number: int, text: str = "loading") -> OutputLine:
    return OutputLine(job=JOB, execution_id=ID, step="load", attempt=1, time=START, text=f"{text} {number}")


def say(world: World, *messages: OutputMessage) -> None:
    async def publish() -> None:
        for number, message in enumerate(messages):
            name = f"{number}-{message.encode()!r}"
            await world.log.publish(output_subject(message), message, message_id=name)

    world.do(publish())


@pytest.fixture
def at_work(world: World) -> World:
    begun = admitted(plan({"load": ()}))
    world.append(
        begun,
        *first_tasks(begun),
        Started(job=JOB, execution_id=ID, step="load", attempt=1, delivery=1, worker="w-1"),
    )
    return world


def test_show_has_progress_and_last_lines(at_work: World) -> None:
    progress = StepProgress(
        job=JOB, execution_id=ID, step="load", attempt=1, time=START, fraction=0.4, message="row 3\x1b[2J"
    )
    say(at_work, progress, *(line(n) for n in range(12)))

    page = at_work.call("executions", "show", ID).out
    shown = at_work.call("executions", "show", ID, "-o", "json").json

    assert "load progress 40% row 3\\x1b[2J" in page
    assert "2 more lines: tocsin executions logs" in page
    assert "loading 11" in page
    assert "loading 1\n" not in page
    assert shown["steps"]["load"]["progress"]["fraction"] == 0.4
    assert shown["steps"]["load"]["worker"] == "w-1"
    assert [logged["text"] for logged in shown["lines"]] == [f"loading {n}" for n in range(12)]


def test_completed_step_shows_no_progress(at_work: World) -> None:
    say(at_work, StepProgress(job=JOB, execution_id=ID, step="load", attempt=1, time=START, fraction=0.4))
    assert "load progress 40%" in at_work.call("executions", "show", ID).out
    newest = at_work.do(at_work.log.tail(subjects.execution(JOB, ID)))
    at_work.append(Completed(job=JOB, execution_id=ID, scheduled_time=START, trigger="cron"), expect=newest)
    assert "progress" not in at_work.call("executions", "show", ID).out
    assert at_work.call("executions", "show", ID, "-o", "json").json["steps"]["load"]["progress"]["fraction"] == 0.4


def test_lines_reach_no_terminal_raw(at_work: World) -> None:
    body = (
        b'{"job":"nightly","execution_id":"x","step":"\\u001b]0;","attempt":1,"time":"2026-01-01T00:00:00Z",'
        b'"text":"\\u001b[31m\\u202ered [bold]\\u0007"}'
    )
    at_work.log.receive(output_subject(line(1)), b'{"text": "no line"}')
    at_work.log.receive(output_subject(line(1)), body)
    out = at_work.call("executions", "logs", ID).out
    assert "\\x1b[31m\\u202ered [bold]\\x07" in out
    assert "\x1b" not in out


def test_logs_are_one_json_document_a_line(at_work: World) -> None:
    say(at_work, line(1), line(2))
    lines = at_work.call("executions", "logs", ID, "-o", "json").out.splitlines()
    assert [('"text":' in document, '"sequence":' in document) for document in lines] == [(True, True)] * 2


def test_logs_are_followed_until_the_execution_ends(at_work: World, monkeypatch: pytest.MonkeyPatch) -> None:
    say(at_work, line(1))
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        match len(waits):
            case 1:
                await at_work.log.publish(output_subject(line(1)), line(2), message_id="2")
            case 2:
                newest = await at_work.log.tail(subjects.execution(JOB, ID))
                ended = Completed(job=JOB, execution_id=ID, scheduled_time=START, trigger="cron")
                await at_work.log.append(ended, expect=newest)
            case 3:
                await at_work.log.publish(output_subject(line(1)), line(3), message_id="3")
            case _:
                assert len(waits) < 10

    monkeypatch.setattr(commands, "sleep", sleep)
    out = at_work.call("executions", "logs", ID, "-f").out
    assert [f"loading {n}" in out for n in (1, 2, 3)] == [True] * 3
    assert out.count("loading") == 3


def test_logs_of_an_unknown_execution_are_not_found(world: World) -> None:
    assert world.call("executions", "logs", ID, "-o", "json").failure == (3, "not-found")
