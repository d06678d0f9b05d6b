"""Limits on the content of the in-memory ports."""

from datetime import timedelta

from tocsin.adapters.memory.clock import LoopClock
from tocsin.adapters.memory.stored_stream import StoredStream, SubjectTree
from tocsin.testing import ManualClock


def test_removed_subjects_leave_no_nodes() -> None:
    tree = SubjectTree()
    tree.add("execution.a.1.admitted", 1)
    tree.add("execution.a.1", 2)
    tree.add("execution.*.2", 3)

    tree.remove("execution.a.1.admitted", 1)
    assert [*tree.each(">")] == [[2], [3]]
    tree.remove("execution.a.1", 2)
    tree.remove("execution.*.2", 3)
    assert not tree._root.children


def test_message_ids_are_forgotten_after_their_window() -> None:
    clock = ManualClock()
    stream = StoredStream(clock)
    first = stream.store("a.b", b"", message_id="one")
    clock.advance(119)
    assert stream.store("a.b", b"", message_id="one") == first
    stream.store("a.b", b"", message_id="two")
    clock.advance(1)
    assert stream.store("a.b", b"", message_id="three") == first + 2
    assert [*stream._known_ids] == ["two", "three"]
    clock.step(-3600)  # an id of the future would stay for an hour
    assert stream.store("a.b", b"", message_id="two") == first + 3


async def test_alarms_by_the_machines_clock_ring_once() -> None:
    clock = LoopClock()
    rung: list[str] = []
    clock.at(clock.now() - timedelta(days=1), lambda: rung.append("past"))
    assert rung == ["past"]
    clock.at(clock.now() + timedelta(milliseconds=20), lambda: rung.append("instant"))
    clock.after(0.01, lambda: rung.append("span"))
    clock.after(0, lambda: rung.append("never")).cancel()
    clock.at(clock.now() + timedelta(milliseconds=1), lambda: rung.append("never")).cancel()
    while len(rung) < 3:
        await clock.sleep(0.01)
    assert rung == ["past", "span", "instant"]
