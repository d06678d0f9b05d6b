"""Interleavings, lagging replicas, lost answers and hostile messages break no rule."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.conformance.worlds import nats_world
from tests.domain.given import ID, JOB, KEY, NOON, admitted, plan, proven, started
from tests.guards import guarded
from tests.lock_scope import needed_events
from tests.stages.world import World, decide_one
from tocsin import subjects
from tocsin.domain import dead_letter, execution, execution_plan, ids, ledger
from tocsin.domain.definition import JobDefinition, RetryPolicy
from tocsin.domain.events import (
    Acquired,
    Admitted,
    Advanced,
    Cancelled,
    Completed,
    CronTriggered,
    DeadLettered,
    Defined,
    Deleted,
    Dispatched,
    Due,
    Failed,
    Failure,
    Message,
    Paused,
    Planned,
    PoisonMessage,
    Recorded,
    Report,
    Requested,
    RetryScheduled,
    Skipped,
    Started,
    Trigger,
    validated,
)
from tocsin.engine.clock_guard import ClockGuard
from tocsin.engine.delivery_policy import DeliveryPolicy
from tocsin.engine.kinds import EXECUTION, execution_state
from tocsin.engine.leader_election import LeaderElection
from tocsin.engine.ledger_reader import LedgerReader
from tocsin.engine.lock_projection import LockProjection
from tocsin.engine.locks import lock_state
from tocsin.engine.public_events import announce
from tocsin.engine.stage import BoundSubscription
from tocsin.engine.states import StateStore
from tocsin.engine.step import DONE, Sources, States, Step
from tocsin.ports import Append, DurableSpec, Loaded, LogUnavailable, OutdatedState, Write, Written
from tocsin.stages.dag_advancer.stage import PATIENCE
from tocsin.stages.lock_keeper import LOCK_KEEPER, LockKeeper
from tocsin.stages.planner import PLANNER, Planner
from tocsin.stages.ticker import Ticker
from tocsin.subjects import Bucket, Stream
from tocsin.testing import InMemoryEventLog, settle

PAYLOAD = 1_048_576
"""Bytes that a NATS server takes by default."""


class Lagging(InMemoryEventLog):
    """The log of a world whose reads come from a replica that ends at `upto`."""

    def __init__(self, world: World, upto: int) -> None:
        self.__dict__.update(world.log.__dict__)
        self.upto = upto

    async def load(self, scope: str, *, after: int = 0) -> list[Recorded[Message]]:
        events = needed_events(await self.read(scope, limit=10_000))
        return [recorded for recorded in events if recorded.sequence > after]

    async def load_each(self, *scopes: str, after: Mapping[str, int] | None = None) -> Loaded:
        facts = [await self.load(scope, after=(after or {}).get(scope, 0)) for scope in scopes]
        return Loaded(facts, self.upto if any([await self.last(scope) for scope in scopes]) else 0)

    async def last(self, subject: str) -> Recorded[Message] | None:
        found = await self.read(subject, limit=10_000)
        return found[-1] if found else None

    async def get(self, subject: str, sequence: int) -> Recorded[Message] | None:
        return await super().get(subject, sequence) if sequence <= self.upto else None

    async def read(
        self, subject: str, *, after: int = 0, limit: int = 1_000, confirm: bool = False
    ) -> list[Recorded[Message]]:
        found = await super().read(subject, after=after, limit=limit, confirm=confirm)
        return [recorded for recorded in found if recorded.sequence <= self.upto]


def planned(execution_id: str, hour: int = 12) -> Planned:
    return Planned(
        job=JOB, execution_id=execution_id, scheduled_time=NOON.replace(hour=hour), trigger="cron", plan=plan()
    )


def completed(execution_id: str, fence: int | None = None) -> Completed:
    return Completed(job=JOB, execution_id=execution_id, scheduled_time=NOON, trigger="cron", fence=fence)


def report(outcome: str, step: str = "main", attempt: int = 1, **more: object) -> Report:
    fields = {"outcome": outcome, "step": step, "attempt": attempt, "job": JOB, "execution_id": ID, "delivery": 1}
    return proven(validated(Report, {**fields, "token": ids.report_token(KEY, ID, step, attempt), **more}))


async def handle_report(world: World, answer: Report) -> None:
    subject = subjects.subject_of(answer)
    await world.log.publish(subject, answer, message_id=subject)


# --- a decision stands on what it was decided on ---------------------------------------------------------------------


async def test_append_is_refused_after_an_unseen_event(world: World) -> None:
    """Two copies admit one execution: what the slower one learns meanwhile must not lift its guard."""
    await world.given(planned(ID))
    [wanted] = await world.recorded(Planned)
    subscription, slower = world.lock_keeper.subscriptions[0], world.copy()
    write = world.log.write

    async def overtaken(writes: Sequence[Write]) -> list[Written]:
        if not any(isinstance(w, Append) and isinstance(w.events[0], Admitted | Dispatched) for w in writes):
            return await write(writes)
        world.log.write = write  # type: ignore[method-assign]
        await world.deliver(subscription, wanted, log=world.log)
        [decided] = await world.recorded(Admitted)
        slower.folds(EXECUTION).learn(subjects.execution(JOB, ID), decided, after=0)
        return await write(writes)

    world.log.write = overtaken  # type: ignore[method-assign]
    await world.deliver(subscription, wanted, store=slower)
    assert world.log.write == write
    assert len(await world.stored(Admitted)) == 1
    assert len(await world.stored(CronTriggered)) == 1


async def test_i4_redelivered_old_decision_takes_no_lock(world: World) -> None:
    await world.define({"name": JOB, "function": "f"})
    await world.given(planned("a"))
    await world.run(world.lock_keeper)
    [first] = await world.recorded(Acquired)
    await world.given(completed("a", first.sequence), planned("b", 13))
    await world.run(world.lock_keeper)
    [_, second] = await world.recorded(Acquired)
    await world.given(completed("b", second.sequence))
    await world.run(world.lock_keeper)
    size = await world.size()
    store = world.copy()
    for wanted in await world.recorded(Planned):
        await world.deliver(world.lock_keeper.subscriptions[0], wanted, store=store)
    assert await world.size() == size
    assert await world.projections.get(Bucket.LOCKS, subjects.lock_key(JOB)) is None


@pytest.mark.parametrize("policy", ["skip", "enqueue"])
async def test_lock_of_a_decided_execution_blocks_no_other(world: World, policy: str) -> None:
    """A copy reads that `b` is planned, and sleeps until another has decided on it and all is over."""

    def planned(execution_id: str) -> Planned:
        overlapping = plan().changed(overlap_policy=policy)
        return Planned(job=JOB, execution_id=execution_id, scheduled_time=NOON, trigger="manual", plan=overlapping)

    async def end(execution_id: str) -> None:
        [fact] = [f for f in await world.stored(Admitted) if f.execution_id == execution_id]
        done = Completed(job=JOB, execution_id=execution_id, scheduled_time=NOON, trigger="manual", fence=fact.fence)
        await world.given(done)

    await world.given(planned("a"))
    await world.run(world.lock_keeper)
    await world.given(planned("b"))
    tails, slept = world.log.tails, False

    async def after_a_sleep(*scopes: str) -> list[int]:
        nonlocal slept
        if not slept and subjects.execution(JOB, "a") in scopes:
            slept = True
            if policy == "skip":
                await world.run(world.lock_keeper)
            else:
                await world.given(Cancelled(job=JOB, execution_id="b", scheduled_time=NOON, trigger="manual"))
            await end("a")
        return await tails(*scopes)

    world.log.tails = after_a_sleep  # type: ignore[method-assign]
    [b] = [recorded for recorded in await world.recorded(Planned) if recorded.message.execution_id == "b"]
    await world.deliver(world.lock_keeper.subscriptions[0], b, log=world.log)
    world.log.tails = tails  # type: ignore[method-assign]
    assert [fact.execution_id for fact in await world.stored(Acquired)] == ["a", "b"], "the fact that is one too many"
    await world.given(planned("c"))
    await world.run(world.lock_keeper)
    assert [fact.execution_id for fact in await world.stored(Admitted)] == ["a", "c"]
    await world.given(planned("d"))
    await world.run(world.lock_keeper)
    await end("c")
    await world.run(world.lock_keeper)
    ran = ["a", "c", "d"] if policy == "enqueue" else ["a", "c"]
    assert [fact.execution_id for fact in await world.stored(Admitted)] == ran
    fences = [recorded.sequence for recorded in await world.recorded(Acquired)]
    assert fences == sorted(set(fences))


async def test_trigger_redelivered_after_an_edit_is_handled(world: World) -> None:
    job = {"name": JOB, "function": "f", "overlap_policy": "allow"}
    await world.define(job)
    await world.trigger(JOB)
    await world.run(world.planner)
    await world.define({**job, "overlap_policy": "skip"})
    size = await world.size()
    await world.redeliver(world.planner, is_fresh=True)
    assert await world.size() == size


async def test_i4_redelivered_trigger_of_deleted_job_is_ignored(world: World) -> None:
    definition = await world.define({"name": JOB, "function": "f"})
    await world.trigger(JOB)
    await world.run(world.planner)
    await world.given(Deleted(job=JOB, previous=definition))
    await world.redeliver(world.planner, is_fresh=True)
    assert await world.stored(PoisonMessage) == []


async def test_failed_lock_projection_blocks_no_execution(world: World) -> None:
    async def broken(*_: object, **__: object) -> int:
        raise RuntimeError("the bucket is full")

    world.projections.put = broken  # type: ignore[method-assign]
    await world.given(planned("a"))
    await world.run(world.lock_keeper)
    assert [fact.execution_id for fact in await world.stored(Admitted)] == ["a"]


# --- a replica that lags ---------------------------------------------------------------------------------------------


async def test_a_lagging_replica_makes_no_announcement_twice(world: World) -> None:
    await world.define({"name": JOB, "function": "f"})

    def again(recorded: Recorded[Message], states: States, now: datetime) -> Step:
        return announce(recorded, states, now)

    subscription = BoundSubscription("announcer", Stream.LOG, (), again)
    await world.given(admitted(), admitted().changed(execution_id="later"))
    [first, later] = await world.recorded(Admitted)
    replica = Lagging(world, upto=10_000)
    store = world.copy(replica)
    await world.deliver(subscription, first)
    await world.deliver(subscription, later, store=store)  # it knows that the newest public event is of another
    replica.upto = later.sequence
    with pytest.raises(OutdatedState):
        await world.deliver(subscription, first, store=store)
    assert len(await world.stored(CronTriggered)) == 2


async def test_lagging_replica_makes_no_incomplete_dead_letter(world: World) -> None:
    end = Failed(
        job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron", step="main", attempt=1, dead_letter=True
    )
    await world.given(admitted(), started(), end)
    [failed] = await world.recorded(Failed)
    with pytest.raises(OutdatedState):
        await world.deliver(world.dead_letter_sink.subscriptions[0], failed, log=Lagging(world, upto=1))
    assert await world.stored(DeadLettered) == []


async def test_a_lagging_replica_leaves_no_old_definition_shown(world: World) -> None:
    await world.define({"name": JOB, "function": "old"})
    await world.run(world.registrar)
    await world.define({"name": JOB, "function": "new"})
    state, _ = await LedgerReader(world.log).load(JOB)
    await world.given(*ledger.pause(state, JOB))
    [pause] = await world.recorded(Paused)
    with pytest.raises(OutdatedState):  # the definition in force is in an event that the replica lacks
        await world.deliver(world.registrar.subscriptions[0], pause, log=Lagging(world, upto=1))


async def test_a_lagging_replica_loses_no_success(world: World) -> None:
    graph = plan({"a": (), "b": ("a",)})
    await world.given(admitted(graph))
    await world.run(world.dag_advancer)
    await world.given(started("a"), Advanced(job=JOB, execution_id=ID, step="a", attempt=1))
    await world.run(world.dag_advancer)
    await world.given(*execution.dispatch(execution.fold(await world.log.load(subjects.execution(JOB, ID))), key=KEY))
    await world.given(started("b"))
    [claim] = [r for r in await world.recorded(Started) if r.message.step == "b"]
    answer = report("completed", "b", claim=claim.sequence, claimed_after=claim.sequence - 1)
    recorded: Recorded[Message] = Recorded(answer, subjects.subject_of(answer), 99, NOON)
    with pytest.raises(OutdatedState):
        await world.deliver(world.dag_advancer.subscriptions[1], recorded, log=Lagging(world, upto=3))


async def test_a_lagging_replica_loses_no_retry(world: World) -> None:
    again = RetryPolicy(max_attempts=2, initial_delay=30, jitter=0)
    await world.given(admitted(plan(retry=again)))
    await world.run(world.dag_advancer)
    await world.given(started())
    await handle_report(world, report("failed", error=Failure(type="E")))
    await world.run(world.retrier)
    [waiting] = await world.recorded(RetryScheduled)
    [(timer, _)] = execution.retry_timers(execution.fold(await world.log.load(subjects.execution(JOB, ID))))
    recorded: Recorded[Message] = Recorded(timer, subjects.subject_of(timer), 99, NOON)
    lagging = Lagging(world, upto=waiting.sequence - 1)
    with pytest.raises(OutdatedState):
        await world.deliver(world.dag_advancer.subscriptions[2], recorded, log=lagging)


async def test_a_lagging_replica_loses_no_failure(world: World) -> None:
    await world.given(admitted())
    await world.run(world.dag_advancer)
    await world.given(started())
    answer = report("failed", error=Failure(type="E"))
    recorded: Recorded[Message] = Recorded(answer, subjects.subject_of(answer), 99, NOON)
    with pytest.raises(OutdatedState):
        await world.deliver(world.retrier.subscriptions[0], recorded, log=Lagging(world, upto=1))


async def test_copy_with_an_old_state_loses_no_failure(world: World) -> None:
    """A copy caches a step that waits for its retry, while another copy dispatches the retry, which fails too."""
    again = RetryPolicy(max_attempts=3, initial_delay=30, jitter=0)
    await world.given(admitted(plan(retry=again)))
    await world.run(world.dag_advancer)
    await world.given(started())
    first, copy = report("failed", error=Failure(type="E")), world.copy()
    [retrier] = world.retrier.subscriptions
    await world.deliver(retrier, Recorded(first, subjects.subject_of(first), 98, NOON), store=copy)
    world.clock.advance(30)
    await world.run(world.dag_advancer)
    await world.given(started(attempt=2))
    second = report("failed", attempt=2, error=Failure(type="E"))
    await world.deliver(retrier, Recorded(second, subjects.subject_of(second), 99, NOON), store=copy)
    assert [fact.attempt for fact in await world.stored(RetryScheduled)] == [1, 2]


async def test_i5_holder_unknown_to_a_lagging_replica_counts(world: World) -> None:
    await world.given(planned("a"))
    await world.run(world.lock_keeper)
    await world.given(planned("b", 13))
    [_, wanted] = await world.recorded(Planned)
    replica = Lagging(world, upto=10_000)
    store = world.copy(replica)
    await store.view().read([lock_state(JOB), execution_state(JOB, "b")])
    replica.upto = 0  # so that only the holder is read from the replica
    with pytest.raises(OutdatedState):
        await world.deliver(world.lock_keeper.subscriptions[0], wanted, store=store)
    assert [fact.execution_id for fact in await world.stored(Acquired)] == ["a"]
    assert await world.stored(Skipped) == []


async def test_lagging_replica_rejects_no_valid_trigger(world: World) -> None:
    await world.define({"name": JOB, "function": "f"})
    await world.trigger(JOB)
    [asked] = await world.recorded(Trigger) or [
        r for r in await world.log.read("trigger.>") if isinstance(r.message, Trigger)
    ]
    with pytest.raises(OutdatedState):
        await world.deliver(world.planner.subscriptions[1], asked, log=Lagging(world, upto=0))
    assert await world.stored(PoisonMessage) == []


async def test_lagging_replica_uses_no_older_definition(world: World) -> None:
    await world.define({"name": JOB, "function": "f"})
    upto = (await world.recorded(Defined))[0].sequence
    await world.define({"name": JOB, "function": "g"})
    await world.trigger(JOB)
    [asked] = await world.log.read("trigger.>")
    with pytest.raises(OutdatedState):
        await world.deliver(world.planner.subscriptions[1], asked, log=Lagging(world, upto=upto))
    assert await world.stored(Requested) == []


async def test_a_lagging_replica_swallows_no_announcement(world: World) -> None:
    await world.given(planned(ID), admitted())
    [wanted] = await world.recorded(Planned)
    with pytest.raises(OutdatedState):
        await world.deliver(world.lock_keeper.subscriptions[0], wanted, log=Lagging(world, upto=1))
    await world.deliver(world.lock_keeper.subscriptions[0], wanted, log=world.log)
    assert len(await world.stored(CronTriggered)) == 1


# --- the ticker and its lease ----------------------------------------------------------------------------------------


async def test_edit_learned_during_an_append_is_kept(world: World) -> None:
    job = {"name": "tick", "function": "f", "schedule": "0 1 1 1 *"}
    await world.define(job)
    leadership = LeaderElection(world.projections, ClockGuard(world.log, world.clock), key="ticker", holder="a")
    leadership._until = float("inf")
    ticker = Ticker(world.log, leadership, world.clock)
    following = asyncio.create_task(ticker.follow())
    await settle()
    append = world.log.append

    async def overtaken(fact: Message, *, expect: int) -> int:
        sequence = await append(fact, expect=expect)
        world.log.append = append  # type: ignore[method-assign]
        await world.define({**job, "schedule": "* * * * *"})
        await settle()
        return sequence

    world.log.append = overtaken  # type: ignore[method-assign]
    world.clock.advance(3600)
    await ticker.run_once(world.clock.now())
    for _ in range(3):
        world.clock.advance(60)
        await ticker.run_once(world.clock.now())
        await settle()
    following.cancel()
    assert len(await world.stored(Due)) == 4


async def test_lease_with_an_unanswered_renewal_is_kept(world: World) -> None:
    leader = LeaderElection(world.projections, ClockGuard(world.log, world.clock), key="ticker", holder="a")
    await leader.run_once()
    put = world.projections.put

    async def unanswered(*args: Any, **kwargs: Any) -> int:  # noqa: ANN401 - passed on as it is
        await put(*args, **kwargs)
        world.projections.put = put  # type: ignore[method-assign]
        raise LogUnavailable("no answer")

    world.projections.put = unanswered  # type: ignore[method-assign]
    world.clock.advance(5)
    await leader.run_once()
    world.clock.advance(5)
    await leader.run_once()
    assert leader.is_leading


# --- messages from outside -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", ["a.", "a..b"])
async def test_job_name_outside_subject_syntax_is_admitted(nats_url: str, job: str) -> None:
    async with nats_world(nats_url) as nats:
        wanted = planned("a").changed(job=job)
        sequence = await nats.log.append(wanted, expect=0)
        recorded: Recorded[Message] = Recorded(wanted, subjects.subject_of(wanted), sequence, NOON)
        clock = World().clock
        keeper = LOCK_KEEPER.bind(LockKeeper(LockProjection(nats.log, nats.projections, clock), KEY))
        store = StateStore(Sources.of(nats.log, nats.projections, clock))
        await decide_one(keeper.subscriptions[0], recorded, store)
        assert len(await nats.log.load(subjects.scope_of(wanted))) == 2


@pytest.mark.parametrize("subject", ["trigger.nightly.>", "trigger.night*", "trigger.a\u200bb", "cancel.night*.x"])
async def test_request_on_refused_subject_becomes_dead_letter(world: World, subject: str) -> None:
    world.log.receive(subject, b"{}")
    await world.run(world.planner, world.dag_advancer)
    world.clock.advance(PATIENCE.total_seconds())
    await world.run(world.planner, world.dag_advancer)
    assert [(letter.job, letter.subject) for letter in await world.stored(PoisonMessage)] == [("-", subject)]
    assert world.pending == 0


@pytest.mark.parametrize("wildcard", ["*", ">"])
async def test_a_trigger_of_every_job_triggers_none(world: World, wildcard: str) -> None:
    await world.define({"name": JOB, "function": "f"})
    world.log.receive(f"trigger.{wildcard}", b"{}")
    await world.handle(world.planner.subscriptions[1])
    assert await world.stored(Requested) == []
    assert [refused.reason for refused in await world.stored(PoisonMessage)] == ["no job is called '*'"]
    assert world.pending == 0


async def test_answer_handed_back_delays_no_other_execution(world: World) -> None:
    handled: list[str] = []

    def decide(recorded: Recorded[Message], _: States, __: datetime) -> Step:
        handled.append(recorded.subject)
        if recorded.subject.endswith(".1"):
            raise LogUnavailable("not now")
        return DONE

    answers = (subjects.filter_for("mq.scheduler.complete"),)
    subscription = BoundSubscription("answers", Stream.MQ, answers, decide)
    for number in (1, 2):
        world.log.receive(f"mq.scheduler.complete.{JOB}.{number}", b"{}")
    await world.handle(subscription)
    assert len(handled) == 2


async def test_newer_event_version_condemns_no_message(world: World) -> None:
    await world.given(admitted())
    await world.run(world.dag_advancer)
    await world.given(started())
    world.log.receive(f"execution.{JOB}.{ID}.transcended", b"{}", headers=guarded(f"execution.{JOB}.{ID}.transcended"))
    await handle_report(world, report("completed"))
    await world.handle(world.dag_advancer.subscriptions[1])
    assert world.pending == 1
    assert await world.stored(PoisonMessage) == []


async def test_failed_acknowledgement_stops_no_other_message(world: World) -> None:
    await world.given(*(admitted().changed(execution_id=str(n)) for n in range(2)))
    handled: list[int] = []

    def decide(recorded: Recorded[Message], _: States, __: datetime) -> Step:
        handled.append(recorded.sequence)
        return DONE

    class Unheard:
        def __init__(self, delivery: Any) -> None:  # noqa: ANN401 - an in-memory delivery
            self.__dict__.update(
                {name: getattr(delivery, name) for name in ("subject", "body", "sequence", "time", "headers")}
            )
            self.message_id, self.delivered = None, 9

        @staticmethod
        async def ack_many(_: Sequence[Any]) -> None:
            raise LogUnavailable("gone")

    subscription = BoundSubscription("s", Stream.LOG, ("execution.>",), decide)
    deliveries: Any = [Unheard(delivery) for delivery in await world.durable(subscription).take(10, wait=0)]
    await world.outcomes.apply(subscription, deliveries)
    assert handled == [1, 2]


async def test_any_message_can_become_a_dead_letter(nats_url: str) -> None:
    async with nats_world(nats_url) as nats:
        spec = DurableSpec("planner-triggers", Stream.REQUESTS, (subjects.filter_for("trigger"),))
        durable = await nats.durable(spec)
        projection = LockProjection(nats.log, World().projections, World().clock)
        subscription = PLANNER.bind(Planner(projection, KEY)).subscriptions[1]
        store = StateStore(Sources.of(nats.log, World().projections, World().clock))
        nonsense = [b"x" * 262_000, b'{"input": {"a": "' + b"x" * 262_000 + b'"}}']
        for body in nonsense:
            await nats.receive(subjects.trigger(JOB), body)
        await DeliveryPolicy(store).apply(subscription, await durable.take(10, wait=5))
        assert len(await nats.log.read("dead-letter.>")) == len(nonsense)


def test_a_task_behind_many_results_can_be_stored() -> None:
    before = tuple(f"s{n}" for n in range(17))
    graph = {**dict.fromkeys(before, ()), "last": before}
    facts: list[Message] = [
        admitted(plan(graph)),
        *(Advanced(job=JOB, execution_id=ID, step=step, attempt=1, result="x" * 65_000) for step in before),
    ]
    state = execution.fold(Recorded(fact, "", n, NOON) for n, fact in enumerate(facts, 1))
    assert all(len(fact.encode()) < PAYLOAD for fact in execution.dispatch(state, key=KEY))


def test_plan_of_any_definition_can_be_stored() -> None:
    dag = [{"name": f"s{n}", "function": "f"} for n in range(20)]
    definition = JobDefinition.model_validate({"name": JOB, "dag": dag, "input": {"a": "x" * 60_000}})
    due = Due(job=JOB, scheduled_time=NOON, definition=1)
    assert len(execution_plan.from_due(due, definition).encode()) < PAYLOAD


def test_dead_letter_of_many_attempts_can_be_stored() -> None:
    error = Failure(type="E", message="m" * 4_096, traceback="t" * 8_192)
    facts: list[Message] = [admitted()]
    for attempt in range(1, 100):
        again = RetryScheduled(
            job=JOB, execution_id=ID, step="main", attempt=attempt, error=error, delay=1, next_attempt_at=NOON
        )
        facts += [started("main", attempt), again]
    end = Failed(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron", step="main", attempt=100, error=error)
    recorded = [Recorded(fact, "", n, NOON + timedelta(seconds=n)) for n, fact in enumerate([*facts, end], 1)]
    assert len(dead_letter.of_failed(end, recorded).encode()) < PAYLOAD
