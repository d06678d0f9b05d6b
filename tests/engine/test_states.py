"""Cached states: what is read, and what is not decided on."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pytest

from tests.domain.given import NOON, admitted_of, plan
from tests.domain.given import task as task_of
from tests.stages.test_races import Lagging
from tests.stages.world import Reads, World
from tocsin import subjects
from tocsin.adapters.memory.archive import InMemoryStreamPurge
from tocsin.adapters.memory.clock import ManualClock
from tocsin.domain import execution
from tocsin.domain.events import Acquired, Dispatched, Message, Planned, Recorded
from tocsin.domain.execution import Status
from tocsin.engine.folds import Folds
from tocsin.engine.kinds import DEFINITION, EXECUTION, execution_state
from tocsin.engine.locks import LOCK, lock_state
from tocsin.engine.states import StateStore
from tocsin.engine.step import Known, Missing, Reading, Ref, Sources
from tocsin.ports import StaleRead

JOB: Final = "job-0"
SCOPE: Final = subjects.execution(JOB, "a")
REF: Final = execution_state(JOB, "a")


def planned() -> Planned:
    return Planned(job=JOB, execution_id="a", scheduled_time=NOON, trigger="cron", plan=plan())


def acquired(execution_id: str) -> Acquired:
    return Acquired(job=JOB, execution_id=execution_id, scheduled_time=NOON, ttl=90)


def task(attempt: int = 1) -> Dispatched:
    return task_of(attempt=attempt, job=JOB, execution_id="a")


async def known(folds: Folds[execution.Execution]) -> tuple[execution.Execution, int]:
    """Return the execution's state, which is read if that is required."""
    try:
        return folds.get(REF)
    except Missing:
        await folds.read([SCOPE])
        return folds.get(REF)


async def test_after_a_conflict_only_new_events_are_read(world: World, reads: Reads) -> None:
    folds = world.copy().folds(EXECUTION)
    await world.given(planned(), admitted_of(planned()))
    await known(folds)
    await world.given(task(attempt=1))
    folds.mark_outdated(SCOPE)
    reads.clear()
    with pytest.raises(Missing):
        folds.get(REF)
    state, sequence = await known(folds)
    assert reads == {"load": 1}
    assert (state.status, sequence) == (Status.ADMITTED, 3)
    assert (state, sequence) == await known(world.copy().folds(EXECUTION))


async def test_fresh_state_is_read_once_in_a_wave(world: World, reads: Reads) -> None:
    store = world.copy()
    other = lock_state(JOB)
    await world.given(planned(), acquired("a"))
    view = store.view()
    await view.read([REF, other])
    await world.given(task(attempt=1))
    reads.clear()
    view.fresh(REF, other)
    assert view.at(REF) == 1  # it was read for this wave
    view.expire()
    with pytest.raises(Missing):
        view.fresh(REF, other)
    await view.read([REF, *view.missing_of_expected()])
    view.fresh(REF, other)
    assert (view.at(REF), view(other).holder) == (3, "a")
    assert reads == {"load_each": 2}


async def test_state_evicted_before_its_read_is_read_whole(world: World) -> None:
    folds = Folds(EXECUTION, world.copy().sources, capacity=1)
    await world.given(planned())
    state, sequence = await known(folds)
    folds.mark_outdated(SCOPE)
    reading = asyncio.create_task(folds.read([SCOPE]))
    await asyncio.sleep(0)
    folds.append(subjects.execution(JOB, "b"), state, sequence, [], [])
    await reading
    assert folds.get(REF) == (state, sequence)


async def test_state_evicted_during_its_read_is_read_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    folds = Folds(EXECUTION, world.copy().sources, capacity=1)
    await world.given(planned())
    state, sequence = await known(folds)
    await world.given(task())
    folds.mark_outdated(SCOPE)
    load = world.log.load

    async def slow(scope: str, *, after: int = 0) -> list[Recorded[Message]]:
        folds.append(subjects.execution(JOB, "b"), state, sequence, [], [])
        return await load(scope, after=after)

    monkeypatch.setattr(world.log, "load", slow)
    await folds.read([SCOPE])
    with pytest.raises(Missing):
        folds.get(REF)
    assert (await known(folds))[1] == 2


async def test_outdated_state_is_not_decided_on(world: World, reads: Reads) -> None:
    folds = world.copy().folds(EXECUTION)
    await world.given(planned())
    await known(folds)
    await world.given(task(attempt=1), task(attempt=2))
    [_, newest] = await world.recorded(Dispatched)
    folds.learn(SCOPE, newest, after=2)
    reads.clear()
    with pytest.raises(Missing):
        folds.get(REF)
    assert (await known(folds))[1] == 3
    assert reads == {"load": 1}


async def test_outdated_state_learns_nothing(world: World) -> None:
    folds = world.copy().folds(EXECUTION)
    await world.given(planned())
    await known(folds)
    await world.given(task())
    [event] = await world.recorded(Dispatched)
    folds.mark_outdated(SCOPE)
    folds.learn(SCOPE, event, after=1)
    with pytest.raises(Missing):
        folds.get(REF)


async def test_where_nothing_is_new_all_is_read_again(world: World, reads: Reads) -> None:
    """The execution has left the log: nothing remembered holds any more."""
    folds = world.copy().folds(EXECUTION)
    await world.given(planned())
    _, sequence = await known(folds)
    await InMemoryStreamPurge(world.log).purge(SCOPE, upto=sequence)
    folds.mark_outdated(SCOPE)
    reads.clear()
    with pytest.raises(Missing):
        await known(folds)
    assert await known(folds) == (execution.initial, 0)
    assert reads == {"load": 1, "load_each": 1}


async def test_state_read_again_covers_only_that_read(world: World) -> None:
    """A lagging replica may know less than the replica of an earlier read."""
    replica = Lagging(world, upto=10)
    folds = world.copy(replica).folds(LOCK)
    scope = subjects.lock(JOB)
    await world.given(acquired("a"))
    await folds.read([scope])
    assert folds.covers(scope, 10)
    folds.mark_outdated(scope)
    assert not folds.covers(scope, 1)
    replica.upto = 1
    await folds.read([scope])  # nothing is new
    await folds.read([scope])
    assert folds.covers(scope, 1)
    assert not folds.covers(scope, 10)


async def test_replaced_events_are_not_missed(world: World, reads: Reads) -> None:
    folds, scope = world.copy().folds(LOCK), subjects.lock(JOB)
    await world.given(acquired("a"))
    await folds.read([scope])
    await world.given(acquired("b"), acquired("c"))
    folds.mark_outdated(scope)
    reads.clear()
    await folds.read([scope])
    assert folds.get(lock_state(JOB))[0].holder == "c"
    assert reads == {"load": 1}


async def test_refreshed_state_is_read_once(world: World, reads: Reads) -> None:
    folds, scope = world.copy().folds(LOCK), subjects.lock(JOB)
    await world.given(acquired("a"))
    await folds.read([scope])
    await world.given(planned())
    assert not folds.covers(scope, 2)
    folds.refresh(scope)
    reads.clear()
    await folds.read([scope])
    assert folds.covers(scope, 2)
    assert folds.get(lock_state(JOB))[0].holder == "a"
    assert reads == {"load_each": 1}


async def test_confirmed_state_is_kept_and_another_is_read(world: World) -> None:
    folds = world.copy().folds(EXECUTION)
    await world.given(planned())
    await known(folds)
    assert folds.confirm(SCOPE, 1)
    assert folds.get(REF)[1] == 1
    assert not folds.confirm(SCOPE, 2)
    with pytest.raises(Missing):
        folds.get(REF)


async def test_state_newer_than_the_leader_is_read_whole(world: World, reads: Reads) -> None:
    folds = world.copy().folds(EXECUTION)
    await world.given(planned(), task())
    await known(folds)
    assert not folds.confirm(SCOPE, 1)
    reads.clear()
    await known(folds)
    assert reads == {"load_each": 1}


async def test_appended_events_need_no_read(world: World, reads: Reads) -> None:
    folds = world.copy().folds(EXECUTION)
    await world.given(planned())
    state, at = await known(folds)
    reads.clear()
    folds.append(SCOPE, state, at, [task()], [2])
    assert folds.get(REF)[1] == 2
    assert reads == {}


async def test_events_appended_to_an_older_state_change_nothing(world: World) -> None:
    """Another writer's events were read between the decision and the answer to its write."""
    folds = world.copy().folds(EXECUTION)
    await world.given(planned())
    state, at = await known(folds)
    await world.given(task(), task(2))
    folds.mark_outdated(SCOPE)
    newest = await known(folds)
    folds.append(SCOPE, state, at, [task()], [2])
    assert folds.get(REF) == newest


async def test_guess_of_an_outdated_scope_is_read(world: World) -> None:
    folds = world.copy().folds(EXECUTION)
    assert folds.guess(REF) == (execution.initial, 0)
    folds.mark_outdated(SCOPE)
    with pytest.raises(Missing):
        folds.guess(REF)


async def test_store_keeps_a_bounded_number_of_states(world: World) -> None:
    store = StateStore(world.store.sources, capacity=2)
    folds = store.folds(LOCK)
    scopes = [subjects.lock(f"job-{number}") for number in range(3)]
    for scope in scopes:
        await folds.read([scope])
    with pytest.raises(Missing):
        folds.get(Ref(LOCK, scopes[0]))
    assert [folds.get(Ref(LOCK, scope))[1] for scope in scopes[1:]] == [0, 0]


async def test_reports_are_learned_in_their_order(world: World, reads: Reads) -> None:
    store = world.copy()
    await world.given(planned(), task(), task(2))
    events: list[Recorded[Dispatched]] = await world.recorded(Dispatched)
    [first] = await world.recorded(Planned)
    reads.clear()
    store.learn([Known(REF, events[1], 2), Known(REF, events[0], 1), Known(REF, first, 0)])
    assert store.view()(REF) == execution.fold([first, *events])
    assert reads == {}


async def test_sequence_that_a_decision_compares_is_looked_at(world: World) -> None:
    """Otherwise a decision that finds its state outdated would not have it read again."""
    view = world.copy().view()
    await view.read([REF])
    assert view.at(REF) == 0
    assert view.touched == [REF]


async def test_definition_that_a_replica_lacks_condemns_no_message(world: World) -> None:
    with pytest.raises(StaleRead):
        await world.copy().view().read([DEFINITION((JOB, 7))])


async def test_only_lasting_readings_stay_cached(world: World) -> None:
    asked: list[str] = []

    async def read(_: Sources, keys: object) -> dict[str, int]:
        assert isinstance(keys, list)
        asked.extend(keys)
        return dict.fromkeys(keys, 1)

    store = world.copy()
    lasting, passing = Reading("lasting", read, is_lasting=True), Reading("passing", read)
    for _ in range(2):
        view = store.view()
        refs: list[Ref[int]] = [lasting("x"), passing("y")]
        missing = []
        for ref in refs:
            try:
                view(ref)
            except Missing as error:
                missing.append(error.ref)
        await view.read(missing)
        assert [view(ref) for ref in refs] == [1, 1]
    assert asked == ["x", "y", "y"]


def test_store_keeps_a_bounded_number_of_readings(world: World) -> None:
    async def read(_: Sources, keys: Sequence[int]) -> dict[int, int]:
        return dict.fromkeys(keys, 0)

    store, lasting = StateStore(world.store.sources, capacity=2), Reading("lasting", read, is_lasting=True)
    for key in (1, 2, 3):
        store.keep(lasting, key, 0)
    assert [store.has_lasting(lasting, key) for key in (1, 2, 3)] == [False, True, True]


async def test_refused_reading_is_repeated_later(world: World) -> None:
    """None stays cached for a time only, if the kind says so, and a value for good."""
    values: list[int | None] = [None, 7]

    async def read(_: Sources, keys: Sequence[str]) -> dict[str, int | None]:
        return dict.fromkeys(keys, values.pop(0))

    clock = ManualClock()
    store = StateStore(replace(world.store.sources, clock=clock))
    kind = Reading("refused", read, is_lasting=True, absent_for_s=60.0)
    await store.view().read([kind("x")])
    clock.advance(59.0)
    assert store.has_lasting(kind, "x")
    assert store.lasting(kind, "x") is None
    clock.advance(1.0)
    assert not store.has_lasting(kind, "x")
    await store.view().read([kind("x")])
    clock.advance(3_600.0)
    assert store.lasting(kind, "x") == 7


async def test_cleared_store_has_nothing_cached(world: World) -> None:
    store = world.copy()
    await store.view().read([REF])
    assert store.view()(REF) == execution.initial
    store.clear()
    with pytest.raises(Missing):
        store.view()(REF)


async def test_dropped_scope_is_not_guessed_empty(world: World) -> None:
    """A replica that lags, or an archived scope: the state is dropped, and the next decision reads it."""
    folds = world.store.folds(EXECUTION)
    first = planned()
    scope = subjects.scope_of(first)
    await world.given(first)
    await folds.read([scope])
    assert not folds.confirm(scope, 0)
    with pytest.raises(Missing):
        folds.guess(EXECUTION(scope))
