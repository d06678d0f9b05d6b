"""Open Job Spec gateways, workers and matchers die at any time: every job completes exactly once in the log.

`TOCSIN_TEST_OJS_JOBS=2000 python -m pytest tests/system/test_ojs.py` runs more jobs through more deaths.
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Sequence
from typing import Final

import httpx
import pytest

from tests.ports import free_port
from tests.stored_events import uuid7
from tests.system.processes import Program, Site
from tocsin import bootstrap
from tocsin.domain.events import Completed, Released, Started

JOBS: Final = int(os.environ.get("TOCSIN_TEST_OJS_JOBS", "300"))
JOB: Final = "ojs.work"
LEASE: Final = 1_500
"""Milliseconds."""
LONG_LEASE: Final = 60_000
AT_ONCE: Final = 16
PAUSE: Final = 0.3
SEED: Final = 11


@pytest.fixture
def tocsin(ojs_site: Site) -> Site:
    ojs_site.patience = 60 + JOBS / 5
    return ojs_site


async def push(client: httpx.AsyncClient, urls: Sequence[str], id_: str, *args: float | str) -> None:
    """Repeat until the job is stored. A repeated request under the same id is the same job."""
    body = {"id": id_, "type": "work", "args": args, "options": {"queue": "work"}}
    for n in range(1_000):
        try:
            answer = await client.post(f"{urls[n % len(urls)]}/ojs/v1/jobs", json=body)
        except httpx.TransportError:
            await asyncio.sleep(PAUSE)
        else:
            if answer.status_code in {httpx.codes.CREATED, httpx.codes.CONFLICT}:
                return
            assert answer.status_code >= httpx.codes.INTERNAL_SERVER_ERROR, answer.text
            await asyncio.sleep(PAUSE)
    raise AssertionError(f"nobody took {id_}")


async def completed(tocsin: Site) -> Counter[str]:
    """Return the number of completions of each job."""
    return Counter(fact.execution_id for fact in await tocsin.of_executions(JOB, Completed))


@pytest.mark.slow
@pytest.mark.timeout(600 + JOBS)
@pytest.mark.full
async def test_gateways_workers_and_matchers_may_be_killed_anytime(tocsin: Site) -> None:
    dice = random.Random(SEED)  # noqa: S311 - which of them dies next is no secret
    ports = [free_port(), free_port()]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    tocsin.start(*(stage for stage in bootstrap.STAGE_NAMES if stage != "matcher"))
    mortals = [
        *(tocsin.start("matcher") for _ in range(2)),
        *(tocsin.start_gateway(port) for port in ports),
        *(tocsin.start_ojs_worker(f"w{n}", LEASE, *urls) for n in range(2)),
    ]
    await tocsin.ready()
    ids = [uuid7(tocsin.installation.clock.now()) for _ in range(JOBS)]
    pushing = asyncio.create_task(push_all(ids, urls))
    deaths = 0

    async def all_done() -> bool:
        return pushing.done() and len(await completed(tocsin)) == JOBS

    while deaths < 3 or not await all_done():
        victim = dice.choice(mortals)
        await kill(victim, after=dice.uniform(0, 4 * PAUSE))
        deaths += 1
        await tocsin.ready()
    await pushing
    assert await completed(tocsin) == dict.fromkeys(ids, 1)
    everything = await tocsin.checked()
    assert {end.message.type for end in everything.ends.values()} == {"completed"}
    runs = Counter(line.split()[0] for line in tocsin.runs.read_text().splitlines())
    assert set(runs) == set(ids)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(300 + JOBS)
async def test_killed_matcher_loses_and_doubles_nothing(tocsin: Site) -> None:
    """No lease ends: each task reaches its worker, or is handed back at once."""
    dice = random.Random(SEED)  # noqa: S311 - when it dies is no secret
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    tocsin.start(*(stage for stage in bootstrap.STAGE_NAMES if stage != "matcher"))
    matchers = [tocsin.start("matcher") for _ in range(2)]
    tocsin.start_gateway(port)
    for number in range(2):
        tocsin.start_ojs_worker(f"w{number}", LONG_LEASE, url)
    await tocsin.ready()
    ids = [uuid7(tocsin.installation.clock.now()) for _ in range(JOBS)]
    pushing = asyncio.create_task(push_all(ids, [url]))
    deaths = 0

    async def all_done() -> bool:
        return pushing.done() and len(await completed(tocsin)) == JOBS

    while deaths < 6:
        await kill(matchers[deaths % 2], after=dice.uniform(0, 4 * PAUSE))
        deaths += 1
        await tocsin.ready()
    await pushing
    await tocsin.until(all_done)
    assert await completed(tocsin) == dict.fromkeys(ids, 1)
    everything = await tocsin.checked()
    assert len(everything.facts(Started)) - len(everything.facts(Released)) == JOBS
    assert {event.message.reason for event in everything.facts(Released)} <= {"handed_back"}
    runs = Counter(line.split()[0] for line in tocsin.runs.read_text().splitlines())
    assert runs == dict.fromkeys(ids, 1)


@pytest.mark.slow
@pytest.mark.full
async def test_dead_worker_loses_its_job_to_another(tocsin: Site) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    tocsin.start()
    tocsin.start_gateway(port)
    await tocsin.ready()
    id_ = uuid7(tocsin.installation.clock.now())
    async with httpx.AsyncClient() as client:
        await push(client, [url], id_, 0.5, "first")
    first = tocsin.start_ojs_worker("first", LEASE, url)
    await tocsin.ended(JOB, Started)
    first.kill()
    tocsin.programs.remove(first)
    tocsin.start_ojs_worker("second", LONG_LEASE, url)
    await tocsin.ended(JOB, Completed)
    assert [claim.worker for claim in await tocsin.of_executions(JOB, Started)] == ["first", "second"]
    [released] = await tocsin.of_executions(JOB, Released)
    assert (released.reason, released.attempt) == ("lease_over", 1)
    [end] = await tocsin.of_executions(JOB, Completed)
    assert (end.execution_id, end.result, end.attempt) == (id_, "second", 1)
    await tocsin.checked()


async def push_all(ids: Sequence[str], urls: Sequence[str]) -> None:
    """As many at once as a few clients would."""
    limit = asyncio.Semaphore(AT_ONCE)
    async with httpx.AsyncClient(timeout=10) as client:

        async def one(id_: str) -> None:
            async with limit:
                await push(client, urls, id_, 0.02)

        await asyncio.gather(*map(one, ids))


async def kill(victim: Program, *, after: float) -> None:
    """Kill -9 in a while, and start it again."""
    await asyncio.sleep(after)
    victim.kill()
    victim.start()
