"""Progress and checkpoints of jobs over HTTP (ojs-progress)."""

from typing import Any

import pytest

from tests.domain.given import ID, JOB, KEY, admitted, plan
from tests.http.conftest import World
from tocsin import subjects
from tocsin.domain import execution
from tocsin.domain.access import Role
from tocsin.domain.definition import RetryPolicy
from tocsin.domain.events import (
    Completed,
    Failed,
    Failure,
    HeartbeatDetails,
    Report,
    RetryScheduled,
)

SCOPE = subjects.execution(JOB, ID)
PATH = f"/ojs/v1/jobs/{ID}/progress"


@pytest.fixture
async def fetched(world: World) -> World:
    """A job that the anonymous administrator holds as the worker `one`."""
    await dispatched(world)
    await fetch(world)
    return world


async def dispatched(world: World) -> None:
    newest = await world.log.append(admitted(plan(retry=RetryPolicy(max_attempts=2))), expect=0)
    [task] = execution.dispatch(execution.fold(await world.log.load(SCOPE)), key=KEY)
    await world.log.append(task, expect=newest)


async def fetch(world: World, **more: object) -> dict[str, Any]:
    body = {"queues": ["default"], "worker_id": "one", **more}
    [job] = (await world.ask("POST", "/ojs/v1/workers/fetch", body)).json()["jobs"]
    found: dict[str, Any] = job
    return found


async def shown(world: World) -> dict[str, Any]:
    answer = await world.ask("GET", PATH)
    assert (answer.status_code, answer.headers["Cache-Control"]) == (200, "no-cache")
    found: dict[str, Any] = answer.json()
    assert answer.headers.get("X-OJS-Progress") == (None if found["progress"] is None else f"{found['progress']:g}")
    return found


async def test_progress_is_shown_while_the_job_runs(fetched: World) -> None:
    nothing = {"job_id": ID, "state": "active", "progress": None, "message": None, "data": None, "updated_at": None}
    assert await shown(fetched) == nothing
    body = {"progress": 0.47, "data": {"message": "loading", "rows": 14_000}, "worker_id": "one"}
    assert (await fetched.ask("PUT", PATH, body)).json()["accepted"] is True
    found = await shown(fetched)
    assert (found["state"], found["progress"], found["data"]) == ("active", 0.47, body["data"])
    assert found["updated_at"].endswith("Z")
    [step] = (await fetched.ask("GET", f"/v1/executions/{ID}")).json()["steps"].values()
    assert (step["progress"]["fraction"], step["progress"]["message"]) == (0.47, "loading")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"progress": 0.5, "message": "loading"}, "loading"),
        ({"message": "loading"}, "loading"),
        ({"message": "loading", "data": {"message": "of the data"}}, "loading"),
        ({"data": {"message": "of the data"}}, "of the data"),
        ({"progress": 0.5, "message": "red \x1b[31m"}, "red \\x1b[31m"),
        ({"progress": 0.5, "message": "x" * 5_000}, "x" * 200),
        ({"progress": 0.5, "message": ""}, None),
    ],
)
async def test_message_of_a_report_is_kept(fetched: World, body: dict[str, Any], message: str | None) -> None:
    answer = (await fetched.ask("PUT", PATH, body)).json()
    assert (answer["accepted"], answer["message"], (await shown(fetched))["message"]) == (True, message, message)
    [step] = (await fetched.ask("GET", f"/v1/executions/{ID}")).json()["steps"].values()
    assert step["progress"]["message"] == (message or "")


async def test_progress_is_clamped_and_never_decreases(fetched: World) -> None:
    for progress, counts in ((0.5, 0.5), (-3, 0.5), (0.2, 0.5), (1.3, 1.0)):
        await fetched.ask("PUT", PATH, {"progress": progress})
        assert (await shown(fetched))["progress"] == counts


async def test_progress_of_an_ended_job_is_ignored(fetched: World) -> None:
    await fetched.ask("PUT", PATH, {"progress": 0.3})
    end = Completed(job=JOB, execution_id=ID, scheduled_time=admitted().scheduled_time, trigger="cron", result=1)
    await fetched.log.append(end, expect=await fetched.log.tail(SCOPE))
    answer = await fetched.ask("PUT", PATH, {"progress": 0.1})
    assert (answer.status_code, answer.json()["accepted"]) == (200, False)
    assert (await shown(fetched))["progress"] == 1.0  # it completed


async def test_failed_job_keeps_its_progress(fetched: World) -> None:
    await fetched.ask("PUT", PATH, {"progress": 0.73, "data": {"row": 7}})
    end = Failed(
        job=JOB, execution_id=ID, scheduled_time=admitted().scheduled_time, trigger="cron", step="main", attempt=1
    )
    await fetched.log.append(end, expect=await fetched.log.tail(SCOPE))
    found = await shown(fetched)
    assert (found["state"], found["progress"], found["data"]) == ("discarded", 0.73, {"row": 7})


@pytest.mark.parametrize(("after", "is_extended"), [(0.5, False), (1, True)])
async def test_progress_extends_the_lease(world: World, after: float, *, is_extended: bool) -> None:
    await dispatched(world)
    await fetch(world, visibility_timeout_ms=10_000)
    world.clock.advance(after)
    await world.ask("PUT", PATH, {"progress": 0.1})
    beats = [one.message for one in await world.log.read("report.>") if isinstance(one.message, Report)]
    assert [(beat.outcome, beat.lease) for beat in beats] == [("extended", 10.0)] * is_extended


async def test_retried_job_gets_its_checkpoint(fetched: World) -> None:
    place = {"last_file": 72}
    await fetched.ask("PUT", PATH, {"progress": 0.73, "checkpoint": place})
    retried = RetryScheduled(
        job=JOB,
        execution_id=ID,
        step="main",
        attempt=1,
        error=Failure(type="busy", message=""),
        delay=0,
        next_attempt_at=fetched.clock.now(),
    )
    newest = await fetched.log.append(retried, expect=await fetched.log.tail(SCOPE))
    state = execution.fold(await fetched.log.load(SCOPE))
    [task] = execution.dispatch_retry(state, "main", 2, key=KEY)
    await fetched.log.append(task, expect=newest)
    job = await fetch(fetched)
    assert (job["attempt"], job["last_checkpoint"]) == (2, place)
    assert (await shown(fetched))["progress"] is None  # the new attempt begins without progress


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "progress"),
        ({"checkpoint": {"a": 1}}, "progress"),
        ({"progress": "40 %"}, "progress"),
        ({"progress": True}, "progress"),
        ({"data": [1]}, "data"),
        ({"progress": 0.1, "message": ["loading"]}, "message"),
        ({"data": {"x": "y" * 5_000}}, "data"),
        ({"progress": 0.1, "checkpoint": 7}, "checkpoint"),
        ({"progress": 0.1, "checkpoint": {"x": "y" * 17_000}}, "checkpoint"),
        ({"progress": 0.1, "data": {"x": "\x00"}}, "data"),
    ],
)
async def test_wrong_report_names_its_field(fetched: World, body: dict[str, object], field: str) -> None:
    answer = await fetched.ask("PUT", PATH, body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
    assert [error["field"] for error in answer.json()["error"]["details"]["errors"]] == [field]
    assert (await shown(fetched))["progress"] is None


async def test_only_the_holder_reports_progress(fetched: World) -> None:
    other = {"Authorization": f"Bearer {await fetched.token('other', Role.ADMIN)}"}
    answer = await fetched.ask("PUT", PATH, {"progress": 1, "checkpoint": {"forged": True}}, **other)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")
    assert await fetched.log.read(subjects.filters_of(HeartbeatDetails)[0]) == []
    assert (await fetched.ask("PUT", PATH.replace(ID, ID[:-1] + "9"), {"progress": 1}, **other)).status_code == 404
