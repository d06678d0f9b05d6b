"""Messages in the streams of decisions that no stage stored: readers skip them, and guards count them."""

from collections.abc import Callable
from contextlib import aclosing

import pytest
from structlog.testing import capture_logs

from tests.conformance.given import acquired, cron_triggered, dispatched, due
from tests.conformance.worlds import NatsWorld, World
from tests.domain.given import NOON
from tests.durables import take
from tests.guards import guarded
from tests.servers import FAST_CLIENT
from tocsin import subjects
from tocsin.adapters.nats.log import event_log
from tocsin.adapters.nats.log.event_log import SCAN_LIMIT
from tocsin.domain import lock
from tocsin.domain.events import Foreign, Message, QueuePaused, Recorded
from tocsin.domain.lock import Waiter
from tocsin.ports import DurableSpec, SequenceConflict
from tocsin.subjects import Stream

SCOPE = subjects.execution("a.job", "e1")
ACK = b'{"stream":"TOCSIN_LEDGER", "seq":7}'
"""What a server answers to a publish."""
DECISIONS: tuple[Message, ...] = (
    due(),
    dispatched(),
    acquired(),
    acquired(shard="eu"),
    cron_triggered(),
    QueuePaused(queue="reports"),
)


def _bodies(decision: Message) -> list[bytes]:
    """Bodies without a guard: an answer of the server, junk, nothing, and a decision."""
    return [ACK, b"\xff\x00", b"", decision.encode()]


def _kinds(messages: list[Recorded[Message]]) -> list[tuple[int, bool]]:
    return [(recorded.sequence, isinstance(recorded.message, Foreign)) for recorded in messages]


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda decision: type(decision).__name__)
@pytest.mark.parametrize("number", range(4))
async def test_hidden_event_is_loaded(world: World, decision: Message, number: int) -> None:
    subject, scope = subjects.subject_of(decision), subjects.scope_of(decision)
    event = await world.log.append(decision, expect=0)
    foreign = await world.receive(subject, _bodies(decision)[number])

    loaded = await world.log.load(scope)

    assert _kinds(loaded) == [(event, False), (foreign, True)]
    assert loaded[0].message == decision
    assert (await world.log.load_each(scope, "ledger.nothing.>" if subject.startswith("ledger") else scope)).facts[
        0
    ] == loaded
    assert await world.log.load(scope, after=event) == loaded[1:]
    assert await world.log.last(subject) == await world.log.last(scope) == loaded[0]
    assert await world.log.read(subject) == loaded[:1]
    assert await world.log.get(scope, foreign) == loaded[1]
    assert await world.log.tail(scope) == foreign
    with pytest.raises(SequenceConflict):
        await world.log.append(decision, expect=event)
    newest = await world.log.append(decision, expect=foreign)
    assert _kinds(await world.log.load(scope)) == [(newest, False)]


async def test_lone_foreign_message_makes_no_event(world: World) -> None:
    foreign = await world.receive("execution.a_job.e1.completed", ACK)
    [only] = await world.log.load(SCOPE)
    assert _kinds([only]) == [(foreign, True)]
    assert await world.log.last(SCOPE) is None
    assert await world.log.read(SCOPE) == []
    assert await world.log.append(dispatched(), expect=foreign) == foreign + 1


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({}, "without a guard"),
        ({"Nats-Msg-Id": "m"}, "without a guard"),
        (guarded("execution.another.e1.completed"), "another scope"),
        ({**guarded("execution.a_job.e1.completed"), "Nats-Stream": "TOCSIN_LOG"}, "reply of the server"),
    ],
)
async def test_foreign_message_says_why(world: World, headers: dict[str, str], reason: str) -> None:
    """A server checks a guard, also one over subjects that do not exist."""
    if isinstance(world, NatsWorld):
        if "reply" in reason and FAST_CLIENT == "off":
            pytest.skip("the parser of nats-py keeps one of two headers of a name")
        headers = {
            name: world.names.to_wire(value) if name.endswith("Subject") else value for name, value in headers.items()
        }
    sequence = await world.receive("execution.a_job.e1.completed", b"{}", headers=headers)
    recorded = await world.log.get(SCOPE, sequence)
    assert recorded is not None
    assert isinstance(recorded.message, Foreign)
    assert reason in recorded.message.reason


@pytest.mark.parametrize("number", [1, 5, 100, 700])
async def test_event_is_found_before_many_foreign_messages(world: World, number: int) -> None:
    event, foreign = await world.log.append(due(), expect=0), 0
    for _ in range(number):
        foreign = await world.receive("ledger.a_job.due", ACK)
        await world.receive("ledger.another.due", ACK)
    for _ in range(2):
        assert _kinds(await world.log.load(subjects.ledger("a.job"))) == [(event, False), (foreign, True)]
    again = await world.receive("ledger.a_job.due", ACK)
    assert _kinds(await world.log.load(subjects.ledger("a.job"))) == [(event, False), (again, True)]
    newer = await world.log.append(due(hour=13), expect=again)
    last = await world.receive("ledger.a_job.due", ACK)
    assert _kinds(await world.log.load(subjects.ledger("a.job"))) == [(newer, False), (last, True)]


@pytest.mark.parametrize("near", [0, SCAN_LIMIT])
async def test_lock_is_loaded_across_foreign_messages(world: World, near: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "SCAN_LIMIT", near)
    scope, state = subjects.lock("a.job"), lock.initial
    sequence = 0
    for decide in (_acquire, _queue("b"), _queue("c")):
        for event in decide(state):
            sequence = await world.log.append(event, expect=sequence)
            state = lock.evolve(state, Recorded(event, subjects.subject_of(event), sequence, NOON))
        sequence = await world.receive("lock.a_job.queued", ACK)
        sequence = await world.receive("lock.a_job.acquired", acquired("thief").encode())
    for loaded in (await world.log.load(scope), (await world.log.load_each(scope)).facts[0]):
        assert lock.fold(loaded) == state
        assert loaded[-1].sequence == sequence
    assert lock.fold(await world.log.load(scope, after=sequence - 3), state) == state


def _acquire(_: lock.Lock) -> list[Message]:
    return [acquired("a")]


def _queue(name: str) -> Callable[[lock.Lock], list[Message]]:
    return lambda state: [*lock.queue(state, "a.job", Waiter(name, NOON))]


async def test_read_continues_behind_a_page_of_foreign_messages(world: World) -> None:
    first, foreign = await world.log.append(due(), expect=0), 0
    for _ in range(5):
        foreign = await world.receive("ledger.a_job.due", ACK)
    last = await world.log.append(due(hour=13), expect=foreign)
    assert [one.sequence for one in await world.log.read("ledger.>", after=first, limit=2)] == [last]
    assert await world.log.read("ledger.>", after=last, limit=2) == []


@pytest.mark.parametrize("after", [0, None])
async def test_follower_lists_foreign_messages_apart(world: World, after: int | None) -> None:
    event = await world.log.append(due(), expect=0)
    foreign = await world.receive("ledger.a_job.due", due(hour=13).encode())
    seen, apart, upto = [], [], 0
    async with aclosing(world.log.follow(Stream.LEDGER, "ledger.>", after=after)) as batches:
        while upto < foreign:
            batch = await anext(batches)
            seen += [one.sequence for one in batch.messages]
            apart += [one.sequence for one in batch.foreign]
            upto = batch.upto
    assert (seen, apart) == ([event] if after == 0 else [], [foreign])


async def test_watcher_sees_no_foreign_message(world: World) -> None:
    await world.log.append(dispatched(), expect=0)
    foreign = await world.receive("execution.a_job.e1.completed", b"{}")
    seen, upto = [], 0
    async with aclosing(world.log.watch(Stream.LOG, "execution.>", after=0)) as portions:
        while upto < foreign:
            portion = await anext(portions)
            seen += [one.subject for one in portion.headings]
            upto = portion.upto
    assert seen == ["execution.a_job.e1.dispatched.main.1"]


async def test_delivery_shows_the_headers(world: World) -> None:
    durable = await world.durable(DurableSpec("d", Stream.LOG, ("execution.>",)))
    await world.log.append(dispatched(), expect=0)
    await world.receive("execution.a_job.e1.completed", ACK)
    reasons = [subjects.foreign_reason(one.subject, one.headers) for one in await take(durable, 2)]
    assert reasons[0] is None
    assert "without a guard" in (reasons[1] or "")


async def test_foreign_message_is_logged_once(world: World) -> None:
    foreign = await world.receive("ledger.a_job.due", ACK)
    with capture_logs() as lines:
        for _ in range(3):
            await world.log.load(subjects.ledger("a.job"))
    [line] = [line for line in lines if line["action"] == "foreign-message"]
    assert (line["subject"], line["sequence"]) == ("ledger.a_job.due", foreign)


async def test_message_under_a_wildcard_hides_no_event(world: World) -> None:
    """A server stores what is published under a wildcard, and such a subject would match those of every job."""
    event = await world.log.append(due(), expect=0)
    foreign = await world.receive("ledger.*.due", ACK)
    assert _kinds(await world.log.load("ledger.*.due")) == [(event, False), (foreign, True)]
    assert _kinds(await world.log.load(subjects.ledger("a.job"))) == [(event, False)]
