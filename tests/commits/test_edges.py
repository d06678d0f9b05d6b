"""Stages at the edge of the log of commits.

The registrar, the MQ bridge; they ask the loop for decisions, and do what follows.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import pytest

from tests.commits.test_memory import Work
from tocsin import subjects
from tocsin.adapters.commit_event_streams import CommitEventStreams
from tocsin.bootstrap import in_memory
from tocsin.bootstrap.in_memory import InMemoryInstallation, open_in_memory, run_stages_in_memory
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import (
    CancelRequest,
    Completed,
    Dispatched,
    Envelope,
    Failed,
    Message,
    MqCancel,
    NotificationRaised,
    OutcomeChanged,
    PoisonMessage,
    QueuePaused,
    QueueResumed,
    Recorded,
    Started,
)
from tocsin.engine import edge, saved_place
from tocsin.engine.asked import Asked
from tocsin.engine.edge import EdgeDecisions
from tocsin.engine.fold import LEDGER
from tocsin.engine.kinds import ENTRY, EXECUTION
from tocsin.engine.stage import BoundSubscription
from tocsin.engine.step import Events, Missing, Put, Ref, Sources, States, Step, done
from tocsin.ports import DurableSpec, EventDurable, LogUnavailable
from tocsin.services.jobs import Registry
from tocsin.settings import Queue, Settings
from tocsin.settings.channels import NatsChannel, Notifications
from tocsin.stages import STAGES, mq_bridge
from tocsin.stages.event_listener.waiting_room import WaitingRoom, WaitingRule
from tocsin.subjects import Bucket, Stream
from tocsin.testing import InMemoryDelivery, InMemoryEventLog, InMemoryProjections

SETTINGS = Settings(
    queues={"outside": Queue(transport="mq")}, notifications=Notifications(channels={"ops": NatsChannel(type="nats")})
)
NAMES = {stage.name for stage in STAGES}


class Site:
    """An installation in memory, whose stages may stop and start."""

    def __init__(self, installation: InMemoryInstallation) -> None:
        self.installation = installation
        self.registry = Registry(installation.log, installation.projections, installation.clock)

    @asynccontextmanager
    async def running(self, names: Collection[str] = NAMES) -> AsyncIterator[None]:
        ready = asyncio.Event()
        stages = asyncio.create_task(run_stages_in_memory(self.installation, names, ready=ready))
        await asyncio.wait([stages, waiting := asyncio.create_task(ready.wait())], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        try:
            yield
        finally:
            stages.cancel()
            await asyncio.wait([stages])

    async def define(self, **fields: Any) -> None:  # noqa: ANN401 - fields of a definition
        await self.registry.apply([JobDefinition.model_validate(fields)])

    async def stored(self, *names: str, kind: type[Message] = Message) -> list[Any]:
        return [
            one.message
            for name in names
            for one in await self.installation.log.read(name)
            if isinstance(one.message, kind)
        ]

    async def until(self, look: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401 - what it finds
        async with asyncio.timeout(20):
            while not (found := await look()):  # noqa: ASYNC110 - nothing signals it
                await asyncio.sleep(0.02)
        return found

    async def envelopes(self) -> list[Envelope]:
        return await self.stored("mq.scheduled.>", kind=Envelope)


@pytest.fixture
async def site(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setattr(in_memory, "_refuse_nats", lambda _: None)  # its queue has a transport outside
    async with open_in_memory(SETTINGS) as installation:
        yield Site(installation)


async def test_job_defined_without_registrar_is_shown_later(site: Site) -> None:
    async with site.running(NAMES - {"registrar"}):
        await site.define(name="greet", function="f")

    async def shown() -> Any:  # noqa: ANN401 - an entry
        return await site.installation.projections.get(Bucket.DEFINITIONS, "greet")

    assert await shown() is None
    async with site.running():
        await site.until(shown)
        await site.registry.delete("greet")

        async def gone() -> bool:
            return await shown() is None

        await site.until(gone)


async def test_place_is_stored_while_nothing_follows(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after an error of the KV bucket, which ends nothing."""
    monkeypatch.setattr(saved_place, "SAVE_INTERVAL_S", 1.0)
    cursor, errors = subjects.cursor(Stream.LOG, "registrar"), [OSError()]
    put = (projections := site.installation.projections).put

    async def fail_once(bucket: Bucket, key: str, value: bytes, **options: Any) -> int:  # noqa: ANN401
        if key == cursor and errors:
            raise errors.pop()
        return await put(bucket, key, value, **options)

    monkeypatch.setattr(projections, "put", fail_once)
    async with site.running():
        await site.define(name="greet", function="f")
        [defined] = await site.installation.log.read("ledger.greet.defined")

        async def is_stored() -> bool:
            place = await projections.get(Bucket.CURSORS, cursor)
            return place is not None and int(place[0]) >= defined.sequence

        await site.until(is_stored)


async def begin(site: Site) -> None:
    await site.define(name="outside", function="f", queue="outside")
    await site.registry.trigger("outside", {})


async def ended(site: Site) -> list[Completed]:
    return await site.stored("execution.outside.*.completed", "execution.outside.*.completed.locked", kind=Completed)


async def answer(site: Site, envelope: Envelope, body: bytes) -> None:
    data: Any = envelope.document()["data"]
    site.installation.inputs.receive(f"mq.scheduler.complete.outside.{data['execution_id']}", body)


async def test_task_is_handed_over_and_answered(site: Site) -> None:
    async with site.running():
        await begin(site)
        [envelope] = await site.until(site.envelopes)
        await answer(site, envelope, json.dumps({"status": "completed", "result": 7}).encode())
        [completed] = await site.until(lambda: ended(site))
    assert completed.result == 7
    assert len(await site.stored("execution.outside.*.started.>", kind=Started)) == 1


async def test_task_that_arrived_without_bridge_is_delivered_later(site: Site) -> None:
    async with site.running(NAMES - {"mq_bridge"}):
        await begin(site)
        await site.until(lambda: site.stored("execution.outside.>", kind=Dispatched))
    assert await site.envelopes() == []
    async with site.running({"mq_bridge"}):  # alone it folds the log too
        await site.until(site.envelopes)


async def test_bridge_that_starts_again_hands_nothing_over_twice(site: Site) -> None:
    async with site.running():
        await begin(site)
        await site.until(site.envelopes)
    async with site.running():
        [first] = await site.envelopes()
        await answer(site, first, b'{"status": "completed"}')
        await site.until(lambda: ended(site))
    assert await site.envelopes() == [first]


async def test_task_of_a_paused_queue_waits(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mq_bridge, "PAUSED_S", 0.05)
    async with site.running():
        number = await site.installation.log.append(QueuePaused(queue="outside"), expect=0)
        await begin(site)
        await site.until(lambda: site.stored("execution.outside.>", kind=Dispatched))
        await asyncio.sleep(0.2)
        assert await site.envelopes() == []
        await site.installation.log.append(QueueResumed(queue="outside"), expect=number)
        await site.until(site.envelopes)


async def test_unreadable_answer_becomes_a_dead_letter(site: Site) -> None:
    async with site.running():
        await begin(site)
        [envelope] = await site.until(site.envelopes)
        await answer(site, envelope, b"{")
        [letter] = await site.until(lambda: site.stored("dead-letter.>", kind=PoisonMessage))
        await answer(site, envelope, b'{"status": "completed"}')
        await site.until(lambda: ended(site))
    assert letter.durable == "mq-bridge-completions"


async def test_decision_that_fails_becomes_a_dead_letter(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge, "BACKOFF_S", (0.01, 0.01))

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(mq_bridge, "envelope", fail)
    async with site.running():
        await begin(site)
        [letter] = await site.until(lambda: site.stored("dead-letter.>", kind=PoisonMessage))
    assert "ZeroDivisionError" in letter.reason


async def test_notification_of_a_failure_is_raised_once(site: Site) -> None:
    async def raised() -> list[Any]:
        return await site.stored("notification.>", kind=NotificationRaised)

    async with site.running():
        rule = {"channels": ["ops"], "on_failure": True, "on_recovery": True}
        await site.define(name="outside", function="f", queue="outside", notify=rule, retry={"max_attempts": 1})
        await site.registry.trigger("outside", {})
        [envelope] = await site.until(site.envelopes)
        await answer(site, envelope, b'{"status": "failed", "error": {"type": "E", "message": "m"}}')
        await site.until(lambda: site.stored("execution.outside.*.failed", kind=Failed))
        await site.until(raised)
        await site.until(lambda: site.stored("notification.>", kind=OutcomeChanged))
    assert len(await raised()) == 1


class Leads:
    is_leading = True


async def test_ends_starting_jobs_are_read_from_their_place(site: Site) -> None:
    """The durable of a trigger over ends of executions: what is not acknowledged comes again after a restart, and nothing else."""
    installation, lead = site.installation, Leads()
    ends = EventDurable("trigger", "LOG", subjects.ends("outside", "completed"))

    def streams() -> CommitEventStreams:
        return CommitEventStreams(
            installation.events, installation.log, installation.projections, installation.clock, lambda: lead.is_leading
        )

    async def run() -> None:
        await site.registry.trigger("outside", {})
        number = len(await ended(site))
        await site.until(lambda: _more(site.envelopes, number))
        await answer(site, (await site.envelopes())[-1], b'{"status": "completed"}')
        await site.until(lambda: _more(lambda: ended(site), number))

    async with site.running():
        await site.define(name="outside", function="f", queue="outside")
        await run()
        await streams().create(ends)  # it has nothing of the time before
        assert list(await streams().names("LOG")) == ["trigger"]
        await run()
        await run()
        async with streams().reading(ends) as reader:
            [first, _] = await reader.take(9, wait=5)
            await first.ack()
            assert not await reader.take(9, wait=0.01)
        async with streams().reading(ends) as reader:
            [second] = await reader.take(9, wait=5)
            assert second.sequence > first.sequence
            lead.is_leading = False
            with pytest.raises(LogUnavailable):
                await reader.take(9, wait=5)
    await streams().remove("LOG", "trigger")
    assert not await streams().names("LOG")


async def _more(look: Callable[[], Awaitable[Collection[Any]]], number: int) -> bool:
    return len(await look()) > number


async def test_executors_hear_of_a_cancelled_execution(site: Site) -> None:
    """The execution has left the fold when the bridge reads its end."""
    async with site.running():
        await begin(site)
        [envelope] = await site.until(site.envelopes)
        data: Any = envelope.document()["data"]
        request = subjects.cancel("outside", data["execution_id"])
        await site.installation.log.publish(request, CancelRequest(reason="wrong input"), message_id="cancel")
        [notice] = await site.until(lambda: site.stored("mq.scheduler.cancel.>", kind=MqCancel))
    assert notice.data.steps == ("main",)


async def test_answer_naming_no_job_becomes_a_dead_letter(site: Site) -> None:
    async with site.running():
        site.installation.inputs.receive("mq.scheduler.complete.nobody", b'{"status": "completed"}')
        [letter] = await site.until(lambda: site.stored("dead-letter.>", kind=PoisonMessage))
    assert letter.code == "mq-answer-misaddressed"


async def test_decision_is_made_again_after_a_refusal() -> None:
    """Another process stores an event of the execution before; the decision sees it."""
    work, seen = Work(), list[int]()
    await work.define("nightly")
    await work.trigger("nightly")
    [scope] = [scope for scope in work.fold.states if scope.startswith("execution.")]
    state = work.fold.state(EXECUTION, scope)
    fields: dict[str, Any] = {
        "job": "nightly",
        "execution_id": state.request.execution_id,
        "step": "main",
        "attempt": 1,
    }

    def decide(_: Recorded[Message], states: States, __: datetime) -> Step:
        ref = EXECUTION(scope)
        seen.append(states.at(ref))
        claim = Started(**fields, delivery=len(seen), worker="edge")
        return done(Events(ref, (claim,)))

    subscription = BoundSubscription("edge", Stream.LOG, (), decide)
    recorded = work.fold.events[scope][0]
    future = work.process.loop.ask(Asked("edge", subscription, recorded, "LOG", read={}))
    await work.installation.store(Started(**fields, delivery=9, worker="other"))
    await work.process.loop.run_once()
    assert not future.done()
    await work.runner.run()
    assert (await future).changes
    assert seen[0] < seen[-1]
    workers = [one.message.worker for one in await work.installation.events() if isinstance(one.message, Started)]
    assert workers == ["other", "edge"]


async def test_decision_says_what_it_must_read() -> None:
    work, ref = Work(), ENTRY((Bucket.DEFINITIONS, "x"))
    subscription = BoundSubscription("edge", Stream.LOG, (), lambda _, states, __: done(signals=(states(ref),)))
    await work.define("nightly")
    [recorded] = await work.installation.events()
    future = work.process.loop.ask(Asked("edge", subscription, recorded, "LOG", read={}))
    await work.runner.run()
    with pytest.raises(Missing):
        await future
    future = work.process.loop.ask(Asked("edge", subscription, recorded, "LOG", read={ref: (b"1", 2)}))
    await work.runner.run()
    assert (await future).signals == ((b"1", 2),)


class Edge:
    """Decisions of a process whose fold does not have the newest events."""

    def __init__(self) -> None:
        self.work, self.seen = Work(), list[bool]()
        self.loop = self.work.process.loop
        clock = self.work.installation.clock
        self.log, self.projections = InMemoryEventLog(clock), InMemoryProjections(clock)
        self.decisions = EdgeDecisions(self, Sources(self.log, self.projections, clock))
        self.subscription = BoundSubscription("edge", Stream.MQ, ("mq.scheduler.complete.>",), self._decide)
        self.reads: Ref[Any] | None = None

    def _decide(self, _: Recorded[Message], states: States, __: datetime) -> Step:
        if self.reads is not None:
            states(self.reads)
        self.seen.append(states(LEDGER(subjects.ledger("nightly"))).definition is not None)
        return done()

    async def receive(self) -> Sequence[InMemoryDelivery]:
        self.log.receive("mq.scheduler.complete.nightly.1", b'{"status": "completed"}')
        return await self.take()

    async def take(self) -> Sequence[InMemoryDelivery]:
        return await self.log.durable(DurableSpec("edge", Stream.MQ, self.subscription.filters, 30.0)).take(1, wait=0)

    async def done(self, deciding: Awaitable[Any]) -> None:
        """Let the process decide, and read the log only then."""
        task = asyncio.ensure_future(deciding)
        for _ in range(20):
            await asyncio.sleep(0)
            await self.work.process.loop.run_once()
        while not task.done():
            await self.work.runner.run()
            await asyncio.sleep(0)
        await task


async def test_answer_is_decided_after_what_led_to_it() -> None:
    """The answer of an executor may come before the process has read that it gave the task."""
    edge_ = Edge()
    await edge_.work.define("nightly")
    await edge_.done(edge_.decisions.apply(edge_.subscription, await edge_.receive()))
    assert edge_.seen == [True]


async def test_entry_is_replaced_by_newer_events_only() -> None:
    """The writer of the entry may know events that this process has not read."""
    edge_ = Edge()
    edge_.reads = ENTRY((Bucket.DEFINITIONS, "nightly"))
    await edge_.work.define("nightly")
    [recorded] = await edge_.work.installation.events()
    await edge_.done(edge_.decisions.decide("edge", edge_.subscription, recorded))
    assert edge_.seen == [True]


class Overtaken(InMemoryProjections):
    """Entries that another process replaces just before the first write."""

    is_overtaken = False

    async def put(
        self, bucket: Bucket, key: str, value: bytes, *, expect: int | None = None, ttl: float | None = None
    ) -> int:
        if expect is not None and not self.is_overtaken:
            self.is_overtaken = True
            await super().put(bucket, key, b"theirs")
        return await super().put(bucket, key, value, expect=expect, ttl=ttl)


async def test_entry_that_another_process_replaced_is_read_again() -> None:
    """A slow copy would publish a definition after another copy published the next."""
    edge_, ref, seen = Edge(), ENTRY((Bucket.DEFINITIONS, "nightly")), list[Any]()
    edge_.projections = Overtaken(edge_.work.installation.clock)
    decisions = EdgeDecisions(edge_, Sources(edge_.log, edge_.projections, edge_.work.installation.clock))

    def decide(_: Recorded[Message], states: States, __: datetime) -> Step:
        seen.append(states(ref))
        return done(Put(ref, b"mine"))

    await edge_.work.define("nightly")
    [recorded] = await edge_.work.installation.events()
    await edge_.done(decisions.decide("edge", BoundSubscription("edge", Stream.LOG, (), decide), recorded))
    assert [entry and entry[0] for entry in seen] == [None, b"theirs"]


async def test_answer_comes_again_while_log_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise LogUnavailable("no answer")

    edge_ = Edge()
    with monkeypatch.context() as silence:
        silence.setattr(edge_.work.installation.log, "next", fail)
        await edge_.decisions.apply(edge_.subscription, await edge_.receive())
    assert not edge_.seen
    assert not await edge_.take()
    edge_.work.installation.clock.advance(edge.SOON_S)
    await edge_.done(edge_.decisions.apply(edge_.subscription, await edge_.take()))
    assert edge_.seen == [False]


async def test_room_for_events_is_what_the_fold_leaves() -> None:
    work, rule = Work(), WaitingRule(most=3, for_lock=True, before_lock=False)
    await work.define("nightly", overlap_policy="enqueue")
    room = WaitingRoom(work.installation.clock, lambda: work.fold)
    assert await room.room("nightly", rule) == 3
    for _ in range(3):  # one of them has the lock
        await work.trigger("nightly")
    work.installation.clock.advance(60)
    assert await room.room("nightly", rule) == 1
    room.requested("nightly", rule, ["not-decided"])
    looking = asyncio.create_task(room.room("nightly", rule))
    while not looking.done():
        work.installation.clock.advance(0.1)
        await asyncio.sleep(0)
    assert await looking == 0
