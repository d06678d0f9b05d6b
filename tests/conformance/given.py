"""A few messages of each kind."""

from datetime import UTC, datetime

from tocsin.domain.events import (
    Acquired,
    CronTriggered,
    CronTriggeredData,
    Dispatched,
    Due,
    NotificationDelivered,
    NotificationRaised,
    Report,
    Started,
)
from tocsin.domain.notification import Kind

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def dispatched(execution_id: str = "e1", *, step: str = "main", attempt: int = 1, queue: str = "default") -> Dispatched:
    return Dispatched(
        job="a.job",
        execution_id=execution_id,
        step=step,
        attempt=attempt,
        max_attempts=3,
        function="f",
        queue=queue,
        input={"naïve": [1, None, {"x": "ü"}]},
        timeout=30,
        scheduled_time=NOON,
        trigger="cron",
        token="t",
    )


def started(execution_id: str = "e1", *, delivery: int = 1) -> Started:
    return Started(job="a.job", execution_id=execution_id, step="main", attempt=1, delivery=delivery, worker="w")


def due(job: str = "a.job", *, hour: int = 12) -> Due:
    return Due(job=job, scheduled_time=NOON.replace(hour=hour), definition=1)


def acquired(execution_id: str = "e1", *, shard: str | None = None) -> Acquired:
    return Acquired(job="a.job", shard=shard, execution_id=execution_id, scheduled_time=NOON, ttl=60)


def report(execution_id: str = "e1", *, delivery: int = 1, claim: int | None = None) -> Report:
    return Report(
        job="a.job",
        execution_id=execution_id,
        outcome="completed",
        step="main",
        attempt=1,
        delivery=delivery,
        claim=claim,
        token="t",
    )


def raised(number: str = "n1") -> NotificationRaised:
    return NotificationRaised(job="a.job", id=number, channel="ops", kind=Kind.FAILED, at=NOON)


def delivered(number: str = "n1") -> NotificationDelivered:
    return NotificationDelivered(job="a.job", id=number, attempt=1)


def cron_triggered(job: str = "a.job", *, run: int = 1) -> CronTriggered:
    data = CronTriggeredData(
        cron_name=job,
        cron_expression="0 12 * * *",
        timezone="UTC",
        job_id="e1",
        job_type="f",
        run_count=run,
        scheduled_time=NOON,
        actual_time=NOON,
    )
    return CronTriggered(timestamp=NOON, data=data)
