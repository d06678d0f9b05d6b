"""`/v1/queues`: pause, resume and purge are events with who and why."""

import asyncio

import pytest

from tests.domain.given import admitted
from tests.http.conftest import World
from tocsin.domain.access import Role
from tocsin.domain.events import QueueFact, QueuePaused, QueuePurged, QueueResumed
from tocsin.services import queue_decisions
from tocsin.settings import Queue, Settings
from tocsin.subjects import Stream

QUEUES = {"mail": Queue(), "outside": Queue(transport="mq")}


@pytest.fixture
def configured(world: World) -> World:
    world.settings = Settings(queues=QUEUES)
    world.client = world.copy()
    return world


async def facts(world: World) -> list[QueueFact]:
    return [fact.message for fact in await world.facts("queue.>") if isinstance(fact.message, QueueFact)]


@pytest.mark.parametrize("queue", ["mail", "outside"])
async def test_pause_and_resume_are_recorded_once(configured: World, queue: str) -> None:
    path = f"/v1/queues/{queue}"
    for verb, changed in (("pause", True), ("pause", False), ("resume", True), ("resume", False)):
        answer = (await configured.ask("POST", f"{path}/{verb}", {"reason": "deploy"})).json()
        assert (answer["queue"], answer["changed"]) == (queue, changed)
        details = (await configured.ask("GET", path)).json()
        assert bool(details["paused"]) is (verb == "pause")
    paused, resumed = await facts(configured)
    assert isinstance(paused, QueuePaused)
    assert isinstance(resumed, QueueResumed)
    assert {fact.reason for fact in (paused, resumed)} == {"deploy"}
    assert all(fact.by is not None for fact in (paused, resumed))


async def test_purge_covers_what_is_dispatched_now(configured: World) -> None:
    await configured.log.append(admitted(), expect=0)
    preview = (await configured.ask("POST", "/v1/queues/mail/purge?dry_run=true")).json()
    assert preview["changed"] is False
    assert await facts(configured) == []
    assert (await configured.ask("POST", "/v1/queues/mail/purge", {"reason": "wrong list"})).json()["changed"] is True
    assert (await configured.ask("POST", "/v1/queues/mail/purge")).json()["changed"] is False
    [purged] = await facts(configured)
    assert isinstance(purged, QueuePurged)
    assert (purged.upto, purged.reason) == (await configured.log.end(Stream.LOG), "wrong list")


@pytest.mark.parametrize("verb", ["pause", "resume", "purge"])
@pytest.mark.parametrize(
    ("queue", "status", "text"),
    [
        ("mial", 404, "Did you mean 'mail'?"),
        ("*", 404, "shows all queues"),
        ("a.b_c", 404, "shows all queues"),
    ],
)
async def test_queue_that_does_not_obey_is_refused(
    configured: World, queue: str, status: int, text: str, verb: str
) -> None:
    answer = await configured.ask("POST", f"/v1/queues/{queue}/{verb}")
    assert (answer.status_code, text in answer.json()["detail"]) == (status, True), answer.text
    assert await facts(configured) == []


async def test_ojs_shows_the_configuration_of_a_queue(world: World) -> None:
    queues = {"mail": {"concurrency": 20, "rate": {"limit": 1_000, "per": "1h"}}, "plain": {}}
    world.settings = Settings.model_validate({"queues": queues, "execution": {"history_retention_days": 30}})
    world.client = world.copy()
    shown = (await world.ask("GET", "/ojs/v1/queues/mail")).json()
    retention = dict.fromkeys(("completed", "discarded", "cancelled"), "P30D")
    limit = {"limit": 1_000, "period": "PT1H"}
    assert shown["config"] == {"concurrency": 20, "rate_limit": limit, "retention": retention}
    assert (shown["name"], shown["state"], shown["stats"]["total"]) == ("mail", "active", 0)
    assert (await world.ask("GET", "/ojs/v1/queues/plain")).json()["config"] == {"retention": retention}
    await world.ask("POST", "/ojs/v1/queues/mail/pause")
    assert (await world.ask("GET", "/ojs/v1/queues/mail")).json()["state"] == "paused"
    assert (await world.ask("GET", "/ojs/v1/queues/other")).status_code == 404
    token = await world.token("shop", Role.VIEWER, namespaces=("shop",))
    of_others = await world.ask("GET", "/ojs/v1/queues/mail", Authorization=f"Bearer {token}")
    assert of_others.status_code == 404, of_others.text


async def test_ojs_paths_store_the_same_events(configured: World) -> None:
    path = "/ojs/v1/queues/mail"
    for verb, status in (("pause", "paused"), ("resume", "active")):
        answer = await configured.ask("POST", f"{path}/{verb}", **{"X-Reason": "deploy"})
        assert answer.json()["status"] == status, answer.text
        assert (await configured.ask("GET", f"{path}/stats")).json()["status"] == status
    assert [(type(fact), fact.reason) for fact in await facts(configured)] == [
        (QueuePaused, "deploy"),
        (QueueResumed, "deploy"),
    ]
    assert {queue["name"] for queue in (await configured.ask("GET", "/ojs/v1/queues")).json()["queues"]} >= {
        "mail",
        "outside",
    }


@pytest.mark.parametrize("prefix", ["/ojs/v1", "/ojs/v1/admin"])
async def test_ojs_pauses_a_queue_before_its_first_job(configured: World, prefix: str) -> None:
    """A misspelled name is noticed by the warning, and one that was never paused is not resumed."""
    path = f"{prefix}/queues/mial"
    assert (await configured.ask("POST", f"{path}/resume")).status_code == 404
    assert await facts(configured) == []
    answer = await configured.ask("POST", f"{path}/pause")
    assert (answer.status_code, "Did you mean 'mail'?" in answer.json()["warnings"][0]) == (200, True)
    assert (await configured.ask("GET", "/ojs/v1/queues/mial")).json()["state"] == "paused"
    known = await configured.ask("POST", f"{prefix}/queues/mail/pause")
    assert (known.status_code, "warnings" in known.json()) == (200, False)
    assert (await configured.ask("POST", f"{path}/resume")).status_code == 200
    assert (await configured.ask("GET", "/ojs/v1/queues/mial")).status_code == 404
    assert [(type(fact), fact.queue) for fact in await facts(configured)] == [
        (QueuePaused, "mial"),
        (QueuePaused, "mail"),
        (QueueResumed, "mial"),
    ]


@pytest.mark.parametrize("prefix", ["/ojs/v1", "/ojs/v1/admin"])
async def test_ojs_pauses_few_absent_queues(configured: World, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The matcher keeps the name of each paused queue."""
    monkeypatch.setattr(queue_decisions, "MAX_PAUSED_ABSENT", 3)
    names = [f"absent-{number}" for number in range(6)]
    answers = await asyncio.gather(*(configured.ask("POST", f"{prefix}/queues/{name}/pause") for name in names))
    assert sorted(answer.status_code for answer in answers) == [200] * 3 + [409] * 3, [each.text for each in answers]
    paused = [fact.queue for fact in await facts(configured)]
    assert len(paused) == 3
    known, again = [await configured.ask("POST", f"{prefix}/queues/{name}/pause") for name in ("mail", paused[0])]
    assert (known.status_code, again.status_code) == (200, 200)
    await configured.ask("POST", f"{prefix}/queues/{paused[0]}/resume")
    last = await configured.ask("POST", f"{prefix}/queues/{(set(names) - set(paused)).pop()}/pause")
    assert last.status_code == 200, last.text


async def test_ojs_pauses_no_queue_of_hidden_jobs(configured: World) -> None:
    await configured.given(name="secret", queue="vault", viewers=["cleo"])
    token = await configured.token("ann", Role.OPERATOR, Role.VIEWER)
    for queue in ("vault", "absent"):
        answer = await configured.ask("POST", f"/ojs/v1/queues/{queue}/pause", Authorization=f"Bearer {token}")
        assert answer.status_code == 404, answer.text
    assert await facts(configured) == []
