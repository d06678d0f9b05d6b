"""The lock: one holder, and a fencing token that only grows."""

from tests.domain.given import ID, JOB, NOON, admitted, lock_after, plan, recorded
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
    assert lock.acquire(lock_after(recorded([acquired()])), JOB, one(), ttl=90) == []


def test_queue_is_ordered_by_scheduled_time() -> None:
    facts = recorded([acquired("a")])
    for waiter in (one("c", 14), one("b", 13)):
        facts = recorded([*(fact.message for fact in facts), *lock.queue(lock_after(facts), JOB, waiter)])
    state = lock_after(facts)
    assert [*state.waiting] == [one("b", 13), one("c", 14)]
    assert lock.queue(state, JOB, one("b", 13)) == []
    first = state.waiting.first
    assert first is not None
    [next_one] = lock.acquire(state, JOB, first, ttl=90)
    assert lock_after(recorded([*(fact.message for fact in facts), next_one])) == Lock("b", 4, EMPTY.add(one("c", 14)))


def test_event_sequence_is_the_fencing_token() -> None:
    facts = recorded([acquired("a"), acquired("b")])
    assert lock_after(facts[:1]) == Lock("a", 1)
    assert lock_after(facts) == Lock("b", 2)


def test_unrelated_event_changes_nothing() -> None:
    assert lock_after(recorded([admitted()])) == lock.initial


def test_lock_lasts_for_longest_path_plus_grace() -> None:
    assert lock.ttl(admitted()) == 30 + lock.GRACE_S
    graph = plan({"load": ("left", "right"), "left": ("extract",), "right": (), "extract": ()})
    assert lock.ttl(admitted().changed(plan=graph)) == 90 + lock.GRACE_S
