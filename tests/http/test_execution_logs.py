"""`GET /v1/executions/{id}/logs`, and the progress of a running step."""

from collections.abc import Sequence

import pytest

from tests.domain.given import ID, JOB, admitted, first_tasks, output_subject, plan, started, token_of
from tests.http.conftest import World
from tocsin import subjects
from tocsin.domain.events import Completed, Message, OutputLine, Recorded, StepProgress
from tocsin.services.operations import execution_output
from tocsin.services.operations.execution_output import MAX_LINES, MAX_READS
from tocsin.testing import START, InMemoryEventLog

PATH = f"/v1/executions/{ID}/logs"


def line(number: int) -> OutputLine:
    return OutputLine(job=JOB, execution_id=ID, step="main", attempt=1, time=START, text=f"line {number}")


LINES = output_subject(line(1))
PROGRESS = StepProgress(job=JOB, execution_id=ID, step="main", attempt=1, time=START, fraction=0.4, message="loading")


@pytest.fixture
async def at_work(world: World) -> World:
    sequence, begun = 0, admitted()
    for event in (begun, *first_tasks(begun), started()):
        sequence = await world.log.append(event, expect=sequence)
    for number in range(5):
        await world.log.publish(LINES, line(number), message_id=f"{number}")
    await world.log.publish(output_subject(PROGRESS), PROGRESS, message_id="progress")
    return world


async def test_logs_are_read_in_pages(at_work: World) -> None:
    first = (await at_work.ask("GET", f"{PATH}?limit=2")).json()
    rest = (await at_work.ask("GET", f"{PATH}?after={first['next']}")).json()
    none = (await at_work.ask("GET", f"{PATH}?after={rest['next']}")).json()
    assert [entry["text"] for entry in first["lines"]] == ["line 0", "line 1"]
    assert [entry["text"] for entry in rest["lines"]] == ["line 2", "line 3", "line 4"]
    assert (none["lines"], none["next"], none["is_over"]) == ([], rest["next"], False)
    assert (first["job_name"], first["progress"]["main"]["message"]) == (JOB, "loading")
    assert set(first["lines"][0]) == {"sequence", "time", "step", "attempt", "level", "text"}


async def test_logs_say_that_the_execution_is_over(at_work: World) -> None:
    newest = await at_work.log.tail(subjects.execution(JOB, ID))
    ended = Completed(job=JOB, execution_id=ID, scheduled_time=START, trigger="cron")
    await at_work.log.append(ended, expect=newest)
    assert (await at_work.ask("GET", PATH)).json()["is_over"] is True


async def test_execution_shows_the_progress_of_its_steps(at_work: World) -> None:
    [step] = (await at_work.ask("GET", f"/v1/executions/{ID}")).json()["steps"].values()
    assert (step["progress"]["fraction"], step["progress"]["message"]) == (0.4, "loading")


async def test_unreadable_lines_are_left_out(at_work: World) -> None:
    for body in (b"{}", b"\xff", b'{"text": 1}'):
        at_work.log.receive(LINES, body)
    await at_work.log.publish(LINES, line(9), message_id="9")
    lines = (await at_work.ask("GET", PATH)).json()["lines"]
    assert [entry["text"] for entry in lines][-2:] == ["line 4", "line 9"]


async def test_output_without_the_seal_is_not_shown(at_work: World) -> None:
    forged = line(66), PROGRESS.changed(fraction=0.9)
    for message in forged:
        for subject in (subjects.output_of(message, "guessed"), output_subject(message).rpartition(".")[0]):
            at_work.log.receive(subject, message.encode())
    answer = (await at_work.ask("GET", PATH)).json()
    assert [entry["text"] for entry in answer["lines"]] == [f"line {number}" for number in range(5)]
    assert answer["progress"]["main"]["fraction"] == 0.4


async def test_lines_of_attempts_are_shown_in_their_order(at_work: World) -> None:
    """Both attempts together show as many lines as one."""
    second = line(0).changed(attempt=2)
    task = first_tasks(admitted())[0].changed(attempt=2, token=token_of(second))
    await at_work.log.append(task, expect=await at_work.log.tail(subjects.execution(JOB, ID)))
    for number in range(MAX_LINES - 2):
        message = (second if number % 2 else line(0)).changed(text=f"{number}")
        await at_work.log.publish(output_subject(message), message, message_id=f"more-{number}")
    page = (await at_work.ask("GET", PATH)).json()
    texts = [entry["text"] for entry in page["lines"]]
    assert texts == ["line 3", "line 4", *(f"{number}" for number in range(MAX_LINES - 2))]
    assert {entry["attempt"] for entry in page["lines"]} == {1, 2}
    assert (await at_work.ask("GET", f"{PATH}?after={page['next']}")).json()["lines"] == []


@pytest.fixture
async def wide(world: World) -> World:
    """An execution of many steps, each with two lines, and lines without a seal between them."""
    [step] = plan().steps
    steps = tuple(step.changed(name=f"s{number}") for number in range(STEPS))
    begun = admitted(plan().changed(steps=steps))
    sequence = 0
    for event in (begun, *first_tasks(begun)):
        sequence = await world.log.append(event, expect=sequence)
    for number in range(2 * STEPS):
        name = f"s{number % STEPS}"
        message = line(number).changed(step=name)
        await world.log.publish(output_subject(message), message, message_id=f"{number}")
        world.log.receive(subjects.output_of(message, "guessed"), message.encode())
    return world


STEPS = MAX_LINES + 50


async def test_lines_of_many_steps_are_a_few_reads(wide: World, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    read = InMemoryEventLog.read

    async def counted(
        log: InMemoryEventLog, subject: str, *, after: int = 0, limit: int = 1_000
    ) -> Sequence[Recorded[Message]]:
        reads.append(subject)
        return await read(log, subject, after=after, limit=limit)

    monkeypatch.setattr(InMemoryEventLog, "read", counted)
    answer = (await wide.ask("GET", PATH)).json()
    expected = [f"line {number}" for number in range(2 * STEPS)][-MAX_LINES:]
    assert [entry["text"] for entry in answer["lines"]] == expected
    assert len([subject for subject in reads if subject.startswith("output.")]) <= MAX_READS
    rest = (await wide.ask("GET", f"{PATH}?after={answer['lines'][-3]['sequence']}")).json()
    assert [entry["text"] for entry in rest["lines"]] == expected[-2:]


@pytest.mark.parametrize("unreadable", [True, False])
async def test_flood_without_a_seal_hides_no_line(
    wide: World, monkeypatch: pytest.MonkeyPatch, *, unreadable: bool
) -> None:
    """The lines of each attempt are then read by themselves."""
    monkeypatch.setattr(execution_output, "PAGE", 10)
    body = b"\xff" if unreadable else line(66).encode()
    for _ in range(MAX_READS):
        wide.log.receive(subjects.output_of(line(66), "guessed"), body)
    answer = (await wide.ask("GET", PATH)).json()
    assert [entry["text"] for entry in answer["lines"]] == [f"line {number}" for number in range(2 * STEPS)][
        -MAX_LINES:
    ]


@pytest.mark.parametrize(("fraction", "shown"), [("1e300", 1.0), ("-3", 0.0), ("NaN", None), ("1e999", None)])
async def test_hostile_progress_is_bounded(at_work: World, fraction: str, shown: float | None) -> None:
    body = (
        f'{{"job":"j","execution_id":"x","step":"y","attempt":1,"time":"2026-01-01T00:00:00Z","fraction":{fraction}}}'
    )
    at_work.log.receive(output_subject(PROGRESS), body.encode())
    answer = await at_work.ask("GET", PATH)
    progress = answer.json()["progress"].get("main")
    assert (answer.status_code, progress and progress["fraction"]) == (200, shown)


@pytest.mark.parametrize("query", ["limit=0", "limit=201", "after=-1", f"after={2**63}", "after=x"])
async def test_place_and_limit_are_checked(at_work: World, query: str) -> None:
    assert (await at_work.ask("GET", f"{PATH}?{query}")).status_code == 422


async def test_logs_of_an_unknown_execution_are_missing(world: World) -> None:
    assert (await world.ask("GET", PATH)).status_code == 404
