"""Jobs that clients push are refused at the door once their namespace has used up a quota of the day."""

from datetime import timedelta
from typing import Any

import httpx
import pytest

from tests.domain.given import admitted, plan
from tests.http.conftest import World
from tocsin import subjects
from tocsin.domain import daily_use
from tocsin.domain.access import Role
from tocsin.domain.daily_use import DailyUse
from tocsin.domain.events import Namespace
from tocsin.services.namespaces import Namespaces
from tocsin.services.operations import event_waiter
from tocsin.subjects import Bucket

JOB = {"type": "mail", "args": [], "options": {"queue": "payments.q"}}
OTHER = {"type": "mail", "args": [], "options": {"queue": "billing.q"}}


@pytest.fixture(autouse=True)
async def quota(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No planner runs here; 99 of 100 executions and 5 of 1,000 bytes are used."""
    monkeypatch.setattr(event_waiter, "POLL_PAUSES_S", ())
    monkeypatch.setattr(event_waiter, "FALLBACK_PAUSES_S", ())
    payments = Namespace(name="payments", executions_per_day=100, bytes_per_day=1_000)
    await Namespaces(world.log).apply([payments, Namespace(name="billing")])
    await use(world, 99, 5)


async def use(world: World, executions: int, size: int) -> None:
    entry = daily_use.encode(DailyUse(world.clock.now().date().isoformat(), executions, size))
    await world.projections.put(Bucket.QUEUES, subjects.daily_use_key("payments"), entry)


async def push(world: World, path: str, body: object) -> httpx.Response:
    token = await world.token("ada", Role.AUTHOR, Role.VIEWER)
    return await world.ask("POST", path, body, Authorization=f"Bearer {token}")


@pytest.mark.parametrize(("executions", "size"), [(100, 5), (4, 1_000)])
async def test_full_quota_refuses_each_kind_of_push(world: World, executions: int, size: int) -> None:
    await use(world, executions, size)
    flow = {"type": "chain", "steps": [JOB], "options": {"queue": "payments.q"}}
    bodies: list[tuple[str, Any]] = [("jobs", JOB), ("jobs/batch", {"jobs": [JOB]}), ("workflows", flow)]
    for path, body in bodies:
        answer = await push(world, f"/ojs/v1/{path}", body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "rate_limited"), answer.text
        assert "quota" in answer.json()["error"]["message"]
        assert 0 < int(answer.headers["Retry-After"]) <= 86_400
    bulk = (await push(world, "/ojs/v1/jobs/bulk", {"jobs": [JOB, OTHER]})).json()
    assert [item["status"] for item in bulk["items"]] == ["failed", "created"], bulk
    assert len(await world.facts("enqueue.>")) == 1


async def test_last_place_is_for_one_job(world: World) -> None:
    assert (await push(world, "/ojs/v1/jobs/bulk", {"jobs": [JOB, JOB], "atomicity": "atomic"})).status_code == 429
    assert (await push(world, "/ojs/v1/jobs", JOB)).status_code == 201


async def test_repeated_push_is_answered_as_before(world: World) -> None:
    begun = admitted(plan()).model_copy(update={"job": "payments.ojs.mail"})
    await world.log.append(begun, expect=0)
    await use(world, 100, 5)
    assert (await push(world, "/ojs/v1/jobs", {**JOB, "id": begun.execution_id})).status_code == 409


async def test_next_day_has_room_again(world: World) -> None:
    await use(world, 100, 5)
    world.clock.advance(timedelta(days=1).total_seconds())
    assert (await push(world, "/ojs/v1/jobs", JOB)).status_code == 201


@pytest.mark.parametrize("entry", [b"", b"{}", b"[]", b'{"day": 3}', b'{"day": "2999-01-01", "executions": 100}'])
async def test_wrong_entry_counts_nothing(world: World, entry: bytes) -> None:
    await world.projections.put(Bucket.QUEUES, subjects.daily_use_key("payments"), entry)
    assert (await push(world, "/ojs/v1/jobs", JOB)).status_code == 201
