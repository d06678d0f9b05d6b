"""Batches of pure decisions: what is read and stored together, and decided again."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.domain.given import JOB, NOON, admitted
from tests.guards import guarded
from tests.properties import examples
from tests.stages.world import World
from tocsin import subjects
from tocsin.domain.events import Message, PoisonMessage, Queued, Recorded, Trigger, Voided
from tocsin.engine.items import Item, Result
from tocsin.engine.stage import BoundSubscription
from tocsin.engine.states import StateStore
from tocsin.engine.step import DONE, Events, Reading, Ref, Scope, Send, Sources, States, Step, again, done, refuse, wait
from tocsin.engine.waves import CONFLICT_LIMIT, Waves
from tocsin.ports import LogUnavailable, OutdatedState, StaleRead, Write, Written
from tocsin.subjects import DecodeError, Stream
from tocsin.testing import InMemoryEventLog, InMemoryProjections, ManualClock

COUNTER: Final = Scope("counter", 0, lambda state, _: state + 1)
"""The number of events in a scope of a lock; `queued` events count, and need no definition or execution."""

Decision = Callable[[Recorded[Message], States, datetime], Step]


def counter(name: str) -> Ref[int]:
    return COUNTER(subjects.lock(name))


def count(name: str, number: int) -> Queued:
    """The event by which a counter reaches a number; `oldest` keeps all events in reads."""
    return Queued(job=name, execution_id=f"{name}-{number}", scheduled_time=NOON, oldest=1)


def inputs(*names: str) -> list[Recorded[Message]]:
    return [Recorded(Trigger(), f"trigger.{name}", at, NOON, str(at)) for at, name in enumerate(names, 1)]


def items(*names: str) -> list[Item]:
    return [Item(recorded, recorded.sequence) for recorded in inputs(*names)]


def name_of(recorded: Recorded[Message]) -> str:
    return recorded.subject.split(".")[1]


def increment(recorded: Recorded[Message], states: States, _: datetime) -> Step:
    ref = counter(name_of(recorded))
    return done(Events(ref, (count(name_of(recorded), states(ref) + 1),)))


class RecordingLog(InMemoryEventLog):
    """Records requests, and lets another writer act before each write."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.reads: list[tuple[str, ...]] = []
        self.writes: list[list[Write]] = []
        self.tailed: list[tuple[str, ...]] = []
        self.meanwhile: Callable[[], Any] | None = None

    async def load_each(self, *scopes: str, **options: Any) -> Any:  # noqa: ANN401 - passed on as it is
        self.reads.append(scopes)
        return await super().load_each(*scopes, **options)

    async def tails(self, *scopes: str) -> list[int]:
        self.tailed.append(scopes)
        return await super().tails(*scopes)

    async def write(self, writes: Sequence[Write]) -> list[Written]:
        self.writes.append([*writes])
        if self.meanwhile is not None:
            await self.meanwhile()
        return await super().write(writes)

    async def increment(self, name: str) -> int:
        """Append as another writer."""
        scope = subjects.lock(name)
        return await self.append(count(name, 0), expect=await self.tail(scope))

    async def numbers(self, name: str) -> list[str]:
        return [r.message.execution_id for r in await self.read(subjects.lock(name)) if isinstance(r.message, Queued)]


@pytest.fixture
def log() -> RecordingLog:
    return RecordingLog()


def store_of(log: RecordingLog) -> StateStore:
    return StateStore(Sources.of(log, InMemoryProjections(log.clock), log.clock))


async def run(log: RecordingLog, decide: Decision, batch: Sequence[Item], **options: Any) -> list[Result]:  # noqa: ANN401 - passed on
    await Waves(store_of(log)).run(decide, batch, **options)
    return [item.outcome.result for item in batch if item.outcome]


# --- ask -------------------------------------------------------------------------------------------------------------


async def test_many_outdated_decisions_end_in_few_reads(log: RecordingLog) -> None:
    reads = list[Sequence[str]]()

    async def read(_: Sources, keys: Sequence[str]) -> dict[str, int]:
        reads.append(keys)
        return dict.fromkeys(keys, len(reads))

    shared, tried = Reading("shared", read), set[str]()

    def decide(recorded: Recorded[Message], states: States, now: datetime) -> Step:
        states(shared("the newest"))
        if recorded.subject not in tried:
            tried.add(recorded.subject)
            raise StaleRead.of("shared")
        return increment(recorded, states, now)

    batch = items(*(f"job-{number}" for number in range(300)))
    assert await run(log, decide, batch) == [Result.DONE] * 300
    assert len(reads) < 10


async def test_missing_states_of_a_wave_are_read_together(log: RecordingLog) -> None:
    assert await run(log, increment, items("a", "b", "c")) == [Result.DONE] * 3
    assert [sorted(scopes) for scopes in log.reads] == [sorted(map(subjects.lock, "abc"))]
    assert [len(writes) for writes in log.writes] == [3]


async def test_expected_states_are_read_with_a_missing_one(log: RecordingLog) -> None:
    def decide(recorded: Recorded[Message], states: States, _: datetime) -> Step:
        name = name_of(recorded)
        states.expect(lambda: (counter(f"{name}-next"), counter(f"{name}-never")))
        number = states(counter(name)) + states(counter(f"{name}-next"))
        return done(Events(counter(name), (count(name, number + 1),)))

    await log.increment("a-next")
    assert await run(log, decide, items("a", "b")) == [Result.DONE] * 2
    [read] = log.reads
    assert sorted(read) == sorted(subjects.lock(f"{name}{part}") for name in "ab" for part in ("", "-next", "-never"))
    assert await log.numbers("a") == ["a-2"]


async def test_expected_states_alone_are_not_read(log: RecordingLog) -> None:
    def decide(recorded: Recorded[Message], states: States, now: datetime) -> Step:
        states.expect(lambda: [counter("other")])
        assert states.guess(counter(name_of(recorded))) == 0
        return increment(recorded, states, now) if log.reads else DONE

    assert await run(log, decide, items("a")) == [Result.DONE]
    assert log.reads == []


async def test_unreadable_expected_state_fails_no_decision(log: RecordingLog) -> None:
    def decide(recorded: Recorded[Message], states: States, now: datetime) -> Step:
        states.expect(lambda: [counter("broken")])
        return increment(recorded, states, now)

    load_each = log.load_each

    async def read(*scopes: str, **options: Any) -> Any:  # noqa: ANN401 - passed on as it is
        if subjects.lock("broken") in scopes:
            raise DecodeError("unreadable")
        return await load_each(*scopes, **options)

    log.load_each = read  # type: ignore[method-assign]
    assert await run(log, decide, items("a", "b")) == [Result.DONE] * 2
    assert await log.numbers("a") == ["a-1"]


async def test_wave_has_one_change_of_each_scope(log: RecordingLog) -> None:
    assert await run(log, increment, items("a", "a", "b", "a")) == [Result.DONE] * 4
    assert [len(writes) for writes in log.writes] == [2, 1, 1]
    assert await log.numbers("a") == ["a-1", "a-2", "a-3"]
    assert len(log.reads) == 1


async def test_inputs_of_one_key_are_decided_in_order(log: RecordingLog) -> None:
    waves: list[list[int]] = []

    def decide(recorded: Recorded[Message], states: States, now: datetime) -> Step:
        waves[-1].append(recorded.sequence)
        return increment(recorded, states, now)

    batch = [Item(recorded, key) for recorded, key in zip(inputs("a", "b", "c"), ("x", "x", "y"), strict=True)]
    await log.increment("a")
    waves.append([])
    original = log.write

    async def write(writes: Sequence[Write]) -> list[Written]:
        waves.append([])
        return await original(writes)

    log.write = write  # type: ignore[method-assign]
    assert await run(log, decide, batch) == [Result.DONE] * 3
    assert [set(wave) for wave in waves] == [{1, 3}, {2}, set()]


async def test_defect_holds_up_no_other_input(log: RecordingLog) -> None:
    def decide(recorded: Recorded[Message], states: States, now: datetime) -> Step:
        if name_of(recorded) == "bad":
            raise ValueError("a defect")
        return refuse("no", code="not-found") if name_of(recorded) == "no" else increment(recorded, states, now)

    assert await run(log, decide, items("bad", "a", "no", "b")) == [
        Result.FAILED,
        Result.DONE,
        Result.REFUSED,
        Result.DONE,
    ]


async def test_unreadable_state_fails_only_its_inputs(log: RecordingLog) -> None:
    log.receive("lock.bad.queued", b"{", headers=guarded("lock.bad.queued"))
    batch = items("a", "bad", "b")
    assert await run(log, increment, batch) == [Result.DONE, Result.FAILED, Result.DONE]
    assert batch[1].outcome is not None
    assert isinstance(batch[1].outcome.error, subjects.DecodeError)


async def test_decision_that_reads_forever_fails(log: RecordingLog) -> None:
    def decide(_: Recorded[Message], states: States, __: datetime) -> Step:
        for number in range(1_000):
            states(counter(f"n{number}"))
        return DONE

    assert await run(log, decide, items("a")) == [Result.FAILED]


# --- confirm ---------------------------------------------------------------------------------------------------------


async def test_decision_on_an_outdated_state_is_repeated(log: RecordingLog) -> None:
    seen: list[int] = []

    def decide(_: Recorded[Message], states: States, __: datetime) -> Step:
        seen.append(states(counter("a")))
        return done(rests_on=(counter("a"),))

    store = store_of(log)
    first, second = items("a"), items("a")
    await Waves(store).run(decide, first)
    await log.increment("a")
    await Waves(store).run(decide, second)
    assert seen == [0, 0, 1]
    assert log.tailed == [(subjects.lock("a"),)] * 3


@pytest.mark.parametrize(
    "step", [refuse("no such counter", code="not-found", rests_on=(counter("a"),)), wait(1, rests_on=(counter("a"),))]
)
async def test_refusals_and_waits_rest_on_newest_states(log: RecordingLog, step: Step) -> None:
    def decide(_: Recorded[Message], states: States, __: datetime) -> Step:
        return DONE if states(counter("a")) else step

    store = store_of(log)
    first, second = items("a"), items("a")
    await Waves(store).run(decide, first)
    await log.increment("a")
    await Waves(store).run(decide, second)
    assert [item.outcome.step for item in (*first, *second) if item.outcome] == [step, DONE]


# --- store -----------------------------------------------------------------------------------------------------------


async def test_conflict_is_decided_again_with_new_state(log: RecordingLog) -> None:
    async def other() -> None:
        log.meanwhile = None
        await log.increment("a")

    log.meanwhile = other
    assert await run(log, increment, items("a", "b")) == [Result.DONE] * 2
    assert await log.numbers("a") == ["a-0", "a-2"]
    assert await log.numbers("b") == ["b-1"]
    assert [len(writes) for writes in log.writes] == [2, 1]


async def test_lasting_conflict_is_handed_back_at_last(log: RecordingLog) -> None:
    async def other() -> None:
        await log.increment("a")

    log.meanwhile = other
    batch = items("a", "b")
    assert await run(log, increment, batch) == [Result.OUTDATED, Result.DONE]
    assert batch[0].is_alone
    assert len(log.writes) == 2 * (CONFLICT_LIMIT + 1)
    assert batch[0].outcome is not None
    assert isinstance(batch[0].outcome.error, OutdatedState)


async def test_input_with_conflicts_is_decided_after_all_others(log: RecordingLog) -> None:
    """Two inputs cross each other's scopes; only alone is the last stored."""
    left = CONFLICT_LIMIT + 1

    async def other() -> None:
        nonlocal left
        if left:
            left -= 1
            await log.increment("a")

    log.meanwhile = other
    assert await run(log, increment, items("a", *("b",) * (CONFLICT_LIMIT + 3))) == [Result.DONE] * (CONFLICT_LIMIT + 4)
    last = log.writes[-1][0]
    assert last.scope == subjects.lock("a")  # type: ignore[union-attr]


async def test_again_sees_the_new_state(log: RecordingLog) -> None:
    seen: list[tuple[int, bool]] = []

    def decide(_: Recorded[Message], states: States, __: datetime) -> Step:
        ref = counter("a")
        seen.append((states(ref), states.has_changed(ref)))
        return DONE if seen[-1][0] == 3 else again(Events(ref, (count("a", states(ref) + 1),)))

    assert await run(log, decide, items("a")) == [Result.DONE]
    assert seen[-4:] == [(0, False), (1, True), (2, True), (3, True)]
    assert len(log.reads) == 1


async def test_sent_message_is_known_to_next_step(log: RecordingLog) -> None:
    sent: list[tuple[int, bool]] = []

    def decide(recorded: Recorded[Message], states: States, _: datetime) -> Step:
        sent.append((recorded.sequence, states.is_sent("id")))
        if recorded.sequence == 1 and not states.is_sent("id"):
            return again(Send("trigger.next", Trigger(), "id"))
        return DONE

    assert await run(log, decide, items("a", "b")) == [Result.DONE] * 2
    assert sent == [(1, False), (2, False), (1, True)]
    assert len(await log.read("trigger.next")) == 1


async def test_guess_needs_no_read_and_is_guarded(log: RecordingLog) -> None:
    def decide(recorded: Recorded[Message], states: States, _: datetime) -> Step:
        ref = counter(name_of(recorded))
        return done(Events(ref, (count(name_of(recorded), states.guess(ref) + 1),)))

    await log.increment("b")
    assert await run(log, decide, items("a", "b")) == [Result.DONE] * 2
    assert log.reads == [(subjects.lock("b"),)]
    assert (await log.numbers("a"), await log.numbers("b")) == (["a-1"], ["b-0", "b-2"])


async def test_two_inputs_read_one_scope_together(log: RecordingLog) -> None:
    await log.increment("a")

    def decide(recorded: Recorded[Message], states: States, _: datetime) -> Step:
        assert states.up_to(counter("a"), recorded.sequence + 1)
        return DONE

    for _ in range(2):
        await log.increment("other")
    batch = items("a", "a")
    assert await run(log, decide, batch) == [Result.DONE] * 2
    assert log.reads == [(subjects.lock("a"),)]
    assert [item.conflicts for item in batch] == [0, 0]


async def test_scope_without_events_covers_what_the_leader_confirms(log: RecordingLog) -> None:
    await log.increment("other")

    def decide(_: Recorded[Message], states: States, __: datetime) -> Step:
        assert states.up_to(counter("a"), 1) == 0
        return DONE

    assert await run(log, decide, items("a")) == [Result.DONE]


async def test_signals_follow_what_is_stored(log: RecordingLog) -> None:
    signals: list[object] = []

    async def other() -> None:
        assert signals == []
        log.meanwhile = None
        await log.increment("a")

    def decide(recorded: Recorded[Message], states: States, now: datetime) -> Step:
        return msgspec.structs.replace(increment(recorded, states, now), signals=(states(counter("a")),))

    log.meanwhile = other
    assert await run(log, decide, items("a"), on_signal=signals.append) == [Result.DONE]
    assert signals == [1]


async def test_unavailable_log_fails_its_wave_alone(log: RecordingLog) -> None:
    async def other() -> None:
        log.meanwhile = None
        raise LogUnavailable("no answer")

    log.meanwhile = other
    assert await run(log, increment, items("a", "b", "a")) == [Result.FAILED, Result.FAILED, Result.FAILED]
    assert await run(log, increment, items("a")) == [Result.DONE]


async def test_inputs_after_an_unsettled_one_are_held(log: RecordingLog) -> None:
    def decide(recorded: Recorded[Message], states: States, now: datetime) -> Step:
        return wait(1.0) if name_of(recorded) == "wait" else increment(recorded, states, now)

    keys = {"a": "x", "wait": "x", "b": "x", "c": "y"}
    batch = [Item(recorded, keys[name_of(recorded)]) for recorded in inputs("a", "wait", "b", "c")]
    assert await run(log, decide, batch) == [Result.DONE, Result.WAIT, Result.HELD, Result.DONE]
    assert await log.numbers("b") == []


# --- deliveries ------------------------------------------------------------------------------------------------------


def subscription(decide: Decision) -> BoundSubscription:
    return BoundSubscription("scripted", Stream.LOG, ("execution.>",), decide)


def execution(number: int) -> Message:
    return admitted().changed(execution_id=str(number))


def increment_once(recorded: Recorded[Message], states: States, _: datetime) -> Step:
    name = f"n{recorded.sequence}"
    return done(Events(counter(name), (count(name, states(counter(name)) + 1),)))


async def test_nothing_is_acknowledged_before_all_is_stored(world: World) -> None:
    unsettled: list[int] = []
    write = world.log.write

    async def checked(writes: Sequence[Write]) -> list[Written]:
        unsettled.append(world.pending)
        return await write(writes)

    await world.given(*map(execution, range(3)))
    world.log.write = checked  # type: ignore[method-assign]
    await world.handle(subscription(increment_once))
    assert (unsettled, world.pending) == ([3], 0)


async def test_failed_write_acknowledges_nothing(world: World) -> None:
    write = world.log.write

    async def fails(writes: Sequence[Write]) -> list[Written]:
        del writes
        raise LogUnavailable("no answer")

    await world.given(*map(execution, range(3)))
    world.log.write = fails  # type: ignore[method-assign]
    await world.handle(subscription(increment_once))
    assert world.pending == 3
    world.log.write = write  # type: ignore[method-assign]
    world.clock.advance(2)
    await world.handle(subscription(increment_once))
    assert world.pending == 0
    assert len(await world.log.read("lock.>")) == 3


async def test_refused_input_becomes_a_dead_letter_alone(world: World) -> None:
    def decide(recorded: Recorded[Message], states: States, now: datetime) -> Step:
        return (
            refuse("not allowed", code="not-allowed")
            if recorded.sequence == 2
            else increment_once(recorded, states, now)
        )

    await world.given(*map(execution, range(3)))
    await world.handle(subscription(decide))
    [letter] = await world.stored(PoisonMessage)
    assert (letter.sequence, letter.reason, world.pending) == (2, "not allowed", 0)
    assert len(await world.log.read("lock.>")) == 2


async def test_unreadable_input_holds_up_nothing(world: World) -> None:
    await world.given(execution(0))
    world.log.receive(f"execution.{JOB}.9.admitted", b"{", headers=guarded(f"execution.{JOB}.9.admitted"))
    await world.given(execution(1))
    await world.handle(subscription(increment_once))
    assert [letter.sequence for letter in await world.stored(PoisonMessage)] == [2]
    assert (len(await world.log.read("lock.>")), world.pending) == (2, 0)


@pytest.mark.parametrize("kind", ["admitted", "reconsidered"])
async def test_newer_event_waits_for_its_stage(world: World, kind: str) -> None:
    """A stage of a newer version stored it, so it becomes no dead letter, which could not be run again."""
    await world.given(execution(0))
    subject = f"execution.{JOB}.9.{kind}"
    world.log.receive(subject, b'{"v": 9, "job": "etl", "execution_id": "9"}', headers=guarded(subject))
    await world.given(execution(1))
    await world.handle(subscription(increment_once))
    assert await world.stored(PoisonMessage) == []
    assert (len(await world.log.read("lock.>")), world.pending) == (2, 1)


async def test_event_that_was_set_aside_holds_up_nothing(world: World) -> None:
    subject, body = f"execution.{JOB}.9.reconsidered", b'{"v": 9, "job": "etl", "execution_id": "9"}'
    sequence = world.log.receive(subject, body, headers=guarded(subject))
    await world.handle(subscription(increment_once))
    assert world.pending == 1
    at, digest = world.clock.now(), subjects.digest_of(body)
    await world.log.append(
        Voided(stream="LOG", sequence=sequence, subject=subject, stored_at=at, found="", digest=digest), expect=0
    )
    world.clock.advance(31)
    await world.handle(subscription(increment_once))
    assert (await world.stored(PoisonMessage), world.pending) == ([], 0)


async def test_often_delivered_input_is_decided_alone(world: World) -> None:
    sizes: list[int] = []
    write = world.log.write

    async def counted(writes: Sequence[Write]) -> list[Written]:
        sizes.append(len(writes))
        return await write(writes)

    await world.given(execution(0))
    decides = subscription(increment_once)
    for _ in range(3):
        await world.durable(decides).take(10, wait=0)
        world.clock.advance(31)
    await world.given(execution(1), execution(2))
    world.log.write = counted  # type: ignore[method-assign]
    await world.handle(decides)
    assert (sizes, world.pending) == ([2, 1], 0)


@pytest.mark.parametrize("is_refused", [False, True])
async def test_waiting_and_refusal_rest_on_the_newest_state(log: RecordingLog, *, is_refused: bool) -> None:
    store, ref = store_of(log), counter("a")
    await store.view().read([ref])
    await log.increment("a")

    def decide(_: Recorded[Message], states: States, __: datetime) -> Step:
        if states(ref):
            return DONE
        return refuse("no", code="not-found", rests_on=(ref,)) if is_refused else wait(1, rests_on=(ref,))

    [item] = items("a")
    await Waves(store).run(decide, [item])
    assert item.outcome is not None
    assert item.outcome.result is Result.DONE


async def test_held_input_comes_again(world: World) -> None:
    handled: list[int] = []

    def decide(recorded: Recorded[Message], _: States, __: datetime) -> Step:
        handled.append(recorded.sequence)
        return wait(5) if len(handled) == 1 else DONE

    await world.given(admitted())
    subject = subjects.subject_of(admitted())
    world.log.receive(subject, admitted().encode(), headers=guarded(subject))
    await world.handle(subscription(decide))
    assert (handled, world.pending) == ([1], 2)
    world.clock.advance(6)
    await world.handle(subscription(decide))
    assert (sorted(set(handled)), world.pending) == ([1, 2], 0)


# --- batches and single inputs ---------------------------------------------------------------------------------------

LIMIT: Final = 5
"""The invariant of the aggregate: a counter never exceeds it, and its numbers have no gap."""


def bounded(recorded: Recorded[Message], states: States, _: datetime) -> Step:
    """Increment a counter up to its limit, and then the next; odd inputs do so twice."""
    names = name_of(recorded).split("-")
    for name in names:
        number = states(counter(name)) + 1
        if number <= LIMIT:
            step = done if not recorded.sequence % 2 or states.has_changed(counter(name)) else again
            return step(Events(counter(name), (count(name, number),)))
    return done(rests_on=tuple(counter(name) for name in names))


async def stored_by(names: Sequence[tuple[str, int]], size: int, others: Sequence[int] = ()) -> dict[str, list[str]]:
    log, taken = RecordingLog(), 0

    async def other() -> None:
        nonlocal taken
        taken += 1
        for name in "abc":
            if taken in others and (number := len(await log.read(subjects.lock(name))) + 1) <= LIMIT:
                await log.append(count(name, number), expect=await log.tail(subjects.lock(name)))

    log.meanwhile = other
    recorded = inputs(*(name for name, _ in names))
    batch = [Item(message, key) for message, (_, key) in zip(recorded, names, strict=True)]
    waves = Waves(store_of(log))
    for first in range(0, len(batch), size):
        await waves.run(bounded, batch[first : first + size])
    assert all(item.outcome is not None and item.outcome.result is Result.DONE for item in batch)
    return {name: await log.numbers(name) for name in "abc"}


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 3)), max_size=20), st.integers(2, 20))
def test_batches_store_what_single_inputs_store(names: list[tuple[str, int]], size: int) -> None:
    one_by_one = asyncio.run(stored_by(names, 1))
    assert asyncio.run(stored_by(names, size)) == one_by_one


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "c", "a-b", "c-a"]), st.integers(0, 3)), max_size=20),
    st.integers(1, 20),
    st.lists(st.integers(1, 12), max_size=4),
)
def test_invariant_holds_beside_another_writer(names: list[tuple[str, int]], size: int, others: list[int]) -> None:
    stored = asyncio.run(stored_by(names, size, others))
    for name, numbers in stored.items():
        assert numbers == [f"{name}-{number}" for number in range(1, len(numbers) + 1)]
        assert len(numbers) <= LIMIT


# --- isolation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError("a defect"), StaleRead.of("a")])
async def test_failed_read_of_one_input_fails_no_other(log: RecordingLog, error: Exception) -> None:
    async def read(_: Sources, names: Sequence[str]) -> dict[str, None]:
        if "b" in names:
            raise error
        return dict.fromkeys(names)

    reading = Reading("name", read)

    def decide(recorded: Recorded[Message], states: States, now: datetime) -> Step:
        states(reading(name_of(recorded)))
        return increment(recorded, states, now)

    batch = items("a", "b", "c")
    await run(log, decide, batch)
    assert [item.outcome.error if item.outcome else None for item in batch] == [None, error, None]


@pytest.mark.parametrize(
    ("names", "reads", "decisions"),
    [(("a", "a", "a", "a"), 1, 6), (("a", "b", "a", "c"), 1, 8), (("a", "a", "b"), 2, 6)],
)
async def test_reading_of_the_first_inputs_comes_early(
    log: RecordingLog, names: tuple[str, ...], reads: int, decisions: int
) -> None:
    read_together: list[Sequence[str]] = []
    decided: list[str] = []

    async def read(_: Sources, keys: Sequence[str]) -> dict[str, int]:
        read_together.append(keys)
        return dict.fromkeys(keys, 0)

    reading = Reading("name", read)

    def decide(recorded: Recorded[Message], states: States, _: datetime) -> Step:
        decided.append(name_of(recorded))
        states(reading(name_of(recorded)))
        return DONE

    assert await run(log, decide, items(*names)) == [Result.DONE] * len(names)
    assert (len(read_together), len(decided)) == (reads, decisions)


async def test_two_writes_of_a_scope_fail_no_input(log: RecordingLog) -> None:
    """A report may name its job by a wildcard; its events then belong to the scope of another decision."""

    def decide(recorded: Recorded[Message], states: States, _: datetime) -> Step:
        ref = COUNTER(subjects.lock(name_of(recorded).upper()))
        return done(Events(ref, (count(name_of(recorded).strip("x"), states(ref) + 1),), at=0))

    await run(log, decide, items("a", "ax", "b"))
    assert await log.numbers("b") == ["b-1"]
    assert await log.numbers("a") == ["a-1"]


async def test_known_state_is_not_guessed_after_conflict(log: RecordingLog) -> None:
    """A conflict on another scope has it read on, which finds nothing new."""
    store, seen = store_of(log), list[int]()
    for name in ("a", "b"):
        await log.increment(name)
    await store.folds(COUNTER).read([subjects.lock("a")])

    def decide(_: Recorded[Message], states: States, __: datetime) -> Step:
        seen.append(states.guess(counter("a")))
        return DONE if states.guess(counter("b")) else again(Events(counter("b"), (count("b", 1),)))

    await Waves(store).run(decide, items("a"))
    assert seen == [1] * len(seen)


# --- postponed -------------------------------------------------------------------------------------------------------


def twice(recorded: Recorded[Message], states: States, _: datetime) -> Step:
    """Count once, and then once more, which can wait."""
    ref = counter(name_of(recorded))
    if not states.has_changed(ref):
        return again(Events(ref, (count(name_of(recorded), 1),)), low_priority=True)
    return done(Events(ref, (count(name_of(recorded), states(ref) + 1),)))


async def test_decisions_that_can_wait_are_postponed(log: RecordingLog) -> None:
    store, batch, postponed = store_of(log), items("a", "b"), list[Item]()
    await Waves(store).run(twice, batch, remainder=postponed)
    assert postponed == batch
    assert [item.outcome for item in batch] == [None, None]
    assert (await log.numbers("a"), await log.numbers("b")) == (["a-1"], ["b-1"])
    await Waves(store).run(twice, postponed)
    assert [item.outcome.result for item in batch if item.outcome] == [Result.DONE] * 2
    assert await log.numbers("a") == ["a-1", "a-2"]
    assert [len(writes) for writes in log.writes] == [2, 2]


async def test_input_before_another_is_not_postponed(log: RecordingLog) -> None:
    batch = [Item(recorded, "x") for recorded in inputs("a", "b")]
    postponed: list[Item] = []
    await Waves(store_of(log)).run(twice, batch, remainder=postponed)
    assert postponed == batch[1:]
    assert batch[0].outcome is not None
    assert (await log.numbers("a"), await log.numbers("b")) == (["a-1", "a-2"], ["b-1"])


async def test_refused_append_is_not_postponed(log: RecordingLog) -> None:
    async def other_writer() -> None:
        log.meanwhile = None
        await log.increment("a")

    def decide(recorded: Recorded[Message], states: States, _: datetime) -> Step:
        ref = counter(name_of(recorded))
        number = states(ref) + 1
        return again(Events(ref, (count("a", number),)), low_priority=True) if not states.has_changed(ref) else DONE

    log.meanwhile = other_writer
    batch, postponed = items("a"), list[Item]()
    await Waves(store_of(log)).run(decide, batch, remainder=postponed)
    assert await log.numbers("a") == ["a-0", "a-2"]
    assert postponed == batch
