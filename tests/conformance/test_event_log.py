"""The behaviour of every event log."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, aclosing
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias, cast

import pytest

from tests.conformance.given import acquired, cron_triggered, delivered, dispatched, due, raised, report, started
from tests.conformance.worlds import MemoryWorld, World
from tests.domain.given import NOON
from tests.servers import REPLICAS
from tocsin import subjects
from tocsin.adapters.nats.client import connection as connection_module
from tocsin.domain import lock
from tocsin.domain.events import Completion, Dispatched, Message, Recorded, Trigger, Voided
from tocsin.domain.lock import Waiter
from tocsin.ports import (
    MAX_TOGETHER,
    Append,
    Batch,
    LogUnavailable,
    MessageTooLarge,
    Publish,
    RepeatedInput,
    RequestRefused,
    SequenceConflict,
)
from tocsin.subjects import DecodeError, Stream

SCOPE = subjects.execution("a.job", "e1")
Following: TypeAlias = AsyncGenerator[Batch, None]


async def test_appended_event_is_read_back_unchanged(world: World) -> None:
    before = world.now()
    sequence = await world.log.append(dispatched(), expect=0)

    (recorded,) = await world.log.load(SCOPE)

    assert recorded.message == dispatched()
    assert (recorded.subject, recorded.sequence, recorded.message_id) == (
        "execution.a_job.e1.dispatched.main.1",
        sequence,
        None,
    )
    assert before - timedelta(seconds=1) < recorded.time <= world.now()
    assert recorded.time.utcoffset() == timedelta()
    assert await world.log.get(SCOPE, sequence) == recorded
    assert await world.log.last(SCOPE) == recorded
    assert await world.log.last(recorded.subject) == recorded
    assert await world.log.read(SCOPE) == [recorded]


async def test_tail_is_the_last_sequence_of_a_scope(world: World) -> None:
    assert await world.log.tail(SCOPE) == 0
    first = await world.log.append(dispatched(), expect=0)
    await world.log.append(dispatched(execution_id="another"), expect=0)
    assert await world.log.tail(SCOPE) == first


async def test_newer_message_is_seen_by_any_filter(world: World) -> None:
    tasks, claims = "execution.*.*.dispatched.>", "execution.*.*.started.*.*.*"
    assert not await world.log.has_newer(tasks, claims, after=0)
    task = await world.log.append(dispatched(), expect=0)
    assert await world.log.has_newer(tasks, claims, after=task - 1)
    assert await world.log.has_newer(claims, tasks, after=task - 1)
    assert not await world.log.has_newer(tasks, claims, after=task)
    claim = await world.log.append(started(), expect=task)
    assert not await world.log.has_newer(tasks, after=task)
    assert await world.log.has_newer(tasks, claims, after=task)
    assert not await world.log.has_newer(tasks, claims, after=claim + 1_000)


async def test_the_log_has_a_clock(world: World) -> None:
    assert abs(await world.log.now() - world.now()) < timedelta(seconds=2)
    assert (await world.log.now()).utcoffset() == timedelta()


async def test_times_of_events_follow_the_logs_clock(world: World) -> None:
    """Leaders decide by the earliest time that this clock can show, so that nothing is stored before its time."""
    times: list[datetime] = []
    for number in range(3):
        before = await world.log.now()
        await world.log.append(dispatched(execution_id=f"e-{number}"), expect=0)
        times.append((await world.log.read("execution.>"))[-1].time)
        assert before - timedelta(seconds=1) < times[-1] <= await world.log.now()
    assert times == sorted(times)


async def test_nothing_is_there_at_first(world: World) -> None:
    assert await world.log.load(SCOPE) == []
    assert await world.log.last(SCOPE) is None
    assert await world.log.last("execution.a_job.e1.completed") is None
    assert await world.log.get(SCOPE, 1) is None
    assert await world.log.read("execution.>") == []


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (dispatched(), started()),
        (due(hour=12), due(hour=13)),
        (acquired("e1"), acquired("e2")),
        (acquired("e1", shard="eu"), acquired("e2", shard="eu")),
        (cron_triggered(run=1), cron_triggered(run=2)),
        (raised(), delivered()),
    ],
    ids=["execution", "ledger", "lock", "shard's lock", "announcement", "notification"],
)
async def test_a_stale_writer_is_refused(world: World, first: Message, second: Message) -> None:
    sequence = await world.log.append(first, expect=0)

    for stale in (0, sequence + 1):
        with pytest.raises(SequenceConflict):
            await world.log.append(second, expect=stale)

    [written] = await world.log.write([Append((second,), sequence + 1)])
    assert isinstance(written.error, SequenceConflict)
    assert [recorded.message for recorded in await world.log.load(subjects.scope_of(first))] == [first]
    assert await world.log.append(second, expect=sequence) == sequence + 1


async def test_entities_do_not_contend(world: World) -> None:
    sequences = [
        await world.log.append(fact, expect=0)
        for fact in (dispatched("e1"), dispatched("e2"), acquired(), acquired(shard="eu"), due("j1"), due("j2"))
    ]
    assert len(sequences) == 6
    await world.log.append(started("e1"), expect=sequences[0])


async def test_inputs_move_no_guard(world: World) -> None:
    sequence = await world.log.append(dispatched(), expect=0)
    await world.log.publish(subjects.subject_of(report()), report(), message_id="r")

    await world.log.append(started(), expect=sequence)


async def test_of_twenty_writers_exactly_one_wins(world: World) -> None:
    for _ in range(5):
        last = await world.log.last(SCOPE)
        expect = last.sequence if last else 0
        attempts = (world.log.append(started(delivery=n), expect=expect) for n in range(20))
        outcomes = await asyncio.gather(*attempts, return_exceptions=True)

        losers = [outcome for outcome in outcomes if isinstance(outcome, SequenceConflict)]
        (won,) = [outcome for outcome in outcomes if isinstance(outcome, int)]
        assert len(losers) == 19
        assert (await world.log.load(SCOPE))[-1].sequence == won


async def test_load_returns_the_last_of_each_subject(world: World) -> None:
    scope, last = subjects.ledger("a.job"), 0
    for fact in (due(hour=9), due(hour=10)):
        last = await world.log.append(fact, expect=last)
    await world.log.append(due("another"), expect=0)

    assert [recorded.message for recorded in await world.log.load(scope)] == [due(hour=10)]

    first = await world.log.append(dispatched(), expect=0)
    second = await world.log.append(started(delivery=2), expect=first)
    third = await world.log.append(started(delivery=1), expect=second)
    assert [recorded.sequence for recorded in await world.log.load(SCOPE)] == [first, second, third]


async def test_several_scopes_are_loaded_at_once(world: World) -> None:
    held, said = subjects.lock("a.job"), subjects.public_event("triggered", "a.job")
    await world.log.append(dispatched(), expect=0)
    await world.log.append(dispatched(execution_id="another"), expect=0)
    await world.log.append(acquired(), expect=0)
    await world.log.append(cron_triggered(), expect=0)
    loaded = await world.log.load_each(held, SCOPE, said, "lock.nothing.*")
    assert loaded.facts == [await world.log.load(scope) for scope in (held, SCOPE, said, "lock.nothing.*")]
    assert [len(facts) for facts in loaded.facts] == [1, 1, 1, 0]
    assert loaded.upto == 4


async def test_executions_are_loaded_without_their_jobs(world: World) -> None:
    await world.log.append(dispatched(), expect=0)
    await world.log.append(dispatched(execution_id="another"), expect=0)
    scopes = [subjects.execution(subjects.ANY, id_) for id_ in ("another", "e1", "another", "nothing")]
    loaded = await world.log.load_each(*scopes)
    assert [[fact.sequence for fact in facts] for facts in loaded.facts] == [[2], [1], [2], []]


async def test_lock_is_loaded_from_the_oldest_that_waits(world: World) -> None:
    scope, state, sequence = subjects.lock("a.job"), lock.initial, 0
    for name in ("a", "b", "c", "d", "next", "e", "next"):  # stored as 1 to 7
        first = state.waiting.first
        decision = (
            lock.acquire(state, "a.job", first, ttl=1)
            if name == "next" and first
            else (lock.queue(state, "a.job", Waiter(name, NOON)) if state.holder else [acquired("a")])
        )
        for event in decision:
            sequence = await world.log.append(event, expect=sequence)
            state = lock.evolve(state, Recorded(event, subjects.subject_of(event), sequence, NOON))
    loaded = await world.log.load(scope)
    assert [recorded.sequence for recorded in loaded] == [4, 5, 6, 7]
    assert lock.fold(loaded) == state
    assert (await world.log.load_each(scope, "lock.nothing.*")).facts == [loaded, []]


async def test_nonempty_loaded_scopes_cover_the_whole_log(world: World) -> None:
    await world.log.append(acquired(), expect=0)
    await world.log.append(dispatched(), expect=0)
    assert (await world.log.load_each(subjects.lock("a.job"), "lock.nothing.*")).upto == 2
    assert (await world.log.load_each("lock.nothing.*")).upto == 0


async def test_many_large_scopes_are_loaded_together(
    world: World,
) -> None:
    ids, attempts = [f"e{i}" for i in range(200)], range(1, 7)
    tasks = [tuple(dispatched(execution_id=name, attempt=attempt) for attempt in attempts) for name in ids]
    await world.log.write([Append(of_execution, 0) for of_execution in tasks])

    loaded = await world.log.load_each(*(subjects.execution("a.job", execution_id) for execution_id in ids))

    assert [[cast("Dispatched", one.message).attempt for one in facts] for facts in loaded.facts] == [[*attempts]] * 200
    assert [{cast("Dispatched", one.message).execution_id for one in facts} for facts in loaded.facts] == [
        {execution_id} for execution_id in ids
    ]
    assert loaded.upto == 1_200


async def test_scope_exceeds_the_subjects_of_one_answer(world: World) -> None:
    claims = range(1, 1_101)
    for _ in range(2):  # each subject twice, of which the second counts
        await asyncio.gather(
            *(world.receive(subjects.subject_of(report(claim=n)), report(claim=n).encode()) for n in claims)
        )

    facts = await world.log.load("report.a_job.e1.>")

    assert len(facts) == 1_100
    assert {cast("int", getattr(one.message, "claim", 0)) for one in facts} == set(claims)
    assert [one.sequence for one in facts] == sorted(one.sequence for one in facts)
    assert min(one.sequence for one in facts) == 1_101


async def test_read_pages_through_what_matches(world: World) -> None:
    for n in range(1, 8):
        await world.log.append(dispatched(f"e{n}"), expect=0)
        await world.log.append(acquired(shard=f"s{n}"), expect=0)

    first = await world.log.read("execution.*.*.dispatched.>", limit=4)
    second = await world.log.read("execution.*.*.dispatched.>", after=first[-1].sequence, limit=4)

    assert [one.sequence for one in first] == [1, 3, 5, 7]
    assert [one.sequence for one in second] == [9, 11, 13]
    assert await world.log.read("execution.*.*.dispatched.>", after=13) == []


async def test_last_returns_the_newest_of_all_subjects(world: World) -> None:
    for n in (2, 1, 3):
        await world.log.append(dispatched(f"e{n}"), expect=0)

    newest = await world.log.last("execution.a_job.*.dispatched.>")

    assert newest is not None
    assert newest.message == dispatched("e3")


async def test_publishing_twice_stores_once(world: World) -> None:
    subject = subjects.trigger("a.job")
    first = await world.log.publish(subject, Trigger(reason="one"), message_id="a")
    again = await world.log.publish(subject, Trigger(reason="two"), message_id="a")
    other = await world.log.publish(subject, Trigger(reason="three"), message_id="b")

    facts = await world.log.read("trigger.>")

    assert first == again < other
    assert [(one.message, one.message_id) for one in facts] == [
        (Trigger(reason="one"), "a"),
        (Trigger(reason="three"), "b"),
    ]


def trigger(number: int, reason: str = "one") -> Publish:
    return Publish(subjects.trigger(f"job-{number}"), Trigger(reason=reason), f"id-{number}")


async def test_many_inputs_are_stored_together(world: World) -> None:
    await world.log.publish_together([trigger(number) for number in range(MAX_TOGETHER)])
    stored = await world.log.read("trigger.>", limit=2 * MAX_TOGETHER)
    assert [fact.message_id for fact in stored] == [f"id-{number}" for number in range(MAX_TOGETHER)]


async def test_inputs_stored_together_twice_are_stored_once(world: World) -> None:
    await world.log.publish_together([trigger(1), trigger(2)])
    await world.log.publish_together([trigger(1, "two"), trigger(2, "two")])
    assert [fact.message for fact in await world.log.read("trigger.>")] == [Trigger(reason="one")] * 2


async def test_one_repeated_input_refuses_all(world: World) -> None:
    repeated = trigger(2)
    await world.log.publish(repeated.subject, repeated.message, message_id=repeated.message_id)
    with pytest.raises(RepeatedInput):
        await world.log.publish_together([trigger(1), trigger(2), trigger(3)])
    assert [fact.message_id for fact in await world.log.read("trigger.>")] == ["id-2"]


async def test_one_input_too_large_refuses_all(world: World) -> None:
    with pytest.raises(RequestRefused):
        await world.log.publish_together([trigger(1), trigger(2, "x" * subjects.MAX_INPUT_SIZE), trigger(3)])
    assert await world.log.read("trigger.>") == []


async def test_program_outside_uses_up_no_id(world: World) -> None:
    await world.ask("a", b"{}", "taken")
    subject = subjects.trigger("a")
    first = await world.log.publish(subject, Trigger(reason="mine"), message_id="taken")
    again = await world.log.publish(subject, Trigger(reason="mine"), message_id="taken")
    stored = await world.log.get(subject, first)
    assert stored is not None
    assert (stored.message, stored.message_id) == (Trigger(reason="mine"), "taken")
    assert again == first


async def test_end_is_the_last_sequence_of_a_stream(world: World) -> None:
    assert await world.log.end(Stream.REQUESTS) == 0
    for number in range(3):
        await world.log.publish(subjects.trigger("a"), Trigger(), message_id=str(number))
    assert await world.log.end(Stream.REQUESTS) == 3


async def test_input_without_a_body_has_default_fields(world: World) -> None:
    sequence = await world.receive(subjects.trigger("a.job"), b"")

    facts = await world.log.get(subjects.trigger("a.job"), sequence)

    assert facts is not None
    assert facts.message == Trigger()


async def test_what_no_stream_captures_is_not_stored(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = getattr(world, "connection", None)
    if connection is not None:
        monkeypatch.setattr(connection_module, "PUBLISH_TIMEOUT_S", 0.0)
    with pytest.raises(LogUnavailable):
        await world.log.publish("nowhere.at.all", Trigger(), message_id="a")


async def test_several_writes_are_stored_at_once(world: World) -> None:
    written = await world.log.write(
        [
            Append((dispatched("e1"), started("e1")), 0),
            Publish(subjects.trigger("a.job"), Trigger(reason="one"), "a"),
            Append((dispatched("e2"),), 0),
        ]
    )

    assert [len(one.sequences) for one in written] == [2, 1, 1]
    assert [one.error for one in written] == [None] * 3
    for one, execution_id in ((written[0], "e1"), (written[2], "e2")):
        facts = await world.log.load(subjects.execution("a.job", execution_id))
        assert tuple(recorded.sequence for recorded in facts) == one.sequences
    assert [one.message for one in await world.log.read("trigger.>")] == [Trigger(reason="one")]
    assert await world.log.write([]) == []


async def test_refused_write_does_not_affect_the_others(world: World) -> None:
    last = await world.log.append(dispatched("e2"), expect=0)

    good, stale, input_ = await world.log.write(
        [
            Append((dispatched("e1"),), 0),
            Append((started("e2"), started("e2", delivery=2)), 0),
            Publish(subjects.trigger("a.job"), Trigger(), "a"),
        ]
    )

    assert (good.error, input_.error) == (None, None)
    assert (stale.sequences, type(stale.error)) == ((), SequenceConflict)
    assert await world.log.tails(*(subjects.execution("a.job", name) for name in ("e1", "e2", "e3"))) == [
        *good.sequences,
        last,
        0,
    ]
    assert await world.log.tails() == []


@pytest.mark.parametrize("number", [2, 40, 300])
async def test_events_of_one_decision_are_stored_in_order(world: World, number: int) -> None:
    events = tuple(started(delivery=delivery) for delivery in range(number))
    other = await world.log.append(dispatched(), expect=0)

    (written,) = await world.log.write([Append(events, other)])

    assert written.error is None
    assert list(written.sequences) == sorted(set(written.sequences))
    facts = (await world.log.load(SCOPE))[1:]
    assert [recorded.message for recorded in facts] == list(events)
    assert tuple(recorded.sequence for recorded in facts) == written.sequences


@pytest.mark.parametrize("number", [40, 2_500])
async def test_many_decisions_are_stored_at_once(world: World, number: int) -> None:
    await world.log.append(dispatched("e7"), expect=0)

    written = await world.log.write([Append((dispatched(f"e{n}"),), 0) for n in range(number)])

    assert [n for n, one in enumerate(written) if one.error is not None] == [7]
    assert isinstance(written[7].error, SequenceConflict)
    sequences = [one.sequences[0] for one in written if one.error is None]
    assert len(set(sequences)) == number - 1
    for n in (0, number - 1):
        assert [r.sequence for r in await world.log.load(subjects.execution("a.job", f"e{n}"))] == [
            *written[n].sequences
        ]


async def test_two_writes_of_one_scope_are_refused(world: World) -> None:
    twice = [Append((dispatched(),), 0), Append((started(),), 0)]
    mixed = [Append((dispatched("e1"), dispatched("e2")), 0)]
    empty = [Append((), 0)]
    for writes in (twice, mixed, empty):
        with pytest.raises(ValueError):  # noqa: PT011 - the type is what the port names
            await world.log.write(writes)
    assert await world.log.read("execution.>") == []


LIMIT = 1_048_576


@pytest.mark.parametrize("missing", [-1_000, 0, 60])
async def test_message_too_large_is_refused(world: World, missing: int) -> None:
    """The server counts headers too, and would close the connection."""
    reason = "x" * (LIMIT - missing - len(Trigger(reason="").encode()))
    large = Trigger(reason=reason)
    assert len(large.encode()) == LIMIT - missing

    with pytest.raises(MessageTooLarge):
        await world.log.publish(subjects.trigger("a.job"), large, message_id="x" * 100)
    small, refused = await world.log.write(
        [
            Append((dispatched(),), 0),
            Publish(subjects.trigger("a.job"), large, "x" * 100),
        ]
    )
    assert small.error is None
    assert isinstance(refused.error, MessageTooLarge)
    assert await world.log.publish(subjects.trigger("a.job"), Trigger(reason=reason[:200_000]), message_id="a") == 1


@pytest.mark.parametrize("excess", [0, 1])
async def test_report_too_large_is_refused(world: World, excess: int) -> None:
    """The events that a stage makes of a report have more fields, and must fit a message too."""
    empty = report().changed(result="")
    subject, message_id = subjects.subject_of(empty), "an id"
    headers = len(f"NATS/1.0\r\nNats-Msg-Id: {message_id}\r\n\r\n")
    room = subjects.MAX_INPUT_SIZE - headers - len(empty.encode())
    large = empty.changed(result="x" * (room + excess))
    if not excess:
        assert await world.log.publish(subject, large, message_id=message_id) == 1
        return
    with pytest.raises(RequestRefused):
        await world.log.publish(subject, large, message_id=message_id)
    assert await world.log.read(subject) == []


async def test_replicas_are_those_of_the_log(world: World) -> None:
    assert await world.log.replicas() == (1 if isinstance(world, MemoryWorld) else REPLICAS or 1)


LONG: Final = f"trigger.{'ü' * 1_750}"
"""A server ends the connection of a client that publishes on a subject of some 4,000 bytes."""


@pytest.mark.parametrize(
    "subject", ["trigger.", "trigger..job", ".trigger", "trigger.*", "trigger.a job", "trigger.>", LONG]
)
async def test_invalid_subject_is_refused(world: World, subject: str) -> None:
    with pytest.raises(RequestRefused):
        await world.log.publish(subject, Trigger(), message_id="a")
    (written,) = await world.log.write([Publish(subject, Trigger(), "a")])
    assert isinstance(written.error, RequestRefused)


async def test_scope_with_an_undecodable_event_is_not_folded(world: World) -> None:
    await world.log.append(dispatched(), expect=0)
    sequence = await world.decide("execution.a_job.e1.from-the-future", b"{}")

    newest = await world.log.last(SCOPE)
    assert newest is not None
    assert newest.message == dispatched()
    for reading in (world.log.load(SCOPE), world.log.get(SCOPE, sequence)):
        with pytest.raises(DecodeError) as caught:
            await reading
        assert caught.value.sequence == sequence


async def test_readable_event_counts_although_it_was_voided(world: World) -> None:
    sequence = await world.log.append(dispatched(), expect=0)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    subject, digest = subjects.subject_of(dispatched()), subjects.digest_of(dispatched().encode())
    await world.log.append(
        Voided(stream="LOG", sequence=sequence, subject=subject, stored_at=at, found="", digest=digest), expect=0
    )
    assert [one.message for one in await world.log.load(SCOPE)] == [dispatched()]


async def test_read_stops_at_the_position_of_undecodable_message(world: World) -> None:
    subject = subjects.trigger("a.job")
    await world.receive(subject, b'{"reason": "one"}')
    broken = await world.receive(subject, b"no json")
    last = await world.receive(subject, b'{"reason": "two"}')

    assert [one.message for one in await world.log.read(subject)] == [Trigger(reason="one")]
    with pytest.raises(DecodeError) as caught:
        await world.log.read(subject, after=broken - 1)
    assert caught.value.sequence == broken
    assert [one.sequence for one in await world.log.read(subject, after=broken)] == [last]


async def test_follower_of_an_empty_log_is_caught_up(world: World) -> None:
    async with _following(world, Stream.LOG, after=None) as batches:
        batch = await anext(batches)

    assert (list(batch.messages), batch.caught_up, batch.upto) == ([], True, 0)


async def test_follower_receives_stored_and_new_events(world: World) -> None:
    for n in range(3):
        await world.log.append(dispatched(f"e{n}"), expect=0)
    async with _following(world, Stream.LOG, after=1) as batches:
        seen = await _until_caught_up(batches)
        assert [one.sequence for one in seen] == [2, 3]

        waiting = asyncio.ensure_future(anext(batches))
        await world.log.append(dispatched("e3"), expect=0)
        batch = await waiting

    assert [one.message for one in batch.messages] == [dispatched("e3")]
    assert (batch.caught_up, batch.upto) == (True, 4)


async def test_follower_from_now_receives_last_and_new_events(world: World) -> None:
    last = 0
    for hour in (9, 10, 11):
        last = await world.log.append(due(hour=hour), expect=last)
    other = await world.log.append(due("other"), expect=0)
    async with _following(world, Stream.LEDGER, "ledger.*.due", after=None) as batches:
        seen = await _until_caught_up(batches)
        assert [one.sequence for one in seen] == [last, other]

        await world.log.publish(subjects.trigger("a.job"), Trigger(), message_id="not followed")
        newest = await world.log.append(due(hour=12), expect=last)
        assert [one.sequence for one in (await anext(batches)).messages] == [newest]


async def test_follower_resumes_after_its_last_sequence(world: World) -> None:
    for n in range(1_500):
        await world.receive(subjects.subject_of(report(delivery=n)), report(delivery=n).encode())
    seen: list[int] = []
    upto = 0
    while upto < 1_500:
        async with _following(world, Stream.REPORTS, "report.>", after=upto) as batches:
            batch = await anext(batches)
        seen += [one.sequence for one in batch.messages]
        upto = batch.upto

    assert seen == list(range(1, 1_501))


async def test_follower_at_the_end_is_caught_up(world: World) -> None:
    sequence = await world.log.append(dispatched(), expect=0)
    async with _following(world, Stream.LOG, after=sequence) as batches:
        batch = await anext(batches)

    assert (list(batch.messages), batch.caught_up, batch.upto) == ([], True, sequence)


async def test_a_follower_leaves_out_what_it_cannot_read(world: World) -> None:
    await world.log.append(dispatched(), expect=0)
    sequence = await world.decide("execution.a_job.e1.from-the-future", b"{}")
    async with _following(world, Stream.LOG, after=0) as batches:
        seen, upto = [], 0
        while upto < sequence:
            batch = await anext(batches)
            seen += [one.message for one in batch.messages]
            upto = batch.upto

    assert seen == [dispatched()]


async def test_a_follower_decodes_as_requested(world: World) -> None:
    await world.log.append(dispatched(), expect=0)
    sequence = await world.log.append(due(), expect=0)

    def decode(subject: str, body: bytes) -> Message:
        if subject != subjects.subject_of(due()):
            raise DecodeError(subject)
        return Trigger.model_validate({"input": {"size": len(body)}})

    seen: list[Recorded[Message]] = []
    for stream in (Stream.LOG, Stream.LEDGER):
        async with aclosing(world.log.follow(stream, after=None, decode=decode)) as batches:
            seen += await _until_caught_up(batches)

    size = len(due().encode())
    assert [(one.message, one.sequence) for one in seen] == [
        (Trigger.model_validate({"input": {"size": size}}), sequence)
    ]


async def test_a_follower_ends_when_its_task_is_cancelled(world: World) -> None:
    notified = asyncio.Event()

    async def follow() -> None:
        async for _ in world.log.follow(Stream.LOG, after=None):
            notified.set()

    task = asyncio.create_task(follow())
    await notified.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def _following(
    world: World, stream: Stream, *filters: str, after: int | None
) -> AbstractAsyncContextManager[Following]:
    return aclosing(world.log.follow(stream, *filters, after=after))


async def _until_caught_up(batches: Following) -> list[Recorded[Message]]:
    seen: list[Recorded[Message]] = []
    while True:
        batch = await anext(batches)
        seen += batch.messages
        if batch.caught_up:
            return seen


@pytest.mark.parametrize(
    "subject",
    ["mq.scheduler.complete..x", "mq.scheduler.complete.x.", "mq.scheduler.complete.", "trigger..x", "trigger.x."],
)
async def test_message_with_an_empty_token_is_not_stored(world: World, subject: str) -> None:
    with pytest.raises(LogUnavailable):
        await world.receive(subject, b"{}")


@pytest.mark.parametrize("subject", ["trigger.", "trigger..x", "trigger.x.", ".x", ""])
async def test_own_message_with_an_empty_token_is_refused(world: World, subject: str) -> None:
    with pytest.raises(RequestRefused):
        await world.log.publish(subject, Trigger(), message_id="x")
    [written] = await world.log.write([Publish(subject, Trigger(), "x")])
    assert isinstance(written.error, RequestRefused)


@pytest.mark.parametrize("scope", ["execution..x.>", "execution.a_job..>", "execution.a_job.", "execution..x"])
async def test_scope_with_an_empty_token_is_empty(world: World, scope: str) -> None:
    await world.log.append(dispatched(), expect=0)
    assert await world.log.load(scope) == []
    assert (await world.log.load_each(scope, SCOPE)).facts[0] == []
    assert await world.log.read(scope) == []
    assert await world.log.tail(scope) == 0
    assert await world.log.last(scope) is None


async def test_message_with_a_lifetime_disappears(world: World) -> None:
    answer, subject = Completion(status="completed"), "mq.scheduler.complete.a.e1"
    short = await world.log.publish(subject, answer, message_id="short", ttl=0.5)
    [written] = await world.log.write([Publish(subject, answer, "long", 600.0)])

    async def is_gone() -> bool:
        return await world.log.get(subject, short) is None

    await world.until(is_gone)
    assert [recorded.sequence for recorded in await world.log.read(subject)] == list(written.sequences)


async def test_message_is_removed_once(world: World) -> None:
    answer, subject = Completion(status="completed"), "mq.scheduler.complete.a.e1"
    first = await world.log.publish(subject, answer, message_id="1")
    second = await world.log.publish(subject, answer, message_id="2")
    for _ in range(2):
        await world.log.remove(subject, first)
    await world.log.remove(subject, second + 100)
    assert [recorded.sequence for recorded in await world.log.read(subject)] == [second]
