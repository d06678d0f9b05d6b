"""Priorities, turns and concurrency limits of the tasks that wait for agents."""

import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.domain.open_task import LimitGroup, OpenTask
from tocsin.domain.task_board import AgentClaim, TaskBoard
from tocsin.domain.task_lines import RankedItems
from tocsin.domain.task_offers import FreeSlots, Offer
from tocsin.domain.token_bucket import TokenBucket

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def task(
    sequence: int,
    *,
    job: str = "nightly",
    queue: str = "default",
    function: str = "load",
    priority: int = 0,
    limit: int = 0,
    value: str | None = None,
) -> OpenTask:
    scope = f"execution.{job}.{sequence}.>"
    subject = f"execution.{job}.{sequence}.dispatched.main.1"
    group = LimitGroup(job, "input.customer", value) if limit else None
    return OpenTask(
        scope,
        "main",
        1,
        sequence,
        subject,
        job,
        queue,
        function,
        NOON,
        None,
        priority=priority,
        group=group,
        limit=limit,
    )


def board_of(*tasks: OpenTask) -> TaskBoard:
    board = TaskBoard()
    for each in tasks:
        board.dispatch(each)
    return board


def chosen(board: TaskBoard, *offers: Offer, limit: int = 100, **room: int) -> list[int]:
    return [each.sequence for each, _ in board.assign(offers or (offer(slots=100),), limit=limit, room=room)]


def offer(agent_id: str = "a", *functions: str, slots: int = 1, queues: tuple[str, ...] = ("default",)) -> Offer:
    return Offer(agent_id, queues, functions or ("load",), slots)


def claimed(board: TaskBoard) -> list[AgentClaim]:
    """Assign what may run, and store the claims."""
    assignments = board.assign((offer(slots=100),), limit=100)
    return [board.confirm(each, to, sequence=1_000 + each.sequence) for each, to in assignments]


def test_higher_priority_goes_first() -> None:
    board = board_of(task(1), task(2, priority=-1), task(3, priority=100), task(4, job="other", priority=5))
    assert chosen(board) == [3, 4, 1, 2]


def test_priorities_of_one_queue_do_not_delay_another() -> None:
    board = board_of(*(task(n, priority=9) for n in range(1, 4)), task(9, queue="mail", job="letter"))
    assert chosen(board, offer(slots=2, queues=("default", "mail"))) == [1, 9]


def test_high_priority_without_an_agent_holds_back_nothing() -> None:
    assert chosen(board_of(task(1, priority=9, function="absent"), task(2))) == [2]


def test_job_that_comes_waits_a_round() -> None:
    board = board_of(*(task(n, job="many") for n in range(1, 5)))
    waves = [chosen(board, offer(), limit=1)]
    for number in range(10, 13):
        board.dispatch(task(number, job=f"short{number}"))
        waves += [chosen(board, offer(), limit=1), chosen(board, offer(), limit=1)]
    assert waves == [[1], [2], [10], [3], [11], [4], [12]]


def test_queue_that_comes_waits_a_round() -> None:
    queues = "default", "mail", "x"
    board = board_of(*(task(n, queue=queue) for n, queue in enumerate(queues[:2] * 3, 1)))
    waves = [chosen(board, offer(queues=queues), limit=1)]
    for number in range(10, 12):
        board.dispatch(task(number, queue="x"))
        waves += [chosen(board, offer(queues=queues), limit=1) for _ in range(3)]
    assert waves == [[1], [2], [3], [10], [4], [5], [11]]


def test_queues_without_tasks_are_forgotten() -> None:
    board = TaskBoard()

    def use(number: int) -> None:
        queue = f"invented-{number}"
        for sequence in (2 * number, 2 * number + 1):
            board.dispatch(task(sequence, queue=queue, job=queue, limit=9, value=queue))
        ((each, _),) = board.assign([offer(queues=(queue,))], limit=1)
        claim = board.confirm(each, "a", sequence=1_000_000 + number)
        board.end_step(each.scope, each.step, sequence=claim.sequence + 1)
        board.end_execution(each.scope)
        board.end_execution(task(2 * number + 1, job=queue).scope)
        board.take_over()

    use(1)
    before = attributes_of(board)
    for number in range(2, 50):
        use(number)
    assert attributes_of(board) == before


def attributes_of(board: TaskBoard) -> dict[str, int]:
    """Return the number of entries in each collection of a board and its lanes."""
    parts = {**vars(board), **vars(board._open)}
    return {name: len(part) for name, part in parts.items() if hasattr(part, "__len__")}


def test_limit_of_a_job() -> None:
    board = board_of(*(task(n, limit=2) for n in range(1, 6)), task(9, job="other"))
    first, second, other = claimed(board)
    assert {first.task.sequence, second.task.sequence, other.task.sequence} == {1, 2, 9}
    assert chosen(board) == []
    board.end_step(first.task.scope, "main", sequence=first.sequence + 1)
    assert chosen(board) == [3]


def test_limit_of_each_value() -> None:
    board = board_of(*(task(n, limit=1, value=value) for n, value in enumerate("aabbc", 1)))
    assert chosen(board) == [1, 3, 5]


def test_tasks_without_the_value_are_counted_together() -> None:
    board = board_of(task(1, limit=1), task(2, limit=1), task(3, limit=1, value="a"))
    assert chosen(board) == [1, 3]


def test_each_task_has_its_own_limit() -> None:
    board = board_of(task(1, limit=1), task(2, limit=1), task(3, limit=2))
    assert chosen(board) == [1, 3]


def test_claim_of_any_worker_counts() -> None:
    board = board_of(task(1, limit=1), task(2, limit=1))
    board.claim("execution.nightly.1.>", "main", 1, delivery=1, sequence=5, agent=None)
    assert chosen(board) == []
    board.release("execution.nightly.1.>", "main", 1, delivery=1, sequence=6)
    assert chosen(board) == [2]


@pytest.mark.parametrize("end", ["end_step", "end_execution", "withdraw", "put_back"])
def test_every_end_of_a_claim_makes_room(end: str) -> None:
    board = board_of(task(1, limit=1), task(2, limit=1))
    ((first, agent_id),) = board.assign([offer()], limit=100)
    if end != "put_back":
        board.confirm(first, agent_id, sequence=5)
    match end:
        case "end_step":
            board.end_step(first.scope, "main", sequence=6)
        case "end_execution":
            board.end_execution(first.scope)
        case "withdraw":
            board.withdraw(first)
        case _:
            board.put_back(first)
    assert chosen(board) == [1 if end == "put_back" else 2]


def test_later_of_two_claims_is_beyond_the_limit() -> None:
    one, two = task(1, limit=1), task(2, limit=1)
    board = board_of(one, two)
    for each, sequence in ((two, 11), (one, 10)):
        board.claim(each.scope, "main", 1, delivery=1, sequence=sequence, agent="a")
    claims = {claim.sequence: board.is_beyond_limit(claim) for claim in board.claims_of("a")}
    assert claims == {10: False, 11: True}


def test_queue_without_room_gives_nothing() -> None:
    board = board_of(task(1), task(2), task(3), task(4, queue="mail"))
    assert chosen(board, offer(slots=9, queues=("default", "mail")), default=2, mail=0) == [1, 2]


AGENTS = {"a": frozenset({"load"}), "b": frozenset({"load", "mail"})}
TASKS = st.fixed_dictionaries(
    {
        "job": st.sampled_from(["one", "two", "three"]),
        "queue": st.sampled_from(["default", "other"]),
        "function": st.sampled_from(["load", "mail"]),
        "priority": st.sampled_from([-100, 0, 100]),
        "limit": st.sampled_from([0, 1, 2]),
        "value": st.sampled_from([None, "x", "y"]),
    }
)
ACTIONS = st.one_of(
    TASKS.map(lambda fields: ("dispatch", fields)),
    TASKS.map(lambda fields: ("dispatch", fields)),
    st.tuples(st.sampled_from(["take", "take", "report", "refuse", "allow", "put_back", "end"]), st.integers(0, 7)),
)


@dataclass
class Model:
    """The choice that the board should make, by a look at every task."""

    board: TaskBoard = field(default_factory=TaskBoard)
    open: dict[int, OpenTask] = field(default_factory=dict)
    running: dict[int, OpenTask] = field(default_factory=dict)
    turns: dict[tuple[str, str], int] = field(default_factory=dict)
    queue_turns: dict[str, int] = field(default_factory=dict)
    counter: int = 0
    sequence: int = 0
    is_ordered: bool = True

    def turn(self) -> int:
        self.counter += 1
        return self.counter

    def dispatch(self, fields: dict[str, object]) -> None:
        self.sequence += 1
        each = task(self.sequence, **fields)  # type: ignore[arg-type]
        self.open[each.sequence] = each
        self.come(each)
        self.board.dispatch(each)

    def come(self, each: OpenTask) -> None:
        self.queue_turns.setdefault(each.queue, self.turn())
        self.turns.setdefault((each.queue, each.job), self.turn())

    def forget(self, each: OpenTask) -> None:
        if not any((other.queue, other.job) == (each.queue, each.job) for other in self.open.values()):
            del self.turns[each.queue, each.job]
        if not any(other.queue == each.queue for other in self.open.values()):
            del self.queue_turns[each.queue]

    def runnable(self, slots: dict[str, int]) -> Iterator[OpenTask]:
        counts = Counter(each.group for each in self.running.values() if each.group)
        for each in self.open.values():
            can = any(slots[a] and each.function in AGENTS[a] and a not in each.refused_by for a in AGENTS)
            if can and (each.group is None or counts[each.group] < each.limit):
                yield each

    def take(self, number: int) -> None:
        slots = {"a": number % 3, "b": number // 3}
        offers = [Offer(a, ("default", "other"), AGENTS[a], slots[a]) for a in AGENTS]
        assignments = self.board.assign(offers, limit=5)
        for each, agent_id in assignments:
            best = min(
                self.runnable(slots),
                key=lambda t: (self.queue_turns[t.queue], t.queue, -t.priority, self.turns[t.queue, t.job], t.sequence),
            )
            same = (best.queue, best.priority, best.job) == (each.queue, each.priority, each.job)
            assert best is each if self.is_ordered else same
            assert slots[agent_id] > 0
            assert each.function in AGENTS[agent_id]
            assert agent_id not in each.refused_by
            del self.open[each.sequence]
            self.running[each.sequence] = each
            slots[agent_id] -= 1
            self.queue_turns[each.queue] = self.turns[each.queue, each.job] = self.turn()
            self.forget(each)
        if len(assignments) < 5:
            assert not list(self.runnable(slots))

    def end(self, name: str, number: int) -> None:
        tasks = self.running if name in {"report", "put_back"} else self.open
        if not tasks:
            return
        each = tasks[sorted(tasks)[number % len(tasks)]]
        if name in {"refuse", "allow"}:
            self.is_ordered = False
            self.board.refuse(each.scope, "main", frozenset("a" if name == "refuse" else ""))
            return
        del tasks[each.sequence]
        if name == "put_back":
            self.open[each.sequence] = each
            self.come(each)
            self.is_ordered = False
            self.board.put_back(each)
        elif name == "report":
            self.board.confirm(each, "a", sequence=1_000 + each.sequence)
            self.board.end_step(each.scope, "main", sequence=2_000 + each.sequence)
        else:
            self.forget(each)
            self.board.end_execution(each.scope)


@given(st.lists(ACTIONS, max_size=60))
def test_choice_equals_look_at_every_task(actions: list[tuple[str, object]]) -> None:
    model = Model()
    for name, argument in actions:
        match argument:
            case dict():
                model.dispatch(argument)
            case int() if name == "take":
                model.take(argument)
            case int():
                model.end(name, argument)
    assert {each.sequence for each in model.board} == model.open.keys() | model.running.keys()


@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, 3)), max_size=200))
def test_first_item_has_the_least_rank(changes: list[tuple[int, int | None]]) -> None:
    items, ranks = RankedItems[int](), dict[int, int]()
    for item, rank in changes:
        if rank is None:
            items.discard(item)
            ranks.pop(item, None)
        else:
            items.put(item, rank)
            ranks[item] = rank
        first = items.first
        assert (None if first is None else first[0]) == min(ranks.values(), default=None)
        assert first is None or ranks[first[1]] == first[0]
        assert set(items) == ranks.keys()


def lines_of(step: Callable[[], object]) -> int:
    """Return the number of lines of Python that a call runs."""
    number = 0

    def count(_frame: FrameType, event: str, _argument: object) -> Any:  # noqa: ANN401 - as `settrace` declares it
        nonlocal number
        number += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        step()
    finally:
        sys.settrace(before)
    return number


@pytest.mark.parametrize("tasks_of_a_job", [10, 1_000_000])
def test_cost_of_choice_ignores_held_tasks(tasks_of_a_job: int) -> None:
    """All tasks are held back by the limit of their key, and a report makes room for one."""

    def cost(tasks: int) -> int:
        keys = tasks // 10
        jobs = max(1, tasks // tasks_of_a_job)
        board = board_of(
            *(task(n, job=f"job{n % jobs}", limit=1, value=f"{n % keys}", priority=n % 7) for n in range(1, tasks + 1))
        )
        claims = []
        for each, to in board.assign((offer(slots=tasks),), limit=tasks):
            claims.append(board.confirm(each, to, sequence=tasks + each.sequence))
        assert len(claims) == keys

        def make_room() -> None:
            for claim in claims[:50]:
                board.end_step(claim.task.scope, "main", sequence=claim.sequence + 1)
                assert len(board.assign((offer(slots=3),), limit=256)) == 1

        return lines_of(make_room)

    assert cost(20_000) < 1.5 * cost(1_000)


@given(
    st.integers(1, 50),
    st.floats(0.01, 1_000),
    st.integers(1, 50),
    st.lists(st.tuples(st.floats(0, 100), st.integers(0, 60)), max_size=50),
)
def test_starts_never_exceed_the_rate(limit: int, per: float, burst: int, looks: list[tuple[float, int]]) -> None:
    rate, used_until, now = TokenBucket(limit, per, burst), 0.0, 1e9
    starts: list[tuple[float, int]] = []
    for pause, wanted in looks:
        now += pause
        number = min(wanted, rate.available(used_until, now))
        used_until = rate.used(used_until, now, number)
        starts.append((now, number))
    for index, (begin, _) in enumerate(starts):
        total = 0
        for moment, number in starts[index:]:
            total += number
            assert total <= burst + (moment - begin) * limit / per + 0.01
    assert rate.available(used_until, now + per * burst / limit) == burst


def test_slots_of_agents_are_taken_one_by_one() -> None:
    slots = FreeSlots([offer("a", slots=1), offer("b", slots=2), offer("c", "mail", slots=3)])
    taken = [slots.take("default", "load") for _ in range(4)]
    assert taken == ["b", "a", "b", None]
    assert not slots.has("default", "load")
    assert slots.take("default", "mail", refused_by=frozenset("c")) is None


def test_announced_names_without_tasks_use_no_memory() -> None:
    """An agent announces names at will: a hundred queues with hundreds of functions, other names in each process."""
    board = TaskBoard()
    board.dispatch(task(1))
    offers = [
        Offer(f"thief-{n}", [f"q-{n}-{i}" for i in range(100)], [f"f-{n}-{i}" for i in range(200)], 1)
        for n in range(20)
    ]
    tracemalloc.start()
    try:
        assert board.assign([*offers, offer("a")], limit=9) != []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    announced = sum(len(each.queues) + len(each.functions) for each in offers)
    assert peak < 400 * announced


def order_of_starts(board: TaskBoard, queues: tuple[str, ...], namespace: str) -> list[int]:
    """Return the places at which tasks of a namespace start if each task frees its slot."""
    starts: list[str] = []
    while chosen := board.assign([Offer("a", queues, ("load",), 1)], limit=1):
        ((each, agent),) = chosen
        claim = board.confirm(each, agent, sequence=each.sequence + 100_000)
        starts.append(each.queue)
        board.end_step(each.scope, each.step, sequence=claim.sequence + 1)
    return [place for place, queue in enumerate(starts, 1) if queue.startswith(f"{namespace}.")]


def flood(board: TaskBoard, queues: tuple[str, ...], number: int) -> None:
    for sequence in range(1, number + 1):
        board.dispatch(task(sequence, queue=queues[sequence % len(queues)], job=f"a.{sequence % 50}", priority=9))


def test_flood_of_a_namespace_delays_others_twice() -> None:
    queues = tuple(f"a.{number}" for number in range(20))
    calm, busy = TaskBoard(), TaskBoard()
    for board in (calm, busy):
        board.declare({"a": None, "b": None})
    flood(busy, queues, 1_000)
    for board in (calm, busy):
        for sequence in range(2_001, 2_051):
            board.dispatch(task(sequence, queue="b.q", job="b.job"))
    alone = order_of_starts(calm, ("b.q",), "b")
    among = order_of_starts(busy, (*queues, "b.q"), "b")
    assert alone == list(range(1, 51))
    assert all(place <= 2 * before for before, place in zip(alone, among, strict=True))


def test_flood_does_not_delay_the_default_namespace() -> None:
    board = TaskBoard()
    board.declare({"a": 1})
    queues = tuple(f"a.{number}" for number in range(20))
    flood(board, queues, 200)
    for sequence in range(2_001, 2_011):
        board.dispatch(task(sequence))
    tasks = [each.queue for each, _ in board.assign([Offer("x", (*queues, "default"), ("load",), 99)], limit=256)]
    assert sorted(tasks)[1:] == ["default"] * 10
    assert tasks.index("default") <= 1


def test_namespace_limit_counts_all_its_queues() -> None:
    board = TaskBoard()
    board.declare({"a": 3, "b": None})
    for sequence in range(1, 9):
        board.dispatch(task(sequence, queue=f"a.{sequence % 4}"))
    for sequence in range(11, 14):
        board.dispatch(task(sequence, queue="ab.x" if sequence == 13 else "b.x"))
    queues = ("a.0", "a.1", "a.2", "a.3", "b.x", "ab.x")
    offer = Offer("x", queues, ("load",), 99)
    first = [each for each, _ in board.assign([offer], limit=256)]
    assert sum(each.queue.startswith("a.") for each in first) == 3
    assert len(first) == 6
    assert board.full_namespaces() == {"a"}
    assert board.assign([offer], limit=256) == []
    freed = next(each for each in first if each.queue.startswith("a."))
    board.withdraw(freed)
    assert len(board.assign([offer], limit=256)) == 1
    board.declare({"a": 5})
    assert len(board.assign([offer], limit=256)) == 2
    board.declare({})
    assert len(board.assign([offer], limit=256)) == 2
