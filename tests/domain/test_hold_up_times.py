"""The seconds for which limits, rates and pauses held back tasks, as the board counts them."""

from dataclasses import dataclass

import pytest

from tests.domain.test_task_limits import offer, task
from tests.domain.test_task_rates import A, limited
from tocsin.domain.hold_up_time import Gate, added
from tocsin.domain.open_task import LimitGroup, OpenTask
from tocsin.domain.task_board import TaskBoard


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


class Board(TaskBoard):
    """A board whose clock stands still until a test moves it."""

    def __init__(self, **queue_limits: int) -> None:
        self.clock = Clock()
        super().__init__(queue_limits, clock=self.clock)

    def after(self, seconds: float) -> "Board":
        self.clock.now += seconds
        return self

    def take(self) -> list[OpenTask]:
        """Take every task that may start, and store its claim."""
        assigned = self.assign((offer(slots=100, queues=("default", "mail")),), limit=100)
        for each, agent in assigned:
            self.confirm(each, agent, sequence=1_000 + each.sequence)
        return [each for each, _ in assigned]

    def end(self, each: OpenTask) -> None:
        self.end_step(each.scope, each.step, sequence=2_000 + each.sequence)


def test_gate_counts_each_cause_while_it_is_closed() -> None:
    gate = Gate()
    before = gate.times(1.0)
    assert gate.times(5.0) is before
    gate.change("queue_rate", 5.0)
    gate.change("queue_paused", 7.0)
    gate.change(None, 10.0)
    gate.change("queue_rate", 11.0)
    assert gate.times(11.5) == {"queue_rate": 2.5, "queue_paused": 3.0}
    assert added({"queue_rate": 1.0}, {"queue_rate": 2.0}, gate.times(11.5)) == {"queue_rate": 1.5, "queue_paused": 3.0}


@pytest.mark.parametrize(("value", "cause"), [("c1", "key_limit"), (None, "job_limit")])
def test_task_counts_the_limit_of_its_job(value: str | None, cause: str) -> None:
    board = Board()
    tasks = [task(number, limit=1, value=value) for number in (1, 2, 3)]
    for each in tasks:
        if value is None:
            each.group = LimitGroup("nightly")
        board.dispatch(each)
    assert board.take() == tasks[:1]
    board.after(4).end(tasks[0])
    assert board.after(0.5).take() == tasks[1:2]
    board.after(2).end(tasks[1])
    assert board.take() == tasks[2:]
    assert [dict(each.held_up) for each in tasks] == [{}, {cause: 4.0}, {cause: 6.0}]


def test_time_before_a_task_is_not_its_own() -> None:
    board = Board()
    first, second = task(1, limit=1, value="x"), task(2, limit=1, value="x")
    board.dispatch(first)
    board.take()
    board.dispatch(task(3, limit=1, value="x"))
    board.after(5).dispatch(second)
    board.after(2).end(first)
    [third] = board.take()
    assert third.held_up == {"key_limit": 7.0}
    board.end(third)
    assert board.take() == [second]
    assert second.held_up == {"key_limit": 2.0}


def test_wait_for_a_slot_is_no_hold_up() -> None:
    board = Board()
    free, group = task(1), task(2, limit=5, value="x")
    board.dispatch(free)
    board.dispatch(group)
    board.after(9).take()
    assert (dict(free.held_up), dict(group.held_up)) == ({}, {})


def test_pause_counts_from_when_it_is_noted() -> None:
    board = Board()
    early, late = task(1, queue="mail"), task(2, queue="mail")
    board.dispatch(early)
    board.after(1).note_hold_ups({}, ["mail"])
    board.after(3).dispatch(late)
    board.after(2).note_hold_ups({}, [])
    board.after(4).take()
    assert (early.held_up, late.held_up) == ({"queue_paused": 5.0}, {"queue_paused": 2.0})


def test_causes_of_one_queue_are_counted_apart() -> None:
    board = Board(mail=1)
    running, waiting = task(1, queue="mail"), task(2, queue="mail")
    for each in (running, waiting):
        board.dispatch(each)
    board.note_hold_ups({"mail": 1}, [])
    assert board.take() == [running]
    for _ in range(2):
        board.note_hold_ups({"mail": 0}, [])
        board.after(1.5)
    board.end(running)
    board.note_hold_ups({"mail": 0}, [])
    board.after(0.25).note_hold_ups({"mail": 1}, [])
    board.after(7).take()
    assert waiting.held_up == {"queue_limit": 3.0, "queue_rate": 0.25}


def test_full_namespace_holds_up_its_queues_alone() -> None:
    board = Board()
    board.declare({"team": 1})
    running, waiting, other = task(1, queue="team.a"), task(2, queue="team.b"), task(3, queue="mail")
    board.dispatch(running)
    [(claimed, agent)] = board.assign((offer(queues=("team.a",)),), limit=1)
    board.confirm(claimed, agent, sequence=1_001)
    for each in (waiting, other):
        board.dispatch(each)
    board.note_hold_ups({}, [])
    board.after(2).end(running)
    board.note_hold_ups({}, [])
    board.after(1).assign((offer(slots=9, queues=("team.b", "mail")),), limit=9)
    assert (waiting.held_up, dict(other.held_up)) == ({"namespace_limit": 2.0}, {})


def test_rate_counts_until_a_token_comes() -> None:
    board = Board()
    each = limited(1, A)
    board.dispatch(each)
    board.let_start({A: 0})
    board.after(3).let_start({A: 1})
    board.after(1).take()
    assert each.held_up == {"start_rate": 3.0}


def test_unknown_rate_holds_up_nothing() -> None:
    """A standby reads no rates, and a leader reads that of a new group in its next turn."""
    board = Board()
    each = limited(1, A)
    board.dispatch(each)
    assert board.after(300).take() == []
    board.let_start({A: 1})
    assert board.take() == [each]
    assert dict(each.held_up) == {}


def test_rate_of_a_former_leader_holds_up_nothing() -> None:
    """Another matcher leads for five minutes, and takes or leaves the tokens."""
    board = Board()
    each = limited(1, A)
    board.dispatch(each)
    board.let_start({A: 0})
    board.after(3).forget_rates()
    assert board.after(300).waiting_rates(10) == [A]
    board.let_start({A: 1})
    assert board.take() == [each]
    assert each.held_up == {"start_rate": 3.0}


def test_forgotten_tokens_start_no_task() -> None:
    board = Board()
    board.dispatch(limited(1, A))
    board.let_start({A: 1})
    board.forget_rates()
    assert board.take() == []


def test_task_that_returns_counts_on() -> None:
    """A claim that was not stored, or an agent that gave the task back, forgets nothing."""
    board = Board()
    first, second = task(1, limit=1, value="x"), task(2, limit=1, value="x")
    board.dispatch(first)
    board.take()
    board.dispatch(second)
    board.after(1).refuse(second.scope, second.step, frozenset({"a1"}))
    board.after(1).end(first)
    [(reserved, _)] = board.assign((offer("b", slots=1),), limit=1)
    assert reserved.held_up == {"key_limit": 2.0}
    board.after(8).put_back(reserved)
    board.note_hold_ups({}, ["default"])
    board.after(3).note_hold_ups({}, [])
    board.assign((offer("b", slots=1),), limit=1)
    assert second.held_up == {"key_limit": 2.0, "queue_paused": 3.0}


def test_next_attempt_counts_from_zero() -> None:
    board = Board()
    first, second = task(1, limit=1, value="x"), task(2, limit=1, value="x")
    board.dispatch(first)
    board.take()
    board.dispatch(second)
    board.after(2).end(first)
    board.take()
    again = task(2, limit=1, value="x")
    again.attempt, again.sequence = 2, 5_000
    board.dispatch(again)
    assert board.take() == [again]
    assert dict(again.held_up) == {}


def test_queues_without_tasks_keep_no_times() -> None:
    board = Board()
    for number in range(1, 50):
        each = task(number, queue=f"queue-{number}")
        board.dispatch(each)
        board.note_hold_ups({}, [each.queue])
        board.end(each)
    board.note_hold_ups({}, [])
    assert board._open._queue_gates == {}
