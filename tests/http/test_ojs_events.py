"""`GET /ojs/v1/events`: pages of a bounded search, in which no team hides the events of another."""

import asyncio
from collections.abc import Sequence
from functools import partialmethod
from itertools import zip_longest
from typing import Any

import httpx
import pytest

from tests.domain.given import JOB, NOON, plan
from tests.domain.test_workflow import BATCH, CHAIN, FAN_OUT, Run, played
from tests.http.conftest import LOCAL, World
from tocsin import subjects
from tocsin.adapters.http.api.app import api
from tocsin.adapters.http.auth.authentication import Authentication
from tocsin.adapters.http.auth.tokens import Tokens
from tocsin.adapters.http.ojs import event_search
from tocsin.adapters.http.ojs.event_search import WindowReader
from tocsin.adapters.http.ojs.job_events import JobEvents, WorkflowEvents
from tocsin.domain.access import Role
from tocsin.domain.definition import RetryPolicy
from tocsin.domain.events import (
    Admitted,
    CronSkipped,
    CronSkippedData,
    Message,
    QueuePaused,
    QueueResumed,
    Recorded,
    Recovered,
)
from tocsin.services.calculations import MAX_WAITING


async def skipped(world: World, job: str, times: int) -> None:
    at = world.clock.now()
    data = CronSkippedData(
        cron_name=job, cron_expression="@daily", timezone="UTC", reason="disabled", scheduled_time=at
    )
    for _ in range(times):
        fact = CronSkipped(timestamp=at, data=data)
        await world.log.append(fact, expect=await world.log.tail(f"cron.skipped.{job.replace('.', '_')}"))
        world.clock.advance(1)


@pytest.fixture
async def crowded(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """Two events of one team, and many newer events of another."""
    monkeypatch.setattr(event_search, "WINDOW", 5)
    monkeypatch.setattr(event_search, "PAGE_SIZE", 2)
    await skipped(world, "shop.job", 2)
    await skipped(world, "billing.job", 9)
    await world.log.append(QueuePaused(queue="billing.mail"), expect=0)
    world.clock.advance(1)
    await skipped(world, "billing.job", 9)
    await world.log.append(QueueResumed(queue="billing.mail"), expect=await world.log.tail("queue.billing_mail.>"))
    world.clock.advance(1)
    return world


async def listed(world: World, team: str, query: str = "") -> tuple[list[str], str | None]:
    """Return the jobs of a page that a team reads, and its cursor."""
    token = await world.token(team, Role.VIEWER, namespaces=(team,))
    answer = await world.ask("GET", f"/ojs/v1/events{query}", Authorization=f"Bearer {token}")
    assert answer.status_code == 200, answer.text
    page = answer.json()
    return [event["subject"] for event in page["events"]], page["next_cursor"]


async def test_busy_team_hides_no_events_of_others(crowded: World) -> None:
    assert await listed(crowded, "shop") == (["shop.job", "shop.job"], None)


async def test_search_is_bounded_and_continues(crowded: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_search, "MAX_WINDOWS", 1)
    cursor, pages = "", list[list[str]]()
    while True:
        page, following = await listed(crowded, "shop", cursor)
        pages.append(page)
        if following is None:
            break
        cursor = f"?cursor={following}"
    assert pages == [[], [], [], ["shop.job", "shop.job"]]


@pytest.mark.parametrize("limit", [1, 4, 7])
async def test_pages_have_each_event_once(crowded: World, limit: int) -> None:
    everything = (await crowded.ask("GET", "/ojs/v1/events")).json()
    assert (len(everything["events"]), everything["next_cursor"]) == (22, None)
    found, cursor = list[str](), ""
    while True:
        page = (await crowded.ask("GET", f"/ojs/v1/events?limit={limit}{cursor}")).json()
        assert len(page["events"]) <= limit
        found += [event["id"] for event in page["events"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert found == [event["id"] for event in everything["events"]]
    assert [everything["events"][place]["type"] for place in (0, 10)] == ["queue.resumed", "queue.paused"]


async def test_events_of_queues_need_no_search(crowded: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_search, "MAX_WINDOWS", 1)
    page = (await crowded.ask("GET", "/ojs/v1/events?types=queue.paused,queue.resumed")).json()
    assert ([event["subject"] for event in page["events"]], page["next_cursor"]) == (["billing.mail"] * 2, None)


@pytest.mark.parametrize(("most", "types"), [(1, ["queue.resumed"]), (2, ["queue.resumed", "queue.paused"])])
async def test_events_of_queues_may_be_far_apart(
    world: World, monkeypatch: pytest.MonkeyPatch, most: int, types: list[str]
) -> None:
    """Registrations between them are as many as several windows have."""
    monkeypatch.setattr(event_search, "WINDOW", 1)
    monkeypatch.setattr(event_search, "MAX_QUEUE_EVENTS", most)
    await world.log.append(QueuePaused(queue="mail"), expect=0)
    for number in range(9):
        await world.given(name=f"job-{number}")
    await world.log.append(QueueResumed(queue="mail"), expect=await world.log.tail("queue.mail.>"))
    page = (await world.ask("GET", "/ojs/v1/events?types=queue.paused,queue.resumed")).json()
    assert ([event["type"] for event in page["events"]], page["next_cursor"]) == (types, None)


async def test_cursor_of_an_empty_page_is_accepted(crowded: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_search, "MAX_WINDOWS", 1)
    for number in range(5):
        crowded.log.receive(f"lock.shop_job.{number}", b"{}")
    nothing, cursor = await listed(crowded, "billing")
    assert nothing == []
    found, _ = await listed(crowded, "billing", f"?cursor={cursor}")
    assert "billing.job" in found


async def test_cursor_of_the_future_begins_at_the_end(crowded: World) -> None:
    assert (await crowded.ask("GET", "/ojs/v1/events?cursor=0")).status_code == 400
    assert await listed(crowded, "shop", f"?cursor={10**19 - 1}-{10**18 - 1}") == (["shop.job", "shop.job"], None)


@pytest.mark.parametrize("limit", [1, 4, 10])
async def test_pages_end_although_time_steps_back(world: World, limit: int) -> None:
    """A new leader of the stream may have a slower clock."""
    await skipped(world, "shop.job", 9)
    await world.log.append(QueuePaused(queue="shop.mail"), expect=0)
    await skipped(world, "shop.job", 9)
    world.clock.advance(-30)
    await skipped(world, "shop.job", 5)
    found, cursor, page = list[str](), "", dict[str, Any]()
    for _ in range(24):
        page = (await world.ask("GET", f"/ojs/v1/events?limit={limit}{cursor}")).json()
        assert len(page["events"]) <= limit
        found += [event["id"] for event in page["events"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    everything = (await world.ask("GET", "/ojs/v1/events?limit=1000")).json()["events"]
    assert (len(everything), page["next_cursor"]) == (24, None)
    assert found == [event["id"] for event in everything]
    of_log = [int(id_.split("_")[1]) for id_ in found if "queue" not in id_]
    assert of_log == sorted(of_log, reverse=True)


def lives() -> list[list[Message]]:
    """Return the events of jobs and workflows that ended in several ways, each as one execution."""
    scheduled = Run(CHAIN, plan().changed(start_at=NOON, expires_at=NOON))
    scheduled.succeed("main")
    retried = Run(CHAIN, plan(retry=RetryPolicy(max_attempts=2, jitter=0)))
    retried.fail("main")
    retried.facts.insert(2, of_lost(retried.facts[0]))
    workflows = [played(CHAIN, "+a +b +c"), played(BATCH, "+a -b +x +z"), played(FAN_OUT, "+a -c +b")]
    of_jobs = [_renamed(run.facts, JOB, number) for number, run in enumerate((scheduled, retried))]
    return [*of_jobs, *(_renamed(run.facts, "ojs-workflow", 5 + number) for number, run in enumerate(workflows))]


def of_lost(begun: Message) -> Recovered:
    """Return the event of an execution whose messages were found again."""
    assert isinstance(begun, Admitted)
    return Recovered(job=begun.job, execution_id=begun.execution_id, recovery=1, lost=(), recovered_at=NOON)


def _renamed(facts: Sequence[Message], job: str, number: int) -> list[Message]:
    named = {"job": job, "execution_id": f"0193a5b0-0000-7000-8000-00000000000{number}"}
    return [fact.changed(**named) for fact in facts]


async def stored(world: World, lives: Sequence[Sequence[Message]]) -> int:
    """Store the events of executions in turn; return their number."""
    number = 0
    for turn in zip_longest(*lives):
        for fact in filter(None, turn):
            await world.log.append(fact, expect=await world.log.tail(subjects.scope_of(fact)))
            world.clock.advance(1)
            number += 1
    return number


@pytest.mark.parametrize("window", [1, 3, 10])
async def test_events_are_whole_if_an_execution_began_before(
    world: World, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    await stored(world, lives())
    whole = (await world.ask("GET", "/ojs/v1/events?limit=1000")).json()["events"]
    kinds = {event["type"] for event in whole}
    assert kinds >= {"job.scheduled", "job.enqueued", "job.retrying", "workflow.started", "workflow.failed"}
    monkeypatch.setattr(event_search, "WINDOW", window)
    monkeypatch.setattr(event_search, "MAX_WINDOWS", 1_000)
    divided = (await world.ask("GET", "/ojs/v1/events?limit=1000")).json()["events"]
    assert {event["id"]: event for event in divided} == {event["id"]: event for event in whole}
    completed = [event["data"] for event in divided if event["type"] == "workflow.completed"]
    assert [data["total_steps"] for data in completed] == [5, 3]  # newest first


async def test_each_stored_event_is_folded_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that finds nothing reads all windows."""
    number = await stored(world, lives())
    taken: list[int] = []
    for reader in (JobEvents, WorkflowEvents):

        def take(self: Any, fact: Recorded[Message], original: Any = reader.take) -> Any:  # noqa: ANN401 - of both readers
            taken.append(fact.sequence)
            return original(self, fact)

        monkeypatch.setattr(reader, "take", take)
    page = (await world.ask("GET", "/ojs/v1/events?types=none")).json()
    assert page == {"events": [], "next_cursor": None}
    assert sorted(taken) == list(range(1, number + 1))


async def test_search_loads_a_limited_part_of_earlier_events(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await stored(world, lives())
    monkeypatch.setattr(event_search, "WINDOW", 1)
    calls, original = 0, WindowReader._earlier

    async def counted(self: WindowReader, *given: Any) -> Any:  # noqa: ANN401 - as of the method
        nonlocal calls
        calls += 1
        return await original(self, *given)

    monkeypatch.setattr(WindowReader, "_earlier", counted)
    monkeypatch.setattr(WindowReader, "__init__", partialmethod(WindowReader.__init__, earlier_left=1))
    assert (await world.ask("GET", "/ojs/v1/events?limit=1000")).json()["events"]
    assert calls == 1


async def test_searches_of_two_teams_take_turns(world: World) -> None:
    parts = world.parts()
    authentication = Authentication(Tokens(parts.projections, parts.clock), None, parts.clock)
    client = httpx.AsyncClient(transport=httpx.ASGITransport(api(parts, authentication, world.rate)), base_url=LOCAL)
    tokens = [await world.token(name, Role.VIEWER, namespaces=(name[:1],)) for name in ("a1", "a2", "b")]
    ours, same_team, others = ({"Authorization": f"Bearer {token}"} for token in tokens)

    async def ask(headers: dict[str, str]) -> int:
        return (await client.get("/ojs/v1/events", headers=headers)).status_code

    async with parts.event_searches.turn("@a"):
        waiting = [asyncio.create_task(ask(headers)) for headers in (ours, same_team) for _ in range(5)]
        assert await ask(others) == 200
        assert not any(task.done() for task in waiting)
        more = [asyncio.create_task(ask(ours)) for _ in range(MAX_WAITING)]
        done, _ = await asyncio.wait(more, return_when=asyncio.FIRST_COMPLETED)
        assert {task.result() for task in done} == {503}
    assert set(await asyncio.gather(*waiting)) == {200}
    await asyncio.gather(*more)
