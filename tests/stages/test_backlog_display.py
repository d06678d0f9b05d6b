"""The entries of queues that the matcher shows."""

import pytest

from tests.domain.test_task_board import claimed, task
from tocsin.domain.task_board import TaskBoard
from tocsin.stages.matcher.backlog_display import INTERVAL_S, BacklogDisplay
from tocsin.subjects import Bucket
from tocsin.testing import InMemoryProjections, ManualClock


async def shown(board: TaskBoard, *, queues: tuple[str, ...] = ()) -> set[str]:
    """Return the queues with an entry after a task of the queue `default` waited, and `board` was shown next."""
    clock = ManualClock()
    projections = InMemoryProjections(clock)
    display = BacklogDisplay(projections, clock, queues, {})
    before = TaskBoard()
    before.dispatch(task(1))
    await display.show(before, {})
    assert set(await projections.entries(Bucket.QUEUES)) == {"default"}
    clock.advance(INTERVAL_S)
    await display.show(board, {})
    return set(await projections.entries(Bucket.QUEUES))


@pytest.mark.parametrize("queues", [(), ("default",)])
async def test_empty_queue_is_shown_if_configured(queues: tuple[str, ...]) -> None:
    assert await shown(TaskBoard(), queues=queues) == set(queues)


async def test_queue_with_a_waiting_task_is_shown() -> None:
    board = TaskBoard()
    board.dispatch(task(2))
    assert await shown(board) == {"default"}


async def test_queue_with_a_running_task_is_shown() -> None:
    board = TaskBoard()
    board.dispatch(task(2))
    claimed(board)
    assert await shown(board) == {"default"}
