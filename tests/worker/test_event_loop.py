"""The end of an event loop whose tasks ignore their cancellation."""

import asyncio

import pytest

from tocsin.worker import Worker, event_loop
from tocsin.worker.event_loop import ending_loop


async def stubborn() -> None:
    while True:
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            continue


@pytest.mark.timeout(60)
def test_stubborn_task_gets_no_further_turn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(event_loop, "END_S", 0.05)
    ended: list[str] = []

    async def orderly() -> None:
        try:
            await asyncio.sleep(3_600)
        finally:
            await asyncio.sleep(0)
            ended.append("orderly")

    async def work() -> list["asyncio.Task[None]"]:
        tasks = [asyncio.create_task(each()) for each in (stubborn, orderly)]
        await asyncio.sleep(0.02)
        return tasks

    with ending_loop() as runner:
        tasks = runner.run(work())
    assert [task.done() for task in tasks] == [False, True]
    assert ended == ["orderly"]
    assert "tasks-stubborn" in capsys.readouterr().out


def test_loop_without_stubborn_tasks_is_closed() -> None:
    with ending_loop() as runner:
        loop = runner.get_loop()
        runner.run(asyncio.sleep(0))
    assert loop.is_closed()


@pytest.mark.timeout(60)
def test_task_of_a_cleanup_ends_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(event_loop, "END_S", 0.05)
    started: list[asyncio.Task[None]] = []

    async def starts_another() -> None:
        try:
            await asyncio.sleep(3_600)
        finally:
            started.append(asyncio.create_task(stubborn()))

    async def work() -> "asyncio.Task[None]":
        task = asyncio.create_task(starts_another())
        await asyncio.sleep(0.02)
        return task

    with ending_loop() as runner:
        task = runner.run(work())
    assert [task.done(), started[0].done()] == [True, False]
    assert "tasks-stubborn" in capsys.readouterr().out


@pytest.mark.filterwarnings("error")
async def test_running_loop_is_refused_at_once() -> None:
    with pytest.raises(RuntimeError, match=r"`running\(\)`") as refused:
        Worker().run()
    assert refused.value.__context__ is None
