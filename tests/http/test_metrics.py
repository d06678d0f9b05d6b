"""Metrics under hip-62's names, from the totals of the history."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conformance.test_history import A_FAILURE, facts_of, story
from tests.domain.given import recorded
from tests.http.conftest import World
from tocsin.adapters.http.metrics import catalog, exposition
from tocsin.adapters.http.metrics.exposition import REFRESH_INTERVAL_S, Metrics
from tocsin.domain import daily_use
from tocsin.domain.daily_use import DailyUse
from tocsin.domain.events import Message, Namespace, PoisonMessage
from tocsin.domain.queue_backlog import HeldBack, HeldGroup, QueueBacklog
from tocsin.domain.totals import OTHER
from tocsin.services.namespaces import Namespaces
from tocsin.services.queue_decisions import QueueDecisions
from tocsin.subjects import TICKER_LEASE, Bucket, Stream, daily_use_key, lock_key


@pytest.fixture
def metrics(world: World) -> Metrics:
    return Metrics(world.parts(), "hanzo_scheduler", max_jobs=3)


async def result(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """Each sample by its name and the values of its labels."""
    families = text_string_to_metric_families((await metrics.text()).decode())
    return {(s.name, *(s.labels[name] for name in sorted(s.labels))): s.value for f in families for s in f.samples}


async def test_counters_of_every_copy_are_the_totals(world: World, metrics: Metrics) -> None:
    await world.history.record(Stream.LOG, recorded(story(*A_FAILURE)), after=0, upto=7)
    counts = await result(metrics)
    assert counts["hanzo_scheduler_executions_total", "nightly", "failed", "cron"] == 1
    assert counts["hanzo_scheduler_retries_total", "nightly"] == 1
    assert counts["hanzo_scheduler_dead_letters_total", "nightly"] == 1
    assert counts["hanzo_scheduler_dag_steps_total", "nightly", "failed", "main"] == 1
    assert counts["hanzo_scheduler_dag_steps_total", "nightly", "cancelled", "next"] == 1
    assert counts["hanzo_scheduler_execution_duration_seconds_count", "nightly"] == 1
    assert counts["hanzo_scheduler_execution_duration_seconds_sum", "nightly"] == 3
    assert counts["hanzo_scheduler_execution_duration_seconds_bucket", "nightly", "1"] == 0
    assert counts["hanzo_scheduler_execution_duration_seconds_bucket", "nightly", "5"] == 1
    assert counts["tocsin_executions_total", "failed", "cron"] == counts["tocsin_dead_letters_total",] == 1
    assert counts["tocsin_start_lateness_seconds_count",] == 1
    other = Metrics(world.parts(), "hanzo_scheduler", max_jobs=3)
    assert await result(other) == counts


async def test_registered_job_has_series_before_it_runs(world: World, metrics: Metrics) -> None:
    await world.given(name="nightly", schedule="0 3 * * *")
    counts = await result(metrics)
    for trigger in ("cron", "manual", "api", "event", "replay", "recovery", "backfill"):
        assert counts["hanzo_scheduler_executions_total", "nightly", "failed", trigger] == 0
    assert counts["hanzo_scheduler_executions_total", "nightly", "completed", "cron"] == 0
    assert counts["hanzo_scheduler_dead_letters_total", "nightly"] == 0
    assert counts["hanzo_scheduler_retries_total", "nightly"] == 0
    assert counts["hanzo_scheduler_execution_duration_seconds_count", "nightly"] == 0
    assert counts["tocsin_instants_missed_total", "nightly", "missed"] == 0
    assert counts["tocsin_job_registered_timestamp_seconds", "nightly"] == world.clock.now().timestamp()
    assert counts["tocsin_dead_letters_total",] == 0
    for status in ("completed", "failed"):
        assert counts["hanzo_scheduler_dag_steps_total", "nightly", status, "main"] == 0


async def test_every_counter_of_a_job_begins_at_zero(world: World, metrics: Metrics) -> None:
    steps = [{"name": "a", "function": "f"}, {"name": "b", "function": "f", "depends_on": ["a"]}]
    await world.given(name="graph", schedule="0 3 * * *", function=None, dag=steps)
    counts = await result(metrics)
    of_jobs = [
        metric
        for metric in vars(catalog).values()
        if isinstance(metric, catalog.Metric) and metric.kind != "gauge" and "job" in metric.labels
    ]
    assert {metric.name for metric in of_jobs if metric.is_hip_62} == {
        *("executions", "retries", "dead_letters", "execution_duration_seconds", "dag_steps")
    }
    for metric in of_jobs:
        name = metric.full_name("hanzo_scheduler") + ("_count" if metric.kind == "histogram" else "_total")
        values = [value for key, value in counts.items() if key[0] == name and "graph" in key]
        assert set(values) == {0}, name
    failed = {key[3] for key in counts if key[:3] == ("hanzo_scheduler_dag_steps_total", "graph", "failed")}
    assert failed == {"a", "b"}


async def test_unregistered_job_counts_from_its_first_end(world: World, metrics: Metrics) -> None:
    assert not any("nightly" in key for key in await result(metrics))
    await world.history.record(Stream.LOG, recorded(story(*A_FAILURE)), after=0, upto=7)
    world.clock.advance(REFRESH_INTERVAL_S)
    counts = await result(metrics)
    assert counts["hanzo_scheduler_executions_total", "nightly", "failed", "cron"] == 1
    assert counts["tocsin_dead_letters_total",] == 1
    assert not any(key[:2] == ("tocsin_job_registered_timestamp_seconds", "nightly") for key in counts)


async def test_names_of_unknown_jobs_share_one_label(world: World, metrics: Metrics) -> None:
    """A publisher outside chooses them; each dead letter would be a critical alert under such a name."""
    await world.given(name="known", schedule=None)
    facts: list[Message] = [PoisonMessage.of("known", "planner", "trigger.known", 9, b"{", "no JSON")]
    for name in ("your-disk-is-full", "call-0900", "x" * 200):
        refused = facts_of(name, name)["skipped"].changed(definition=0)
        facts += [refused, PoisonMessage.of(name, "planner", f"trigger.{name}", len(facts), b"{", "no JSON")]
    await world.history.record(Stream.LOG, recorded(facts), after=0, upto=len(facts))
    counts = await result(metrics)
    assert {key[1] for key in counts if key[0] == "hanzo_scheduler_dead_letters_total"} == {"known", OTHER}
    assert counts["hanzo_scheduler_dead_letters_total", "known"] == 1
    assert counts["hanzo_scheduler_dead_letters_total", OTHER] == 3
    assert counts["hanzo_scheduler_executions_total", OTHER, "skipped", "cron"] == 3


async def test_steps_before_their_first_run_are_bounded(
    world: World, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exposition, "MAX_FIRST_STEPS", 3)
    await world.given(
        name="wide", schedule=None, function=None, dag=[{"name": f"s{n}", "function": "f"} for n in range(9)]
    )
    steps = {key[3] for key in await result(metrics) if key[:2] == ("hanzo_scheduler_dag_steps_total", "wide")}
    assert len(steps) == 3


async def test_oldest_jobs_keep_their_series(world: World, metrics: Metrics) -> None:
    for number in range(5):
        await world.given(name=f"job-{9 - number}", schedule=None)
        world.clock.advance(1)
    counts = await result(metrics)
    shown = {key[1] for key in counts if key[0] == "hanzo_scheduler_retries_total"}
    assert shown == {"job-9", "job-8", "job-7"}
    assert counts["tocsin_metrics_jobs_left_out",] == 2


async def test_locks_beyond_the_limit_have_no_series(world: World, metrics: Metrics) -> None:
    for number in range(4):
        await world.given(name=f"job-{number}", schedule=None)
        await world.projections.put(Bucket.LOCKS, lock_key(f"job-{number}"), b"{}")
        world.clock.advance(1)
    await world.projections.put(Bucket.LOCKS, lock_key("deleted"), b"{}")
    counts = await result(metrics)
    assert {key[1] for key in counts if key[0] == "hanzo_scheduler_lock_held"} == {"job-0", "job-1", "job-2"}


async def test_lock_of_a_deleted_job_is_reported(world: World, metrics: Metrics) -> None:
    await world.projections.put(Bucket.LOCKS, lock_key("shop.deleted"), b"{}")
    assert (await result(metrics))["hanzo_scheduler_lock_held", "shop.deleted"] == 1


async def test_totals_of_an_incomplete_rebuild_are_left_out(world: World, metrics: Metrics) -> None:
    await world.history.record(Stream.LOG, recorded(story(*A_FAILURE)), after=0, upto=7)
    await world.history.forget()
    counts = await result(metrics)
    assert counts["tocsin_metrics_part_up", "totals"] == 0
    assert counts["tocsin_metrics_part_up", "jobs"] == 1
    assert not any(name[0] == "tocsin_dead_letters_total" for name in counts)


async def test_daily_quotas_show_their_use(world: World, metrics: Metrics) -> None:
    billing, shop = Namespace(name="billing", max_jobs=3), Namespace(name="shop", executions_per_day=7)
    payments = Namespace(name="payments", executions_per_day=9, bytes_per_day=5_000)
    await Namespaces(world.log).apply([billing, payments, shop])
    now = world.clock.now()
    use = daily_use.encode(DailyUse(now.date().isoformat(), 2, 300))
    await world.projections.put(Bucket.QUEUES, daily_use_key("payments"), use)
    shown = {key: value for key, value in (await result(metrics)).items() if key[0].startswith("tocsin_namespace_")}
    assert shown == {
        ("tocsin_namespace_quota", "payments", "executions_per_day"): 9,
        ("tocsin_namespace_quota", "payments", "bytes_per_day"): 5_000,
        ("tocsin_namespace_quota", "shop", "executions_per_day"): 7,
        ("tocsin_namespace_quota_used", "payments", "executions_per_day"): 2,
        ("tocsin_namespace_quota_used", "payments", "bytes_per_day"): 300,
        ("tocsin_namespace_quota_used", "shop", "executions_per_day"): 0,
    }


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
    not_read = QueueBacklog(queue="other", waiting=1)
    await world.projections.put(Bucket.QUEUES, "rate.starts.a", not_read.model_dump_json().encode())
    counts = await result(metrics)
    tasks = {key[1:]: value for key, value in counts.items() if key[0] == "tocsin_queue_tasks"}
    assert {key: value for key, value in tasks.items() if value} == {
        ("default", "waiting"): 3,
        ("default", "running"): 1,
        ("default", "held_back"): 2,
        ("mail", "waiting"): 4,
        ("mail", "held_back"): 4,
    }


async def test_waiting_tasks_have_a_reason(world: World, metrics: Metrics) -> None:
    held = HeldBack(waiting=2, groups=(HeldGroup("nightly", 1, 1, 2),))
    for backlog in (
        QueueBacklog(queue="default", waiting=3, held_back=held),
        QueueBacklog(queue="mail", waiting=4, held_by="rate"),
        QueueBacklog(queue="heavy", waiting=5, held_by="concurrency"),
        QueueBacklog(queue="frozen", waiting=6, held_by="rate"),
    ):
        await world.projections.put(Bucket.QUEUES, backlog.queue, backlog.model_dump_json().encode())
    await QueueDecisions(world.log).switch("frozen", paused=True, reason="maintenance")
    counts = await result(metrics)
    assert {key[1:]: value for key, value in counts.items() if key[0] == "tocsin_queue_waiting_tasks" and value} == {
        ("default", "job_limit"): 2,
        ("default", "worker"): 1,
        ("mail", "queue_rate"): 4,
        ("heavy", "queue_limit"): 5,
        ("frozen", "queue_paused"): 6,
    }


async def test_queues_beyond_the_limit_share_a_series(
    world: World, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exposition, "MAX_QUEUES", 2)
    for name in ("a", "b", "c", "default"):
        backlog = QueueBacklog(queue=name, waiting=1)
        await world.projections.put(Bucket.QUEUES, name, backlog.model_dump_json().encode())
    counts = await result(metrics)
    waiting = {key[1]: value for key, value in counts.items() if key[0] == "tocsin_queue_tasks" and key[2] == "waiting"}
    assert waiting == {"a": 1, "default": 1, "(other)": 2}


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
