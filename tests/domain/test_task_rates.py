"""Tasks whose starts a rate limits, on the board."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.domain.test_task_limits import task
from tocsin.domain.open_task import OpenTask, RateGroup
from tocsin.domain.task_board import NO_AGENT, TaskBoard
from tocsin.domain.token_bucket import TokenBucket

A = RateGroup("a", TokenBucket(1, 1.0, 1))
B = RateGroup("b", TokenBucket(1, 1.0, 1))


def limited(sequence: int, rate: RateGroup | None, *, job: str = "nightly", priority: int = 0) -> OpenTask:
    return replace(task(sequence, job=job, priority=priority), rate=rate)


def board_of(*tasks: OpenTask) -> TaskBoard:
    board = TaskBoard()
    for open_task in tasks:
        board.dispatch(open_task)
    return board


def chosen(board: TaskBoard, limit: int = 10) -> list[int]:
    return [open_task.sequence for open_task in board.choose(["default"], lambda _: True, limit=limit)]


def test_no_task_starts_before_its_tokens_are_known() -> None:
    board = board_of(limited(1, A), limited(2, None), limited(3, B))
    assert chosen(board) == [2]
    assert board.waiting_rates(10) == [A, B]


def test_tasks_start_up_to_the_tokens() -> None:
    board = board_of(*(limited(number, A, job=f"job-{number % 2}") for number in range(1, 6)))
    board.let_start({A: 3, B: 1})
    assert len(chosen(board, limit=2)) == 2
    assert len(chosen(board)) == 1
    assert board.waiting_rates(10) == [A]
    board.let_start({A: 1})
    assert len(chosen(board)) == 1


def test_limited_task_holds_back_no_other() -> None:
    board = board_of(limited(1, A, priority=9), limited(2, A, priority=9), limited(3, None))
    board.let_start({A: 1})
    assert chosen(board) == [1, 3]


def test_task_put_back_waits_for_a_token() -> None:
    board = board_of(limited(1, A))
    board.let_start({A: 1})
    [reserved] = board.choose(["default"], lambda _: True, limit=1)
    board.put_back(reserved)
    assert chosen(board) == []
    board.let_start({A: 1})
    assert chosen(board) == [1]


def test_group_without_tasks_is_forgotten() -> None:
    board = board_of(limited(1, A), limited(2, B))
    board.end_execution("execution.nightly.1.>")
    assert board.waiting_rates(10) == [B]


def test_waiting_groups_are_returned_in_turns() -> None:
    groups = [RateGroup(str(number), A.bucket) for number in range(5)]
    board = board_of(*(limited(number, group) for number, group in enumerate(groups, 1)))
    returned = [group for _ in range(5) for group in board.waiting_rates(2)]
    assert returned == [*groups, *groups]


@given(
    st.lists(st.tuples(st.sampled_from([A, B, None]), st.sampled_from(["x", "y"]), st.integers(-1, 1)), max_size=12),
    st.integers(0, 4),
    st.integers(0, 4),
)
def test_exactly_the_tokens_are_used(tasks: list[tuple[RateGroup | None, str, int]], of_a: int, of_b: int) -> None:
    board = board_of(
        *(limited(number, rate, job=job, priority=priority) for number, (rate, job, priority) in enumerate(tasks, 1))
    )
    board.let_start({A: of_a, B: of_b})
    rates = [open_task.rate for open_task in board.choose(["default"], lambda _: True, limit=100)]
    for rate, tokens in ((A, of_a), (B, of_b)):
        assert rates.count(rate) == min(tokens, sum(given_rate == rate for given_rate, _, _ in tasks))
    assert rates.count(None) == sum(given_rate is None for given_rate, _, _ in tasks)
    assert board.used_slots(NO_AGENT) == 0
