"""The queue of a lock: what makes up for the past yields to the rest."""

from typing import Any

import msgspec
import pytest

from tests.domain.given import ID, JOB, NOON, admitted, plan, recorded
from tocsin.domain import lock
from tocsin.domain.events import Acquired, Admitted, Queued, TriggerKind
from tocsin.domain.lock import EMPTY, Lock, LockQueue, Waiter

NOW: tuple[TriggerKind, ...] = ("cron", "manual", "event", "api")
MADE_UP: tuple[TriggerKind, ...] = ("replay", "backfill")
POLICIES = ("skip", "enqueue", "cancel_previous", "allow")


def wanted(trigger: TriggerKind = "cron", policy: str = "skip", execution_id: str = ID) -> Admitted:
    fields: dict[str, Any] = {"trigger": trigger, "execution_id": execution_id}
    return admitted(plan().changed(overlap_policy=policy)).changed(**fields)


def one(execution_id: str, hour: int = 12, *, yields: bool = False) -> Waiter:
    return Waiter(execution_id=execution_id, scheduled_time=NOON.replace(hour=hour), yields=yields)


def queue(*waiters: Waiter) -> LockQueue:
    waiting = EMPTY
    for sequence, waiter in enumerate(waiters, start=1):
        waiting = waiting.add(waiter, sequence)
    return waiting


@pytest.mark.parametrize(("trigger", "yields"), [*((t, False) for t in NOW), *((t, True) for t in MADE_UP)])
def test_only_what_makes_up_yields(trigger: TriggerKind, *, yields: bool) -> None:
    assert lock.waiting(wanted(trigger)) == Waiter(execution_id=ID, scheduled_time=NOON, yields=yields)


def test_those_that_yield_wait_after_all_others() -> None:
    state = Lock("holder", 1)
    for waiting in (
        one("c", 9, yields=True),
        one("e", 15),
        one("b", 8, yields=True),
        one("d", 14),
        one("a", 14),
    ):
        [fact] = lock.queue(state, JOB, waiting)
        state = lock.evolve(state, msgspec.structs.replace(recorded([fact])[0], sequence=len(state.waiting) + 2))
    assert [waiting.execution_id for waiting in state.waiting] == ["a", "d", "e", "b", "c"]
    assert (state.holder, state.fence) == ("holder", 1)


def test_a_holder_waits_for_nothing() -> None:
    assert lock.queue(Lock("a", 1, queue(one("b"))), JOB, one("a")) == []


def test_a_place_in_the_queue_is_named() -> None:
    [fact] = lock.queue(Lock("a", 1), JOB, one("b"))
    assert fact == Queued(job=JOB, execution_id="b", scheduled_time=one("b").scheduled_time)


def test_the_next_holder_leaves_the_queue_alone() -> None:
    [fact] = lock.acquire(Lock("a", 9, queue(one("c"), one("b"))), JOB, one("c", 13), ttl=5)
    time = NOON.replace(hour=13)
    assert fact == Acquired(job=JOB, execution_id="c", scheduled_time=time, ttl=5, oldest=2)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("trigger", "active"),
    [
        ("cron", None),
        ("cron", "cron"),
        ("manual", "event"),
        ("replay", "cron"),
        ("backfill", "replay"),
        ("replay", None),
    ],
)
def test_the_jobs_policy_holds(policy: str, trigger: TriggerKind, active: TriggerKind | None) -> None:
    holder = None if active is None else wanted(active, execution_id="holder")
    assert lock.effective_policy(Lock("holder", 1), wanted(trigger, policy), holder) == policy


@pytest.mark.parametrize("active", MADE_UP)
@pytest.mark.parametrize("trigger", NOW)
@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_wanted_now_waits_for_the_past(policy: str, trigger: TriggerKind, active: TriggerKind) -> None:
    holder = wanted(active, execution_id="holder")
    assert lock.effective_policy(Lock("holder", 1), wanted(trigger, policy), holder) == "enqueue"


@pytest.mark.parametrize(
    ("policy", "waiting", "outcome"),
    [
        ("skip", (one("b"),), "skip"),
        ("skip", (one("b"), one("c", yields=True)), "skip"),
        ("skip", (one("c", yields=True), one("d", yields=True)), "enqueue"),
        ("enqueue", (one("b"),), "enqueue"),
        ("cancel_previous", (one("b"),), "enqueue"),
    ],
)
def test_under_skip_one_waits_for_the_past(policy: str, waiting: tuple[Waiter, ...], outcome: str) -> None:
    holder = wanted("backfill", execution_id="holder")
    assert lock.effective_policy(Lock("holder", 1, queue(*waiting)), wanted("cron", policy), holder) == outcome
