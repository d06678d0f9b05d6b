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
from tocsin.domain.commit import Seal
from tocsin.domain.dependency import Run, Window
from tocsin.domain.events import Cancelled, DependenciesSettled, Recorded
from tocsin.domain.execution import Status
from tocsin.domain.job_runs import KEPT, Found, JobRuns
from tocsin.engine.snapshots import Snapshots
from tocsin.engine.upstream import runs_scope
from tocsin.stages.dependency_keeper.past_runs import PastRuns

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


# --- the past --------------------------------------------------------------------------------------------------------------


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
    reading = asyncio.create_task(past_runs(work).run_once())
    while not reading.done():
        await asyncio.sleep(0)
        await work.runner.run()
    await reading
    assert [end.outcome for end in await settled(work)] == ["met"]
    assert_same(rebuilt(work.fold, work.installation.clock.now()), work.fold)


def past_runs(work: Work) -> PastRuns:
    """Return the reader of past runs for the first process of a layout."""
    log, clock = work.installation.log, work.installation.clock
    buckets = InMemoryProjections(clock)
    view = CommitView(log, 0, SEAL, Snapshots(buckets, b""))
    view.proposals, view.fold = work.process.loop, work.fold
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
