"""The events of executors outside break no invariant, and planted defects are found."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
import pytest

from tests.domain.given import KEY, NOON, proven
from tests.stages.world import World
from tests.stored_events import StoredEvents
from tocsin import subjects
from tocsin.domain import ids
from tocsin.domain.definition import JobDefinition, RetryPolicy
from tocsin.domain.events import (
    Completed,
    Enqueued,
    ExecutionFact,
    Failed,
    LeaseExtended,
    Message,
    Recorded,
    Released,
    Report,
    RetryScheduled,
    Started,
    validated,
)

JOB: Final = "ojs.mail"
LOST, EXPIRED, LATER, FLAKY = (f"0193a5b0-0000-7000-8000-00000000000{n}" for n in range(1, 5))
POLICY: Final = RetryPolicy(max_attempts=2, initial_delay=4, max_delay=4, jitter=0.5, max_delay_with_jitter=True)


async def run(world: World) -> None:
    await world.run(world.planner, world.dag_advancer, world.lease_keeper, world.retrier)


async def enqueue(world: World, execution_id: str, **more: Any) -> None:  # noqa: ANN401 - fields
    definition = JobDefinition(name=JOB, function="mail", overlap_policy="allow", retry=POLICY)
    asked = Enqueued(execution_id=execution_id, definition=definition, **more)
    await world.log.publish(subjects.subject_of(asked), asked, message_id=execution_id)
    await run(world)


async def take(world: World, execution_id: str, attempt: int = 1) -> None:
    """Under a lease of ten seconds."""
    claim: dict[str, Any] = {"job": JOB, "execution_id": execution_id, "step": "main", "attempt": attempt}
    await world.given(Started(**claim, delivery=1, worker="w", lease=10))


async def beat(world: World, execution_id: str) -> None:
    claim = next(one.sequence for one in await world.recorded(Started) if one.message.execution_id == execution_id)
    await answer(world, execution_id, "extended", lease=10, claim=claim)


async def answer(
    world: World, execution_id: str, outcome: str, attempt: int = 1, *, step: str = "main", **more: object
) -> None:
    token = ids.report_token(KEY, execution_id, step, attempt)
    fields = {"job": JOB, "execution_id": execution_id, "step": step, "attempt": attempt, "delivery": 1}
    report = proven(validated(Report, {**fields, "outcome": outcome, "token": token, **more}))
    await world.log.publish(subjects.subject_of(report), report, message_id=subjects.subject_of(report))
    await run(world)


async def passes(world: World, seconds: float) -> None:
    world.clock.advance(seconds)
    await run(world)


async def happened() -> StoredEvents:
    world = World()
    await enqueue(world, LOST)
    await enqueue(world, FLAKY)
    await enqueue(world, EXPIRED, expires_at=world.clock.now() + timedelta(seconds=20))
    await enqueue(world, LATER, start_at=world.clock.now() + timedelta(seconds=25))
    await take(world, LOST)
    await take(world, FLAKY)
    await answer(world, FLAKY, "failed")
    await passes(world, 5)
    await beat(world, LOST)
    await passes(world, 10)  # the lease is over and the next attempt is due, yet the old holder has finished
    await answer(world, LOST, "completed")  # and who lost it has done it anyway
    await take(world, FLAKY, attempt=2)
    await answer(world, FLAKY, "completed", attempt=2)
    await passes(world, 15)
    await take(world, LATER)
    await answer(world, LATER, "completed")
    return await StoredEvents.of(world.log)


@pytest.fixture(scope="module")
def everything() -> StoredEvents:
    return asyncio.run(happened())


def test_what_executors_outside_do_breaks_no_invariant(everything: StoredEvents) -> None:
    kinds = {type(recorded.message) for recorded in everything.facts(Message)}
    assert kinds >= {Enqueued, LeaseExtended, Released, RetryScheduled, Completed, Failed}
    report = everything.audited()
    assert [str(violation) for violation in report.violations] == []
    assert list(report.debts) == []
    ends = {execution_id: end.message.type for execution_id, end in everything.ends.items()}
    assert ends == {LOST: "completed", FLAKY: "completed", LATER: "completed", EXPIRED: "failed"}


def without(kind: type[Message], of: str) -> Callable[[StoredEvents], StoredEvents]:
    def planted(it: StoredEvents) -> StoredEvents:
        def stays(recorded: Recorded[Message]) -> bool:
            is_of = getattr(recorded.message, "execution_id", None) == of
            return not (is_of and isinstance(recorded.message, kind))

        return it.changed(lambda messages: filter(stays, messages))

    return planted


def other(kind: type[Message], of: str, **fields: Any) -> Callable[[StoredEvents], StoredEvents]:  # noqa: ANN401 - fields
    def planted(it: StoredEvents) -> StoredEvents:
        def changed(recorded: Recorded[Message]) -> Recorded[Message]:
            fact = recorded.message
            if not (isinstance(fact, kind) and isinstance(fact, ExecutionFact) and fact.execution_id == of):
                return recorded
            message = fact.changed(**fields)
            return msgspec.structs.replace(recorded, message=message, subject=subjects.subject_of(message))

        return replace(it, log=tuple(map(changed, it.log)))

    return planted


def with_expiry(it: StoredEvents, at: datetime | None) -> StoredEvents:
    def changed(recorded: Recorded[Message]) -> Recorded[Message]:
        plan = getattr(recorded.message, "plan", None)
        if plan is None or getattr(recorded.message, "execution_id", None) != EXPIRED:
            return recorded
        return msgspec.structs.replace(
            recorded,
            message=recorded.message.changed(plan=plan.changed(expires_at=at)),
        )

    return replace(it, log=tuple(map(changed, it.log)))


DEFECTS: Final[dict[str, tuple[str, Callable[[StoredEvents], StoredEvents]]]] = {
    "nobody enqueued it": ("I3", without(Enqueued, LOST)),
    "what was enqueued never began": ("I2", without(ExecutionFact, LATER)),
    "a task was dispatched anew that nobody gave up": ("I4", without(Released, LOST)),
    "a claim was given up that nobody had": ("I3", without(Started, LOST)),
    "a lease was extended that nobody had": ("I3", without(Started, LOST)),
    "another claim was given up": ("I3", other(Released, LOST, delivery=2)),
    "it expired that has all the time of the world": ("I6", lambda it: with_expiry(it, None)),
    "it expired before its time": ("I6", lambda it: with_expiry(it, NOON + timedelta(days=36_500))),
    "a delay beyond the longest": ("I7", other(RetryScheduled, FLAKY, delay=4.1)),
    "a delay that is too short": ("I7", other(RetryScheduled, FLAKY, delay=1.9)),
}


@pytest.mark.parametrize(("invariant", "defect"), DEFECTS.values(), ids=DEFECTS)
def test_what_is_planted_is_noticed(
    everything: StoredEvents, invariant: str, defect: Callable[[StoredEvents], StoredEvents]
) -> None:
    report = defect(everything).audited()
    assert invariant in {one.invariant for one in report.violations} | {one.invariant for one in report.debts}


def test_claimed_execution_must_not_expire(everything: StoredEvents) -> None:
    [end] = [r for r in everything.log if isinstance(r.message, Failed)]
    claim = Started(job=JOB, execution_id=EXPIRED, step="main", attempt=1, delivery=1, worker="w", lease=10)
    claimed: Recorded[Message] = Recorded(claim, subjects.subject_of(claim), end.sequence, end.time)
    behind = msgspec.structs.replace(end, sequence=end.sequence + 1)
    log = [behind if r is end else r for r in everything.log]
    log.insert(log.index(behind), claimed)
    texts = [str(found) for found in replace(everything, log=tuple(log)).audited().violations]
    assert any("it expires while a worker holds attempt 1 of main" in text for text in texts)


async def test_execution_between_steps_may_expire() -> None:
    world = World()
    steps = [{"name": "one", "function": "f"}, {"name": "two", "function": "f", "depends_on": ["one"]}]
    definition = JobDefinition.model_validate({"name": JOB, "dag": steps, "overlap_policy": "allow"})
    soon = world.clock.now() + timedelta(seconds=20)
    asked = Enqueued(execution_id=EXPIRED, definition=definition, expires_at=soon)
    await world.log.publish(subjects.subject_of(asked), asked, message_id=EXPIRED)
    await run(world)
    await world.given(Started(job=JOB, execution_id=EXPIRED, step="one", attempt=1, delivery=1, worker="w", lease=10))
    await answer(world, EXPIRED, "completed", step="one")
    await passes(world, 30)
    log = await StoredEvents.of(world.log)
    assert isinstance(log.ends[EXPIRED].message, Failed)
    assert [str(violation) for violation in log.audited().violations] == []
