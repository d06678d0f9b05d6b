"""The streams of what running attempts say."""

from typing import Final

import pytest

from tests.conformance.given import NOON
from tests.conformance.worlds import World
from tocsin import subjects
from tocsin.domain.events import HeartbeatDetails, OutputLine, OutputMessage, StepProgress
from tocsin.ports import Publish, RequestRefused
from tocsin.subjects import DecodeError

OF: Final = "key of a task"
LINES: Final = subjects.lines("a.job", "e1", "main", 1, of_token=OF)


def line(text: str, execution_id: str = "e1") -> OutputLine:
    return OutputLine(job="a.job", execution_id=execution_id, step="main", attempt=1, time=NOON, text=text)


def progress(fraction: float, step: str = "main") -> StepProgress:
    return StepProgress(job="a.job", execution_id="e1", step=step, attempt=1, time=NOON, fraction=fraction)


def heartbeat(details: int, attempt: int = 1) -> HeartbeatDetails:
    return HeartbeatDetails(job="a.job", execution_id="e1", step="main", attempt=attempt, time=NOON, details=details)


async def publish(world: World, *messages: OutputMessage) -> None:
    writes = [
        Publish(subjects.output_of(message, OF), message, f"m{id(message)}-{n}") for n, message in enumerate(messages)
    ]
    assert [written.error for written in await world.log.write(writes)] == [None] * len(writes)


async def test_lines_are_read_in_order(world: World) -> None:
    await publish(world, *(line(f"{n}") for n in range(5)), line("another's", "e2"))
    found = await world.log.read(LINES)
    assert [recorded.message for recorded in found] == [line(f"{n}") for n in range(5)]
    rest = await world.log.read(LINES, after=found[2].sequence)
    assert [recorded.message for recorded in rest] == [line("3"), line("4")]


async def test_attempt_keeps_its_last_200_lines(world: World) -> None:
    await publish(world, line("another's", "e2"), *(line(f"{n}") for n in range(203)))
    texts = [r.message.text for r in await world.log.read(LINES) if isinstance(r.message, OutputLine)]
    assert texts == [f"{n}" for n in range(3, 203)]
    assert len(await world.log.read(subjects.lines("a.job", "e2", "main", 1, of_token=OF))) == 1


async def test_newest_progress_of_each_step_is_kept(world: World) -> None:
    await publish(world, progress(0.1), progress(0.2, "load"), progress(0.3))
    found = await world.log.load("progress.a_job.e1.>")
    assert [recorded.message for recorded in found] == [progress(0.2, "load"), progress(0.3)]


async def test_newest_heartbeat_of_each_attempt_is_kept(world: World) -> None:
    await publish(world, heartbeat(1), heartbeat(2), heartbeat(3, attempt=2))
    first = await world.log.last(subjects.heartbeat("a.job", "e1", "main", 1, of_token=OF))
    second = await world.log.last(subjects.heartbeat("a.job", "e1", "main", 2, of_token=OF))
    assert first is not None
    assert second is not None
    assert (first.message, second.message) == (heartbeat(2), heartbeat(3, attempt=2))
    assert await world.log.last(subjects.heartbeat("a.job", "e1", "main", 3, of_token=OF)) is None


@pytest.mark.parametrize("size", [1_310, 20_480])
async def test_stream_of_output_refuses_a_large_message(world: World, size: int) -> None:
    message = line("x" * size) if size < 20_000 else progress(0.5).changed(message="x" * size)
    with pytest.raises(RequestRefused, match="size"):
        await world.log.publish(subjects.output_of(message, OF), message, message_id="large")


async def test_unknown_output_does_not_decode(world: World) -> None:
    await world.receive(LINES, b'{"text": 1}')
    with pytest.raises(DecodeError) as unreadable:
        await world.log.read(LINES)
    assert unreadable.value.sequence == 1
