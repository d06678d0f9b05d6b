"""Executions that wait for runs of other jobs: the fold knows these runs, and the dependency keeper decides on it alone."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from tests.commits.processes import NAMES, SEAL, Runner, same_state
from tests.commits.test_memory import Work
from tests.commits.test_snapshots import assert_same, rebuilt
from tocsin import subjects
from tocsin.adapters.commit_stored import CommitStoredLog
from tocsin.adapters.commit_view import CommitView
from tocsin.adapters.memory.archive import InMemoryArchiveStore, InMemoryProjections
from tocsin.archive.commit_reader import CommitReader
from tocsin.archive.log_archive import LogArchive
from tocsin.domain import execution, ids
from tocsin.domain.commit import Seal
from tocsin.domain.dependency import KEPT, Found, JobRuns, Run, Window
from tocsin.domain.events import (
    Acquired,
    Cancelled,
    Completed,
    CronAnswer,
    CronSkipped,
    CronTriggered,
    Deleted,
    DependenciesSettled,
    Due,
    Failed,
    Message,
    Passed,
    Paused,
    Recorded,
    Replayed,
    Skipped,
    unfold,
)
from tocsin.domain.execution import Status
from tocsin.engine.snapshots import Snapshots
from tocsin.engine.upstream import runs_scope
from tocsin.ports import LogUnavailable
from tocsin.stages.dependency_keeper.past_runs import PastRuns
from tocsin.testing import settle

HOUR = timedelta(hours=1)
LAYOUTS: dict[str, dict[str, Any]] = {
    "fused": {},
    "cut": {"cut": True},
    "restarted": {"restarts": True},
    "cut and restarted": {"cut": True, "restarts": True},
}
SEPARATE = [(name,) for name in NAMES]


async def settled(work: Work) -> list[DependenciesSettled]:
    return [one.message for one in await work.installation.events() if isinstance(one.message, DependenciesSettled)]


async def waits(work: Work, job: str = "report", **fields: Any) -> None:  # noqa: ANN401 - fields of a definition
    """A job is defined that waits for the last run of `load` in two hours, and that job."""
    await work.define("load")
    await work.define(job, depends_on=[{"job": "load", "within": 7200}], **fields)
    work.installation.clock.advance(3 * 3600.0)
    await work.runner.run()


async def status(work: Work, job: str) -> list[Status]:
    states = await work.states()
    return [state.status for scope, state in states.items() if scope.startswith(f"execution.{job}.")]


@pytest.mark.parametrize("groups", [[NAMES], SEPARATE])
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_execution_waits_for_the_last_run(layout: str, groups: list[tuple[str, ...]]) -> None:
    work = Work()
    work.runner = Runner(work.installation, groups, **LAYOUTS[layout])
    await waits(work)
    await work.trigger("load")
    await work.trigger("report")
    assert await status(work, "report") == [Status.PLANNED]
    await work.finish()
    [end] = await settled(work)
    assert (end.outcome, end.runs[0].ended) == ("met", "completed")
    assert await status(work, "report") == [Status.COMPLETED]


async def test_run_that_ended_before_is_enough() -> None:
    work = Work()
    await waits(work)
    await work.trigger("load")
    await work.finish()
    await work.trigger("report")
    assert [end.outcome for end in await settled(work)] == ["met"]


@pytest.mark.parametrize(("fails", "outcome"), [(True, "dependency_failed"), (False, "dependency_missing")])
async def test_wait_ends_with_its_time(*, fails: bool, outcome: str) -> None:
    work = Work()
    await waits(work, dependency_timeout=60)
    if fails:
        await work.trigger("load")
        await work.finish(*(step for state in (await work.states()).values() for step in state.steps))
    await work.trigger("report")
    work.installation.clock.advance(59)
    await work.runner.run()
    assert await settled(work) == []
    work.installation.clock.advance(2)
    await work.runner.run()
    assert [end.outcome for end in await settled(work)] == [outcome]
    assert await status(work, "report") == [Status.SKIPPED]


async def test_instants_of_the_other_job_are_waited_for() -> None:
    """The ticker is down, then the planner: the execution waits beyond its time, as the run may be missing."""
    work = Work()
    names = [name for name in NAMES if name != "ticker"]
    work.runner = Runner(work.installation, [names])
    await work.define("load", schedule="0 * * * *")
    await work.define("report", depends_on=[{"job": "load", "within": 7200}], dependency_timeout=60)
    await work.pass_time(3.5 * 3600.0)
    await work.trigger("report")
    await work.pass_time(120)
    assert await settled(work) == []
    await Runner(work.installation, [("ticker",)]).run()
    work.runner = Runner(work.installation, [[name for name in names if name != "planner"]])
    await work.pass_time(120)
    assert await settled(work) == []
    work.runner = Runner(work.installation, [names])
    await work.runner.run()
    assert await settled(work) == []  # the last run began after the time of the wait, and gets that time too
    await work.finish()
    assert [end.outcome for end in await settled(work)] == ["met"]


async def test_executions_beyond_the_limit_are_skipped() -> None:
    work = Work()
    await waits(work, max_waiting=2)
    for _ in range(3):
        await work.trigger("report")
    assert [end.outcome for end in await settled(work)] == ["queue_full"]
    assert sorted(await status(work, "report")) == [Status.PLANNED, Status.PLANNED, Status.SKIPPED]
    await work.trigger("load")
    await work.finish()
    assert sorted(await status(work, "report")) == [Status.COMPLETED, Status.COMPLETED, Status.SKIPPED]
    assert not work.fold.held


async def test_cancelled_execution_is_waited_for_no_longer() -> None:
    work = Work()
    await waits(work)
    await work.trigger("report")
    [scope] = work.fold.held["report", False]
    await work.cancel("report", scope.split(".")[2])
    runs = work.fold.states[runs_scope("load")]
    assert isinstance(runs, JobRuns)
    assert runs.waiting == () == tuple(work.fold.held)


async def test_runs_are_kept_while_definitions_name_the_job() -> None:
    work = Work()
    await waits(work)
    assert set(work.fold.upstream) == {runs_scope("load")}
    await work.define("report")
    await work.runner.run()
    assert not work.fold.upstream
    assert runs_scope("load") not in work.fold.states


async def test_undone_commit_leaves_no_run() -> None:
    work = Work()
    await waits(work)
    await work.trigger("load")
    other = work.installation.process()
    await other.read_on()
    await work.trigger("report")
    await other.read_on()
    assert same_state(work.fold, other.fold)


async def test_snapshot_has_the_runs() -> None:
    work = Work()
    await waits(work)
    await work.trigger("load")
    await work.trigger("report")
    await work.trigger("report")
    assert_same(rebuilt(work.fold, work.installation.clock.now()), work.fold)


async def test_runs_before_the_job_was_named_are_read() -> None:
    """The job on which another depends ran before the other was registered."""
    work = Work()
    await work.define("load")
    await work.trigger("load")
    await work.finish()
    await work.define("report", depends_on=[{"job": "load", "within": 7200}])
    work.installation.clock.advance(600)
    await work.trigger("report")
    assert await settled(work) == []
    await read_past(work)
    assert [end.outcome for end in await settled(work)] == ["met"]
    assert_same(rebuilt(work.fold, work.installation.clock.now()), work.fold)


async def read_past(work: Work) -> None:
    """Let the reader of past runs read what is missing."""
    reading = asyncio.create_task(past_runs(work).run_once())
    while not reading.done():
        await asyncio.sleep(0)
        await work.runner.run()
    await reading


def past_runs(work: Work) -> PastRuns:
    """Return the reader of past runs for the first process of a layout."""
    log, clock = work.installation.log, work.installation.clock
    buckets = InMemoryProjections(clock)
    view = CommitView(log, 0, SEAL, Snapshots(buckets, b""))
    view.loop, view.fold = work.process.loop, work.fold
    view.begin(work.process.chain, work.process.chain.head.number)

    async def end() -> int:
        return work.process.chain.head.number

    async def seal() -> Seal:
        return SEAL

    streams: Any = None  # no input is read
    stored = CommitStoredLog(
        streams, CommitReader(log, 0, seal, "k1"), LogArchive(InMemoryArchiveStore(), buckets), end
    )
    events: Any = view
    return PastRuns(view, events, stored, clock)


def at(hours: float) -> Any:  # noqa: ANN401 - a time
    return Work().installation.clock.now() + hours * HOUR


def window(since: float, until: float) -> Window:
    return Window(at(since), at(until))


def run(name: str, hours: float, number: int, **fields: Any) -> Run:  # noqa: ANN401 - fields of a run
    return Run(name, at(hours), number, at(hours), **fields)


def test_oldest_runs_are_read_again() -> None:
    runs = JobRuns(since=at(-100), runs=tuple(run(f"r{n}", n, n + 1, ended="completed") for n in range(KEPT)))
    assert runs.knows(window(-1, 0.5))
    cancelled = Cancelled(job="load", execution_id="new", scheduled_time=at(KEPT), trigger="manual")
    later = runs.learn(Recorded(cancelled, subjects.subject_of(cancelled), 1_000, at(KEPT)))
    assert len(later.runs) == KEPT
    assert not later.knows(window(-1, 0.5))
    assert later.knows(window(0.5, 1.5))
    found = Found(window(-1, 0.5), run("r0", 0, 1, ended="completed"))
    assert later.note(found, 1_001).knows(window(-1, 0.5))
    assert later.note(found, 1_001).last(window(-1, 0.5)) == found.run


def test_run_that_was_read_ends() -> None:
    open_ = Found(window(-2, 0), run("r", -1, 1))
    runs = JobRuns(since=at(0)).note(open_, 5)
    end = Cancelled(job="load", execution_id="r", scheduled_time=at(-1), trigger="manual")
    ended = runs.learn(Recorded(end, subjects.subject_of(end), 6, at(1)))
    last = ended.last(window(-2, 0))
    assert last is not None
    assert last.ended == "cancelled"


UP: dict[str, Any] = {"schedule": "0 * * * *", "overlap_policy": "skip"}
DOWN: dict[str, Any] = {"schedule": "0 2 * * *", "overlap_policy": "skip", "depends_on": ["load"]}


async def scheduled(work: Work, **fields: Any) -> None:  # noqa: ANN401 - fields of a definition
    """A job of every hour, and a job of two o'clock that waits for it."""
    await work.define("load", **UP)
    await work.define("report", **{**DOWN, **fields})


async def run_until(work: Work, hours: float) -> None:
    """Let the ticker decide on each instant as it comes; no task is worked on."""
    steps = round((at(hours) - work.installation.clock.now()) / (HOUR / 2))
    for _ in range(steps):
        work.installation.clock.advance(1800.0)
        await work.runner.run()
        await read_past(work)


def of(job: str, hours: float) -> str:
    """The scope of the execution of an instant."""
    return subjects.execution(job, ids.occurrence_id(job, at(hours)))


async def end(work: Work, scope: str, kind: type = Completed) -> None:
    """A run ends."""
    state = (await work.states())[scope]
    fields = {"execution_id": state.request.execution_id, "scheduled_time": state.request.scheduled_time}
    await work.installation.store(
        kind(job=state.request.job, trigger=state.request.trigger, fence=state.fence, **fields)
    )
    await work.runner.run()


async def status_of(work: Work, job: str, hours: float) -> Status:
    return (await work.states())[of(job, hours)].status


async def test_instant_waits_for_last_run_of_other_schedule() -> None:
    work = Work()
    await scheduled(work)
    await run_until(work, 1)
    await end(work, of("load", 1))
    await run_until(work, 2)
    state = (await work.states())[of("report", 2)]
    assert (state.status, execution.waits_for(state)) == (Status.PLANNED, "dependency")
    assert [acquired.job for acquired in await events_of(work, Acquired)] == ["load", "load"]
    await end(work, of("load", 2))
    assert await status_of(work, "report", 2) is Status.ADMITTED
    [settlement] = await settled(work)
    [run] = settlement.runs
    assert (run.job, run.execution_id, run.ended) == ("load", ids.occurrence_id("load", at(2)), "completed")
    assert run.since == at(2) - 24 * HOUR
    assert [event.data.cron_name for event in await events_of(work, CronTriggered)][-1] == "report"


async def test_missed_instant_leaves_the_run_before_it() -> None:
    work = Work()
    await scheduled(work)
    await run_until(work, 1)
    await end(work, of("load", 1))
    work.runner = Runner(work.installation, [[name for name in NAMES if name != "ticker"]])
    await run_until(work, 2)
    await work.installation.store(Due(job="report", scheduled_time=at(2), definition=2))
    await work.runner.run()
    assert await status_of(work, "report", 2) is Status.PLANNED
    missed = Passed(job="load", definition=1, start=at(1), until=at(2), reason="missed", count=1)
    await work.installation.store(missed)
    await work.runner.run()
    assert await status_of(work, "report", 2) is Status.ADMITTED


async def test_run_before_the_window_does_not_count() -> None:
    work = Work()
    await work.define("load", **{**UP, "schedule": "0 1 * * *"})
    within = [{"job": "load", "within": "30m"}]
    await work.define("report", **{**DOWN, "depends_on": within, "dependency_timeout": "1h"})
    await run_until(work, 1)
    await end(work, of("load", 1))
    await run_until(work, 2.5)
    assert await status_of(work, "report", 2) is Status.PLANNED
    await run_until(work, 3)
    [skipped] = await events_of(work, Skipped)
    assert (skipped.execution_id, skipped.reason) == (ids.occurrence_id("report", at(2)), "dependency_missing")
    assert [event.data.reason for event in await events_of(work, CronSkipped)] == ["dependency_missing"]


async def test_circle_of_two_registrations_ends() -> None:
    """Each was registered while the other was not: each wait ends, and nothing runs."""
    work = Work()
    for name, other in (("load", "report"), ("report", "load")):
        await work.define(name, **{**DOWN, "depends_on": [other], "dependency_timeout": "1h"})
    await run_until(work, 2.5)
    assert [await status_of(work, name, 2) for name in ("load", "report")] == [Status.PLANNED] * 2
    await run_until(work, 3)
    assert {(event.job, event.reason) for event in await events_of(work, Skipped)} == {
        ("load", "dependency_missing"),
        ("report", "dependency_missing"),
    }


@pytest.mark.parametrize("was_run", [True, False])
@pytest.mark.parametrize("change", ["paused", "deleted", "unknown"])
async def test_job_that_left_counts_with_its_runs(*, was_run: bool, change: str) -> None:
    """The last run counts, also if its job was paused or deleted meanwhile; without one, the wait ends by its timeout."""
    work = Work()
    if change != "unknown":
        await work.define("load", **UP)
    await work.define("report", **{**DOWN, "dependency_timeout": "1h"})
    if was_run and change != "unknown":
        await run_until(work, 1)
        await end(work, of("load", 1))
    if change == "paused":
        await work.installation.store(Paused(job="load", definition=1, previous=1))
    if change == "deleted":
        await work.installation.store(Deleted(job="load", previous=1))
    await run_until(work, 2.5)
    is_met = was_run and change != "unknown"
    assert await status_of(work, "report", 2) is (Status.ADMITTED if is_met else Status.PLANNED)
    await run_until(work, 3.5)
    reasons = [event.reason for event in await events_of(work, Skipped) if event.job == "report"]
    assert reasons == ([] if is_met else ["dependency_missing"])


@pytest.mark.parametrize("kind", [Failed, Cancelled, Completed])
async def test_finished_accepts_every_end(kind: type) -> None:
    work = Work()
    await scheduled(work, depends_on=[{"job": "load", "on": "finished"}])
    await run_until(work, 2)
    await end(work, of("load", 1), kind)
    assert await status_of(work, "report", 2) is Status.ADMITTED  # the instant of two was skipped: its job still ran


async def test_skipped_occurrence_is_no_run() -> None:
    work = Work()
    await scheduled(work)
    await run_until(work, 2)
    assert await status_of(work, "load", 2) is Status.SKIPPED  # the run before it still holds the lock
    assert await status_of(work, "report", 2) is Status.PLANNED
    await end(work, of("load", 1))
    assert await status_of(work, "report", 2) is Status.ADMITTED


async def test_later_run_does_not_count() -> None:
    work = Work()
    await scheduled(work)
    await run_until(work, 1)
    await end(work, of("load", 1))
    await run_until(work, 2)
    await end(work, of("load", 2), Failed)
    await run_until(work, 3)
    await end(work, of("load", 3))
    assert await status_of(work, "report", 2) is Status.PLANNED


async def test_replay_of_a_failed_run_counts_for_it() -> None:
    work = Work()
    await work.define("load", **UP, dead_letter=True)
    await work.define("report", **DOWN)
    await run_until(work, 1)
    await end(work, of("load", 1))
    await run_until(work, 2)
    await work.finish("main")
    failed = ids.occurrence_id("load", at(2))
    again = ids.replay_id("load", failed, 1, work.installation.clock.now())
    await work.installation.store(Replayed(job="load", id=failed, number=1, execution_id=again, ledger=1))
    await work.runner.run()
    assert await status_of(work, "report", 2) is Status.PLANNED
    await end(work, subjects.execution("load", again))
    assert await status_of(work, "report", 2) is Status.ADMITTED


async def test_all_dependencies_are_needed() -> None:
    work = Work()
    await work.define("clean", **UP)
    await scheduled(work, depends_on=["load", "clean"])
    await run_until(work, 1)
    for job in ("load", "clean"):
        await end(work, of(job, 1))
    await run_until(work, 2)
    await end(work, of("load", 2))
    assert await status_of(work, "report", 2) is Status.PLANNED
    await end(work, of("clean", 2))
    assert await status_of(work, "report", 2) is Status.ADMITTED


async def test_lock_is_requested_after_the_wait() -> None:
    work = Work()
    await waits(work, overlap_policy="enqueue")
    await work.trigger("load")
    await work.trigger("report", "a")
    await work.trigger("report", "b")
    assert await events_of(work, Acquired) == []
    await end(work, next(scope for scope in await work.states() if scope.startswith("execution.load.")))
    first, second = [
        (scope, state) for scope, state in (await work.states()).items() if scope.startswith("execution.report.")
    ]
    assert first[1].status is Status.ADMITTED
    assert (second[1].status, execution.waits_for(second[1])) == (Status.PLANNED, "lock")
    await end(work, first[0])
    assert (await work.states())[second[0]].status is Status.ADMITTED


async def test_keeper_that_starts_later_decides_the_same() -> None:
    work = Work(tuple(name for name in NAMES if name != "dependency_keeper"))
    await waits(work)
    await work.trigger("load")
    await work.finish()
    await work.trigger("report")
    assert await status(work, "report") == [Status.PLANNED]
    work.runner = Runner(work.installation, [NAMES])
    await work.runner.run()
    assert await status(work, "report") == [Status.ADMITTED]


async def events_of(work: Work, kind: type[Message]) -> list[Any]:
    events = unfold(await work.installation.events())
    return [one.message for one in events if isinstance(one.message, kind)]


async def answers(work: Work) -> list[tuple[str, str, str]]:
    """Return the answers to triggers: their ids, the answer and its code."""
    given = [answer.data for answer in await events_of(work, CronAnswer)]
    return [(answer.trigger_id.removeprefix("api."), answer.answer, answer.code) for answer in given]


async def test_trigger_that_waits_is_answered_once() -> None:
    work = Work()
    await waits(work)
    await work.trigger("load")
    await work.trigger("report", "a")
    assert await answers(work) == [("a", "queued", "dependencies_not_met")]
    await work.finish()
    work.runner = Runner(work.installation, [NAMES])
    await work.runner.run()
    assert len(await answers(work)) == 1


async def test_trigger_that_waited_in_vain_is_answered_again() -> None:
    work = Work()
    await waits(work, dependency_timeout="10m")
    await work.trigger("report", "a")
    await work.pass_time(601)
    assert await answers(work) == [("a", "queued", "dependencies_not_met"), ("a", "skipped", "dependency_missing")]


async def test_trigger_beyond_max_waiting_is_refused() -> None:
    work = Work()
    await waits(work, max_waiting=2)
    for trigger in "abc":
        await work.trigger("report", trigger)
    [skipped] = await events_of(work, Skipped)
    assert (skipped.reason, skipped.trigger_id) == ("queue_full", "api.c")
    assert (await answers(work))[-1] == ("c", "refused", "queue_full")
    assert [event.data.reason for event in await events_of(work, CronSkipped)] == ["queue_full"]


async def test_wait_that_ended_leaves_room() -> None:
    work = Work()
    await waits(work, max_waiting=1)
    await work.trigger("load")
    await work.trigger("report", "a")
    await work.finish()
    await work.trigger("load")
    await work.trigger("report", "b")
    assert await events_of(work, Skipped) == []
    assert (await answers(work))[-1] == ("b", "queued", "dependencies_not_met")


async def test_backfills_wait_beside_max_waiting() -> None:
    work = Work()
    await waits(work, max_waiting=1)
    now = work.installation.clock.now()
    for minute in range(3):
        await work.trigger("report", f"f{minute}", backfill="b", scheduled_time=now - minute * HOUR / 60)
    await work.trigger("report", "a")
    assert await events_of(work, Skipped) == []
    await work.trigger("report", "b")
    assert [skipped.trigger_id for skipped in await events_of(work, Skipped)] == ["api.b"]


class Flawed(CommitStoredLog):
    """A log whose first reads fail."""

    errors: list[Exception]

    def messages(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - as of the base
        if self.errors:
            raise self.errors.pop()
        return super().messages(*arguments, **options)


async def test_failed_read_of_runs_is_repeated() -> None:
    work = Work()
    await work.define("load")
    await work.trigger("load")
    await work.finish()
    await work.define("report", depends_on=[{"job": "load", "within": 7200}])
    await work.trigger("report")
    past = past_runs(work)
    past._stored.__class__ = Flawed
    errors = past._stored.errors = [LogUnavailable("no answer"), ValueError("a bug")]  # type: ignore[attr-defined]
    reading = asyncio.create_task(past.run())
    for _ in range(40):
        work.installation.clock.advance(1)
        await settle()
        await work.runner.run()
    reading.cancel()
    assert errors == []
    assert [end.outcome for end in await settled(work)] == ["met"]
