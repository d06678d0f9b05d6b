"""Unique jobs of the Open Job Spec: two gateways and two planners enqueue at the same time, and planners die."""

import asyncio
import signal
from collections import Counter
from typing import Any, Final

import httpx
import pytest

from tests.ports import free_port
from tests.stored_events import uuid7
from tests.system.processes import Program, Site
from tocsin import bootstrap
from tocsin.domain.events import Admitted, Cancelled, Skipped

OTHERS: Final = tuple(stage for stage in bootstrap.STAGE_NAMES if stage != "planner")
KEYS: Final = 5
RIVALS: Final = 8
MORTAL: Final = "tests.system.mortal"
LEASE: Final = 2_000
"""Milliseconds; the log is quiet only after the last of them."""


@pytest.fixture
def tocsin(ojs_site: Site) -> Site:
    return ojs_site


def job(key: str, on_conflict: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    unique = {"keys": ["type", "args"], "on_conflict": on_conflict}
    return {"type": "work", "args": [0.01, key], "options": {"queue": "work", "unique": unique}, **more}


def gateways(tocsin: Site) -> list[str]:
    """Start two gateways, and return their URLs."""
    ports = [free_port(), free_port()]
    for port in ports:
        tocsin.start_gateway(port)
    return [f"http://127.0.0.1:{port}" for port in ports]


async def finished(tocsin: Site, *urls: str) -> None:
    """Let a worker do all jobs, and audit the log."""
    tocsin.start_ojs_worker("w", LEASE, *urls)
    await tocsin.checked()


async def test_one_of_many_concurrent_jobs_takes_a_key(tocsin: Site) -> None:
    for _ in range(2):
        tocsin.start("planner")
    tocsin.start(*OTHERS)
    urls = gateways(tocsin)
    await tocsin.ready()
    async with httpx.AsyncClient(timeout=60) as client:

        async def enqueue(number: int) -> tuple[str, int, str]:
            key, policy = f"key-{number % KEYS}", "ignore" if number % 3 == 0 else "reject"
            answer = await client.post(f"{urls[number % 2]}/ojs/v1/jobs", json=job(key, policy))
            body = answer.json()
            id_ = body["job"]["id"] if "job" in body else body["error"]["details"]["existing_job_id"]
            return key, answer.status_code, id_

        answers = await asyncio.gather(*map(enqueue, range(KEYS * RIVALS)))
    created = {key: id_ for key, status, id_ in answers if status == httpx.codes.CREATED}
    assert Counter(status for _, status, _ in answers)[httpx.codes.CREATED] == len(created) == KEYS
    assert {(key, id_) for key, _, id_ in answers} == set(created.items())
    await finished(tocsin, *urls)
    assert {fact.execution_id for fact in await tocsin.of_executions("ojs.work", Admitted)} == set(created.values())


@pytest.mark.full
async def test_of_concurrent_replacements_one_survives(tocsin: Site) -> None:
    for _ in range(2):
        tocsin.start("planner")
    tocsin.start(*OTHERS)
    urls = gateways(tocsin)
    await tocsin.ready()
    async with httpx.AsyncClient(timeout=60) as client:

        async def enqueue(number: int) -> httpx.Response:
            return await client.post(f"{urls[number % 2]}/ojs/v1/jobs", json=job("one", "replace"))

        answers = await asyncio.gather(*map(enqueue, range(RIVALS)))
        assert {answer.status_code for answer in answers} <= {httpx.codes.CREATED, httpx.codes.CONFLICT}
        ids = [answer.json()["job"]["id"] for answer in answers if answer.status_code == httpx.codes.CREATED]
        shown = [(await client.get(f"{urls[0]}/ojs/v1/jobs/{id_}")).json()["job"]["state"] for id_ in ids]
    assert Counter(shown) == {"available": 1, "cancelled": len(ids) - 1}
    await finished(tocsin, *urls)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("on_conflict", "dies_of"),
    [
        ("reject", "taken"),
        pytest.param("replace", "taken", marks=pytest.mark.full),
        ("replace", "cancelled"),
        pytest.param("reject", "skipped", marks=pytest.mark.full),
    ],
)
async def test_killed_planner_leaves_no_key_behind(tocsin: Site, on_conflict: str, dies_of: str) -> None:
    tocsin.start(*OTHERS)
    first_planner = tocsin.start("planner")
    urls = gateways(tocsin)
    await tocsin.ready()
    first, second = (uuid7(tocsin.installation.clock.now()) for _ in range(2))
    async with httpx.AsyncClient(timeout=60) as client:
        if dies_of != "taken" or on_conflict == "replace":
            answer = await client.post(f"{urls[0]}/ojs/v1/jobs", json=job("one", on_conflict, id=first))
            assert answer.status_code == httpx.codes.CREATED
        first_planner.kill()
        tocsin.programs.remove(first_planner)
        mortal = tocsin.start("planner", module=(MORTAL, dies_of))
        pushed = asyncio.create_task(client.post(f"{urls[1]}/ojs/v1/jobs", json=job("one", on_conflict, id=second)))
        await death_of(tocsin, mortal)
        tocsin.start("planner")
        await tocsin.ready()
        await pushed

        async def decided() -> bool:
            refused = await tocsin.of_executions("ojs.work", Skipped)
            begun = await tocsin.of_executions("ojs.work", Admitted)
            return second in {fact.execution_id for fact in (*refused, *begun)}

        await tocsin.until(decided)
        body = job("one", "reject", id=uuid7(tocsin.installation.clock.now()))
        while (third := await client.post(f"{urls[0]}/ojs/v1/jobs", json=body)).headers.get("Retry-After"):  # noqa: ASYNC110
            await asyncio.sleep(1)  # a busy planner
    assert third.status_code == httpx.codes.CONFLICT, third.text
    expected = first if dies_of == "skipped" else second
    assert third.json()["error"]["details"]["existing_job_id"] == expected
    await finished(tocsin, *urls)
    cancelled = {fact.execution_id for fact in await tocsin.of_executions("ojs.work", Cancelled)}
    assert cancelled == ({first} if on_conflict == "replace" else set())


async def death_of(tocsin: Site, mortal: Program) -> None:
    """Wait until a program has killed itself."""

    async def is_dead() -> bool:
        return mortal.ended is not None

    await tocsin.until(is_dead)
    assert mortal.ended == -signal.SIGKILL, mortal.said()
    tocsin.programs.remove(mortal)
