"""`/ojs/v1/admin`: what operators see and do, and that changes of many jobs are confirmed (ojs-admin-api)."""

import asyncio
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from typing import Any, Final

import httpx
import pytest

from tests.cli.test_dead_letters import letter
from tests.domain.given import NOON, admitted, first_tasks, plan
from tests.domain.test_workflow import CHAIN, plan_of
from tests.http.conftest import LOCAL, World
from tests.http.test_ojs_bulk import given_jobs, recorded
from tocsin import subjects
from tocsin.adapters.http.api.app import api
from tocsin.adapters.http.api.dependencies import MAX_AT_ONCE
from tocsin.adapters.http.auth.authentication import Authentication
from tocsin.adapters.http.auth.tokens import Tokens
from tocsin.adapters.http.ojs import job_filter, job_view
from tocsin.domain import ids
from tocsin.domain.access import Role
from tocsin.domain.agent import AgentRecord, AgentState
from tocsin.domain.events import (
    AgentDrainStarted,
    AgentRegistered,
    Cancelled,
    Failed,
    Planned,
    QueueFact,
    QueuePaused,
    QueuePurged,
    QueueResumed,
    Replayed,
    Requested,
    Skipped,
)
from tocsin.engine.outside_workers import OutsideName
from tocsin.ports.summaries import QueueCounts
from tocsin.services import calculations
from tocsin.services.operations import event_waiter
from tocsin.settings import Queue, Settings
from tocsin.subjects import Bucket, Stream

ADMIN: Final = "/ojs/v1/admin"
FLOW: Final = "0193a5b0-0000-7000-8000-0000000000aa"
OTHER: Final = "0193a5b0-0000-7000-8000-0000000000bb"
SINCE: Final = "2000-01-01T00:00:00Z"
AGENTS: Final = [f"4444444{number}-4444-4444-8444-444444444444" for number in range(3)]


@pytest.fixture
def served(world: World) -> World:
    world.settings = Settings(queues={name: Queue() for name in ("default", "mail", "plain")})
    world.client = world.copy()
    return world


async def read(world: World, path: str, status: int = 200) -> Any:  # noqa: ANN401 - JSON
    answer = await world.ask("GET", f"{ADMIN}/{path}")
    assert answer.status_code == status, answer.text
    return answer.json()


async def field_of(world: World, method: str, path: str, body: object) -> tuple[int, str]:
    """Return the status of a refusal, and the field that it names."""
    answer = await world.ask(method, f"{ADMIN}/{path}", body)
    return answer.status_code, error_of(answer)["field"]


def error_of(answer: httpx.Response) -> Any:  # noqa: ANN401 - JSON
    """Return the first invalid field of a refusal."""
    return answer.json()["error"]["details"]["errors"][0]


async def queue_facts(world: World) -> list[QueueFact]:
    return [fact.message for fact in await world.facts("queue.>") if isinstance(fact.message, QueueFact)]


async def test_queues_have_their_counts(served: World) -> None:
    await given_jobs(served, "shop.a", "shop.b")
    listed = await read(served, "queues?per_page=2")
    assert [(item["name"], item["state"], item["counts"]["available"]) for item in listed["items"]] == [
        ("default", "active", 2),
        ("mail", "active", 0),
    ]
    assert listed["pagination"] == {"total": 3, "page": 1, "per_page": 2}
    assert [item["name"] for item in (await read(served, "queues?per_page=2&page=2"))["items"]] == ["plain"]
    shown = await read(served, "queues/default")
    assert (shown["counts"], shown["configuration"]["retention"]) == (
        listed["items"][0]["counts"],
        dict.fromkeys(("completed", "discarded", "cancelled"), "P90D"),
    )
    await read(served, "queues/other", 404)


async def test_statistics_are_those_of_all_queues(served: World) -> None:
    ids = await given_jobs(served, "shop.a", "shop.b", "shop.c")
    await served.ask("DELETE", f"/ojs/v1/jobs/{ids[0]}")
    await recorded(served)
    stats = await read(served, "stats")
    assert (stats["queues"], stats["workers"]) == (3, 0)
    assert {state: number for state, number in stats["jobs"].items() if number} == {"available": 2, "cancelled": 1}
    assert stats["throughput"] == {"processed_per_minute": 0, "failed_per_minute": 0}
    assert stats["uptime_seconds"] >= 0


async def test_statistics_share_a_count(served: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers come also while searches have all places, and are of the caller's queues."""
    await given_jobs(served, "shop.a")
    served.settings = Settings(queues={name: Queue() for name in ("default", "shop.mail")})
    monkeypatch.setattr(calculations, "VALID_S", 600)
    of_queue, counted, parts = served.history.summaries.of_queue, list[str](), served.parts()

    async def noted(queue: str, since: datetime) -> QueueCounts:
        counted.append(queue)
        return await of_queue(queue, since)

    monkeypatch.setattr(served.history.summaries, "of_queue", noted)
    app = api(parts, Authentication(Tokens(parts.projections, parts.clock), None, parts.clock), served.rate)
    async with AsyncExitStack() as searches:
        for number in range(MAX_AT_ONCE):
            await searches.enter_async_context(parts.job_searches.turn(str(number)))
        found = []
        for team, namespaces in (("all", None), ("shop", ("shop",))):
            headers = {"Authorization": f"Bearer {await served.token(team, Role.VIEWER, namespaces=namespaces)}"}
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=LOCAL) as client:
                stats = (await client.get(f"{ADMIN}/stats", headers=headers)).json()
            found.append((stats["queues"], stats["jobs"]["available"]))
    assert found == [(2, 1), (1, 0)]
    assert sorted(counted) == ["default", "shop.mail"]


async def test_paused_queue_is_resumed(served: World) -> None:
    for verb, is_paused in (("pause", True), ("resume", False)):
        answer = (await served.ask("POST", f"{ADMIN}/queues/mail/{verb}", **{"X-Reason": "deploy"})).json()
        assert (answer["name"], answer["paused"], "paused_at" in answer) == ("mail", is_paused, is_paused)
        assert (await read(served, "queues/mail"))["state"] == ("paused" if is_paused else "active")
    assert [(type(fact), fact.reason) for fact in await queue_facts(served)] == [
        (QueuePaused, "deploy"),
        (QueueResumed, "deploy"),
    ]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"states": ["available"]}, "confirm"),
        ({"states": ["available"], "confirm": "true"}, "confirm"),
        ({"states": ["completed"], "confirm": True}, "states"),
        ({"confirm": True}, "states"),
        ({"states": ["available"], "confirm": True, "older_than": "2026-01-01T00:00:00Z"}, "older_than"),
    ],
)
async def test_purge_is_confirmed(served: World, body: object, field: str) -> None:
    await given_jobs(served, "shop.a")
    assert await field_of(served, "DELETE", "queues/default/jobs", body) == (400, field)
    assert await queue_facts(served) == []


async def test_purge_covers_the_jobs_that_wait(served: World) -> None:
    await given_jobs(served, "shop.a")
    body = {"states": ["available"], "confirm": True}
    answer = await served.ask("DELETE", f"{ADMIN}/queues/default/jobs", body)
    assert (answer.status_code, answer.json()["states"]) == (200, ["available"])
    [purged] = await queue_facts(served)
    assert isinstance(purged, QueuePurged)


async def jobs(world: World, query: str = "") -> list[str]:
    """Return the ids in a list of jobs, shortened to their end."""
    return [
        item["id"].removeprefix("0193a5b0-0000-7000-8000-") for item in (await read(world, f"jobs?{query}"))["items"]
    ]


async def test_jobs_are_filtered(served: World) -> None:
    first, second, third = (id_[-12:] for id_ in await given_jobs(served, "shop.a", "shop.b", "shop.c"))
    await served.ask("DELETE", f"/ojs/v1/jobs/0193a5b0-0000-7000-8000-{second}")
    await recorded(served)
    assert sorted(await jobs(served)) == [first, second, third]
    assert await jobs(served, "state=cancelled") == [second]
    assert await jobs(served, "state=available&order=asc") == [first, third]
    assert await jobs(served, "state=active") == []
    for query, number in (("queue=default", 3), ("queue=other", 0), ("type=f/main", 3), ("type=f/*", 3), ("type=f", 0)):
        assert len(await jobs(served, query)) == number, query
    for query, number in (("since", 3), ("until", 0)):
        assert len(await jobs(served, f"{query}=2000-01-01T00:00:00Z")) == number, query
        assert len(await jobs(served, f"{query}=2100-01-01T00:00:00Z")) == 3 - number, query
    for wrong in ("state=waiting", "since=yesterday", "per_page=101", "page=0", "sort=type", "tag=a", "cursor=a:b"):
        await read(served, f"jobs?{wrong}", 400)


async def test_jobs_are_listed_in_pages(served: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = await given_jobs(served, *["shop.a"] * 5)
    pages = [await read(served, f"jobs?per_page=2&page={number}") for number in (1, 2, 3, 4)]
    assert [len(page["items"]) for page in pages] == [2, 2, 1, 0]
    assert sorted(item["id"] for page in pages for item in page["items"]) == ids
    assert pages[0]["pagination"] == {"total": 5, "page": 1, "per_page": 2, "next_cursor": None}
    monkeypatch.setattr(job_filter, "PAGE_SIZE", 2)
    monkeypatch.setattr(job_filter, "MAX_SEARCHED", 2)
    for state, answers in (("", 3), ("&state=available", 4)):  # at the end, no execution runs
        found, cursor, number = list[str](), "", 0
        while True:
            page = await read(served, f"jobs?{cursor}{state}")
            found += [item["id"] for item in page["items"]]
            number += 1
            if (following := page["pagination"]["next_cursor"]) is None:
                break
            cursor = f"cursor={following}"
        assert (sorted(found), number) == (ids, answers)


async def test_jobs_of_others_are_hidden(served: World) -> None:
    ids = await given_jobs(served, "shop.a", "billing.a")
    token = await served.token("shop", Role.OPERATOR, namespaces=("shop",))
    answer = await served.ask("GET", f"{ADMIN}/jobs", Authorization=f"Bearer {token}")
    assert [item["id"] for item in answer.json()["items"]] == ids[:1]
    for path, method in (
        (f"jobs/{ids[1]}", "GET"),
        (f"jobs/{ids[1]}/cancel", "POST"),
        (f"jobs/{ids[1]}/retry", "POST"),
    ):
        answer = await served.ask(method, f"{ADMIN}/{path}", Authorization=f"Bearer {token}")
        assert answer.status_code == 404, answer.text
    body = {"filter": {"queue": "default"}, "confirm": True}
    answer = await served.ask("POST", f"{ADMIN}/jobs/bulk/cancel", body, Authorization=f"Bearer {token}")
    assert (answer.json()["matched"], answer.json()["succeeded"]) == (1, 1)
    cancelled = [fact.message for fact in await served.facts("execution.>") if isinstance(fact.message, Cancelled)]
    assert [fact.execution_id for fact in cancelled] == ids[:1]


_OTHER: Final[dict[str, Any]] = {"job": "shop.b", "execution_id": OTHER, "scheduled_time": NOON, "trigger": "api"}
PLANNED: Final = Planned(**_OTHER, plan=plan())
SKIPPED: Final = Skipped(**_OTHER, reason="overlap_skip", definition=1)


async def test_skipped_execution_is_no_job(served: World) -> None:
    [id_] = await given_jobs(served, "shop.a")
    for fact in (PLANNED, SKIPPED):
        await served.log.append(fact, expect=await served.log.tail(subjects.scope_of(fact)))
    await recorded(served)
    assert await jobs(served) == [id_[-12:]]


@pytest.mark.parametrize(("reads", "failed"), [(1, 0), (2, 1), (3, 1)])
async def test_job_may_be_skipped_before_its_cancellation(
    served: World, monkeypatch: pytest.MonkeyPatch, reads: int, failed: int
) -> None:
    """The history shows a planned job, which is skipped after some reads of its events."""
    await served.log.append(PLANNED, expect=0)
    await recorded(served)
    load, left = served.log.load, iter(range(reads - 1))

    async def loaded(scope: str) -> Any:  # noqa: ANN401 - as of the method
        if next(left, None) is None and (tail := await served.log.tail(subjects.scope_of(SKIPPED))) == 1:
            await served.log.append(SKIPPED, expect=tail)
        return await load(scope)

    monkeypatch.setattr(served.log, "load", loaded)
    body = {"filter": {"queue": "default"}, "confirm": True}
    answer = await served.ask("POST", f"{ADMIN}/jobs/bulk/cancel", body)
    assert (answer.status_code, answer.json()["succeeded"], answer.json()["failed"]) == (200, 0, failed)
    assert len(await served.facts("execution.>")) == 2


async def given_workflow(world: World, execution_id: str = FLOW) -> None:
    """Store a workflow whose first job waits."""
    named = {"job": "ojs-workflow", "execution_id": execution_id}
    flow = admitted(plan_of(CHAIN)).changed(**named)
    for fact in (flow, *(task.changed(**named) for task in first_tasks(flow))):
        await world.log.append(fact, expect=await world.log.tail(subjects.scope_of(fact)))
    await recorded(world)


async def test_dead_jobs_are_not_those_of_workflows(served: World) -> None:
    [id_] = await given_jobs(served, "shop.a")
    await given_workflow(served)
    for job, execution_id in (("shop.a", id_), ("ojs-workflow", FLOW)):
        dead = letter(execution_id).changed(job=job)
        await served.log.append(dead, expect=0)
    letters = await served.facts("dead-letter.>")
    after = await served.history.offset(Stream.LOG)
    await served.history.record(Stream.LOG, letters, after=after, upto=letters[-1].sequence)
    assert [item["id"] for item in (await read(served, "dead-letter"))["items"]] == [id_]


async def test_repeated_retry_of_a_workflow_runs_once(served: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the first request had no answer, and its retry failed before the second."""
    monkeypatch.setattr(event_waiter, "POLL_PAUSES_S", (0, 0))  # no planner runs here
    monkeypatch.setattr(event_waiter, "FALLBACK_PAUSES_S", ())
    await given_workflow(served)
    flow = (await served.facts(f"execution.ojs-workflow.{FLOW}.>"))[0].message
    assert isinstance(flow, Requested)

    async def fails(execution_id: str) -> None:
        end = Failed(
            job=flow.job,
            execution_id=execution_id,
            scheduled_time=flow.scheduled_time,
            trigger=flow.trigger,
            step="b",
            attempt=1,
        )
        await served.log.append(end, expect=await served.log.tail(subjects.scope_of(end)))
        await served.log.append(letter(execution_id).changed(job=flow.job), expect=0)

    await fails(FLOW)

    async def retry() -> httpx.Response:
        return await served.ask("POST", f"/ojs/v1/workflows/{FLOW}/retry", Idempotency_Key="k")

    first = await retry()
    assert (first.status_code, "no stage" in first.text) == (503, True), first.text
    [replayed] = [fact for fact in await served.facts("dead-letter.>") if isinstance(fact.message, Replayed)]
    again = ids.replay_id(flow.job, FLOW, 1, replayed.time)
    await served.log.append(flow.changed(execution_id=again, replay_of=FLOW), expect=0)
    await fails(again)
    served.clock.advance(timedelta(hours=1).total_seconds())
    second = await retry()
    assert (second.status_code, second.json()["workflow"]["id"]) == (201, again), second.text
    assert sum(isinstance(fact.message, Replayed) for fact in await served.facts("dead-letter.>")) == 1


async def test_jobs_of_a_workflow_are_listed(served: World) -> None:
    await given_workflow(served)
    listed = (await read(served, "jobs?state=pending"))["items"]
    assert {item["id"] for item in listed} == {f"{FLOW}:b", f"{FLOW}:c"}
    assert {item["workflow_id"] for item in listed} == {FLOW}
    assert (await read(served, f"jobs/{FLOW}:b"))["state"] == "pending"


async def test_job_is_shown_and_cancelled(served: World) -> None:
    [id_] = await given_jobs(served, "shop.a")
    shown = await read(served, f"jobs/{id_}")
    assert (shown["id"], shown["state"], shown["errors"], shown["result"]) == (id_, "available", [], None)
    assert {"specversion", "type", "queue", "args", "meta", "priority", "attempt", "max_attempts"} <= shown.keys()
    assert shown["metadata"]["created_at"] == shown["created_at"]
    assert shown["metadata"]["cancelled_at"] is None
    cancelled = (await served.ask("POST", f"{ADMIN}/jobs/{id_}/cancel")).json()["job"]
    assert (cancelled["state"], cancelled["previous_state"]) == ("cancelled", "available")
    assert (await read(served, f"jobs/{id_}"))["metadata"]["cancelled_at"] is not None
    assert (await served.ask("POST", f"{ADMIN}/jobs/{id_}/cancel")).status_code == 409
    assert (await served.ask("POST", f"{ADMIN}/jobs/{id_}/retry")).status_code == 404


@pytest.mark.parametrize("verb", ["cancel", "retry"])
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"filter": {"queue": "default"}}, "confirm"),
        ({"filter": {"queue": "default"}, "confirm": False}, "confirm"),
        ({"filter": {}, "confirm": True}, "filter"),
        ({"confirm": True}, "filter"),
        ({"filter": {"color": "red"}, "confirm": True}, "filter.color"),
        ({"filter": {"state": "active"}, "confirm": True}, "filter.state"),
        ({"filter": {"since": "yesterday"}, "confirm": True}, "filter.since"),
        ({"filter": {"since": SINCE, "enqueued_after": "2100-01-01T00:00:00Z"}, "confirm": True}, "filter.since"),
        ({"filter": {"enqueued_before": "2100-01-01T00:00:00Z", "until": SINCE}, "confirm": True}, "filter.until"),
        ({"filter": {"queue": "default"}, "confirm": True, "cursor": "nonsense"}, "cursor"),
    ],
)
async def test_changes_of_many_jobs_are_confirmed(served: World, verb: str, body: object, field: str) -> None:
    await given_jobs(served, "shop.a")
    assert await field_of(served, "POST", f"jobs/bulk/{verb}", body) == (400, field)
    assert not any(isinstance(fact.message, Cancelled) for fact in await served.facts("execution.>"))


@pytest.mark.parametrize(
    ("chosen", "value", "right"),
    [
        ({"state": "active"}, '"active"', "one of `available`, `scheduled`, `retryable`, or an array of them"),
        ({"state": 1}, "1", "one of `available`, `scheduled`, `retryable`, or an array of them"),
        ({"priority": "high"}, '"high"', "an integer"),
    ],
)
async def test_wrong_value_is_shown(served: World, chosen: object, value: str, right: str) -> None:
    answer = await served.ask("POST", f"{ADMIN}/jobs/bulk/cancel", {"filter": chosen, "confirm": True})
    wrong = error_of(answer)
    assert (answer.status_code, wrong["value"], wrong["right"]) == (400, value, f"must be {right}")
    assert f"is {value}: it must be {right}" in answer.json()["error"]["message"]


async def test_filtered_jobs_are_cancelled(served: World) -> None:
    await given_jobs(served, "shop.a", "shop.b")
    chosen = {"queue": "default", "type": "f/*", "state": "available", "since": "2000-01-01T00:00:00Z"}
    path, body = f"{ADMIN}/jobs/bulk/cancel", {"filter": chosen, "confirm": True}
    answer = (await served.ask("POST", path, body)).json()
    counts = {"matched": 2, "succeeded": 2, "failed": 0}
    assert answer == {"action": "cancel", **counts, "errors": [], "next_cursor": None}
    await recorded(served)
    assert (await served.ask("POST", path, body)).json()["matched"] == 0


@pytest.mark.parametrize(
    ("key", "header"), [({"idempotency_key": "k"}, {}), ({}, {"Idempotency-Key": "k"})], ids=["body", "header"]
)
async def test_repeated_cancellation_has_the_same_answer(
    served: World, key: dict[str, str], header: dict[str, str]
) -> None:
    await given_jobs(served, "shop.a")
    path, body = f"{ADMIN}/jobs/bulk/cancel", {"filter": {"queue": "default"}, "confirm": True, **key}
    first = await served.ask("POST", path, body, **header)
    await recorded(served)
    again = await served.ask("POST", path, body, **header)
    assert (first.json()["matched"], again.json()) == (1, first.json())
    assert again.headers["Idempotency-Replayed"] == "true"
    assert (await served.ask("POST", path, {**body, "confirm": False}, **header)).status_code in {409, 422}


async def test_jobs_of_workflows_count_for_the_limit(served: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        await given_workflow(served, f"{FLOW[:-1]}{number}")
    monkeypatch.setattr(job_filter, "PAGE_SIZE", 2)
    monkeypatch.setattr(job_filter, "MAX_SEARCHED", 6)
    listed = (await read(served, "jobs"))["pagination"]
    assert listed["total"] == 6
    listed = (await read(served, f"jobs?cursor={listed['next_cursor']}"))["pagination"]
    assert (listed["total"], listed["next_cursor"]) == (6, None)


async def test_clock_ends_a_search_early(served: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await given_jobs(served, *["shop.a"] * 20)
    monkeypatch.setattr(job_filter, "MAX_SECONDS", 0)
    listed = (await read(served, "jobs"))["pagination"]
    assert (listed["total"], listed["next_cursor"] is None) == (16, False)


async def test_a_workflow_lets_other_requests_go_on(served: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await given_workflow(served)
    monkeypatch.setattr(job_filter, "STEPS_TOGETHER", 1)
    view, turns, folded = job_view.job, 0, list[int]()

    def noted(*given: Any, **named: Any) -> Any:  # noqa: ANN401 - as of the function
        folded.append(turns)
        return view(*given, **named)

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(job_view, "job", noted)
    task = asyncio.create_task(other())
    await read(served, "jobs")
    task.cancel()
    assert (len(folded), len({*folded})) == (3, 3)


@pytest.fixture
async def staffed(served: World) -> World:
    """An agent that runs, one that drains and one that is lost."""
    states = (AgentState.ENABLED, AgentState.DRAINING, AgentState.LOST)
    for number, (agent_id, state) in enumerate(zip(AGENTS, states, strict=True)):
        agent = AgentRecord(
            name=f"mail-{number}",
            agent_id=agent_id,
            state=state,
            host="h",
            version="1",
            labels={"zone": "a"},
            queues=["mail"],
            max_concurrent_jobs=4,
            held=[f"{FLOW}.main.1"],
        )
        await served.projections.put(Bucket.AGENTS, f"mail-{number}.{agent_id}", agent.model_dump_json().encode())
    return served


async def test_workers_are_listed(staffed: World) -> None:
    listed = await read(staffed, "workers?per_page=2")
    assert listed["summary"] == {"total": 3, "running": 1, "quiet": 1, "stale": 1}
    assert listed["pagination"] == {"total": 3, "page": 1, "per_page": 2}
    assert [item["state"] for item in listed["items"]] == ["running", "quiet"]
    [stale] = (await read(staffed, "workers?per_page=2&page=2"))["items"]
    assert stale["id"] == AGENTS[2]
    expected = {
        "id": AGENTS[0],
        "name": "mail-0",
        "kind": "agent",
        "hostname": "h",
        "state": "running",
        "queues": ["mail"],
        "concurrency": 4,
        "active_jobs": 1,
        "version": "1",
        "metadata": {"zone": "a"},
    }
    assert listed["items"][0] == expected
    assert await read(staffed, f"workers/{AGENTS[0]}") == {**expected, "active_executions": [FLOW]}
    await read(staffed, f"workers/{FLOW}", 404)
    assert (await read(staffed, "stats"))["workers"] == 3


async def test_quiet_worker_drains(staffed: World) -> None:
    for number in (0, 2):
        await staffed.log.append(AgentRegistered(name=f"mail-{number}", agent_id=AGENTS[number]), expect=0)
    path = f"{ADMIN}/workers/{AGENTS[0]}/quiet"
    answer = await staffed.ask("POST", path, **{"X-Reason": "deploy"})
    assert (answer.status_code, answer.json()) == (200, {"id": AGENTS[0], "state": "quiet", "changed": True})
    [drain] = [fact.message for fact in await staffed.facts("agent.>") if isinstance(fact.message, AgentDrainStarted)]
    assert isinstance(drain, AgentDrainStarted)
    lost = await staffed.ask("POST", f"{ADMIN}/workers/{AGENTS[2]}/quiet")
    assert (lost.json()["state"], lost.json()["changed"]) == ("stale", False)
    assert (drain.agent_id, drain.reason) == (AGENTS[0], "deploy")
    unknown = await staffed.ask("POST", f"{ADMIN}/workers/{FLOW}/quiet")
    assert unknown.status_code == 404


async def test_only_an_id_quiets_a_worker(staffed: World) -> None:
    await staffed.log.append(AgentRegistered(name="mail-0", agent_id=AGENTS[0]), expect=0)
    assert (await staffed.ask("POST", f"{ADMIN}/workers/mail-0/quiet")).status_code == 404
    assert not any(isinstance(fact.message, AgentDrainStarted) for fact in await staffed.facts("agent.>"))


async def beaten(world: World, worker: str | None) -> str:
    """Return the state that the answer to a heartbeat directs a worker to."""
    body: dict[str, object] = {} if worker is None else {"worker_id": worker}
    answer = await world.ask("POST", "/ojs/v1/workers/heartbeat", body)
    assert answer.status_code == 200, answer.text
    state: str = answer.json()["state"]
    return state


async def test_worker_over_http_is_quieted(staffed: World) -> None:
    id_ = OutsideName("local:anonymous", "fetcher").token
    fetcher = AgentRecord(name="fetcher", agent_id=id_, kind="http", queues=["mail"], state=AgentState.ENABLED)
    await staffed.projections.put(Bucket.AGENTS, f"http.{id_}", fetcher.model_dump_json().encode())
    assert await beaten(staffed, "fetcher") == "running"
    for changed in (True, False):
        answer = await staffed.ask("POST", f"{ADMIN}/workers/{id_}/quiet", **{"X-Reason": "deploy"})
        assert (answer.status_code, answer.json()) == (200, {"id": id_, "state": "quiet", "changed": changed})
    assert [await beaten(staffed, name) for name in ("fetcher", "other", None)] == ["quiet", "running", "running"]
    for verb, state in (("drain", "terminate"), ("disable", "terminate"), ("enable", "running")):
        assert (await staffed.ask("POST", f"/v1/agents/{id_}/{verb}")).status_code == 200
        assert await beaten(staffed, "fetcher") == state


async def test_executor_of_the_queue_is_not_quieted(staffed: World) -> None:
    executor = AgentRecord(name="e1", agent_id="d1ce", kind="mq", queues=["mail"], state=AgentState.ENABLED)
    await staffed.projections.put(Bucket.AGENTS, "mq.d1ce", executor.model_dump_json().encode())
    answer = await staffed.ask("POST", f"{ADMIN}/workers/d1ce/quiet")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")
    assert "tocsin queues pause" in answer.json()["error"]["message"]
