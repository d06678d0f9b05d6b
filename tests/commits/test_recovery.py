"""Deadlines of executions on the log of commits, when they take too long or are lost."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.commits.processes import NAMES, Runner, bound
from tests.commits.test_memory import Work
from tests.domain.given import ID, KEY
from tocsin import subjects
from tocsin.domain import recovery
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import (
    Completed,
    DeadLettered,
    Deleted,
    Dispatched,
    Enqueued,
    Failed,
    Failure,
    Message,
    Paused,
    Recorded,
    Recovered,
    Released,
    Report,
    Resumed,
    RetryScheduled,
    Started,
    unfold,
)
from tocsin.domain.execution import Status
from tocsin.domain.recovery import Policy
from tocsin.engine.step import DONE, Send
from tocsin.stages.recoverer import RECOVERER, Recoverer
from tocsin.subjects import Stream

LAYOUTS: dict[str, dict[str, Any]] = {"fused": {}, "cut": {"cut": True}}
SEPARATE = [(name,) for name in NAMES]
GRACE = Policy().grace.total_seconds()
THRESHOLD = Policy().threshold.total_seconds()


async def found(work: Work, kind: type[Message]) -> list[Any]:
    return [one.message for one in await work.installation.events() if isinstance(one.message, kind)]


async def tasks(work: Work) -> list[Dispatched]:
    events = unfold(await work.installation.events())
    return [recorded.message for recorded in events if isinstance(recorded.message, Dispatched)]


async def deliver(work: Work) -> list[Report]:
    """The reports that the stages send are stored, once each."""
    sent = {send.message_id: send for _, send in work.installation.effects if isinstance(send, Send)}
    work.installation.effects.clear()
    for id_, send in sent.items():
        work.installation.publish(Stream.REPORTS, send.message, send.subject, id_)
    await work.runner.run()
    return [send.message for send in sent.values() if isinstance(send.message, Report)]


async def begin(work: Work, **fields: Any) -> list[Report]:  # noqa: ANN401 - fields of a definition
    """An attempt begins; the report of its success, which is not stored."""
    fields = {"timeout": 30, "retry": {"max_attempts": 2, "initial_delay": 1, "jitter": 0}, **fields}
    await work.define("nightly", **fields)
    await work.trigger("nightly")
    reports = await work.claim()
    await work.runner.run()
    return reports


@pytest.mark.parametrize("groups", [[NAMES], SEPARATE])
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_silent_attempt_fails_after_its_timeout(layout: str, groups: list[tuple[str, ...]]) -> None:
    work = Work()
    work.runner = Runner(work.installation, groups, **LAYOUTS[layout])
    await begin(work)
    work.installation.clock.advance(30 + GRACE - 1)
    await work.runner.run()
    assert await deliver(work) == []
    work.installation.clock.advance(2)
    await work.runner.run()
    [report] = await deliver(work)
    assert (report.outcome, report.worker, report.error and report.error.type) == ("failed", "recoverer", "timed_out")
    [retry] = await found(work, RetryScheduled)
    assert retry.attempt == 1
    work.installation.clock.advance(200)  # the deadline is over with its attempt
    await work.runner.run()
    assert await deliver(work) == []


async def test_success_that_is_stored_precedes_the_deadline() -> None:
    """The stage that takes successes is down; the recoverer and the retrier are not."""
    work = Work()
    [success] = await begin(work)
    work.runner = Runner(work.installation, [[name for name in NAMES if name != "dag_advancer"]])
    await work.report(success)
    work.installation.clock.advance(30 + GRACE + 1)
    await work.runner.run()
    await deliver(work)
    work.runner = Runner(work.installation, [NAMES])
    await work.runner.run()
    assert len(await found(work, Completed)) == 1
    assert await found(work, RetryScheduled) == []


async def test_execution_ends_at_its_timeout() -> None:
    work = Work()
    await begin(work, execution_timeout=600, timeout=3600)
    await work.pass_time(590)
    assert await deliver(work) == []
    await work.pass_time(20)
    [report] = await deliver(work)
    assert (report.outcome, report.worker, report.attempt) == ("failed", "recoverer", 0)
    [failed] = await found(work, Failed)
    assert failed.reason == "timed_out"
    await work.pass_time(200)  # the deadline is over with its execution
    assert await deliver(work) == []


async def test_unread_success_precedes_the_execution_limit() -> None:
    """The leader has not read it when it decides on the limit."""
    work = Work()
    [success] = await begin(work, execution_timeout=600, timeout=3600)
    work.installation.publish(Stream.REPORTS, success, subjects.subject_of(success))
    work.installation.clock.advance(601)
    while await work.process.loop.run_once():
        pass
    assert len(await deliver(work)) == 1
    assert len(await found(work, Completed)) == 1
    assert await found(work, Failed) == []


async def test_limit_waits_for_the_stage_that_takes_successes() -> None:
    work = Work()
    [success] = await begin(work, execution_timeout=600, timeout=3600)
    work.runner = Runner(work.installation, [[name for name in NAMES if name != "dag_advancer"]])
    await work.report(success)
    await work.pass_time(610)
    await deliver(work)
    work.runner = Runner(work.installation, [NAMES])
    await work.runner.run()
    assert len(await found(work, Completed)) == 1
    assert await found(work, Failed) == []


async def test_lost_report_of_the_limit_is_sent_again() -> None:
    """The leader dies after its commit, before it sends the report."""
    work = Work()
    await begin(work, execution_timeout=600, timeout=3600)
    await work.pass_time(610)
    work.installation.effects.clear()
    work.runner = Runner(work.installation, [NAMES])
    await work.pass_time(1)
    first = await deliver(work)
    assert len(first) == len(await found(work, Failed)) == 1
    for report in first:  # stored twice, long after
        work.installation.publish(Stream.REPORTS, report, subjects.subject_of(report))
    await work.runner.run()
    assert len(await found(work, Failed)) == 1


async def test_limit_is_reported_once_on_its_way() -> None:
    work = Work()
    await begin(work, execution_timeout=600, timeout=3600)
    await work.pass_time(610)
    for _ in range(10):
        await work.pass_time(1)
    assert len([send for _, send in work.installation.effects if isinstance(send, Send)]) == 1


@pytest.mark.parametrize("claim", [None, 0, "own"])
async def test_worker_cannot_report_the_limit(claim: Any) -> None:  # noqa: ANN401 - a place or none
    """A worker has the proof of its own claim alone."""
    work = Work()
    [success] = await begin(work, execution_timeout=600, timeout=3600)
    error = Failure(type="timed_out", message="the execution took longer than 10m")
    forged = success.changed(
        outcome="failed",
        attempt=0,
        claim=success.claim if claim == "own" else claim,
        error=error,
        worker=subjects.RECOVERER,
    )
    await work.report(forged)
    assert await found(work, Failed) == []


async def test_execution_waiting_for_its_lock_is_not_lost() -> None:
    work = Work()
    await begin(work, overlap_policy="enqueue", timeout=3600)
    await work.trigger("nightly")
    for _ in range(3):
        await work.pass_time(THRESHOLD)
    assert await found(work, Recovered) == []
    states = [state.status for state in (await work.states()).values()]
    assert sorted(states) == [Status.ADMITTED, Status.PLANNED]


async def test_lock_freed_without_lock_keeper_loses_no_execution() -> None:
    work = Work()
    [success] = await begin(work, overlap_policy="enqueue", timeout=3600)
    await work.trigger("nightly")
    work.runner = Runner(work.installation, [[name for name in NAMES if name != "lock_keeper"]])
    await work.report(success)
    for _ in range(3):
        await work.pass_time(THRESHOLD)
    assert len(await found(work, Completed)) == 1
    assert await found(work, Recovered) == []


GRAPH = [{"name": "main", "function": "f"}, {"name": "next", "function": "f", "depends_on": ["main"]}]


def defective(work: Work, name: str = "dag_advancer") -> None:
    """Let a stage take its inputs, and do nothing."""
    stages = bound(NAMES)
    for number, stage in enumerate(stages):
        if stage.name == name:
            idle = tuple(replace(each, decide=lambda *_: DONE) for each in stage.subscriptions)
            stages[number] = replace(stage, subscriptions=idle, deadlines=())
    work.runner._processes = [work.installation.process(stages=stages)]


async def test_execution_that_its_stage_passed_is_recovered() -> None:
    work = Work()
    await work.define("nightly", dag=GRAPH)
    defective(work)
    await work.trigger("nightly")
    await work.pass_time(1)
    work.runner = Runner(work.installation, [NAMES])
    await work.pass_time(THRESHOLD - 60)
    assert await found(work, Recovered) == []
    await work.pass_time(100)
    [recovered] = await found(work, Recovered)
    assert [(lost.what, lost.step) for lost in recovered.lost] == [("admitted", "main")]
    await work.finish()
    assert len(await found(work, Completed)) == 1


async def test_execution_whose_stage_is_down_is_not_lost() -> None:
    work = Work(tuple(name for name in NAMES if name != "dag_advancer"))
    await work.define("nightly", dag=GRAPH)
    await work.trigger("nightly")
    await work.pass_time(3 * THRESHOLD)
    assert await found(work, Recovered) == []
    work.runner = Runner(work.installation, [NAMES])
    await work.runner.run()
    await work.finish()
    assert len(await found(work, Completed)) == 1


async def test_execution_that_is_lost_too_often_is_abandoned() -> None:
    work = Work()
    await work.define("nightly", dag=GRAPH)
    defective(work)
    await work.trigger("nightly")
    for _ in range(Policy().max_attempts + 1):
        await work.pass_time(THRESHOLD + 60)
        await deliver(work)
    assert len(await found(work, Recovered)) == Policy().max_attempts
    [failed] = await found(work, Failed)
    assert failed.reason == "abandoned"


async def test_lost_execution_of_a_paused_job_waits() -> None:
    work = Work()
    await work.define("nightly", dag=GRAPH)
    defective(work)
    await work.trigger("nightly")
    await work.runner.rest()
    _, definition = [*work.fold.definitions][-1]
    await work.installation.store(Paused(job="nightly", definition=definition))
    await work.pass_time(2 * THRESHOLD)
    assert await found(work, Recovered) == []
    await work.installation.store(Resumed(job="nightly", definition=definition))
    await work.pass_time(THRESHOLD)
    assert len(await found(work, Recovered)) == 1


async def silent(work: Work, seconds: float = 30 + GRACE + 1) -> list[Report]:
    """A worker claims what is dispatched and reports nothing; the reports of the stages."""
    await work.claim()
    await work.runner.run()
    work.installation.clock.advance(seconds)
    await work.runner.run()
    return await deliver(work)


async def test_execution_fails_after_its_last_silent_attempt() -> None:
    work = Work()
    await begin(work, overlap_policy="enqueue", dead_letter=True)
    work.installation.clock.advance(30 + GRACE + 1)
    await work.runner.run()
    await deliver(work)
    await work.pass_time(2)
    await silent(work)
    [failed] = await found(work, Failed)
    assert (failed.reason, failed.error.type, failed.attempt) == ("attempts", "timed_out", 2)
    [letter] = await found(work, DeadLettered)
    assert letter.execution_id == failed.execution_id
    await work.trigger("nightly")
    assert len(await tasks(work)) == 3  # the lock is free


async def test_attempt_taken_over_has_its_whole_timeout() -> None:
    work = Work()
    await begin(work)
    await work.pass_time(20)
    [first] = await found(work, Started)
    await work.installation.store(first.changed(delivery=2))
    await work.pass_time(30 + GRACE - 5)
    assert await deliver(work) == []
    await work.pass_time(6)
    assert [report.delivery for report in await deliver(work)] == [2]


async def test_late_success_counts_until_the_execution_ends() -> None:
    work = Work()
    [success] = await begin(work)
    work.installation.clock.advance(30 + GRACE + 1)
    await work.runner.run()
    await deliver(work)
    assert len(await found(work, RetryScheduled)) == 1
    await work.report(success)
    [completed] = await found(work, Completed)
    assert completed.attempt == 1
    await work.pass_time(3_600)
    assert len(await tasks(work)) == 1


async def test_forged_report_does_not_stop_the_deadline() -> None:
    work = Work()
    [success] = await begin(work)
    await work.report(success.changed(proof="forged"))
    assert await found(work, Completed) == []
    work.installation.clock.advance(30 + GRACE + 1)
    await work.runner.run()
    assert [report.outcome for report in await deliver(work)] == ["failed"]


async def test_time_limits_of_a_paused_job_hold() -> None:
    work = Work()
    await begin(work)
    await work.installation.store(Paused(job="nightly", definition=1))
    work.installation.clock.advance(30 + GRACE + 1)
    await work.runner.run()
    assert len(await deliver(work)) == 1


async def test_report_names_a_silent_mq_executor() -> None:
    stages = [stage for stage in bound(NAMES) if stage.name != "recoverer"]
    stages.append(RECOVERER.bind(Recoverer(KEY, Policy(), frozenset({"default"}))))
    work = Work()
    work.runner._processes = [work.installation.process(stages=stages)]
    await begin(work)
    work.installation.clock.advance(30 + GRACE + 1)
    await work.runner.run()
    [report] = await deliver(work)
    assert report.error is not None
    assert "MQ executor" in report.error.message


async def test_execution_past_its_limit_frees_its_lock() -> None:
    work = Work()
    await begin(work, execution_timeout=600, timeout=3600, overlap_policy="enqueue", dead_letter=True)
    await work.pass_time(610)
    await deliver(work)
    [failed] = await found(work, Failed)
    assert (failed.reason, failed.step, failed.fence is not None) == ("timed_out", None, True)
    assert (failed.error.type, "10m" in failed.error.message) == ("timed_out", True)
    [letter] = await found(work, DeadLettered)
    assert letter.last_error.type == "timed_out"
    await work.trigger("nightly")
    assert len(await tasks(work)) == 2


async def test_execution_without_worker_ends_at_its_limit() -> None:
    work = Work()
    await work.define("nightly", execution_timeout=600)
    await work.trigger("nightly")
    await work.pass_time(590)
    assert await deliver(work) == []
    await work.pass_time(20)
    await deliver(work)
    [failed] = await found(work, Failed)
    assert "no worker took step main" in failed.error.message


async def test_task_without_a_worker_is_not_lost() -> None:
    work = Work()
    await work.define("nightly")
    await work.trigger("nightly")
    for _ in range(48):
        await work.pass_time(3_600)
    assert [*await found(work, Recovered), *await found(work, Failed)] == []
    await work.finish()
    [completed] = await found(work, Completed)
    assert completed.attempt == 1


async def test_long_execution_without_a_limit_goes_on() -> None:
    work = Work()
    await begin(work, timeout=100 * 3_600)
    for _ in range(48):
        await work.pass_time(3_600)
    assert await found(work, Failed) == []
    assert await deliver(work) == []


async def test_retry_with_a_long_delay_is_not_lost() -> None:
    work = Work()
    retry = {"max_attempts": 2, "initial_delay": "10h", "max_delay": "10h", "jitter": 0}
    [report] = await begin(work, retry=retry)
    await work.report(report.changed(outcome="failed", error=Failure(type="E", message="m")))
    for _ in range(9):
        await work.pass_time(3_600)
    assert await found(work, Recovered) == []
    await work.pass_time(2 * 3_600)
    assert [task.attempt for task in await tasks(work)] == [1, 2]


async def test_step_behind_an_unhandled_success_is_not_lost() -> None:
    """The DAG advancer is down."""
    work = Work()
    await work.define("nightly", dag=GRAPH)
    await work.trigger("nightly")
    [success] = await work.claim()
    work.runner = Runner(work.installation, [[name for name in NAMES if name != "dag_advancer"]])
    await work.report(success)
    for _ in range(4):
        await work.pass_time(THRESHOLD)
    assert await found(work, Recovered) == []
    work.runner = Runner(work.installation, [NAMES])
    await work.runner.run()
    assert [task.step for task in await tasks(work)] == ["main", "next"]


async def lose(work: Work, **fields: Any) -> None:  # noqa: ANN401 - fields of a definition
    """An execution of a graph is admitted, and the DAG advancer does nothing; the next process acts."""
    await work.define("nightly", **{"dag": GRAPH, **fields})
    defective(work)
    await work.trigger("nightly")
    await work.pass_time(1)
    work.runner = Runner(work.installation, [NAMES])


async def test_recovered_task_says_so() -> None:
    work = Work()
    await lose(work)
    await work.pass_time(THRESHOLD)
    [recovered], [task] = await found(work, Recovered), await tasks(work)
    assert (task.step, task.attempt, task.is_recovery) == ("main", 1, True)
    assert (task.original_scheduled_time, task.recovery_attempt_time) == (task.scheduled_time, recovered.recovered_at)


async def test_execution_whose_lock_was_freed_unseen_is_recovered() -> None:
    work = Work()
    [success] = await begin(work, overlap_policy="enqueue")
    await work.trigger("nightly")
    assert len(await tasks(work)) == 1
    defective(work, "lock_keeper")
    await work.report(success)
    await work.pass_time(1)
    work.runner = Runner(work.installation, [NAMES])
    await work.pass_time(THRESHOLD)
    [recovered] = await found(work, Recovered)
    assert [lost.what for lost in recovered.lost] == ["planned"]
    assert [task.is_recovery for task in await tasks(work)] == [False, True]


async def test_abandoned_execution_frees_its_lock() -> None:
    work = Work()
    await lose(work, overlap_policy="enqueue", dead_letter=True)
    defective(work)
    for _ in range(Policy().max_attempts + 1):
        await work.pass_time(THRESHOLD + 60)
        await deliver(work)
    [failed] = await found(work, Failed)
    assert (failed.error.type, failed.error.retryable) == ("abandoned", False)
    assert "recovered 3 times" in failed.error.message
    [letter] = await found(work, DeadLettered)
    assert letter.last_error == failed.error
    work.runner = Runner(work.installation, [NAMES])
    await work.trigger("nightly")
    assert len(await tasks(work)) == 1


async def test_execution_lost_too_long_ago_is_abandoned() -> None:
    work = Work()
    await lose(work)
    work.installation.clock.advance(Policy().max_age.total_seconds() + THRESHOLD)
    await work.runner.run()
    await deliver(work)
    [failed] = await found(work, Failed)
    assert failed.error.message.endswith("more than 24h ago")


async def test_unread_success_precedes_the_end_when_lost() -> None:
    """A worker that lost its claim completed the task, and the leader has not read that when it abandons the execution."""
    work = Work()
    [success] = await begin(work, timeout=3600)
    [claim] = await found(work, Started)
    [task] = [one for one in await work.installation.events() if isinstance(one.message, Dispatched)]
    fields = {name: getattr(claim, name) for name in ("job", "execution_id", "step", "attempt", "delivery")}
    defective(work)
    await work.installation.store(Released(**fields, task=task.sequence, reason="handed_back"))
    await work.pass_time(2)
    work.installation.clock.advance(Policy().max_age.total_seconds() + THRESHOLD)
    work.installation.publish(Stream.REPORTS, success, subjects.subject_of(success))
    work.runner = Runner(work.installation, [[name for name in NAMES if name != "dag_advancer"]])
    await work.runner.run()
    [report] = await deliver(work)
    assert (report.attempt, report.error and report.error.type) == (0, "abandoned")
    work.runner = Runner(work.installation, [NAMES])
    await work.runner.run()
    assert len(await found(work, Completed)) == 1
    assert await found(work, Failed) == []


async def test_lost_execution_of_a_deleted_job_is_abandoned() -> None:
    work = Work()
    await lose(work)
    await work.installation.store(Deleted(job="nightly", previous=1))
    await work.pass_time(THRESHOLD)
    await deliver(work)
    [failed] = await found(work, Failed)
    assert failed.error.message.endswith("job was deleted")


async def test_lost_unregistered_job_is_recovered() -> None:
    """A registered job of the same name is another job, and its pause does not count."""
    work = Work()
    await work.define("nightly")
    await work.installation.store(Paused(job="nightly", definition=1))
    definition = JobDefinition.model_validate({"name": "nightly", "dag": GRAPH, "overlap_policy": "allow"})
    wish = Enqueued(execution_id=ID, definition=definition)
    defective(work)
    work.installation.publish(Stream.REQUESTS, wish, subjects.subject_of(wish), "m")
    await work.pass_time(1)
    work.runner = Runner(work.installation, [NAMES])
    await work.pass_time(THRESHOLD)
    assert await found(work, Failed) == []
    [recovered], [task] = await found(work, Recovered), await tasks(work)
    assert recovered.execution_id == task.execution_id == ID


async def test_two_recoverers_recover_an_execution_once() -> None:
    work = Work()
    await lose(work)
    work.runner = Runner(work.installation, [NAMES, NAMES])
    await work.pass_time(THRESHOLD)
    assert len(await found(work, Recovered)) == len(await tasks(work)) == 1


async def test_undecidable_execution_blocks_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work()
    await lose(work)
    await lose(work)
    examine, scopes = recovery.examine, list[str]()

    def broken(facts: Sequence[Recorded[Message]], **options: Any) -> Any:  # noqa: ANN401 - passed on
        scopes.append(scope := subjects.scope_of(facts[0].message))
        if scope == scopes[0]:
            raise ValueError("a bug")
        return examine(facts, **options)

    monkeypatch.setattr(recovery, "examine", broken)
    await work.pass_time(THRESHOLD)
    assert len(set(scopes)) == 2
    assert len(await found(work, Recovered)) == 1
