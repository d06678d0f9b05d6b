"""Parts of ended executions that the fold keeps, and that later decisions find."""

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from tests.commits.processes import NAMES, SEAL, Installation, Process, Runner, same_state
from tests.commits.scripts import Commits, play, script
from tests.domain.given import KEY, NOON
from tocsin import subjects
from tocsin.domain import execution, ids
from tocsin.domain.commit import Taken
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import (
    Admitted,
    CancelRequest,
    Completed,
    CronTriggered,
    CronTriggeredData,
    DeadLettered,
    Defined,
    Due,
    Enqueued,
    Failure,
    Lost,
    Message,
    Paused,
    Recorded,
    Recovered,
    Replayed,
    Report,
    Resolved,
    Resumed,
    Shard,
    ShardsDefined,
    Started,
    Trigger,
    UniqueRule,
)
from tocsin.domain.execution import Phase, Status
from tocsin.domain.execution_plan import from_due
from tocsin.domain.log_events import Began, encode
from tocsin.engine import departures
from tocsin.engine.fold import EVENTS, Fold
from tocsin.engine.request_ids import RequestIds
from tocsin.subjects import Stream

DAY = 24 * 3600.0


class Work:
    """An installation with one process, and a worker that ends what is dispatched."""

    def __init__(self, *groups: tuple[str, ...]) -> None:
        self.installation = Installation()
        self.runner = Runner(self.installation, groups or [NAMES])

    @property
    def process(self) -> Process:
        return self.runner._processes[0]

    @property
    def fold(self) -> Fold:
        return self.process.fold

    async def define(self, name: str, **fields: Any) -> None:  # noqa: ANN401 - fields of a definition or a trigger
        work = {} if "dag" in fields else {"function": "f"}
        fields = {"name": name, "overlap_policy": "allow", **work, **fields}
        await self.installation.store(Defined(job=name, definition=JobDefinition.model_validate(fields)))

    async def trigger(self, job: str, message_id: str | None = None, **fields: Any) -> None:  # noqa: ANN401 - fields of a definition or a trigger
        self.installation.publish(Stream.REQUESTS, Trigger(**fields), subjects.trigger(job), message_id)
        await self.runner.run()

    async def enqueue(self, job: str, number: int, rule: UniqueRule | None = None) -> str:
        id_ = ids.trigger_id(job, str(number), self.installation.clock.now())
        definition = JobDefinition.model_validate({"name": job, "function": "f", "overlap_policy": "allow"})
        message = Enqueued(execution_id=id_, definition=definition, unique=rule)
        self.installation.publish(Stream.REQUESTS, message, subjects.subject_of(message), id_)
        await self.runner.run()
        return id_

    async def cancel(self, job: str, execution_id: str) -> None:
        subject = subjects.cancel(job, execution_id)
        self.installation.publish(Stream.REQUESTS, CancelRequest(), subject, f"cancel-{execution_id}")
        await self.runner.run()

    async def states(self) -> dict[str, execution.Execution]:
        """The executions folded from the whole log."""
        by_scope = dict[str, list[Recorded[Message]]]()
        for recorded in await self.installation.events():
            by_scope.setdefault(subjects.scope_of(recorded.message), []).append(recorded)
        return {scope: execution.fold(of) for scope, of in by_scope.items() if scope.startswith("execution.")}

    async def claim(self) -> list[Report]:
        """Claim all that is dispatched, and return the reports of success."""
        claims = [
            Started(
                job=state.request.job,
                execution_id=state.request.execution_id,
                step=name,
                attempt=step.attempt,
                delivery=1,
                worker="w",
            )
            for state in (await self.states()).values()
            if not state.is_over
            for name, step in state.steps.items()
            if step.phase is Phase.DISPATCHED
        ]
        await self.installation.store(*claims)
        reports = []
        for state in (await self.states()).values():
            for name, step in state.steps.items():
                if step.phase is Phase.STARTED and not state.is_over:
                    reports.append(_report(state, name, step))
        return reports

    async def report(self, report: Report, *, fails: bool = False) -> None:
        if fails:
            error = Failure(type="E", message="m", retryable=False)
            report = msgspec.structs.replace(report, outcome="failed", error=error)
        self.installation.publish(Stream.REPORTS, report, subjects.subject_of(report))
        await self.runner.run()

    async def finish(self, *failing: str) -> None:
        """Work until no task is left; some steps fail."""
        while reports := await self.claim():
            for report in reports:
                await self.report(report, fails=report.step in failing)

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, and have a commit stored in which nothing happens."""
        self.installation.clock.advance(seconds)
        await self.installation.store()
        await self.runner.run()
        await self.runner.rest()

    async def kinds(self, scope: str) -> list[str]:
        return (await self.installation.by_scope()).get(scope, [])

    def count(self) -> Counter[str]:
        """The entries of the tables by kind of key."""
        fold = self.fold
        return Counter(
            scope.partition(".")[0]
            for table in (fold.states, fold.numbers, fold.events, fold.announcements)
            for scope in table
        )


def _report(state: execution.Execution, name: str, step: execution.Step) -> Report:
    asked = state.request
    return Report(
        job=asked.job,
        execution_id=asked.execution_id,
        outcome="completed",
        step=name,
        attempt=step.attempt,
        delivery=1,
        token="",
        claim=step.claim,
        proof=ids.claim_proof(KEY, asked.execution_id, name, step.attempt, step.claim),
    )


@pytest.mark.parametrize("policy", ["allow", "skip", "enqueue", "cancel_previous"])
async def test_ended_executions_leave_with_their_lock(policy: str) -> None:
    work = Work()
    await work.define("nightly", overlap_policy=policy, max_waiting=10)
    for number in range(5):
        await work.trigger("nightly", f"t{number}")
        await work.finish()
    for number in range(5, 9):
        await work.trigger("nightly", f"t{number}")
    await work.finish()
    await work.runner.rest()
    states = await work.states()
    assert len(states) == 9
    assert all(state.is_over for state in states.values())
    assert work.count() == {"ledger": 2, "cron": 2}  # the definition, and the newest run that is counted
    assert not work.fold.departures._blocked


async def test_execution_stays_until_each_stage_took_its_end() -> None:
    """The dead letter of a failed execution has all its attempts, although its stage runs later."""
    work = Work(("planner", "dag_advancer", "retrier", "ticker", "lease_keeper", "lock_keeper"), ("dead_letter_sink",))
    await work.define("nightly", dead_letter=True)
    await work.trigger("nightly", "t0")
    await work.finish()
    await work.runner.rest()  # each stage has a place
    first, sink = sorted(work.runner._processes, key=lambda process: "planner" not in process.fold.stages)
    work.runner._processes = [first]
    await work.trigger("nightly", "t1")
    await work.finish("main")
    await work.runner.rest()
    [scope] = [scope for scope, state in (await work.states()).items() if state.status is Status.FAILED]
    assert scope in first.fold.events
    fresh = work.installation.process(["dead_letter_sink"])
    await fresh.read_on()
    assert scope in fresh.fold.events
    work.runner._processes = [first, sink]
    await work.runner.run()
    await work.runner.rest()
    letters = [r.message for r in await work.installation.events() if isinstance(r.message, DeadLettered)]
    assert [len(letter.attempts) for letter in letters] == [1]
    for process in (first, sink):
        await process.read_on()
        assert len(process.fold.events[scope]) == 2  # the dead letter needs its beginning and its end


async def test_execution_stays_for_stage_that_took_nothing_yet() -> None:
    work = Work(tuple(name for name in NAMES if name != "dead_letter_sink"))
    began = encode(Began(("dead_letter_sink",)), by="", cause="0-0")
    reader = work.installation.process(())
    draft = SEAL.write(reader.chain.head, writer="sink", at=work.installation.clock.now(), taken={}, events=[began])
    await reader.writer.append(draft)  # its process dies, and another has the stage later
    await work.define("nightly", dead_letter=True)
    await work.trigger("nightly", "t1")
    await work.finish("main")
    await work.runner.rest()
    [scope] = await work.states()
    fresh = work.installation.process(["planner"])
    await fresh.read_on()
    for fold in (work.fold, fresh.fold):
        assert scope in fold.events
    sink = work.installation.process(["dead_letter_sink"])
    work.runner._processes.append(sink)
    await work.runner.run()
    await work.runner.rest()
    letters = [r.message for r in await work.installation.events() if isinstance(r.message, DeadLettered)]
    assert [len(letter.attempts) for letter in letters] == [1]
    assert work.fold.floor > 1


async def test_hundred_thousand_ended_executions_leave_nothing() -> None:
    """Fold what the stages store for executions of a few jobs, a thousand of which are open at a time."""
    fold = Fold()
    definitions = {}
    number = 0
    jobs = [f"job{n}" for n in range(10)]
    for job in jobs:
        number += 1
        definitions[job] = JobDefinition(name=job, function="f", schedule="* * * * * *")
        _evolve(fold, Defined(job=job, definition=definitions[job]), number)
    begun = []
    at = NOON
    for n in range(100_000):
        job = jobs[n % 10]
        if n % 10 == 0:
            at += timedelta(seconds=1)
        due = Due(job=job, scheduled_time=at, definition=1 + n % 10)
        admitted = from_due(due, definitions[job].model_copy(update={"overlap_policy": "allow"}), at)
        assert isinstance(admitted, Admitted)
        task = execution.admit_and_dispatch(admitted, key=KEY)
        data = CronTriggeredData(
            cron_name=job, cron_expression="", timezone="UTC", job_id=admitted.execution_id, job_type="f", run_count=n,
            trigger="cron", scheduled_time=at, actual_time=at, traceparent=None, shard=None,
        )  # fmt: skip
        for message in (due, task, CronTriggered(timestamp=at, data=data)):
            number += 1
            _evolve(fold, message, number, at)
        begun.append(admitted)
        if len(begun) == 1_000:
            for asked in begun:
                number += 1
                end = Completed(
                    job=asked.job, execution_id=asked.execution_id, scheduled_time=asked.scheduled_time, trigger="cron"
                )
                _evolve(fold, end, number, at)
            begun = []
            floor = fold.position("planner", EVENTS).floor
            fold.take("planner", EVENTS, Taken(((floor + 1, number),)))
            fold.keep(at)
    fold.keep(at + timedelta(minutes=2))
    assert len(fold.states) == 20
    assert (len(fold.numbers), len(fold.ledgers), len(fold.definitions)) == (20, 10, 10)
    assert not fold.events
    assert not fold.announcements
    assert [len(known) for known in fold.departures.ids] == [0, 0]
    assert not fold.departures._blocked
    assert not fold.departures._ended


def _evolve(fold: Fold, message: Message, number: int, at: datetime = NOON) -> None:
    fold.evolve(Recorded(message, subjects.subject_of(message), number, at), subjects.scope_of(message))


async def test_late_report_and_cancel_after_end_add_nothing() -> None:
    work = Work()
    await work.define("nightly", schedule="0 0 * * *", overlap_policy="skip")
    await work.trigger("nightly", "t1")
    await work.trigger("nightly")  # without an id; skipped, as the first has the lock
    work.installation.clock.advance(DAY)  # an instant fires
    await work.runner.run()
    reports = await work.claim()
    for report in reports:
        await work.report(report)
    await work.finish()
    await work.runner.rest()
    states = await work.states()
    assert {state.status for state in states.values()} == {Status.COMPLETED, Status.SKIPPED}
    assert not any(scope.startswith("execution.") for scope in work.fold.states)
    before = [r.sequence for r in await work.installation.events()]
    for seconds in (0, 40, 90, 3600, 23 * 3600):
        work.installation.clock.advance(seconds)
        for scope in states:
            _, job, execution_id, _ = scope.split(".")
            await work.cancel(job, execution_id)
        for report in reports:
            await work.report(report)
            await work.report(report, fails=True)
        await work.runner.rest()
        events = [r for r in await work.installation.events() if "ledger" not in r.subject]
        assert [r.message for r in events if r.sequence > before[-1] and "cancel" in str(r.message)] == []
        assert not [r for r in events if r.sequence > before[-1] and r.subject.startswith(("dead-letter", "log."))]


async def test_cancelled_waiting_execution_does_not_keep_the_lock() -> None:
    work = Work()
    await work.define("nightly", overlap_policy="enqueue")
    for number in range(3):
        await work.trigger("nightly", f"t{number}")
    states = await work.states()
    waiting, last = [scope for scope, state in states.items() if state.status is Status.PLANNED]
    for scope in (waiting, last):
        await work.cancel("nightly", scope.split(".")[2])
    await work.runner.rest()
    assert waiting in work.fold.states  # the lock's queue has it
    assert len(work.fold.events[waiting]) == 2
    await work.finish()
    await work.trigger("nightly", "t9")
    await work.finish()
    await work.runner.rest()
    states = await work.states()
    assert [state.status for state in states.values()].count(Status.COMPLETED) == 2
    assert work.count() == {"ledger": 2, "cron": 2}


async def test_sharded_execution_stays_until_the_last_shard_ended() -> None:
    work = Work()
    await work.installation.store(ShardsDefined(shards=(Shard(shard_id="a"), Shard(shard_id="b"))))
    await work.define("nightly", partition="all_shards")
    await work.trigger("nightly", "t1")
    states = await work.states()
    [parent] = [scope for scope, state in states.items() if state.is_fanned_out]
    assert len(states) == 3
    await work.runner.rest()
    first, _ = await work.claim()
    await work.report(first)
    assert parent in work.fold.states
    await work.cancel("nightly", parent.split(".")[2])
    assert Counter(state.status for state in (await work.states()).values()) == {
        Status.FANNED_OUT: 1,
        Status.COMPLETED: 1,
        Status.CANCELLED: 1,
    }
    await work.runner.rest()
    assert work.count() == {"ledger": 2, "cron": 2, "shards": 1}
    before = len(await work.installation.events())
    await work.cancel("nightly", parent.split(".")[2])
    await work.runner.rest()
    assert len(await work.installation.events()) == before


@pytest.mark.parametrize("end", ["completed", "discarded", "cancelled"])
async def test_unique_key_knows_how_its_holder_ended(end: str) -> None:
    work = Work()
    rule = UniqueRule(key="a" * 64, states=(end,), period=DAY)  # type: ignore[arg-type]
    first = await work.enqueue("ojs.mail", 1, rule)
    if end == "cancelled":
        await work.cancel("ojs.mail", first)
    await work.finish(*(["main"] if end == "discarded" else []))
    await work.runner.rest()
    scope = subjects.execution("ojs.mail", first)
    assert work.fold.states[scope] is departures.RESTS[(await work.states())[scope].status]
    for number, other in enumerate({"completed", "discarded", "cancelled"} - {end}, 2):
        again = await work.enqueue("ojs.mail", number, UniqueRule(key="a" * 64, states=(other,), period=DAY))  # type: ignore[arg-type]
        assert (await work.states())[subjects.execution("ojs.mail", again)].status is Status.ADMITTED
    duplicate = await work.enqueue("ojs.mail", 4, rule)
    assert (await work.states())[subjects.execution("ojs.mail", duplicate)].status is Status.SKIPPED
    await work.finish()
    await work.pass_time(DAY + 60)
    assert work.count() == {}
    await work.pass_time(DAY + 60)
    assert [len(known) for known in work.fold.departures.ids] == [0, 0]


async def test_unique_key_taken_often_is_kept_once() -> None:
    work = Work()
    rule = UniqueRule(key="a" * 64, states=("active",))
    for number in range(20):
        await work.enqueue("ojs.mail", number, rule)
        work.installation.clock.advance(3600)
        await work.finish()
    assert len(work.fold.departures._due) == 1
    assert sum(scope.startswith("unique.") for scope in work.fold.states) == 1
    await work.pass_time(DAY - 7200)
    assert sum(scope.startswith("unique.") for scope in work.fold.states) == 1
    await work.pass_time(7200)
    await work.pass_time(DAY)
    assert work.count() == {}


async def test_unique_key_sees_the_replay_of_its_holder() -> None:
    work = Work()
    rule = UniqueRule(key="a" * 64, states=("completed",), period=DAY)
    definition = {"name": "ojs.mail", "function": "f", "overlap_policy": "allow", "dead_letter": True}
    id_ = ids.trigger_id("ojs.mail", "1", work.installation.clock.now())
    message = Enqueued(execution_id=id_, definition=JobDefinition.model_validate(definition), unique=rule)
    work.installation.publish(Stream.REQUESTS, message, subjects.subject_of(message), id_)
    await work.runner.run()
    await work.finish("main")
    again = ""
    for number in (1, 2):
        again = ids.replay_id("ojs.mail", id_, number, work.installation.clock.now())
        await work.installation.store(Replayed(job="ojs.mail", id=id_, number=number, execution_id=again))
        await work.runner.run()
        await work.finish(*(["main"] if number == 1 else []))
        await work.runner.rest()
    assert (await work.states())[subjects.execution("ojs.mail", again)].status is Status.COMPLETED
    await work.pass_time(120)
    duplicate = await work.enqueue("ojs.mail", 4, rule)
    assert (await work.states())[subjects.execution("ojs.mail", duplicate)].status is Status.SKIPPED
    discarded = UniqueRule(key="a" * 64, states=("discarded",))
    for number, seconds in ((5, DAY - 3600), (6, 7200)):  # the key is newer than the dead letter
        await work.pass_time(seconds)
        other = await work.enqueue("ojs.mail", number, discarded)
        assert (await work.states())[subjects.execution("ojs.mail", other)].status is Status.ADMITTED
        await work.finish()
    await work.pass_time(2 * DAY)
    assert work.count() == {"dead-letter": 2}  # the state and the number of the first replay's letter, which is open


GRAPH = {
    "dag": [{"name": "a", "function": "f"}, {"name": "b", "function": "f", "depends_on": ["a"]}],
    "dead_letter": True,
}


async def test_replay_adopts_the_steps_of_a_failed_execution() -> None:
    work = Work()
    await work.define("graph", **GRAPH)
    await work.trigger("graph", "t1")
    await work.finish("b")
    await work.runner.rest()
    [scope] = await work.states()
    failed = scope.split(".")[2]
    letter = work.fold.states[subjects.dead_letter("graph", failed)]
    assert letter.fact.attempts == ()
    kinds = [type(recorded.message).__name__ for recorded in work.fold.events[scope]]
    assert kinds == ["Admitted", "Advanced", "Failed"]
    again = ids.replay_id("graph", failed, 1, work.installation.clock.now())
    await work.installation.store(
        Replayed(job="graph", id=failed, number=1, execution_id=again, failed_only=True, ledger=1)
    )
    await work.runner.run()
    replay = (await work.states())[subjects.execution("graph", again)]
    assert replay.steps["a"].phase is Phase.COMPLETED
    await work.finish()
    await work.pass_time(DAY - 60)
    assert scope in work.fold.states
    await work.pass_time(120)
    assert not [scope for scope in work.fold.states if not scope.startswith(("ledger.", "cron."))]


async def test_unregistered_execution_is_replayed_from_its_request() -> None:
    work = Work()
    definition = {
        "name": "ojs.mail",
        "function": "f",
        "overlap_policy": "allow",
        "dead_letter": True,
        "input": {"x": 1},
    }
    id_ = ids.trigger_id("ojs.mail", "1", work.installation.clock.now())
    message = Enqueued(execution_id=id_, definition=JobDefinition.model_validate(definition))
    work.installation.publish(Stream.REQUESTS, message, subjects.subject_of(message), id_)
    await work.runner.run()
    await work.finish("main")
    await work.runner.rest()
    again = ids.replay_id("ojs.mail", id_, 1, work.installation.clock.now())
    await work.installation.store(Replayed(job="ojs.mail", id=id_, number=1, execution_id=again))
    await work.runner.run()
    replay = (await work.states())[subjects.execution("ojs.mail", again)]
    assert replay.request.plan.input == {"x": 1}


async def test_dead_letter_stays_while_its_replay_is_open() -> None:
    work = Work()
    await work.define("nightly", dead_letter=True)
    await work.trigger("nightly", "t1")
    await work.finish("main")
    [scope] = await work.states()
    failed = scope.split(".")[2]
    again = ids.replay_id("nightly", failed, 1, work.installation.clock.now())
    await work.installation.store(Replayed(job="nightly", id=failed, number=1, execution_id=again, ledger=1))
    await work.runner.run()
    await work.pass_time(3 * DAY)
    assert subjects.dead_letter("nightly", failed) in work.fold.states
    await work.finish()
    resolved = [r for r in await work.installation.events() if isinstance(r.message, Resolved)]
    assert [r.message.execution_id for r in resolved if isinstance(r.message, Resolved)] == [again]
    await work.pass_time(3 * DAY)
    assert not [scope for scope in work.fold.states if not scope.startswith(("ledger.", "cron."))]


async def test_replaced_definitions_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(departures, "SWEEP_FROM", 10)
    work = Work()
    await work.define("waits", overlap_policy="enqueue", schedule="* * * * * *", input={"n": -1})
    await work.runner.run()
    for number in range(50):
        work.installation.clock.advance(2)  # instants fire, and have earlier definitions leave the ledger
        await work.runner.run()
        await work.define("waits", overlap_policy="enqueue", schedule="* * * * * *", input={"n": number})
    work.installation.clock.advance(2)
    await work.runner.run()
    open_ = {state.request.plan.definition for state in (await work.states()).values() if not state.is_over}
    assert len(open_) == 51
    assert {number for _, number in work.fold.definitions} >= open_
    await work.finish()  # each execution that waited is announced by its own definition
    for number in range(12):
        await work.define("waits", schedule="* * * * * *", input={"n": 100 + number})
        work.installation.clock.advance(2)
        await work.runner.run()
    assert len(work.fold.definitions) < 51


async def test_definition_at_an_earlier_moment_is_found() -> None:
    fold, versions = Fold(), {}
    for number in range(1, 12, 3):
        definition = JobDefinition(name="nightly", function=f"f{number}")
        _evolve(fold, Defined(job="nightly", definition=definition, previous=number - 1), number)
        _evolve(fold, Paused(job="nightly", definition=number, previous=number), number + 1)
        _evolve(fold, Resumed(job="nightly", definition=number, previous=number + 1), number + 2)
        versions[number] = definition
    for at in range(1, 13):
        found = fold.in_force("nightly", at)
        assert found is not None
        assert found == (versions[(at - 1) // 3 * 3 + 1], (at - 1) // 3 * 3 + 1)


async def test_announcements_stay_for_open_executions_alone() -> None:
    work = Work()
    await work.define("nightly")
    for number in range(20):
        await work.trigger("nightly", f"t{number}")
    await work.runner.rest()
    [about] = work.fold.announcements.values()
    assert len(about) == 20
    reports = await work.claim()
    for report in reports[:15]:
        await work.report(report)
    await work.runner.rest()
    [about] = work.fold.announcements.values()
    assert set(about) == {report.execution_id for report in reports[15:]}


async def test_announcement_after_recovery_is_not_repeated() -> None:
    """An execution that was announced long ago is announced once, although others were since."""
    work = Work()
    await work.define("nightly")
    await work.trigger("nightly", "t1")
    [scope] = await work.states()
    await work.trigger("nightly", "t2")
    await work.runner.rest()
    execution_id = scope.split(".")[2]
    lost = (Lost(what="admitted", since=NOON, step="main", attempt=1),)
    await work.installation.store(
        Recovered(job="nightly", execution_id=execution_id, recovery=1, recovered_at=NOON, lost=lost)
    )
    await work.runner.run()
    events = await work.installation.events()
    assert sum(r.subject == "cron.triggered.nightly" for r in events) == 2


@pytest.mark.parametrize("seed", range(20))
async def test_scripts_leave_what_is_needed(seed: int) -> None:
    """After a script, each execution in the fold that is over is needed by a state."""
    engine = Commits()
    await play(script(seed), engine)
    await engine._runner.rest()
    [process] = engine._runner._processes
    blocked = {scope for scopes in process.fold.departures._blocked.values() for scope in scopes}
    for scope, state in process.fold.states.items():
        if isinstance(state, execution.Execution) and state.is_over:
            assert scope in blocked
    assert process.fold.numbers.keys() <= process.fold.states.keys() | process.fold.standing.keys()
    fresh = engine._installation.process()
    await fresh.read_on()
    assert same_state(fresh.fold, process.fold)


@pytest.mark.parametrize("ended", [False, True])
async def test_same_request_again_adds_nothing(ended: bool) -> None:  # noqa: FBT001
    work = Work()
    await work.define("nightly", overlap_policy="skip")
    await work.define("free")

    async def request() -> None:
        id_ = ids.trigger_id("free", "chosen", NOON)
        await work.trigger("free", id_)  # the API chooses the id
        await work.trigger("nightly", "m1", idempotency_key="k1")
        await work.trigger("nightly", "m2", idempotency_key="k2", by=None)  # skipped: the lock is held
        subject = f"outside.shop.{subjects.trigger('free')}"
        keyed = subjects.decode(subject, b'{"idempotency_key":"k1","input":{}}')
        work.installation.publish(Stream.INPUTS, keyed, subject, f"p{work.installation.clock.now()}")
        await work.runner.run()

    await request()
    assert len(await work.states()) == 4
    if ended:
        await work.finish()
        await work.runner.rest()
        assert not any(scope.startswith("execution.") for scope in work.fold.states)
    before = len(await work.installation.events())
    for _ in range(3):
        work.installation.clock.advance(7 * 3600)
        await request()
        await work.runner.rest()
    assert len(await work.installation.events()) == before
    if ended:
        await work.pass_time(DAY)
        await request()
        assert len(await work.installation.events()) > before


def test_publishers_flood_ends_its_own_window_only() -> None:
    known = RequestIds(b"k" * 32, timedelta(hours=24), limit=1_000)
    known.add("calm", "first", NOON)
    for number in range(5_000):
        known.add("loud", str(number), NOON + timedelta(seconds=number))
    assert len(known) == 1_001
    assert known.has(known.hash_of("first"))
    assert not known.has(known.hash_of("3999"))
    assert known.has(known.hash_of("4000"))
    copy = RequestIds(b"k" * 32, timedelta(hours=24), limit=1_000)
    copy.load(known.dump())
    assert list(copy.dump()) == list(known.dump())
    known.expire(NOON + timedelta(hours=24, seconds=11))
    assert not known.has(known.hash_of("first"))
    assert known.has(known.hash_of("4999"))
    known.expire(NOON + timedelta(days=3))
    assert (len(known), known._buckets, known._counts) == (0, {}, {})


async def test_stage_has_no_position_of_an_untaken_stream() -> None:
    """In a process of its own it would never move, and hold the inputs of others."""
    work = Work()
    await work.define("job")
    await work.trigger("job", "one")
    await work.finish()
    await work.runner.rest()
    sources = {stage: {source for by, source in work.fold.positions if by == stage} for stage in NAMES}
    assert sources["ticker"] == {EVENTS}
    assert sources["retrier"] == {EVENTS, "REPORTS"}
    assert sources["planner"] == {EVENTS, "REQUESTS"}
