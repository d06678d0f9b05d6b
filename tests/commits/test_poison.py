"""Decisions that raise errors, yield too much, or kill the processes that make them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.commits.processes import Installation, Process, bound, same_state
from tests.commits.test_leading import TTL, Given, given
from tests.commits.test_turns import junk
from tests.domain.given import KEY
from tocsin import subjects
from tocsin.domain import ids
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import (
    CancelRequest,
    DeadLettered,
    Defined,
    Failed,
    Message,
    Passed,
    PoisonMessage,
    Recorded,
    Report,
    Skipped,
    Started,
    Trigger,
)
from tocsin.domain.events.message import validated
from tocsin.domain.log_events import Began, LogEvent, Poison, Trying, decode
from tocsin.engine.causes import MessageCause
from tocsin.engine.fold import LEDGER, Fold
from tocsin.engine.poison import DecisionTooLarge, end_of
from tocsin.engine.stage import BoundStage, BoundSubscription
from tocsin.engine.step import DONE, Decide, Events, States, Step, again, done
from tocsin.subjects import Stream

Make = Callable[[Decide], Decide]
"""Makes a decision that fails of one that does not."""


def failing(make: Callable[[Any], Any], *durables: str) -> list[BoundStage]:
    """The stages, of which some durables or, without any, the deadlines of the ticker are decided otherwise."""
    stages = list[BoundStage]()
    for stage in bound():
        subscriptions = tuple(
            replace(one, decide=make(one.decide)) if one.durable in durables else one for one in stage.subscriptions
        )
        rules = tuple(
            replace(rule, decide=make(rule.decide)) if not durables and stage.name == "ticker" else rule
            for rule in stage.deadlines
        )
        stages.append(replace(stage, subscriptions=subscriptions, deadlines=rules))
    return stages


def raises_for(job: str, error: type[BaseException] = ValueError) -> Make:
    """A decision about a job raises an error."""

    def make(decide: Decide) -> Decide:
        def decide_or_fail(recorded: Recorded[Message], states: States, now: datetime) -> Step:
            if subjects.job_of(recorded.subject) == job:
                raise error(job)
            return decide(recorded, states, now)

        return decide_or_fail

    return make


async def installed(*jobs: str, **fields: object) -> Installation:
    installation = Installation()
    for job in jobs:
        definition = JobDefinition.model_validate({"name": job, "function": "f", "overlap_policy": "allow", **fields})
        await installation.store(Defined(job=job, definition=definition))
    return installation


def trigger(installation: Installation, *jobs: str) -> None:
    for job in jobs:
        number = len(installation.inputs[Stream.REQUESTS])
        installation.publish(Stream.REQUESTS, Trigger(), subjects.trigger(job), f"t{number}")


async def of_log(installation: Installation) -> list[LogEvent]:
    return [
        change
        for commit in await installation.commits()
        for event in commit.events
        if (change := decode(event)) is not None
    ]


async def found(installation: Installation, kind: type[Any]) -> list[Any]:
    return [recorded.message for recorded in await installation.events() if isinstance(recorded.message, kind)]


async def test_trigger_whose_decision_raises_becomes_a_dead_letter() -> None:
    installation = await installed("bad", "good")
    trigger(installation, "good", "bad", "good", "bad")
    process = installation.process(stages=failing(raises_for("bad"), "planner-triggers"))
    await process.run()
    letters = await found(installation, PoisonMessage)
    assert [(letter.job, letter.sequence, letter.code) for letter in letters] == [
        ("bad", 2, "poison"),
        ("bad", 4, "poison"),
    ]
    poisons = await of_log(installation)
    assert [(one.stage, one.place) for one in poisons if isinstance(one, Poison)] == [
        ("planner", "REQUESTS-2"),
        ("planner", "REQUESTS-4"),
    ]
    assert sum(scope.startswith("execution.good.") for scope in await installation.by_scope()) == 2
    fresh = installation.process()
    await fresh.read_on()
    assert same_state(fresh.fold, process.fold)
    assert fresh.fold.position("planner", "REQUESTS").floor == 4
    assert not await fresh.run()


def cause_of(message: Message, subject: str) -> MessageCause:
    subscription = BoundSubscription("d", Stream.REQUESTS, ("trigger.>",), lambda *_: DONE)
    recorded = Recorded(message, subject, 1, datetime.now(UTC))
    return MessageCause(BoundStage("planner"), subscription, "REQUESTS", 1, recorded)


def test_unwritable_dead_letter_is_left_out() -> None:
    class Unwritable(Message):
        def encode(self) -> bytes:
            raise RecursionError

    assert end_of(Fold(), cause_of(Unwritable(), "trigger.a"), ValueError()) == []


def test_dead_letter_of_a_wrong_name_is_storable() -> None:
    [letter] = end_of(Fold(), cause_of(Trigger(), "trigger.a b"), ValueError())
    assert (letter.job, letter.code) == ("-", "poison")  # type: ignore[attr-defined]


async def test_decision_failing_on_wrong_fold_gets_fresh_fold() -> None:
    installation = await installed("good")
    process = installation.process()
    await process.read_on()
    process.fold.states[subjects.ledger("good")] = "it is wrong"
    trigger(installation, "good")
    await process.run()
    assert await of_log(installation) == []
    kinds = [kinds for scope, kinds in (await installation.by_scope()).items() if scope.startswith("execution.good.")]
    assert kinds == [["dispatched"]]


async def test_fresh_fold_goes_on_telling_what_leaves_it() -> None:
    installation = await installed("good")
    process, left = installation.process(), list[str]()
    process.fold.departures.on_left = lambda scope, _: left.append(scope)
    await process.read_on()
    process.fold.states[subjects.ledger("good")] = "it is wrong"
    trigger(installation, "good")
    await process.run()
    [scope] = [scope for scope in await installation.by_scope() if scope.startswith("execution.good.")]
    installation.publish(Stream.REQUESTS, CancelRequest(), subjects.cancel("good", scope.split(".")[2]), "c1")
    await process.run()
    installation.clock.advance(2)
    await process.run()
    assert left == [scope]


async def test_decision_that_raises_once_is_made_again_alone() -> None:
    installation = await installed("good", "other")
    trigger(installation, "other", "good", "other")
    tries = list[str]()

    def make(decide: Decide) -> Decide:
        def once(recorded: Recorded[Message], states: States, now: datetime) -> Step:
            if recorded.subject == subjects.trigger("good") and recorded.message_id not in tries:
                tries.append(recorded.message_id or "")
                raise ValueError
            return decide(recorded, states, now)

        return once

    await installation.process(stages=failing(make, "planner-triggers")).run()
    assert await of_log(installation) == []
    assert sum(scope.startswith("execution.") for scope in await installation.by_scope()) == 3
    executions = [
        [event.subject for event in commit.events if event.cause == "REQUESTS-2"]
        for commit in await installation.commits()
    ]
    [alone] = [number for number, events in enumerate(executions) if events]
    assert len({event.cause.split("-")[0] for event in (await installation.commits())[alone].events}) <= 2


async def test_steps_of_a_failed_decision_leave_no_trace() -> None:
    installation = await installed("bad", "good")
    trigger(installation, "good", "bad", "good")

    def make(decide: Decide) -> Decide:
        def half(recorded: Recorded[Message], states: States, now: datetime) -> Step:
            if subjects.job_of(recorded.subject) != "bad":
                return decide(recorded, states, now)
            ref = LEDGER(subjects.ledger("bad"))
            if states.has_changed(ref):
                raise ValueError
            defined = Defined(job="bad", definition=JobDefinition(name="bad", function="g"))
            return again(Events(ref, (defined,)))

        return half

    process = installation.process(stages=failing(make, "planner-triggers"))
    await process.run()
    assert (await installation.by_scope())[subjects.ledger("bad")] == ["defined"]
    fresh = installation.process()
    await fresh.read_on()
    assert same_state(fresh.fold, process.fold)
    assert sum(scope.startswith("execution.good.") for scope in await installation.by_scope()) == 2


async def test_instant_whose_planning_raises_is_skipped() -> None:
    installation = await installed("bad", "good", schedule="* * * * * *")
    process = installation.process(stages=failing(raises_for("bad"), "planner"))
    await process.run()
    installation.clock.advance(1)
    await process.run()
    [skipped] = await found(installation, Skipped)
    assert (skipped.job, skipped.reason, skipped.scheduled_time) == ("bad", "poison", installation.clock.now())
    assert skipped.execution_id == ids.occurrence_id("bad", installation.clock.now())
    assert sum(scope.startswith("execution.good.") for scope in await installation.by_scope()) == 1


async def claimed(installation: Installation, process: Process) -> tuple[Report, str]:
    """Claim the only task, and report that it is completed."""
    await process.run()
    [scope] = [scope for scope in process.fold.states if scope.startswith("execution.")]
    _, job, execution_id, _ = scope.split(".")
    fields: dict[str, Any] = {"job": job, "execution_id": execution_id, "step": "main", "attempt": 1, "delivery": 1}
    await installation.store(Started(**fields, worker="w", agent="a"))
    await process.read_on()
    claim = process.fold.numbers[scope]
    proof = ids.claim_proof(KEY, execution_id, "main", 1, claim)
    report = validated(Report, {**fields, "outcome": "completed", "token": "", "claim": claim, "proof": proof})
    return report, subjects.subject_of(report)


async def test_undecidable_report_fails_execution_with_one_dead_letter() -> None:
    installation = await installed("bad")
    process = installation.process(stages=failing(raises_for("bad"), "dag-advancer-reports"))
    trigger(installation, "bad")
    installation.publish(Stream.REPORTS, *await claimed(installation, process))
    await process.run()
    [failed] = await found(installation, Failed)
    assert (failed.reason, failed.dead_letter) == ("poison", True)
    assert len(await found(installation, DeadLettered)) == 1
    assert await found(installation, PoisonMessage) == []
    assert process.fold.position("dag_advancer", "REPORTS").floor == 1


async def test_undecidable_report_without_execution_is_a_dead_letter() -> None:
    installation = await installed("flood")
    installation.publish(Stream.REPORTS, *junk(1))
    await installation.process(stages=failing(raises_for("flood"), "dag-advancer-reports")).run()
    assert [letter.durable for letter in await found(installation, PoisonMessage)] == ["dag-advancer-reports"]


async def test_event_whose_decision_raises_ends_its_execution() -> None:
    installation = await installed("bad", overlap_policy="enqueue")
    process = installation.process(stages=failing(raises_for("bad"), "lock-keeper"))
    trigger(installation, "bad", "bad")
    await process.run()
    failed = await found(installation, Failed)
    assert {one.reason for one in failed} == {"poison"}
    assert len(await found(installation, DeadLettered)) == len(failed) >= 1


async def test_raising_deadline_is_tried_again_after_30_seconds() -> None:
    installation = await installed("bad", "good", schedule="*/10 * * * * *")
    tries = list[datetime]()

    def make(decide: Any) -> Any:  # noqa: ANN401 - of a deadline
        def decide_or_fail(scope: str, deadline: Any, states: States, now: datetime) -> Step:  # noqa: ANN401
            if scope == subjects.ledger("bad"):
                tries.append(now)
                raise ValueError
            decided: Step = decide(scope, deadline, states, now)
            return decided

        return decide_or_fail

    process = installation.process(stages=failing(make))
    for _ in range(6):
        await process.run()
        installation.clock.advance(10)
    assert len(await found(installation, Passed)) == 0
    assert sum(scope.startswith("execution.good.") for scope in await installation.by_scope()) == 5
    seconds = sorted({(at - tries[0]).total_seconds() for at in tries})
    assert seconds == [0, 30]
    assert len(tries) == 4


def yields(number: int, size: int) -> Make:
    """A decision on a trigger of `big` yields so many definitions of so many letters."""

    def make(decide: Decide) -> Decide:
        def much(recorded: Recorded[Message], states: States, now: datetime) -> Step:
            if subjects.job_of(recorded.subject) != "big":
                return decide(recorded, states, now)
            job = JobDefinition.model_validate({"name": "big", "function": "f", "input": {"x": "y" * size}})
            return done(Events(LEDGER(subjects.ledger("big")), (Defined(job="big", definition=job),) * number))

        return much

    return make


@pytest.mark.parametrize(("number", "size"), [(257, 1), (20, 30_000)])
async def test_decision_that_yields_too_much_is_poison(number: int, size: int) -> None:
    installation = await installed("big", "good")
    trigger(installation, "good", "big", "good")
    await installation.process(stages=failing(yields(number, size), "planner-triggers")).run()
    [letter] = await found(installation, PoisonMessage)
    assert letter.code == "too-large"
    assert (await installation.by_scope())[subjects.ledger("big")] == ["defined"]
    assert sum(scope.startswith("execution.good.") for scope in await installation.by_scope()) == 2


async def test_decisions_too_large_together_have_commits_each() -> None:
    installation = await installed("big")
    trigger(installation, *["big"] * 6)
    await installation.process(stages=failing(yields(8, 45_000), "planner-triggers")).run()
    assert await found(installation, PoisonMessage) == []
    assert len((await installation.by_scope())[subjects.ledger("big")]) == 1 + 6 * 8


async def test_proposal_too_large_for_a_commit_is_refused() -> None:
    installation = await installed("big", "good")
    trigger(installation, "good")
    process = installation.process()
    await process.read_on()
    defined = Defined(job="big", definition=JobDefinition(name="big", function="f"))
    ledger = process.fold.numbers[subjects.ledger("big")]
    stored = process.loop.propose("api", [defined] * 5_000, expect=ledger)
    await process.run()
    with pytest.raises(DecisionTooLarge):
        stored.result()
    assert (await installation.by_scope())[subjects.ledger("big")] == ["defined"]
    assert sum(scope.startswith("execution.good.") for scope in await installation.by_scope()) == 1


async def test_key_with_failing_deadline_rule_stops_no_other() -> None:
    installation = await installed("bad", "good", schedule="* * * * * *")
    stages = bound()
    is_broken = True

    def of(state: Any) -> Any:  # noqa: ANN401 - a ledger
        if is_broken and state.job == "bad":
            raise ValueError
        return rule.of(state)

    [rule] = stages[0].deadlines
    stages[0] = replace(stages[0], deadlines=(replace(rule, of=of),))
    process = installation.process(stages=stages)
    await process.run()
    installation.clock.advance(2)
    await process.run()
    assert {scope.split(".")[1] for scope in await installation.by_scope() if scope.startswith("execution.")} == {
        "good"
    }
    is_broken = False
    installation.clock.advance(30)
    await process.run()
    assert {scope.split(".")[1] for scope in await installation.by_scope() if scope.startswith("execution.")} == {
        "good",
        "bad",
    }


class Killed(BaseException):
    """The process is killed."""


@pytest.fixture
async def world() -> Any:  # noqa: ANN401 - yields one
    async with given() as it:
        await it.store(Defined(job="deadly", definition=JobDefinition(name="deadly", function="f")))
        yield it


async def die(world: Given, stages: Sequence[BoundStage], number: int) -> None:
    """Start a leader after the other, each of which dies."""
    for _ in range(number):
        leader = await world.start(f"leader{len(await world.control())}", bound_stages=stages)
        await world.trigger()  # other commits lie between
        await world.clock.run(TTL + 1)
        await world.trigger()
        await world.clock.run(1)
        assert any(task.done() for task in leader.tasks)
        await leader.kill()


async def test_input_killing_leaders_is_named_and_becomes_poison(world: Given) -> None:
    stages = failing(raises_for("deadly", Killed), "planner-triggers")
    await world.trigger("deadly")
    await die(world, stages, 5)
    changes = await of_log(world)
    assert sum(isinstance(change, Began) for change in changes) == 5
    names = [change.place for change in changes if isinstance(change, Trying) and change.stage == "planner"]
    assert names.count("REQUESTS-1") == 3
    last = await world.start("last", bound_stages=stages)
    await world.clock.run(TTL + 2)
    assert not any(task.done() for task in last.tasks)
    [letter] = await found(world, PoisonMessage)
    assert (letter.job, letter.sequence, letter.code) == ("deadly", 1, "poison")
    [poison_event] = [change for change in await of_log(world) if isinstance(change, Poison)]
    assert poison_event.place == "REQUESTS-1"
    number = len(await world.base.read("trigger.>"))
    assert await world.executions() == number - 1
    assert last.fold.position("planner", "REQUESTS").floor == number


async def test_instant_that_kills_each_leader_passes(world: Given) -> None:
    hourly = JobDefinition.model_validate({"name": "hourly", "function": "f", "schedule": "0 0 * * * *"})
    await world.store(Defined(job="hourly", definition=hourly))
    deadly = world.clock.now().replace(minute=0, second=0, microsecond=0)

    def make(decide: Any) -> Any:  # noqa: ANN401 - of a deadline
        def decide_or_die(scope: str, deadline: Any, states: States, now: datetime) -> Step:  # noqa: ANN401
            if scope == subjects.ledger("hourly") and (deadline.at - deadly).total_seconds() == 3600:
                raise Killed
            decided: Step = decide(scope, deadline, states, now)
            return decided

        return decide_or_die

    world.clock.advance(3_600)
    await die(world, failing(make), 5)
    await world.start("last", bound_stages=failing(make))
    await world.clock.run(TTL + 2)
    [passed] = await found(world, Passed)
    assert (passed.job, passed.reason, passed.count) == ("hourly", "poison", 1)
    world.clock.advance(3_600)
    await world.clock.run(2)
    assert "due" in (await world.by_scope())[subjects.ledger("hourly")]


async def test_leader_older_than_ten_minutes_announces_no_tries(world: Given) -> None:
    await world.trigger("deadly")
    await die(world, failing(raises_for("deadly", Killed), "planner-triggers"), 2)
    await world.start("last")
    await world.clock.run(TTL + 2)
    tries = sum(isinstance(change, Trying) for change in await of_log(world))
    assert tries > 0
    await world.clock.run(600)
    before = sum(isinstance(change, Trying) for change in await of_log(world))
    await world.trigger()
    await world.clock.run(2)
    assert sum(isinstance(change, Trying) for change in await of_log(world)) == before


async def test_deadline_is_not_poison_for_another_stages_deaths(world: Given) -> None:
    hourly = JobDefinition.model_validate({"name": "hourly", "function": "f", "schedule": "0 0 * * * *"})
    await world.store(Defined(job="hourly", definition=hourly))
    world.clock.advance(3_600)
    quiet = failing(lambda _: lambda *_: DONE)
    deadly = {stage.name: stage for stage in failing(raises_for("deadly", Killed), "planner-triggers")}
    stages = [replace(stage, subscriptions=deadly[stage.name].subscriptions) for stage in quiet]
    await world.trigger("deadly")
    await die(world, stages, 5)
    changes = await of_log(world)
    places = [change.place for change in changes if isinstance(change, Trying) and change.stage == "ticker"]
    assert len(places) == 3
    assert len(set(places)) == 1
    await world.start("last", bound_stages=stages)
    await world.clock.run(TTL + 2)
    assert [change.stage for change in await of_log(world) if isinstance(change, Poison)] == ["planner"]


async def test_leaders_that_left_have_not_died(world: Given) -> None:
    for number in range(4):
        leader = await world.start(f"leader{number}")
        await leader.leave()
    await world.start("last")
    await world.trigger()
    assert not any(isinstance(change, Trying) for change in await of_log(world))


async def test_long_catch_up_is_decided_in_several_calls() -> None:
    installation = await installed("often", schedule="* * * * * *", catch_up="all", catch_up_limit=1_000)
    process = installation.process()
    await process.run()
    installation.clock.advance(600)
    await process.run()
    assert await of_log(installation) == []
    events = [
        event for scope, events in (await installation.by_scope()).items() if "ledger" in scope for event in events
    ]
    assert events.count("due") == 600
