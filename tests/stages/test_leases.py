"""Jobs enqueued once, on their way through the planner, the DAG advancer and the lease keeper."""

from datetime import timedelta
from typing import Any

import pytest

from tests.domain.given import KEY, proven
from tests.stages.world import World
from tocsin import subjects
from tocsin.domain import ids
from tocsin.domain.definition import JobDefinition, RetryPolicy
from tocsin.domain.events import (
    Admitted,
    Completed,
    Dispatched,
    Enqueued,
    Failed,
    Failure,
    LeaseExtended,
    Released,
    Report,
    RetryScheduled,
    Started,
    validated,
)

JOB, ID = "ojs.mail", "0193a5b0-0000-7000-8000-00000000000a"
OTHER = "0193a5b0-0000-7000-8000-00000000000b"
TWICE = RetryPolicy(max_attempts=2, initial_delay=5, jitter=0)


def wish(**more: Any) -> Enqueued:  # noqa: ANN401 - fields
    definition = JobDefinition(name=JOB, function="mail", overlap_policy="allow", timeout=60, retry=TWICE)
    return Enqueued(execution_id=ID, definition=definition, **more)


async def enqueued(world: World, **more: Any) -> None:  # noqa: ANN401 - fields
    asked = wish(**more)
    await world.log.publish(subjects.subject_of(asked), asked, message_id=subjects.subject_of(asked))
    await run(world)


async def run(world: World) -> None:
    await world.run(world.planner, world.dag_advancer, world.lease_keeper, world.retrier)


async def claimed(world: World, *, lease: float, attempt: int = 1) -> None:
    """An executor takes the newest task."""
    [*_, task] = await world.recorded(Dispatched)
    claim = {"job": JOB, "execution_id": ID, "step": task.message.step, "attempt": attempt, "delivery": 1}
    await world.given(Started(**claim, worker="w", lease=lease))


async def reported(world: World, outcome: str, attempt: int = 1, **more: Any) -> Report:  # noqa: ANN401 - fields
    """Return the report of the newest claim."""
    token = ids.report_token(KEY, ID, "main", attempt)
    [*_, claim] = await world.recorded(Started)
    fields = {"job": JOB, "execution_id": ID, "outcome": outcome, "step": "main", "attempt": attempt, "delivery": 1}
    return proven(validated(Report, {**fields, "token": token, "claim": claim.sequence, **more}))


async def answered(world: World, outcome: str, attempt: int = 1, **more: Any) -> None:  # noqa: ANN401 - fields
    report = await reported(world, outcome, attempt, **more)
    await world.log.publish(subjects.subject_of(report), report, message_id=str(more))
    await run(world)


async def passes(world: World, seconds: float) -> None:
    world.clock.advance(seconds)
    await run(world)


@pytest.fixture
async def everything_twice(world: World) -> Any:  # noqa: ANN401 - what a test calls
    async def again() -> None:
        size = await world.size()
        await world.redeliver(world.planner, world.dag_advancer, world.lease_keeper, world.retrier)
        assert await world.size() == size

    return again


async def test_enqueued_job_is_admitted_under_its_id(world: World, everything_twice: Any) -> None:  # noqa: ANN401
    await enqueued(world)
    [admitted] = await world.stored(Admitted)
    assert (admitted.job, admitted.execution_id, admitted.plan.definition) == (JOB, ID, 0)
    assert len(await world.stored(Dispatched)) == 1
    await everything_twice()


async def test_delayed_start_waits_for_its_time(world: World, everything_twice: Any) -> None:  # noqa: ANN401
    await enqueued(world, start_at=world.clock.now() + timedelta(minutes=20))
    await passes(world, 1199)
    assert await world.stored(Dispatched) == []
    await passes(world, 1)
    [task] = await world.stored(Dispatched)
    assert task.attempt == 1
    await everything_twice()


async def test_what_expired_in_its_queue_fails(world: World, everything_twice: Any) -> None:  # noqa: ANN401
    await enqueued(world, expires_at=world.clock.now() + timedelta(seconds=10))
    await passes(world, 9)
    assert await world.stored(Failed) == []
    await passes(world, 1)
    [failed] = await world.stored(Failed)
    assert failed.reason == "expired"
    await everything_twice()


async def test_claimed_task_does_not_expire(world: World) -> None:
    await enqueued(world, expires_at=world.clock.now() + timedelta(seconds=10))
    await claimed(world, lease=30)
    await passes(world, 11)
    assert await world.stored(Failed) == []
    await answered(world, "completed")
    assert len(await world.stored(Completed)) == 1


async def test_silent_worker_loses_the_task(world: World, everything_twice: Any) -> None:  # noqa: ANN401
    await enqueued(world)
    await claimed(world, lease=30)
    await passes(world, 29)
    assert await world.stored(Released) == []
    await passes(world, 1)
    [released] = await world.stored(Released)
    assert (released.reason, released.attempt) == ("lease_over", 1)
    assert [task.attempt for task in await world.stored(Dispatched)] == [1, 1]
    await everything_twice()
    await claimed(world, lease=30)
    await answered(world, "completed")
    assert len(await world.stored(Completed)) == 1
    await passes(world, 60)
    assert len(await world.stored(Released)) == 1
    await everything_twice()


async def test_lease_as_long_as_the_attempt_ends_it(world: World, everything_twice: Any) -> None:  # noqa: ANN401
    await enqueued(world)
    await claimed(world, lease=60)
    await passes(world, 60)
    [retried] = await world.stored(RetryScheduled)
    assert retried.error == Failure(type="timed_out", message="its executor reported nothing within 1m")
    assert await world.stored(Released) == []
    assert [report.delivery for report in await world.stored(Report)] == [1]  # it fails this claim and no later one
    await everything_twice()


async def test_each_lease_has_its_own_report(world: World) -> None:
    """A report on a lease that another writer releases first decides nothing, and must not hide the next lease's."""
    await enqueued(world)
    await claimed(world, lease=60)
    world.clock.advance(60)
    await world.run(world.lease_keeper)
    [report] = await world.stored(Report)
    [task] = await world.recorded(Dispatched)
    of: dict[str, Any] = {"job": JOB, "execution_id": ID, "step": "main", "attempt": 1, "delivery": 1}
    await world.given(Released(**of, task=task.sequence, reason="lease_over"))
    await run(world)
    assert await world.stored(RetryScheduled) == []
    await claimed(world, lease=60)
    await passes(world, 60)
    assert [r.error for r in await world.stored(Report)] == [report.error, report.error]
    assert len(await world.stored(RetryScheduled)) == 1


async def beat(world: World, lease: float, name: str = "beat") -> None:
    report = await reported(world, "extended", lease=lease)
    await world.log.publish(subjects.subject_of(report), report, message_id=name)
    await run(world)


async def test_heartbeat_extends_the_lease_of_its_claim(world: World, everything_twice: Any) -> None:  # noqa: ANN401
    await enqueued(world)
    await claimed(world, lease=10)
    for number in range(3):
        await passes(world, 9)
        await beat(world, 10, f"beat {number}")
    assert len(await world.stored(LeaseExtended)) == 3
    in_fold = world.parts.fold.events[subjects.execution(JOB, ID)]
    assert len([one for one in in_fold if isinstance(one.message, LeaseExtended)]) == 1
    await passes(world, 9)
    assert await world.stored(Released) == []
    await passes(world, 1)
    [released] = await world.stored(Released)
    [death] = released.deaths
    assert death.at == (await world.stored(LeaseExtended))[-1].until == world.clock.now()
    await beat(world, 10, "late")
    assert len(await world.stored(LeaseExtended)) == 3
    await everything_twice()


async def test_heartbeat_extends_no_lease_beyond_the_timeout(world: World) -> None:
    await enqueued(world)
    await claimed(world, lease=10)
    await beat(world, 600)
    await passes(world, 59)
    assert await world.stored(RetryScheduled) == []
    await passes(world, 1)
    [retried] = await world.stored(RetryScheduled)
    assert (retried.error.type, retried.error.deaths) == ("timed_out", ())


async def test_heartbeat_stored_before_the_end_counts(world: World) -> None:
    """The leader has not read it when it decides on the end of the lease."""
    await enqueued(world)
    await claimed(world, lease=10)
    report = await reported(world, "extended", lease=10)
    world.clock.advance(5)
    await world.log.publish(subjects.subject_of(report), report, message_id="beat")
    world.clock.advance(5)
    await world.run(world.lease_keeper)
    assert [one.outcome for one in await world.stored(Report)] == ["extended", "failed"]
    await run(world)
    assert await world.stored(Released) == []
    await passes(world, 10)
    assert len(await world.stored(Released)) == 1


async def test_heartbeat_without_a_proof_extends_nothing(world: World) -> None:
    await enqueued(world)
    await claimed(world, lease=10)
    forged = (await reported(world, "extended", lease=600)).changed(proof="forged")
    await world.log.publish(subjects.subject_of(forged), forged, message_id="forged")
    await passes(world, 10)
    assert await world.stored(LeaseExtended) == []
    assert len(await world.stored(Released)) == 1


async def test_end_of_a_lease_waits_for_unread_success(world: World) -> None:
    """The stage that takes successes is down; the success was stored before the end of the lease."""
    await enqueued(world)
    await claimed(world, lease=10)
    report = await reported(world, "completed")
    await world.log.publish(subjects.subject_of(report), report, message_id="success")
    world.clock.advance(10)
    await world.run(world.lease_keeper)
    await world.run(world.retrier)
    assert len(await world.stored(Report)) == 2
    assert await world.stored(Released) == []
    await run(world)
    assert await world.stored(Released) == []
    assert len(await world.stored(Completed)) == 1


async def test_expiry_waits_for_unread_success(world: World) -> None:
    """A worker lost its claim and completed the task anyway, before the execution expired."""
    await enqueued(world, expires_at=world.clock.now() + timedelta(seconds=20))
    await claimed(world, lease=10)
    report = await reported(world, "completed")
    await passes(world, 10)
    assert len(await world.stored(Released)) == 1
    await world.log.publish(subjects.subject_of(report), report, message_id="success")
    world.clock.advance(10)
    await world.run(world.lease_keeper)
    await run(world)
    assert await world.stored(Failed) == []
    assert len(await world.stored(Completed)) == 1


@pytest.mark.parametrize("is_readable", [True, False])
async def test_report_on_another_task_keeps_no_lease(world: World, *, is_readable: bool) -> None:
    """A worker stores its own report, or no report at all, under the subject of another worker's task."""
    await enqueued(world)
    await claimed(world, lease=10)
    fields = {"job": JOB, "outcome": "completed", "step": "main", "attempt": 1, "delivery": 1}
    meant = Report(execution_id=ID, token="guessed", **fields)  # type: ignore[arg-type]
    own = proven(Report(execution_id=OTHER, token=ids.report_token(KEY, OTHER, "main", 1), **fields))  # type: ignore[arg-type]
    prefix, *end = subjects.subject_of(meant).rsplit(".", 2)
    for subject in (subjects.subject_of(meant), f"{prefix}.{end[1]}"):
        world.log.receive(subject, own.encode() if is_readable else b"no json")
    await passes(world, 10)
    [*_, newest] = await world.log.read(subjects.execution(JOB, ID))
    assert isinstance(newest.message, Dispatched)  # once more, after the claim was released


async def test_unreadable_report_of_the_holder_keeps_no_lease(world: World) -> None:
    await enqueued(world)
    await claimed(world, lease=10)
    own = await reported(world, "completed")
    world.log.receive(subjects.subject_of(own), b"no json")
    await passes(world, 10)
    [*_, newest] = await world.log.read(subjects.execution(JOB, ID))
    assert isinstance(newest.message, Dispatched)


@pytest.mark.parametrize("lease", [30, 60])
@pytest.mark.parametrize(("outcome", "end"), [("completed", Completed), ("failed", RetryScheduled)])
async def test_answer_in_time_counts_before_it_is_read(
    world: World, lease: float, outcome: str, end: type[Completed | RetryScheduled]
) -> None:
    await enqueued(world)
    await claimed(world, lease=lease)
    report = await reported(world, outcome)
    await world.log.publish(subjects.subject_of(report), report, message_id="answer")
    world.clock.advance(lease)
    await run(world)
    assert await world.stored(Released) == []
    assert (await world.stored(Report))[0] == report
    assert len(await world.stored(end)) == 1


async def test_step_fails_after_three_leases(world: World, everything_twice: Any) -> None:  # noqa: ANN401
    await enqueued(world)
    for _ in range(3):
        await claimed(world, lease=10)
        await passes(world, 10)
    assert [len(fact.deaths) for fact in await world.stored(Released)] == [1, 2]
    [failed] = await world.stored(Failed)
    assert failed.error is not None
    assert (failed.error.type, [death.agent for death in failed.error.deaths]) == ("worker_lost", ["w"] * 3)
    await everything_twice()


async def test_leases_of_all_attempts_count(world: World) -> None:
    await enqueued(world)
    await claimed(world, lease=10)
    await passes(world, 10)
    await claimed(world, lease=10)
    await answered(world, "failed", error=Failure(type="X"))
    await passes(world, 5)
    for _ in range(2):
        await claimed(world, lease=10, attempt=2)
        await passes(world, 10)
    [failed] = await world.stored(Failed)
    assert failed.error is not None
    assert (failed.attempt, failed.error.type) == (2, "worker_lost")


async def test_lease_until_the_timeout_is_no_death(world: World) -> None:
    await enqueued(world)
    await claimed(world, lease=60)
    await passes(world, 60)
    [retried] = await world.stored(RetryScheduled)
    assert (retried.error.type, retried.error.deaths) == ("timed_out", ())


async def test_late_failure_of_an_old_holder_is_ignored(world: World) -> None:
    await enqueued(world)
    await claimed(world, lease=10)
    [claim] = await world.recorded(Started)
    await passes(world, 10)
    await claimed(world, lease=10)
    await answered(world, "failed", claim=claim.sequence, error=Failure(type="X"))
    assert await world.stored(RetryScheduled) == []
    [_, newer] = await world.recorded(Started)
    await answered(world, "failed", claim=newer.sequence, error=Failure(type="X"))
    assert len(await world.stored(RetryScheduled)) == 1
