"""The memory of agents, by name, and the notes of refused hold lists."""

import tracemalloc
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tocsin.engine import agent_memory
from tocsin.engine.agent_memory import LOG_INTERVAL_S, AgentMemory, RefusedHoldLists, memory_of
from tocsin.engine.hold_list_inbox import HoldListInbox

ID = "01890f3e-0000-7000-8000-{:012x}"


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_memory, "MAX_BYTES_PER_NAME", 10)
    monkeypatch.setattr(agent_memory, "MAX_BYTES", 15)


@pytest.mark.usefixtures("limits")
def test_name_has_no_more_than_its_part() -> None:
    memory = AgentMemory()
    assert [memory.take("thief", str(n), 4) for n in range(4)] == [True, True, False, False]
    assert memory.take("mail", "1", 7)
    assert not memory.take("other", "1", 1)


@pytest.mark.usefixtures("limits")
def test_known_process_may_use_what_it_used() -> None:
    memory = AgentMemory()
    assert memory.take("mail", "1", 5)
    assert all(memory.take(f"thief-{n}", "1", 5) for n in range(2))
    assert not memory.take("mail", "1", 6)
    assert memory.take("mail", "1", 5)
    assert memory.take("mail", "1", 3)
    assert memory.take("mail", "1", 5)


@pytest.mark.usefixtures("limits")
def test_account_of_an_agent_has_own_memory() -> None:
    memory = AgentMemory(["mail"])
    assert [memory.take(f"thief-{n}", "1", 5) for n in range(4)] == [True, True, True, False]
    assert memory.take("mail", "1", 10)
    assert not memory.take("mail", "2", 1)


@pytest.mark.usefixtures("limits")
@given(st.lists(st.tuples(st.sampled_from("abm"), st.sampled_from("12"), st.integers(0, 12), st.booleans())))
def test_memory_is_the_sum_of_its_processes(steps: list[tuple[str, str, int, bool]]) -> None:
    memory, used = AgentMemory(["m"]), Counter[tuple[str, str]]()
    for name, agent_id, size, is_charged in steps:
        if is_charged:
            memory.charge(name, agent_id, size)
        if is_charged or memory.take(name, agent_id, size):
            used[name, agent_id] = size
    for name in "abm":
        total = sum(size for (of, _), size in used.items() if of == name)
        shared = sum(size for (of, _), size in used.items() if of != "m")
        room = 10 - total if name == "m" else min(10 - total, 15 - shared)
        assert not memory.take(name, "new", max(room, 0) + 1)
        assert room <= 0 or memory.take(name, "new", room)
        memory.charge(name, "new", 0)


@pytest.mark.parametrize("text", ["x", "x" * 255, "ä" * 100, "€" * 100, "\U0001f980" * 60])
def test_counted_memory_is_the_measured(text: str) -> None:
    tracemalloc.start()
    try:
        kept = [frozenset(f"{n}{i}{text}" for i in range(200)) for n in range(20)]
        measured, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert measured * 0.8 < sum(map(memory_of, kept)) < measured * 1.5


def inbox(*known: str, now: float = 0.0) -> HoldListInbox:
    return HoldListInbox(lambda name, _: name in known, ["mail"], RefusedHoldLists("matcher", lambda: now))


def body(number: int, size: int = 0) -> bytes:
    return b'{"number": %d, "mode": "enabled"}' % number + b" " * size


def test_inbox_has_limited_bytes_for_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_memory, "MAX_BYTES_PER_NAME", 1_000)
    monkeypatch.setattr(agent_memory, "MAX_BYTES", 2_500)
    lists = inbox("known", "full")
    for n in range(9):
        for name in ("thief", "full", "mail", "known"):
            lists.put(name, ID.format(n), body(1, 300))
    arrived = lists.take()
    assert Counter(each.name for each in arrived) == {"thief": 3, "full": 9, "mail": 3, "known": 9}
    assert sum(len(each.body or b"") for each in arrived) < 1_000 + 2_500
    lists.put("thief", ID.format(1), body(1, 300))
    assert len(lists.take()) == 1


def test_larger_list_does_not_replace_the_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_memory, "MAX_BYTES_PER_NAME", 100)
    lists = inbox("known")
    lists.put("known", ID.format(1), body(1))
    lists.put("known", ID.format(1), body(2, 300))
    assert [(each.number, each.body) for each in lists.take()] == [(1, body(1))]
    lists.put("known", ID.format(1), body(2, 300))
    assert [(each.number, each.body) for each in lists.take()] == [(2, None)]


@pytest.mark.parametrize("number", [b"0", b"-1", b"4611686018427387905", b"1.5", b'"1"'])
def test_wrong_number_does_not_wait(number: bytes) -> None:
    lists = inbox("known")
    lists.put("known", ID.format(1), b'{"number": %s, "mode": "enabled"}' % number)
    assert lists.take() == []


def test_flood_of_refusals_is_one_line() -> None:
    now = 0.0
    refused = RefusedHoldLists("matcher", lambda: now)
    with capture_logs() as lines:
        for n in range(100):
            refused.note(f"thief-{n}", "bytes")
        refused.note("mail", "unreadable")
        now = LOG_INTERVAL_S
        refused.note("mail", "bytes")
    logged = [(line["agent"], line["reason"]) for line in lines]
    assert logged == [("thief-0", "bytes"), ("mail", "unreadable"), ("mail", "bytes")]
