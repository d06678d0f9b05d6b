"""Figures under hip-62's names, from the facts of the log."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.domain.given import NOON, admitted, recorded, started
from tests.http.conftest import World
from tocsin.adapters.http.metrics import REFRESH_INTERVAL_S, Metrics
from tocsin.domain.events import (
    Advanced,
    Completed,
    DeadLettered,
    Failed,
    Failure,
    Message,
    RetryScheduled,
    Skipped,
)
from tocsin.domain.queue_backlog import HeldBack, HeldGroup, QueueBacklog
from tocsin.subjects import TICKER_LEASE, Bucket, lock_key

RUN = {"job": "nightly", "execution_id": "0193a5b0-0000-7000-8000-000000000001"}


@pytest.fixture
def metrics(world: World) -> Metrics:
    return Metrics(world.parts(), "hanzo_scheduler")


async def result(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """Each sample by its name and the values of its labels."""
    families = text_string_to_metric_families((await metrics.text()).decode())
    return {(s.name, *(s.labels[name] for name in sorted(s.labels))): s.value for f in families for s in f.samples}


def count(metrics: Metrics, *facts: Message) -> None:
    for one in recorded(facts):
        metrics.count(one)


async def test_ends_retries_steps_and_dead_letters_are_counted(metrics: Metrics) -> None:
    error = Failure(type="E")
    retry = RetryScheduled.model_validate(
        {**RUN, "step": "main", "attempt": 1, "error": error, "delay": 1, "next_attempt_at": NOON}
    )
    ended = {**RUN, "scheduled_time": NOON, "trigger": "cron"}
    letter = DeadLettered(
        job="nightly",
        id="x",
        execution_id="x",
        scheduled_time=NOON,
        trigger="cron",
        attempts=(),
        first_attempt=NOON,
        last_attempt=NOON,
    )
    count(
        metrics,
        admitted(),
        started(),
        retry,
        Advanced.model_validate({**RUN, "step": "extract", "attempt": 1}),
        Completed.model_validate({**ended, "step": "load"}),
        Failed.model_validate({**ended, "step": "load", "cancelled_steps": ("notify",)}),
        Skipped.model_validate({**ended, "reason": "overlap_skip", "definition": 1}),
        letter,
    )
    counts = await result(metrics)
    assert counts["hanzo_scheduler_executions_total", "nightly", "completed", "cron"] == 1
    assert counts["hanzo_scheduler_executions_total", "nightly", "failed", "cron"] == 1
    assert counts["hanzo_scheduler_executions_total", "nightly", "skipped", "cron"] == 1
    assert counts["hanzo_scheduler_retries_total", "nightly"] == 1
    assert counts["hanzo_scheduler_dead_letters_total", "nightly"] == 1
    assert counts["hanzo_scheduler_dag_steps_total", "nightly", "completed", "extract"] == 1
    assert counts["hanzo_scheduler_dag_steps_total", "nightly", "failed", "load"] == 1
    assert counts["hanzo_scheduler_dag_steps_total", "nightly", "cancelled", "notify"] == 1
    assert counts["hanzo_scheduler_execution_duration_seconds_count", "nightly"] == 1
    assert counts["hanzo_scheduler_execution_duration_seconds_sum", "nightly"] == 3


async def test_tasks_of_matched_queues_are_reported(world: World, metrics: Metrics) -> None:
    held = HeldBack(waiting=2, groups=(HeldGroup("nightly", 1, 1, 2),))
    for backlog in (
        QueueBacklog(queue="default", waiting=3, running=1, held_back=held),
        QueueBacklog(queue="mail", waiting=4, held_by="rate"),
        QueueBacklog(queue="idle"),
    ):
        body = backlog.model_dump_json(exclude_defaults=True).encode()
        await world.projections.put(Bucket.QUEUES, backlog.queue, body)
    await world.projections.put(Bucket.QUEUES, "rate.mail", b'{"used_until": 1}')
    counts = await result(metrics)
    tasks = {key[1:]: value for key, value in counts.items() if key[0] == "hanzo_scheduler_queue_tasks"}
    assert {key: value for key, value in tasks.items() if value} == {
        ("default", "waiting"): 3,
        ("default", "running"): 1,
        ("default", "held_back"): 2,
        ("mail", "waiting"): 4,
        ("mail", "held_back"): 4,
    }


async def test_jobs_locks_and_leader_are_reported(world: World, metrics: Metrics) -> None:
    await world.given(name="nightly", schedule="0 3 * * *")
    await world.given(name="by-hand", schedule=None)
    counts = await result(metrics)
    assert counts["hanzo_scheduler_jobs_registered",] == 2
    assert counts["hanzo_scheduler_next_fire_seconds", "nightly"] == 3 * 3_600
    assert not any(name[0] == "hanzo_scheduler_leader_active" for name in counts)

    await world.projections.put(Bucket.LEADER, TICKER_LEASE, b"{}")
    await world.projections.put(Bucket.LOCKS, lock_key("nightly"), b"{}")
    world.clock.advance(REFRESH_INTERVAL_S)
    counts = await result(metrics)
    assert counts["hanzo_scheduler_leader_active", TICKER_LEASE] == 1
    assert counts["hanzo_scheduler_lock_held", "nightly"] == 1
