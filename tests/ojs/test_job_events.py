"""Events of jobs and queues over HTTP (ojs-events §3, §4)."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx

from tests.ojs.test_gateway import fetched, fresh, pushed, told

TRACE: Final = "4bf92f3577b34da6a3ce929d0e0e4736"


async def events_of(client: httpx.AsyncClient, queue: str, *types: str) -> list[dict[str, Any]]:
    """The events of a queue, oldest first; the last of `types` must be there soon."""
    async with asyncio.timeout(60):
        while True:
            answer = await client.get("/ojs/v1/events", params={"queues": queue, "limit": 1_000})
            assert answer.is_success, answer.text
            events: list[dict[str, Any]] = answer.json()["events"][::-1]
            if not types or types[-1] in {event["type"] for event in events}:
                return events
            await asyncio.sleep(0.1)


async def test_failed_attempts_have_events_in_order(client: httpx.AsyncClient) -> None:
    queue, policy = fresh(), {"max_attempts": 2, "initial_interval": "PT0.1S", "jitter": False}
    job = await pushed(client, queue, options={"queue": queue, "retry": policy}, meta={"trace_id": TRACE})
    for _ in range(2):
        await fetched(client, queue, worker_id="w")
        await told(client, "nack", job_id=job["id"], worker_id="w", error={"code": "bad", "message": "no"})
    events = await events_of(client, queue, "job.discarded")
    assert [(event["type"], event["data"].get("state")) for event in events] == [
        ("job.enqueued", "available"),
        ("job.started", "active"),
        ("job.failed", None),
        ("job.retrying", "retryable"),
        ("job.started", "active"),
        ("job.failed", None),
        ("job.discarded", "discarded"),
    ]
    for event in events:
        assert event["subject"] == event["data"]["job_id"] == job["id"]
        assert (event["data"]["job_type"], event["data"]["trace_id"]) == ("mail.send", TRACE)
        assert (event["specversion"], event["source"]) == ("1.0", "ojs://tocsin/events")
    assert len({event["id"] for event in events}) == len(events)
    started, failed, retrying, discarded = (events[place]["data"] for place in (1, 2, 3, 6))
    assert (started["worker_id"], started["attempt"]) == ("w", 1)
    assert (failed["attempt"], failed["error"]["code"], failed["error"]["message"]) == (1, "bad", "no")
    assert failed["error"]["retryable"] is True
    assert (retrying["max_attempts"], retrying["attempt"]) == (2, 1)
    assert datetime.fromisoformat(retrying["next_retry_at"]) > datetime.fromisoformat(events[3]["time"])
    assert (discarded["total_attempts"], discarded["last_error"]["code"]) == (2, "bad")


async def test_scheduled_job_is_enqueued_when_due(client: httpx.AsyncClient) -> None:
    queue, due = fresh(), datetime.now(UTC) + timedelta(seconds=2)
    await pushed(client, queue, options={"queue": queue, "scheduled_at": due.isoformat()})
    scheduled = (await events_of(client, queue, "job.scheduled"))[0]
    assert scheduled["type"] == "job.scheduled"
    assert datetime.fromisoformat(scheduled["data"]["scheduled_at"]) == due.replace(
        microsecond=due.microsecond // 1_000 * 1_000
    )
    [job] = await fetched(client, queue)
    await told(client, "ack", job_id=job["id"])
    events = await events_of(client, queue, "job.completed")
    assert [event["type"] for event in events] == ["job.scheduled", "job.enqueued", "job.started", "job.completed"]
    assert datetime.fromisoformat(events[1]["time"]) >= due - timedelta(milliseconds=1)
    assert events[-1]["data"]["duration_ms"] >= 0


async def test_expired_job_has_an_event(client: httpx.AsyncClient) -> None:
    queue = fresh()
    expires = datetime.now(UTC) + timedelta(seconds=5)
    await pushed(client, queue, options={"queue": queue, "expires_at": expires.isoformat()})
    events = await events_of(client, queue, "job.discarded")
    assert [event["type"] for event in events] == ["job.enqueued", "job.expired", "job.discarded"]
    expired = events[1]["data"]
    lifetime = (expires - datetime.fromisoformat(expired["created_at"])).total_seconds() * 1_000
    assert -0.5 <= lifetime - expired["ttl_ms"] <= 1.5  # `created_at` is cut to milliseconds, and `ttl_ms` rounded
    assert expired["created_at"] <= expired["expired_at"]


async def test_switched_queue_has_events(client: httpx.AsyncClient) -> None:
    queue = fresh()
    await pushed(client, queue)
    for verb in ("pause", "resume"):
        answer = await client.post(f"/ojs/v1/queues/{queue}/{verb}")
        assert answer.is_success, answer.text
    events = await events_of(client, queue, "queue.resumed")
    switched = [event for event in events if event["type"].startswith("queue.")]
    assert [(event["type"], event["subject"]) for event in switched] == [
        ("queue.paused", queue),
        ("queue.resumed", queue),
    ]
    assert all(event["data"]["queue"] == queue for event in switched)
