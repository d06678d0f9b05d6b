"""A check that never fails proves nothing: each invariant notices what is planted for it in a log without fault."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Final, TypeVar

import msgspec
import pytest

from tests.domain.given import ID, KEY, NOON, proven
from tests.stages.world import World
from tests.stored_events import StoredEvents
from tocsin import subjects
from tocsin.domain import ids, ledger
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import (
    Acquired,
    Admitted,
    Advanced,
    Completed,
    CronAnswer,
    CronMissed,
    CronSkipped,
    CronTriggered,
    DeadLettered,
    Defined,
    Dispatched,
    Due,
    ExecutionFact,
    Exhausted,
    Failed,
    Failure,
    Message,
    Passed,
    Planned,
    PublicEvent,
    Recorded,
    Report,
    Resumed,
    RetryScheduled,
    Skipped,
    Started,
    Terminal,
    Trigger,
    validated,
)
from tocsin.engine.ledger_reader import LedgerReader
from tocsin.services.audit import INVARIANTS, PUBLIC

Defect = Callable[[StoredEvents], StoredEvents]
M = TypeVar("M", bound=Message)

RETRY: Final = {"max_attempts": 2, "initial_delay": 0.5}
JOBS: Final[list[dict[str, Any]]] = [
    {"name": "locked", "schedule": "* * * * * *", "function": "f"},
    {"name": "free", "schedule": "*/2 * * * * *", "function": "f", "overlap_policy": "allow"},
    {"name": "late", "schedule": "* * * * * *", "function": "f", "overlap_policy": "allow", "catch_up": "skip"},
    {
        "name": "etl",
        "overlap_policy": "allow",
        "dag": [{"name": "extract", "function": "f"}, {"name": "load", "function": "f", "depends_on": ["extract"]}],
    },
    {
        "name": "doomed",
        "overlap_policy": "allow",
        "retry": RETRY,
        "dead_letter": True,
        "dag": [
            {"name": "one", "function": "broken"},
            {"name": "other", "function": "broken"},
            {"name": "after", "function": "f", "depends_on": ["one"]},
        ],
    },
]


@pytest.fixture(scope="module")
def everything() -> StoredEvents:
    """A log with a little of everything in it."""
    return asyncio.run(happened())


async def happened() -> StoredEvents:
    world = World()
    for job in JOBS:
        await world.define(job)
    for second in range(6):
        await time_passes(world, without="" if second == 5 else "late")
        await world.run(world.planner, world.lock_keeper, world.dag_advancer)
        if second in {1, 3, 5}:  # so that every other instant finds the lock held
            await work(world)
        if second == 3:
            await world.trigger("etl", "one")
            await world.trigger("doomed", "another")
            await world.trigger("locked", "too late")
        if second in {2, 4}:
            state, _ = await LedgerReader(world.log).load("free")
            await world.given(*(ledger.pause if second == 2 else ledger.resume)(state, "free"))
    for job in JOBS:
        state, _ = await LedgerReader(world.log).load(job["name"])
        await world.given(*ledger.delete(state, job["name"]))
    await time_passes(world)
    await work(world)
    return await StoredEvents.of(world.log)


async def time_passes(world: World, *, without: str = "") -> None:
    """A second, and what the ticker makes of it, but for one job."""
    world.clock.advance(1)
    for job in JOBS:
        if job["name"] == without:
            continue
        state, _ = await LedgerReader(world.log).load(job["name"])
        await world.given(*ledger.decide_instants(state, world.clock.now()))


async def work(world: World) -> None:
    """Complete every dispatched task immediately, and every retry after its delay."""
    for _ in range(10):
        await world.run(world.planner, world.lock_keeper, world.dag_advancer, world.retrier, world.dead_letter_sink)
        claims = {(fact.execution_id, fact.step, fact.attempt) for fact in await world.stored(Started)}
        for task in await world.stored(Dispatched):
            if (task.execution_id, task.step, task.attempt) not in claims:
                await execute(world, task)
        world.clock.advance(0.1)


async def execute(world: World, task: Dispatched) -> None:
    has_failed = task.function == "broken"
    attempt = {"job": task.job, "execution_id": task.execution_id, "step": task.step, "attempt": task.attempt}
    await world.given(validated(Started, {**attempt, "delivery": 1, "worker": "w"}))
    report = validated(
        Report,
        {
            **attempt,
            "outcome": "failed" if has_failed else "completed",
            "token": ids.report_token(KEY, task.execution_id, task.step, task.attempt),
            "delivery": 1,
            "error": Failure(type="ValueError") if has_failed else None,
        },
    )
    report = proven(report)
    subject = subjects.subject_of(report)
    await world.log.publish(subject, report, message_id=subject)


def changed(change: Callable[[list[Recorded[Message]]], Iterable[Recorded[Message]]]) -> Defect:
    """The log with what `change` makes of its messages."""
    return lambda everything: everything.changed(change)


def without(kind: type[Message]) -> Defect:
    """The first fact of a kind was lost."""

    def change(facts: list[Recorded[Message]]) -> list[Recorded[Message]]:
        first = next((recorded for recorded in facts if isinstance(recorded.message, kind)), None)
        return [recorded for recorded in facts if recorded is not first]

    return changed(change)


def without_execution() -> Defect:
    """All facts of an execution were lost."""

    def change(facts: list[Recorded[Message]]) -> list[Recorded[Message]]:
        lost = next((r.message.execution_id for r in facts if isinstance(r.message, Planned)), None)
        return [r for r in facts if not (isinstance(r.message, ExecutionFact) and r.message.execution_id == lost)]

    return changed(change)


def again(kind: type[Message], **fields: object) -> Defect:
    """The first fact of a kind is there once more, at the end, with other values in some fields."""

    def change(facts: list[Recorded[Message]]) -> list[Recorded[Message]]:
        found = [recorded for recorded in facts if isinstance(recorded.message, kind)][:1]
        return [
            *facts,
            *(with_fields(msgspec.structs.replace(r, sequence=facts[-1].sequence + 1), fields) for r in found),
        ]

    return changed(change)


def after_itself(kind: type[Message]) -> Defect:
    """The first fact of a kind is there once more, right behind itself."""

    def change(facts: list[Recorded[Message]]) -> list[Recorded[Message]]:
        place = next((i for i, recorded in enumerate(facts) if isinstance(recorded.message, kind)), len(facts))
        return [*facts[: place + 1], *facts[place:]]

    return changed(change)


def without_ends(job: str) -> Defect:
    """The executions of a job never ended."""
    return changed(lambda facts: [r for r in facts if not (isinstance(r.message, Terminal) and r.message.job == job)])


def nested(kind: type[PublicEvent], **fields: object) -> Defect:
    """The first public event of a kind has other content."""

    def change(facts: list[Recorded[Message]]) -> list[Recorded[Message]]:
        first = next((recorded for recorded in facts if isinstance(recorded.message, kind)), None)
        if first is None or not isinstance(first.message, PublicEvent):
            return facts
        event = first.message.changed(data=first.message.data.changed(**fields))
        return [
            msgspec.structs.replace(recorded, message=event) if recorded is first else recorded for recorded in facts
        ]

    return changed(change)


def counted_from_one(facts: list[Recorded[Message]]) -> list[Recorded[Message]]:
    """The last firing is counted as the first of a registration."""
    last = next((recorded for recorded in reversed(facts) if isinstance(recorded.message, CronTriggered)), None)
    if last is None or not isinstance(last.message, CronTriggered):
        return facts
    assert last.message.data.run_count > 1
    event = last.message.changed(data=last.message.data.changed(run_count=1))
    return [msgspec.structs.replace(recorded, message=event) if recorded is last else recorded for recorded in facts]


def other(kind: type[M], *, having: Callable[[M], bool] = lambda _: True, **fields: object) -> Defect:
    """The first fact of a kind says something else."""

    def change(facts: list[Recorded[Message]]) -> list[Recorded[Message]]:
        first = next((r for r in facts if isinstance(r.message, kind) and having(r.message)), None)
        return [with_fields(recorded, fields) if recorded is first else recorded for recorded in facts]

    return changed(change)


def swapped(one: type[Message], following: type[Message]) -> Defect:
    """The last fact of a kind and the first of another kind behind it came in the other order."""

    def change(facts: list[Recorded[Message]]) -> list[Recorded[Message]]:
        places = [i for i, recorded in enumerate(facts) if isinstance(recorded.message, one)]
        for i in reversed(places):
            for j in range(i + 1, len(facts)):
                if isinstance(facts[j].message, following):
                    first, second = facts[i].sequence, facts[j].sequence
                    facts[i], facts[j] = (
                        msgspec.structs.replace(facts[j], sequence=first),
                        msgspec.structs.replace(facts[i], sequence=second),
                    )
                    return facts
        return facts

    return changed(change)


def with_fields(recorded: Recorded[Message], fields: dict[str, object]) -> Recorded[Message]:
    message = recorded.message.changed(**fields)
    return msgspec.structs.replace(recorded, message=message, subject=subjects.subject_of(message))


DEFECTS: Final[dict[str, tuple[str, Defect]]] = {
    "an instant has another execution": ("I1", again(Planned, execution_id=ID)),
    "an instant has an execution of another time": ("I1", other(Planned, scheduled_time=NOON)),
    "an instant was forgotten": ("I2", without(Due)),
    "an instant was decided twice": ("I2", again(Due)),
    "a pause was forgotten": ("I2", without(Passed)),
    "a pause has another reason": ("I2", other(Passed, reason="missed")),
    "a span leaves a hole": ("I2", other(Passed, start=NOON)),
    "a span counts too few": ("I2", other(Passed, count=0)),
    "a firing nobody named": ("I2", other(Due, scheduled_time=NOON)),
    "a firing by another definition": ("I2", other(Due, definition=77)),
    "a local time that exists is said not to": ("I2", other(Due, dst_skip=True)),
    "a resumption was forgotten": ("I2", without(Resumed)),
    "a resumption changes decided time": ("I2", other(Resumed, since=NOON)),
    "a resumption comes later than it was stored": ("I2", other(Resumed, since=NOON + timedelta(days=9))),
    "a definition was lost": ("I2", without(Defined)),
    "a due instant came to nothing": ("I2", without_execution()),
    "an execution nobody asked for": ("I3", again(Admitted, execution_id=ID)),
    "a trigger nobody sent": ("I3", without(Trigger)),
    "it was not planned": ("I3", without(Planned)),
    "it was not admitted": ("I3", without(Admitted)),
    "it was not dispatched": ("I3", without(Dispatched)),
    "it was not started": ("I3", without(Started)),
    "two deliveries hold one attempt": ("I3", after_itself(Started)),
    "nobody reported": ("I3", without(Report)),
    "somebody reported who has no task": ("I3", other(Report, token="forged")),
    "a skip that nothing asked for": ("I3", again(Skipped, execution_id=ID, reason="disabled")),
    "a fact is stored twice": ("I4", after_itself(Advanced)),
    "a request is stored twice": ("I4", after_itself(Planned)),
    "a lock was not taken": ("I5", without(Acquired)),
    "a lock was taken too early": ("I5", swapped(Completed, Acquired)),
    "a token of another": ("I5", other(Acquired, execution_id=ID)),
    "a run without a token": ("I5", other(Dispatched, having=lambda fact: fact.fence is not None, fence=None)),
    "a run beside another": ("I5", without_ends("locked")),
    "a step was dispatched too early": ("I6", swapped(Advanced, Dispatched)),
    "an end is missing": ("I6", without(Completed)),
    "two ends": ("I6", again(Completed)),
    "steps were not cancelled": ("I6", other(Failed, cancelled_steps=())),
    "the end came before a step": ("I6", without(Advanced)),
    "more attempts than allowed": ("I7", other(Exhausted, attempt=3)),
    "a delay of another length": ("I7", other(RetryScheduled, delay=9.0)),
    "no retry was scheduled": ("I7", without(RetryScheduled)),
    "a dead letter is missing": ("I7", without(DeadLettered)),
    "two dead letters": ("I7", again(DeadLettered)),
    "a firing was not told of": ("CRON-29", without(CronTriggered)),
    "a firing was told of twice": ("CRON-29", again(CronTriggered)),
    "a firing was counted wrongly": ("CRON-29", nested(CronTriggered, run_count=7)),
    "a firing was counted from 1 again": ("CRON-29", changed(counted_from_one)),
    "a skip was not told of": ("CRON-30", without(CronSkipped)),
    "a skip was told of twice": ("CRON-30", again(CronSkipped)),
    "a span was not told of": ("MISSED", without(CronMissed)),
    "a span was told of twice": ("MISSED", again(CronMissed)),
    "another span was told of": ("MISSED", nested(CronMissed, count=77)),
    "a skipped trigger has no answer": ("ANSWER", without(CronAnswer)),
    "another trigger has its answer": ("ANSWER", nested(CronAnswer, trigger_id="another")),
    "a skip was told for another reason": ("CRON-30", nested(CronSkipped, reason="dst_skip")),
}


def test_a_log_without_fault_breaks_no_invariant(everything: StoredEvents) -> None:
    kinds = {type(recorded.message) for stream in everything.streams for recorded in stream}
    assert kinds >= {
        Passed,
        Skipped,
        Advanced,
        Exhausted,
        RetryScheduled,
        DeadLettered,
        CronSkipped,
        CronTriggered,
        CronMissed,
    }
    report = everything.audited()
    assert [str(violation) for violation in report.violations] == []
    assert [*report.debts, *report.remarks] == []
    assert (report.facts, report.jobs) == (sum(map(len, everything.streams)), len(JOBS))
    assert report.executions == len(everything.executions)


async def test_new_registration_counts_from_one() -> None:
    world = World()
    free = JOBS[1]["name"]
    for _ in range(2):
        await world.define(JOBS[1])
        for second in range(6):
            world.clock.advance(1)
            state, _ = await LedgerReader(world.log).load(free)
            await world.given(*(ledger.delete(state, free) if second == 4 else ()))
            state, _ = await LedgerReader(world.log).load(free)
            await world.given(*ledger.decide_instants(state, world.clock.now()))
            await work(world)
    counts = [event.data.run_count for event in await world.stored(CronTriggered)]
    again = counts.index(1, 1)
    assert counts == [*range(1, again + 1), *range(1, len(counts) - again + 1)]
    report = (await StoredEvents.of(world.log)).audited()
    assert [str(violation) for violation in report.violations] == []


async def test_count_restarts_at_the_request_to_register() -> None:
    """A registration is in force from its request, so only its first run since then is counted 1."""
    world, since = World(), NOON
    world.clock.advance((since - world.clock.now()).total_seconds() + 60)
    [fact] = ledger.define(
        ledger.initial, JobDefinition.model_validate({**JOBS[1], "schedule": "*/20 * * * * *", "catch_up": "all"})
    )
    await world.given(fact.changed(since=since))
    state, _ = await LedgerReader(world.log).load("free")
    await world.given(*ledger.decide_instants(state, world.clock.now()))
    await work(world)
    stored = await StoredEvents.of(world.log)
    report = stored.audited()
    assert ([*report.violations], [*report.debts]) == ([], [])
    [violation] = changed(counted_from_one)(stored).audited().violations
    assert (violation.invariant, violation.reason) == (
        "CRON-29",
        "a run is counted 1, and the job was not registered again",
    )


async def test_late_run_of_a_deleted_registration() -> None:
    world = World()
    first = {**JOBS[1], "schedule": "* * * * * *", "overlap_policy": "enqueue"}

    async def tick() -> None:
        world.clock.advance(1)
        state, _ = await LedgerReader(world.log).load("free")
        await world.given(*ledger.decide_instants(state, world.clock.now()))

    async def delete() -> None:
        state, _ = await LedgerReader(world.log).load("free")
        await world.given(*ledger.delete(state, "free"))

    await world.define(first)
    for _ in range(2):  # the second waits for the lock of the first
        await tick()
        await world.run(world.planner, world.lock_keeper, world.dag_advancer)
    await delete()
    await world.define({**first, "overlap_policy": "allow"})
    for _ in range(2):
        await tick()
        await work(world)
    counts = [event.data.run_count for event in await world.stored(CronTriggered)]
    assert counts == [1, 1, 2, 1, 2]
    report = (await StoredEvents.of(world.log)).audited()
    assert [str(violation) for violation in report.violations] == []


def is_merged(task: Dispatched) -> bool:
    """Return whether a task also admits its execution."""
    return task.admits is not None


def of_two_steps(everything: StoredEvents) -> StoredEvents:
    """Let a task admit an execution of two steps."""
    task = next(r.message for r in everything.log if isinstance(r.message, Dispatched) and is_merged(r.message))
    assert task.admits is not None
    steps = task.admits.plan.steps
    plan = task.admits.plan.changed(steps=(*steps, steps[0].changed(name="z")))
    admits = task.admits.changed(plan=plan)
    return other(Dispatched, having=lambda it: it == task, admits=admits)(everything)


@pytest.mark.parametrize(
    ("invariant", "defect"),
    [
        ("I3", of_two_steps),
        ("I4", after_itself(Dispatched)),
        ("I3", without(Due)),
        ("I3", other(Dispatched, having=lambda it: is_merged(it) and it.trigger == "cron", admits=None)),
    ],
)
def test_defect_of_an_admitting_task_is_noticed(everything: StoredEvents, invariant: str, defect: Defect) -> None:
    violations = defect(everything).audited().violations
    assert invariant in {violation.invariant for violation in violations}


@pytest.mark.parametrize(("invariant", "defect"), DEFECTS.values(), ids=DEFECTS)
def test_each_defect_is_noticed(everything: StoredEvents, invariant: str, defect: Defect) -> None:
    assert invariant in {violation.invariant for violation in defect(everything).audited().violations}


def test_each_invariant_fails_in_two_ways_or_more() -> None:
    times = Counter(invariant for invariant, _ in DEFECTS.values())
    assert {invariant for invariant in (*INVARIANTS, *PUBLIC) if times[invariant] < 2} <= {"I8", "I9"}
