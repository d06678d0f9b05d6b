"""The tasks that wait for agents, and the claims of agents."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.domain.events import Dispatched
from tocsin.domain.open_task import OpenTask
from tocsin.domain.task_board import NO_AGENT, AgentClaim, TaskBoard
from tocsin.domain.task_offers import Offer

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def task(
    sequence: int,
    *,
    job: str = "nightly",
    execution: str = "",
    step: str = "main",
    attempt: int = 1,
    queue: str = "default",
    function: str = "load",
    input: dict[str, Any] | None = None,  # noqa: A002 - the field is called so
) -> OpenTask:
    scope = f"execution.{job}.{execution or sequence}.>"
    subject = f"execution.{job}.{execution or sequence}.dispatched.{step}.{attempt}"
    message = Dispatched(
        job=job,
        execution_id=execution or str(sequence),
        step=step,
        attempt=attempt,
        max_attempts=1,
        function=function,
        queue=queue,
        timeout=60.0,
        scheduled_time=NOON,
        trigger="cron",
        token="t",
        input=input or {},
    )
    return OpenTask(scope, step, attempt, sequence, subject, job, queue, function, NOON, message)


def offer(agent_id: str = "a", *functions: str, slots: int = 1, queues: tuple[str, ...] = ("default",)) -> Offer:
    return Offer(agent_id, queues, functions or ("load",), slots)


def chosen(board: TaskBoard, *offers: Offer, limit: int = 100) -> list[tuple[int, str]]:
    return [(each.sequence, agent_id) for each, agent_id in board.assign(offers, limit=limit)]


def claimed(board: TaskBoard, agent_id: str = "a", *, slots: int = 1) -> AgentClaim:
    """Assign one task and store its claim."""
    ((each, to),) = board.assign([offer(agent_id, slots=slots)], limit=1)
    return board.confirm(each, to, sequence=each.sequence + 1)


def started(board: TaskBoard, of: OpenTask, agent_id: str | None, sequence: int) -> None:
    board.claim(of.scope, of.step, of.attempt, delivery=1, sequence=sequence, agent=agent_id)


def test_agent_needs_the_function_and_the_queue() -> None:
    board = TaskBoard()
    board.dispatch(task(1, function="mail"))
    assert chosen(board, offer("a", "load"), offer("b", "mail", queues=("other",))) == []
    assert chosen(board, offer("a", "load"), offer("c", "load", "mail")) == [(1, "c")]


def test_agent_gets_one_task_a_slot() -> None:
    board = TaskBoard()
    for sequence in range(1, 6):
        board.dispatch(task(sequence))
    assert chosen(board, offer("a", slots=2)) == [(1, "a"), (2, "a")]
    assert len(board) == 3


def test_agent_with_the_most_free_slots_is_preferred() -> None:
    board = TaskBoard()
    for sequence in range(1, 5):
        board.dispatch(task(sequence))
    agents = [agent_id for _, agent_id in chosen(board, offer("a", slots=1), offer("b", slots=3))]
    assert sorted(agents) == ["a", "b", "b", "b"]
    assert agents[0] == "b"


def test_wave_is_limited() -> None:
    board = TaskBoard()
    for sequence in range(1, 5):
        board.dispatch(task(sequence))
    assert chosen(board, offer("a", slots=9), limit=2) == [(1, "a"), (2, "a")]


def test_jobs_take_turns_in_a_wave() -> None:
    board = TaskBoard()
    for sequence in range(1, 5):
        board.dispatch(task(sequence, job="many"))
    board.dispatch(task(5, job="few"))
    board.dispatch(task(6, job="few", function="mail"))
    order = [sequence for sequence, _ in chosen(board, offer("a", "load", "mail", slots=9))]
    assert [sequence for sequence in order if sequence < 5] == [1, 2, 3, 4]
    assert set(order[:4]) >= {1, 5, 6}


def test_jobs_take_turns_over_waves_too() -> None:
    board = TaskBoard()
    for sequence in range(1, 4):
        board.dispatch(task(sequence, job="many"))
    board.dispatch(task(4, job="few"))
    waves = [chosen(board, offer("a"), limit=1) for _ in range(4)]
    assert [sequence for ((sequence, _),) in waves] == [1, 4, 2, 3]


def test_absent_function_holds_back_no_other() -> None:
    board = TaskBoard()
    for sequence in range(1, 100):
        board.dispatch(task(sequence, function="absent"))
    board.dispatch(task(100))
    assert chosen(board, offer("a", slots=5)) == [(100, "a")]
    assert board.waiting == {("default", "absent"): 99}


def test_steps_of_one_execution_are_assigned_together() -> None:
    board = TaskBoard()
    board.dispatch(task(1, execution="x", step="one"))
    board.dispatch(task(2, execution="x", step="two"))
    assert chosen(board, offer("a", slots=5)) == [(1, "a"), (2, "a")]
    assert board.newest("execution.nightly.x.>") == 2


def test_refused_task_goes_to_another_agent() -> None:
    board = TaskBoard()
    of = task(1)
    board.dispatch(of)
    board.dispatch(task(2))
    board.refuse(of.scope, of.step, frozenset({"a"}))
    assert chosen(board, offer("a", slots=5)) == [(2, "a")]
    assert chosen(board, offer("a", slots=5), offer("b")) == [(1, "b")]


def test_reserved_task_is_assigned_once() -> None:
    board = TaskBoard()
    board.dispatch(task(1))
    assert chosen(board, offer("a")) == [(1, "a")]
    assert chosen(board, offer("b")) == []


def test_task_that_is_put_back_comes_first() -> None:
    board = TaskBoard()
    board.dispatch(task(1))
    board.dispatch(task(2))
    ((first, _),) = board.assign([offer("a")], limit=1)
    board.put_back(first)
    assert chosen(board, offer("a"), limit=1) == [(1, "a")]


def test_task_of_an_ended_execution_stays_removed() -> None:
    board = TaskBoard()
    of = task(1)
    board.dispatch(of)
    board.assign([offer("a")], limit=1)
    board.end_execution(of.scope)
    assert not board.is_reserved(of)
    board.put_back(of)
    assert len(board) == 0


def test_claim_uses_a_slot_until_its_end() -> None:
    board = TaskBoard()
    board.dispatch(task(1))
    claim = claimed(board)
    assert board.used_slots("a") == 1
    for _ in range(2):
        board.end_step(claim.task.scope, "main", sequence=claim.sequence + 1)
        assert (board.used_slots("a"), board.agents, [*board]) == (0, (), [])


@pytest.mark.parametrize(
    ("steps", "is_completed", "noticed"), [(1, False, 1), (1, True, 0), (2, False, 2), (2, True, 2)]
)
def test_sole_step_that_completed_needs_no_notice(steps: int, *, is_completed: bool, noticed: int) -> None:
    board = TaskBoard()
    tasks = [task(number, execution="e", step=f"s{number}") for number in range(1, steps + 1)]
    for each in tasks:
        board.dispatch(each)
        started(board, each, "a", each.sequence + 10)
    board.end_execution(tasks[0].scope, is_completed=is_completed)
    assert (len(board.take_ended()), board.agents) == (noticed, ())


def test_own_claim_may_be_followed_before_its_answer() -> None:
    board = TaskBoard()
    of = task(1)
    board.dispatch(of)
    board.assign([offer("a")], limit=1)
    started(board, of, "a", 2)
    claim = board.confirm(of, "a", sequence=2)
    assert board.claims_of("a") == (claim,)


def test_claim_of_another_matcher_takes_the_task_away() -> None:
    board = TaskBoard()
    of = task(1)
    board.dispatch(of)
    started(board, of, "b", 2)
    assert chosen(board, offer("a")) == []
    assert [claim.agent for claim in board.claims_of("b")] == ["b"]


def test_claim_without_an_agent_lasts_until_its_end() -> None:
    board = TaskBoard()
    of = task(1)
    board.dispatch(of)
    started(board, of, None, 2)
    assert (len(board), board.agents, [task.scope for task in board]) == (0, (), [of.scope])
    board.end_step(of.scope, of.step, sequence=3)
    assert ([*board], board.claims_of(NO_AGENT)) == ([], ())


def test_event_about_an_older_task_changes_nothing() -> None:
    board = TaskBoard()
    of = task(5)
    board.dispatch(of)
    board.end_step(of.scope, of.step, sequence=4)
    started(board, of, "a", 4)
    board.dispatch(task(3, execution="5"))
    assert chosen(board, offer("a")) == [(5, "a")]


def test_released_task_has_another_delivery_number() -> None:
    board = TaskBoard()
    board.dispatch(task(1))
    claim = claimed(board)
    board.release(claim.task.scope, "main", 1, delivery=1, sequence=3)
    assert (board.used_slots("a"), board.agents) == (0, ())
    board.dispatch(task(4, execution="1"))
    assert claimed(board).delivery == 2
    board.end_step(claim.task.scope, "main", sequence=6)
    board.dispatch(task(7, execution="1", attempt=2))
    assert claimed(board).delivery == 1


class Moves:
    """Moves on a board, each a small step of what the matcher does."""

    def __init__(self) -> None:
        self.board = TaskBoard()
        self._sequence = 0

    def make(self, execution: int, step: int, move: str) -> None:
        """Make a move about a step."""
        self._sequence += 10
        of = task(self._sequence, execution=str(execution), step=str(step), job=str(execution % 2))
        match move:
            case "dispatched":
                self.board.dispatch(of)
            case "started":
                started(self.board, of, "a", self._sequence)
            case "released":
                self.board.release(of.scope, of.step, 1, delivery=1, sequence=self._sequence)
            case "answered":
                self.board.end_step(of.scope, of.step, sequence=self._sequence)
            case "over":
                self.board.end_execution(of.scope)
            case "assigned":
                self.assign(free=2 - self.board.used_slots("a"))
            case _:
                for each, _ in self.board.assign([offer("b", slots=3)], limit=3):
                    self.board.put_back(each)

    def assign(self, *, free: int) -> None:
        """Assign and claim one task."""
        for each, agent_id in self.board.assign([offer("a", slots=free)], limit=1):
            assert free > 0
            self._sequence += 1
            self.board.confirm(each, agent_id, sequence=self._sequence)


MOVES = ("dispatched", "started", "released", "answered", "over", "assigned", "put-back")


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.sampled_from(MOVES)), max_size=60))
def test_board_is_consistent_after_any_moves(given_moves: list[tuple[int, int, str]]) -> None:
    moves = Moves()
    board = moves.board
    for execution, step, move in given_moves:
        moves.make(execution, step, move)
        claims = board.claims_of("a")
        assert board.used_slots("a") == len(claims)
        assert sum(board.waiting.values()) == len(board)
        keys = [each.key for each in board]
        assert len(keys) == len(set(keys)) == len(board) + len(claims)
    for each in [*board]:
        board.end_execution(each.scope)
    assert [*board] == []
    assert (board.waiting, board.agents, [*board], board.used_slots("a")) == ({}, (), [], 0)
