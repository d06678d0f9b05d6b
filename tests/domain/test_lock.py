"""The lock: one holder, and a fencing token that only grows."""

from tests.domain.given import ID, JOB, NOON, admitted, plan, recorded
from tests.lock_scope import needed_events
from tocsin.domain import lock
from tocsin.domain.events import Acquired
from tocsin.domain.lock import EMPTY, Lock, Waiter


def acquired(execution_id: str = ID) -> Acquired:
    return Acquired(job=JOB, execution_id=execution_id, scheduled_time=NOON, ttl=90)


def one(execution_id: str = ID, hour: int = 12) -> Waiter:
    return Waiter(execution_id=execution_id, scheduled_time=NOON.replace(hour=hour))


def test_a_free_lock_is_acquired() -> None:
    assert lock.acquire(lock.initial, JOB, lock.waiting(admitted()), ttl=90) == [acquired()]


def test_its_holder_acquires_nothing_more() -> None:
    assert lock.acquire(lock.fold(recorded([acquired()])), JOB, one(), ttl=90) == []


def test_queue_is_ordered_by_scheduled_time() -> None:
    facts = recorded([acquired("a")])
    for waiter in (one("c", 14), one("b", 13)):
        facts = recorded([*(fact.message for fact in facts), *lock.queue(lock.fold(facts), JOB, waiter)])
    state = lock.fold(facts)
    assert [*state.waiting] == [one("b", 13), one("c", 14)]
    assert lock.queue(state, JOB, one("b", 13)) == []
    first = state.waiting.first
    assert first is not None
    [next_one] = lock.acquire(state, JOB, first, ttl=90)
    assert lock.fold(recorded([*(fact.message for fact in facts), next_one])) == Lock(
        "b", 4, EMPTY.add(one("c", 14), 2)
    )


def test_events_from_the_oldest_waiting_are_enough() -> None:
    facts = recorded([acquired("a")])
    for name in "bcd":
        facts = recorded([*(fact.message for fact in facts), *lock.queue(lock.fold(facts), JOB, one(name))])
    state = lock.fold(facts)
    facts = recorded([*(fact.message for fact in facts), *lock.acquire(state, JOB, one("b"), ttl=90)])
    assert lock.first_needed(facts) == 3
    assert [fact.sequence for fact in needed_events(facts)] == [3, 4, 5]
    assert lock.fold(needed_events(facts)) == lock.fold(facts)


def test_event_sequence_is_the_fencing_token() -> None:
    facts = recorded([acquired("a"), acquired("b")])
    assert lock.fold(facts[:1]) == Lock("a", 1)
    assert lock.fold(facts) == Lock("b", 2)


def test_unrelated_event_changes_nothing() -> None:
    assert lock.fold(recorded([admitted()])) == lock.initial


def test_lock_lasts_for_longest_path_plus_grace() -> None:
    assert lock.ttl(admitted()) == 30 + lock.GRACE_S
    graph = plan({"load": ("left", "right"), "left": ("extract",), "right": (), "extract": ()})
    assert lock.ttl(admitted().changed(plan=graph)) == 90 + lock.GRACE_S
