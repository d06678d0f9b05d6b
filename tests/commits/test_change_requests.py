"""Requests of processes without stages, which the registrar decides."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from itertools import count

import pytest
from typing_extensions import override

from tests.commits.members import SECRET, Members
from tests.commits.processes import until
from tocsin import subjects
from tocsin.adapters.commit_view import CommitView
from tocsin.adapters.memory.clock import LoopClock
from tocsin.adapters.memory.commit_log import InMemoryCommitLog
from tocsin.bootstrap import log_reader
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import (
    ChangeRequest,
    Defined,
    Deleted,
    Message,
    Paused,
    ProposedEvent,
    QueuePaused,
    Resolved,
    Trigger,
)
from tocsin.engine import change_requests, turns
from tocsin.engine.change_requests import MAX_BYTES, MAX_EVENTS, RequestTooLarge, RequestWaits, request_of
from tocsin.engine.commit_loop import CommitLoop
from tocsin.engine.fold import LEDGER
from tocsin.ports import Append, LogUnavailable, SequenceConflict
from tocsin.ports.commit_log import Bodies, StoredBody
from tocsin.subjects import Stream

FORGOTTEN = b'{"v":1,"name":"a","agent_id":"1","type":"forgotten"}'


def defined(job: str, number: int = 0) -> Defined:
    return Defined(job=job, definition=JobDefinition(name=job, function="f", description=str(number)))


async def taken(loop: CommitLoop, sequence: int) -> None:
    await until(lambda: loop.floor(Stream.REQUESTS) >= sequence)


class FollowedLog(InMemoryCommitLog):
    """Counts its followers, and answers no process while it is down."""

    followers = 0
    is_down = False
    is_stuck = False

    @override
    async def next(self, partition: int, *, after: int) -> StoredBody | None:
        if self.is_down:
            raise LogUnavailable("no answer")
        return await super().next(partition, after=after)

    @override
    async def follow(self, partition: int, *, after: int) -> AsyncGenerator[Bodies, None]:
        self.followers += 1
        try:
            if self.is_stuck:
                await asyncio.Event().wait()
            async for batch in super().follow(partition, after=after):
                yield batch
        finally:
            self.followers -= 1


class World(Members):
    """A log with members, and requests to it."""

    log: FollowedLog

    def __init__(self) -> None:
        clock = LoopClock()
        super().__init__(FollowedLog(clock), clock)
        self._requests = count()

    async def publish(self, request: ChangeRequest, subject: str | None = None) -> int:
        """Store a request as its publisher does."""
        subject = subject or subjects.subject_of(request)
        return await self.inputs.publish(subject, request, message_id=f"{request.id}{subject}")

    def request(self, *events: Message, expect: int = 0, key: bytes = SECRET) -> ChangeRequest:
        return request_of(key, Append(events, expect), self.clock, next(self._requests))


@pytest.fixture
def world() -> World:
    return World()


async def test_decision_of_a_reader_is_stored(world: World) -> None:
    async with world.deciding() as (view, _), world.reading() as reader:
        number = await reader.append(defined("a"), expect=0)
        assert await reader.append(Paused(job="a", definition=number), expect=number) == number + 1
        assert [one.message for one in await view.load("ledger.a.>")] == [
            one.message for one in await reader.load("ledger.a.>")
        ]
        commits = [one async for one in view._past_commits(0, 10)]
        assert [(e.by, e.cause) for commit in commits for e in commit.events] == [
            ("registrar", "REQUESTS-1"),
            ("registrar", "REQUESTS-2"),
        ]


async def test_decision_on_a_changed_scope_is_refused(world: World) -> None:
    async with world.deciding(), world.reading() as first, world.reading() as second:
        number = await first.append(defined("a"), expect=0)
        with pytest.raises(SequenceConflict):
            await second.append(defined("a", 1), expect=0)
        results = await asyncio.gather(
            first.append(Paused(job="a", definition=number), expect=number),
            second.append(Deleted(job="a"), expect=number),
            return_exceptions=True,
        )
        assert sorted(map(type, results), key=str) == [int, SequenceConflict]


async def test_request_waits_without_a_registrar(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_requests, "WAIT_S", 0.05)
    async with world.reading() as reader:
        with pytest.raises(RequestWaits) as caught:
            await reader.append(defined("a"), expect=0)
        assert caught.value.code == "request-waits"
    async with world.deciding() as (view, _):
        await until(lambda: "ledger.a.>" in view.fold.numbers)


async def test_definition_is_decided_before_later_trigger(world: World) -> None:
    """All stages are down; an operator defines a job, and a program triggers it."""
    await world.publish(world.request(defined("a")))
    await world.inputs.publish("trigger.a", Trigger(), message_id="t")
    async with world.deciding() as (view, loop):
        await taken(loop, 2)
        kinds = [e.subject.split(".")[0] for c in [c async for c in view._past_commits(0, 99)] for e in c.events]
        assert kinds[0] == "ledger"
        assert "execution" in kinds
        assert "dead-letter" not in kinds


async def decisions(view: CommitView) -> list[str]:
    return [event.subject for commit in [c async for c in view._past_commits(0, 999)] for event in commit.events]


async def test_older_definition_of_another_process_is_awaited(world: World) -> None:
    await world.publish(world.request(defined("a")))
    for job in ("a", "unknown"):
        await world.inputs.publish(f"trigger.{job}", Trigger(), message_id=job)
    async with world.deciding(alone="others") as (view, loop):
        await until(
            lambda: any("dead-letter.unknown" in scope for scope in view.fold.numbers)
        )  # it is held up by nothing
        assert not any(".a." in scope for scope in view.fold.numbers)
        async with world.deciding(alone="registrar"):
            await taken(loop, 3)
        kinds = [subject.split(".")[0] for subject in await decisions(view) if ".a." in subject]
        assert kinds[0] == "ledger"
        assert "execution" in kinds
        assert "dead-letter" not in kinds


async def test_paused_job_awaits_its_registrar(world: World) -> None:
    async with world.deciding() as (view, _), world.reading() as reader:
        each = [
            Defined(job=job, definition=JobDefinition(name=job, function="f", schedule="* * * * * *"))
            for job in ("a", "b")
        ]
        number, _ = [await reader.append(one, expect=0) for one in each]
    stored = len(await decisions(view))
    await world.publish(world.request(Paused(job="a", definition=number), expect=number))
    async with world.deciding(alone="others") as (view, _):
        await until(lambda: sum("execution.b." in scope for scope in view.fold.numbers) > 1)
        async with world.deciding(alone="registrar"):
            await until(lambda: view.fold.numbers["ledger.a.>"] > number and view.fold.in_force("a") is not None)
    newest = [subject for subject in (await decisions(view))[stored:] if subject.startswith("ledger.a.")]
    assert newest[0] == "ledger.a.paused"
    assert "ledger.a.due" not in newest  # also of an instant after the request


async def test_pause_follows_changes_and_no_instants(world: World) -> None:
    async with world.deciding() as (view, _), world.reading() as reader:
        each_second = JobDefinition(name="a", function="f", schedule="* * * * * *")
        number = await reader.append(Defined(job="a", definition=each_second), expect=0)
        await until(lambda: view.fold.numbers["ledger.a.>"] > number)
        pause = Paused(job="a", definition=number, previous=number)
        await world.publish(world.request(pause, expect=number))
        await until(lambda: view.fold.state(LEDGER, "ledger.a.>").is_paused)
        last = view.fold.numbers["ledger.a.>"]
        with pytest.raises(SequenceConflict):
            await reader.append(pause, expect=number)
        assert view.fold.state(LEDGER, "ledger.a.>").newest <= last


async def test_job_goes_on_if_no_registrar_comes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "AWAITED_FOR", timedelta(seconds=0.2))
    await world.publish(world.request(defined("a")))
    await world.inputs.publish("trigger.a", Trigger(), message_id="t")
    async with world.deciding(alone="others") as (view, _):
        await until(lambda: any("dead-letter.a" in scope for scope in view.fold.numbers))


@pytest.mark.parametrize(
    "what", ["other key", "other subject", "other event", "other scope", "stage's event", "first event", "unreadable"]
)
async def test_forged_request_is_refused(world: World, what: str) -> None:
    request, subject = world.request(defined("a")), None
    match what:
        case "other key":
            request = world.request(defined("a"), key=b"2" * 32)
        case "other subject":
            subject = "change.b.1"
        case "other event":
            event = ProposedEvent(subject="ledger.a.defined", body=defined("a", 1).encode().decode())
            request = request.changed(events=(event,))
        case "other scope":
            request = request.changed(expect={"ledger.a.>": 0, "ledger.b.>": 0})
        case "stage's event":
            request = world.request(subjects.decode("agent.a.1.forgotten", FORGOTTEN))
        case "first event":
            request = world.request(Resolved(job="a", id="d"))
        case _:
            request = request.changed(events=(ProposedEvent(subject="ledger.a.defined", body="{"),))
            request = request.changed(proof=change_requests._proof(SECRET, request))
    async with world.deciding() as (view, loop):
        sequence = await world.publish(request, subject)
        await taken(loop, sequence)
        assert await view.end(Stream.LEDGER) == 0


async def test_unreadable_request_makes_no_dead_letter(world: World) -> None:
    async with world.deciding() as (view, loop):
        sequence = world.inputs.receive("change.a.1", b"{", message_id="m")
        await taken(loop, sequence)
        assert await view.end(Stream.LEDGER) == 0


async def test_copied_request_is_refused(world: World) -> None:
    async with world.deciding() as (view, loop):
        request = world.request(defined("a"))
        await world.publish(request)
        again = await world.inputs.publish(subjects.subject_of(request), request, message_id="copy")
        await taken(loop, again)
        assert await view.end(Stream.LEDGER) == 1


async def test_letter_that_left_is_resolved_soon_or_never(world: World) -> None:
    async with world.deciding() as (view, loop):
        late = world.request(Resolved(job="a", id="old"), expect=7).changed(since=world.clock.now() - timedelta(days=1))
        late = late.changed(proof=change_requests._proof(SECRET, late))
        await world.publish(late)
        sequence = await world.publish(world.request(Resolved(job="a", id="new"), expect=7))
        await taken(loop, sequence)
        assert await view.tail("dead-letter.a.new.>") == 1
        assert await view.tail("dead-letter.a.old.>") == 0


async def test_equal_requests_of_two_processes_are_two(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the same time; the server would keep one of two messages with the same id."""
    now = world.clock.now()
    monkeypatch.setattr(world.clock, "now", lambda: now)
    async with world.deciding(), world.reading() as first, world.reading() as second:
        requests = (process.append(QueuePaused(queue="q"), expect=0) for process in (first, second))
        results = await asyncio.gather(*requests, return_exceptions=True)
        assert sorted(map(type, results), key=str) == [int, SequenceConflict]


async def test_large_request_is_refused_at_once(world: World) -> None:
    async with world.reading() as reader:
        many = [QueuePaused(queue="q") for _ in range(MAX_EVENTS + 1)]
        for events in (many, [QueuePaused(queue="q", reason="x" * MAX_BYTES)]):
            [written] = await reader.write([Append(tuple(events), 0)])
            assert isinstance(written.error, RequestTooLarge)
    assert await world.inputs.end(Stream.REQUESTS) == 0


async def test_idle_reader_ends_and_begins_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "IDLE_S", 0.02)
    async with world.deciding() as (_, loop), world.reading() as reader:
        first = await reader.append(defined("a"), expect=0)
        for number in range(5):
            await until(lambda: world.log.followers == 1)
            paused = await loop.propose("test", [QueuePaused(queue=f"q{number}")], expect=0)
            assert await reader.tail(f"queue.q{number}.>") == paused[0]
            assert await reader.tail("ledger.a.>") == first
        assert await reader.append(Deleted(job="a"), expect=first) > first


async def test_idle_reader_reports_an_outage(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "IDLE_S", 0.02)
    async with world.deciding(), world.reading() as reader:
        await reader.append(defined("a"), expect=0)
        await until(lambda: world.log.followers == 1)
        world.log.is_down = True
        with pytest.raises(LogUnavailable):
            await reader.tail("ledger.a.>")
        world.log.is_down = False
        assert await reader.tail("ledger.a.>") == 1


async def test_outage_while_a_reader_begins_is_reported(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "IDLE_S", 0.02)
    monkeypatch.setattr(log_reader, "LOOKS_AGAIN_S", 0.02)
    async with world.deciding(), world.reading() as reader:
        await reader.append(defined("a"), expect=0)
        await until(lambda: world.log.followers == 1)
        world.log.is_stuck = True  # it answered when the reader began
        asked = asyncio.create_task(reader.tail("ledger.a.>"))
        await until(lambda: world.log.followers > 1)
        world.log.is_down = True
        with pytest.raises(LogUnavailable):
            await asyncio.wait_for(asked, 20)
