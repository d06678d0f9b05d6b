"""Calculations over long times are bounded, paged, and abandoned when the client leaves."""

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from threading import Event
from typing import Any

import pytest

from tests.http.conftest import World
from tests.system.running import DEADLINE
from tocsin.adapters.http.api import apply, schedule
from tocsin.adapters.http.auth.security import ANONYMOUS
from tocsin.adapters.http.server import answering
from tocsin.adapters.http.sockets import listen
from tocsin.services import calculations
from tocsin.services.calculations import CalculationAbandoned
from tocsin.settings import Server


def per_second(number: int) -> dict[str, Any]:
    return {"name": f"job-{number:05}", "schedule": "* * * * * *", "function": "f"}


async def test_schedule_of_a_year_is_paged(world: World) -> None:
    for number in range(4):
        await world.given(**per_second(number))
    pages, path = list[dict[str, Any]](), "/v1/schedule?hours=8784&limit=4000"
    after = ""
    for _ in range(10):
        page = (await world.ask("GET", f"{path}&after={after}")).json()
        pages.append(page)
        if page["next"] is None:
            break
        after = page["next"]
    rows = [row for page in pages for row in page["jobs"]]
    assert [row["job"] for row in rows] == [f"job-{number:05}" for number in range(4)]
    assert all(row["truncated"] and row["count"] == schedule.MAX_COUNTED for row in rows)
    assert len(pages) > 1
    assert all(sum(len(row["fire_times"]) for row in page["jobs"]) <= schedule.MAX_LISTED for page in pages)


async def test_complete_list_is_not_truncated(world: World) -> None:
    await world.given(schedule="@hourly")
    [row] = (await world.ask("GET", "/v1/schedule?hours=3")).json()["jobs"]
    assert (row["count"], len(row["fire_times"]), row["truncated"]) == (3, 3, False)


async def test_union_of_expressions_is_counted_to_a_limit(world: World) -> None:
    await world.given(schedule="every second from 9am to 5pm and every minute", timezone="UTC")
    answer = await world.ask("GET", "/v1/schedule?hours=8784&limit=1")
    assert answer.status_code == 200
    assert [row["count"] for row in answer.json()["jobs"]] == [schedule.MAX_COUNTED]


async def test_long_explanation_is_truncated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = (await world.ask("POST", "/v1/explain", {"schedule": "@daily", "count": 1_000})).json()
    assert (len(whole["next"]), whole["truncated"]) == (1_000, False)
    monkeypatch.setattr(calculations, "SECONDS", 0)
    part = (await world.ask("POST", "/v1/explain", {"schedule": "@daily", "count": 1_000})).json()
    assert (len(part["next"]), part["truncated"]) == (1, True)


async def test_page_of_jobs_ends_after_its_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        await world.given(**per_second(number))
    monkeypatch.setattr(calculations, "SECONDS", 0)
    pages = list[Any]()
    for after in ("", "job-00000", "job-00001"):
        page = (await world.ask("GET", f"/v1/jobs?after={after}")).json()
        pages.append(([job["name"] for job in page["jobs"]], page["next"]))
    assert pages == [(["job-00000"], "job-00000"), (["job-00001"], "job-00001"), (["job-00002"], None)]


async def test_plan_of_many_frequent_jobs_covers_less_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply, "MAX_COMPARED", 100)
    body = {"jobs": [per_second(number) for number in range(4)], "dry_run": True}
    changes = (await world.ask("POST", "/v1/jobs:apply", body)).json()["changes"]
    assert [change["instants_added"]["count"] for change in changes] == [25] * 4
    until = (world.clock.now() + timedelta(seconds=25)).replace(microsecond=0)
    assert {change["until"] for change in changes} <= {
        f"{until + timedelta(seconds=shift):%Y-%m-%dT%H:%M:%SZ}" for shift in (-1, 0)
    }


async def test_calculation_is_abandoned_when_the_client_leaves(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calculations, "SECONDS", float("inf"))
    began, ended = Event(), Event()

    def endless(*_: object, is_enough: Any, **__: object) -> None:  # noqa: ANN401 - the function that explain is given
        began.set()
        try:
            while not is_enough():
                pass
        except CalculationAbandoned:
            ended.set()
            raise

    monkeypatch.setattr(schedule, "explain", endless)
    listener = listen("127.0.0.1", 0)
    body = b'{"schedule": "@daily"}'
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(answering(world.app(), listener, Server()))
        _, writer = await asyncio.open_connection(*listener.getsockname()[:2])
        writer.write(
            b"POST /v1/explain HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        assert await asyncio.to_thread(began.wait, DEADLINE)
        writer.close()
        assert await asyncio.to_thread(ended.wait, DEADLINE)


async def test_too_many_calculations_are_refused_with_a_problem(world: World) -> None:
    released = Event()
    busy = calculations.Calculations(threads=1, most=1)
    holding = asyncio.create_task(busy.run(lambda _: released.wait(), party=f"local:{ANONYMOUS}"))
    await asyncio.sleep(0)
    world.calculations = busy
    world.client = world.copy()
    answer = await world.ask("POST", "/v1/explain", {"schedule": "@daily"})
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:tocsin:problem:busy")
    assert answer.headers["Retry-After"] == "1"
    released.set()
    await holding
    assert (await world.ask("POST", "/v1/explain", {"schedule": "@daily"})).status_code == 200
