"""`GET /ojs/v1/events`: pages of a bounded search, in which no team hides the events of another."""

from typing import Any

import pytest

from tests.http.conftest import World
from tocsin.adapters.http.ojs import event_search
from tocsin.domain.access import Role
from tocsin.domain.events import CronSkipped, CronSkippedData, QueuePaused, QueueResumed


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
