"""A report of silence comes after the success that was stored before it."""

from typing import Any

import pytest

from tests.commits.processes import NAMES
from tests.commits.test_memory import Work
from tests.domain.given import KEY
from tocsin import subjects
from tocsin.domain import ids
from tocsin.domain.events import Completed, Dispatched, Failed, Failure, Message, Recorded, Report, Started
from tocsin.stages import retrier
from tocsin.subjects import Stream

OTHERS = tuple(name for name in NAMES if name not in {"dag_advancer", "retrier"})


async def begun(work: Work) -> Recorded[Any]:
    """The claim of a step with one attempt."""
    await work.define("nightly", retry={"max_attempts": 1})
    await work.trigger("nightly")
    [task] = [one.message for one in await work.installation.events() if isinstance(one.message, Dispatched)]
    fields: dict[str, Any] = {"job": "nightly", "execution_id": task.execution_id, "step": "main", "attempt": 1}
    await work.installation.store(Started(**fields, delivery=1, worker="w"))
    return next(one for one in await work.installation.events() if isinstance(one.message, Started))


def report(work: Work, claim: Recorded[Any], outcome: Any, worker: str) -> None:  # noqa: ANN401 - an outcome
    of, number = claim.message, claim.sequence
    report = Report(
        job=of.job,
        execution_id=of.execution_id,
        outcome=outcome,
        step="main",
        attempt=1,
        delivery=1,
        claim=number,
        worker=worker,
        error=None if outcome == "completed" else Failure(type="timeout", message="silent"),
        token=ids.report_token(KEY, of.execution_id, "main", 1),
        proof=ids.claim_proof(KEY, of.execution_id, "main", 1, number),
    )
    work.installation.publish(Stream.REPORTS, report, subjects.subject_of(report))


async def ends(work: Work) -> list[type[Message]]:
    events = [one.message for one in await work.installation.events()]
    return [type(one) for one in events if isinstance(one, Completed | Failed)]


async def run(work: Work, *names: str) -> None:
    """Let some processes run alone."""
    for process in work.runner._processes:
        if process.loop._name in names:
            await process.run()


@pytest.mark.parametrize("worker", [subjects.RECOVERER, subjects.LEASE_KEEPER])
async def test_success_before_a_report_of_silence_counts(worker: str) -> None:
    work = Work(OTHERS, ("dag_advancer",), ("retrier",))
    claim = await begun(work)
    report(work, claim, "completed", "w")
    report(work, claim, "failed", worker)
    await run(work, "retrier")
    await work.runner.run()
    assert await ends(work) == [Completed]


async def test_silence_ends_an_attempt_that_reported_nothing() -> None:
    work = Work(OTHERS, ("dag_advancer",), ("retrier",))
    claim = await begun(work)
    report(work, claim, "failed", subjects.RECOVERER)
    await run(work, "retrier")
    await work.runner.run()
    await work.runner.rest()
    assert await ends(work) == [Failed]


async def test_silence_waits_a_day_at_most() -> None:
    work = Work(OTHERS, ("dag_advancer",), ("retrier",))
    claim = await begun(work)
    report(work, claim, "completed", "w")
    report(work, claim, "failed", subjects.RECOVERER)
    await run(work, "retrier")
    assert await ends(work) == []
    work.installation.clock.advance(retrier.PATIENCE.total_seconds())
    await run(work, "retrier")
    assert await ends(work) == [Failed]


async def test_worker_failure_waits_for_nothing() -> None:
    work = Work(OTHERS, ("dag_advancer",), ("retrier",))
    claim = await begun(work)
    report(work, claim, "failed", "w")
    await run(work, "retrier")
    assert await ends(work) == [Failed]


async def test_next_leader_decides_on_silence_that_waits() -> None:
    """The place of the other stage moved while no process led the retrier."""
    work = Work(OTHERS, ("dag_advancer",), ("retrier",))
    claim = await begun(work)
    report(work, claim, "failed", subjects.RECOVERER)
    await run(work, "retrier")
    del work.runner._processes[[p.loop._name for p in work.runner._processes].index("retrier")]
    await work.runner.rest()
    work.runner._processes.append(work.installation.process(("retrier",)))
    await work.runner.run()
    assert await ends(work) == [Failed]
