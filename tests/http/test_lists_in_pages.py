"""Lists come in pages, and their cost in reads does not grow with the number of jobs."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.http.conftest import World
from tocsin.adapters.http.api_client import ApiClient
from tocsin.adapters.http.client import HttpOperator
from tocsin.domain.agent import AgentRecord, AgentState
from tocsin.domain.definition import JobDefinition
from tocsin.ports import EventLog
from tocsin.services.operator import Operator
from tocsin.subjects import Bucket

READS = ("load", "load_each", "tail", "tails", "end", "last", "get", "read", "follow")
LIST_READS = 2
"""Reads of a list that has been read before: the end of the ledgers, and the newest event that the server knows."""


def _id(number: int) -> str:
    return f"00000000-0000-7000-8000-{number:012}"


async def _agents(world: World, names: list[str]) -> None:
    for number, name in enumerate(names):
        record = AgentRecord(name=name, agent_id=_id(number), state=AgentState.ENABLED)
        await world.projections.put(Bucket.AGENTS, f"{name}.{_id(number)}", record.model_dump_json().encode())


async def _pages(world: World, path: str, name: str, limit: int) -> list[list[Any]]:
    """Return the pages of a list."""
    pages, query = list[list[Any]](), f"limit={limit}"
    while True:
        answer = await world.ask("GET", f"{path}?{query}")
        assert answer.status_code == 200, answer.text
        pages.append(answer.json()[name])
        if answer.json()["next"] is None:
            return pages
        query = f"limit={limit}&after={answer.json()['next']}"


@pytest.mark.parametrize("limit", [1, 3, 1_000])
async def test_pages_list_each_agent_once(world: World, limit: int) -> None:
    names = ["mail", "mail", "mail-1", "a_b", "mail", "z", "mail-10"]  # `-` sorts before `.`, and `_` after both
    await _agents(world, names)
    pages = await _pages(world, "/v1/agents", "agents", limit)
    assert all(len(page) <= limit for page in pages)
    found = [(agent["name"], agent["agent_id"]) for page in pages for agent in page]
    assert found == sorted((name, _id(number)) for number, name in enumerate(names))


@pytest.mark.parametrize("limit", [1, 3, 1_000])
async def test_pages_list_each_queue_once(world: World, limit: int) -> None:
    queues = ["a", "a-1", "a.1", "b", "z"]
    for queue in queues:
        await world.given(name=f"job-{queue}", queue=queue)
    pages = await _pages(world, "/v1/queues", "queues", limit)
    assert all(len(page) <= limit for page in pages)
    assert [queue["name"] for page in pages for queue in page] == queues


@pytest.mark.parametrize("path", ["/v1/agents", "/v1/queues", "/v1/jobs", "/v1/notifications"])
@pytest.mark.parametrize("query", ["limit=0", "limit=-1", "limit=1e3", f"limit={10**40}", "limit=10001", "cursor=x"])
async def test_pages_are_bounded(world: World, path: str, query: str) -> None:
    assert (await world.ask("GET", f"{path}?{query}")).status_code == 422


async def test_client_reads_every_page(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.adapters.http.api_client.PAGE_SIZE", 2)
    await _agents(world, ["a", "b", "c", "d", "e"])
    for number in range(5):
        await world.given(name=f"job-{number}", queue=f"queue-{number}")
    operator = HttpOperator(ApiClient(world.client), world.clock)
    assert [agent.name for agent in await operator.agents()] == ["a", "b", "c", "d", "e"]
    assert [queue.name for queue in await operator.queues()] == [f"queue-{number}" for number in range(5)]
    assert [job.name for job in await operator.jobs()] == [f"job-{number}" for number in range(5)]


@pytest.mark.parametrize(
    ("path", "more"),
    [("/v1/jobs?limit=20", 0), ("/v1/jobs?limit=20&after=job-1000", 0), ("/ojs/v1/cron?limit=20&offset=100", 20)],
)
async def test_reads_do_not_grow_with_jobs(world: World, path: str, more: int) -> None:
    jobs = [JobDefinition(name=f"job-{n:04}", schedule="@daily", function="a.b") for n in range(2_000)]
    await world.registry.apply(jobs)
    assert (await world.ask("GET", path)).status_code == 200
    reads = _counted(world.log)
    assert (await world.ask("GET", path)).status_code == 200
    assert sum(reads.values()) <= LIST_READS + more, reads


def _counted(log: EventLog) -> Counter[str]:
    """Count the reads of a log from now on."""
    counts: Counter[str] = Counter()

    def counted(name: str, read: Callable[..., Any]) -> Callable[..., Any]:
        def count(*args: object, **more: object) -> object:
            counts[name] += 1
            return read(*args, **more)

        return count

    for name in READS:
        setattr(log, name, counted(name, getattr(log, name)))
    return counts


def test_every_operation_is_a_request() -> None:
    operations = {name for name in dir(Operator) if not name.startswith("_")}
    assert operations - vars(HttpOperator).keys() == {"replay_all"}  # it repeats `replay`
