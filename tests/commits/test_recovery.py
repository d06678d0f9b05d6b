"""Deadlines of executions on the log of commits, when they take too long or are lost."""

from dataclasses import replace
from typing import Any

import pytest

from tests.commits.processes import NAMES, Runner, bound
from tests.commits.test_memory import Work
from tocsin.domain.events import Completed, Failed, Message, Paused, Recovered, Report, Resumed, RetryScheduled
from tocsin.domain.execution import Status
from tocsin.domain.recovery import Policy
from tocsin.engine.step import DONE, Send
from tocsin.subjects import Stream

LAYOUTS: dict[str, dict[str, Any]] = {"fused": {}, "cut": {"cut": True}}
SEPARATE = [(name,) for name in NAMES]
GRACE = Policy().grace.total_seconds()
THRESHOLD = Policy().threshold.total_seconds()


async def found(work: Work, kind: type[Message]) -> list[Any]:
    return [one.message for one in await work.installation.events() if isinstance(one.message, kind)]


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
    assert len(await found(work, RetryScheduled)) == 1
    work.runner = Runner(work.installation, [NAMES])
    await work.runner.run()
    assert len(await found(work, Completed)) == 1


async def test_execution_ends_at_its_timeout() -> None:
    work = Work()
    await begin(work, execution_timeout=600, timeout=3600)
    await work.pass_time(590)
    assert await found(work, Failed) == []
    await work.pass_time(20)
    [failed] = await found(work, Failed)
    assert failed.reason == "timed_out"


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


def defective(work: Work) -> None:
    """Let the DAG advancer take its inputs, and do nothing."""
    stages = bound(NAMES)
    for number, stage in enumerate(stages):
        if stage.name == "dag_advancer":
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
