"""The fold of a lock's events, compared with the list that each event once repeated."""

from collections.abc import Sequence
from datetime import timedelta

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.domain.given import JOB, NOON, recorded
from tests.lock_scope import needed_events
from tocsin.domain import lock
from tocsin.domain.events import Message, Recorded
from tocsin.domain.lock import Lock, Waiter

WAITERS = st.builds(
    Waiter,
    st.integers(0, 30).map("e{:02}".format),
    st.integers(0, 5).map(lambda hours: NOON + timedelta(hours=hours)),
    st.booleans(),
)
STEPS = st.lists(st.one_of(WAITERS, st.none()), max_size=60)
"""Executions that ask for the lock, and ends of the execution that holds it."""


def run(steps: Sequence[Waiter | None]) -> tuple[list[Recorded[Message]], list[list[str]]]:
    """Return the events of a lock, and the whole list of those that wait after each, by the simplest means."""
    facts: list[Recorded[Message]] = []
    lists: list[list[str]] = []
    waiting: list[Waiter] = []
    state, over = lock.initial, set[str]()
    for step in steps:
        decision: Sequence[Message] = []
        if step is None and waiting:
            decision = lock.acquire(state, JOB, waiting.pop(0), ttl=1)
        elif step is not None and step.execution_id not in over:
            over.add(step.execution_id)
            if state.holder is None:
                decision = lock.acquire(state, JOB, step, ttl=1)
            else:
                decision = lock.queue(state, JOB, step)
                waiting = sorted((*waiting, step), key=lambda one: (one.yields, one.scheduled_time, one.execution_id))
        for event in decision:
            facts.append(msgspec.structs.replace(recorded([event])[0], sequence=3 * len(facts) + 7))
            state = lock.evolve(state, facts[-1])
            lists.append([one.execution_id for one in waiting])
    return facts, lists


def names(state: Lock) -> list[str]:
    return [waiter.execution_id for waiter in state.waiting]


@given(STEPS)
def test_waiting_executions_are_ordered_as_a_list(steps: list[Waiter | None]) -> None:
    facts, lists = run(steps)
    state = lock.initial
    for fact, waiting in zip(facts, lists, strict=True):
        state = lock.evolve(state, fact)
        first = state.waiting.first
        assert names(state) == waiting
        assert (first and first.execution_id) == (waiting[0] if waiting else None)
        assert all(state.has_waiter(name) for name in waiting)
        assert len(state.waiting) == len(waiting)


@given(STEPS)
def test_enough_events_fold_to_the_whole_state(steps: list[Waiter | None]) -> None:
    facts, _ = run(steps)
    for end in range(len(facts) + 1):
        assert lock.fold(needed_events(facts[:end])) == lock.fold(facts[:end])


def test_event_size_does_not_depend_on_the_queue() -> None:
    waiters = [Waiter(f"e{number:05}", NOON + timedelta(seconds=number)) for number in range(2_000)]
    facts, _ = run([*waiters, *[None] * 1_000])
    assert len(lock.fold(facts).waiting) == 999
    assert max(len(fact.message.encode()) for fact in facts) < 200
