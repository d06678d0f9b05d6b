"""Several jobs in one request: what is stored, also if a copy of the API dies."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from tests.domain.given import ID, JOB, NOON, admitted, first_tasks, plan, started
from tests.domain.test_workflow import BOOM
from tests.http.conftest import LOCAL, World
from tests.services.test_event_waiter import WatchedLog, hearing
from tests.stages.test_unique_keys import request
from tocsin import subjects
from tocsin.adapters.http.api.app import api
from tocsin.adapters.http.auth.authentication import Authentication
from tocsin.adapters.http.auth.tokens import Tokens
from tocsin.adapters.http.middleware.idempotency import Answer
from tocsin.adapters.http.ojs import batches, job_filter, job_view, jobs
from tocsin.domain import execution_plan
from tocsin.domain.access import Principal, Role
from tocsin.domain.events import Cancelled, Enqueued, Message, Recorded, RetryScheduled
from tocsin.ports import LogUnavailable, Publish
from tocsin.services.operations import event_waiter
from tocsin.services.operations.event_waiter import EventWaiter
from tocsin.subjects import Bucket, Stream
from tocsin.testing import settle

JOBS = [{"type": "mail.send", "args": [number]} for number in range(3)]


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No planner runs here."""
    monkeypatch.setattr(event_waiter, "POLL_PAUSES_S", ())
    monkeypatch.setattr(event_waiter, "FALLBACK_PAUSES_S", ())


async def bulk(world: World, path: str = "bulk", **body: Any) -> Any:  # noqa: ANN401 - JSON
    answer = await world.ask("POST", f"/ojs/v1/jobs/{path}", {"jobs": JOBS, **body})
    return answer.json()


async def requests(world: World) -> list[Recorded[Enqueued]]:
    return await world.facts("enqueue.>")  # type: ignore[return-value] # only such are there


@pytest.mark.parametrize("body", [{}, {"atomicity": "atomic"}])
async def test_jobs_are_stored_in_their_order(world: World, body: dict[str, Any]) -> None:
    answer = await bulk(world, **body)
    assert [fact.message.definition.args for fact in await requests(world)] == [(0,), (1,), (2,)]
    assert [item["job"]["id"] for item in answer["items"]] == [f.message.execution_id for f in await requests(world)]


async def test_atomic_batch_with_an_invalid_job_stores_nothing(world: World) -> None:
    answer = await world.ask("POST", "/ojs/v1/jobs/bulk", {"jobs": [*JOBS, {"type": ""}], "atomicity": "atomic"})
    assert (answer.status_code, answer.json()["failed"], await requests(world)) == (422, 4, [])


@pytest.mark.parametrize("path", ["batch", "bulk"])
async def test_nothing_is_stored_if_the_log_refuses(world: World, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    async def refuse(_: list[Publish]) -> None:
        raise LogUnavailable("full")

    monkeypatch.setattr(world.log, "publish_together", refuse)
    answer = await world.ask("POST", f"/ojs/v1/jobs/{path}", {"jobs": JOBS})
    assert (answer.status_code, answer.headers["Retry-After"], await requests(world)) == (503, "1", [])
    assert answer.json()["error"]["retryable"] is True


@pytest.mark.parametrize("is_planned", [True, False])
async def test_jobs_of_a_dead_copy_are_not_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch, *, is_planned: bool
) -> None:
    """The jobs are stored without an answer, and the log's duplicate window has passed."""
    store = world.log.publish_together

    async def store_and_die(inputs: list[Publish]) -> None:
        await store(inputs)
        raise LogUnavailable("the copy dies here")

    with monkeypatch.context() as patch:
        patch.setattr(world.log, "publish_together", store_and_die)
        assert (await bulk(world, idempotency_key="k"))["error"]["code"] == "backend_error"
    if is_planned:
        for fact in await requests(world):
            await world.log.append(execution_plan.from_enqueued(fact), expect=0)
    world.clock.advance(timedelta(hours=1).total_seconds())
    first = await bulk(world, idempotency_key="k")
    assert await bulk(world, idempotency_key="k") == first
    assert (first["total"], first["succeeded"]) == (3, 3)
    stored = [fact.message.execution_id for fact in await requests(world)]
    assert [item["job"]["id"] for item in first["items"]] == stored[:3] == (stored[3:] or stored[:3])
    assert is_planned == (len(stored) == 3)


async def test_taken_ids_of_others_are_not_shown(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is tried again finds only what its own caller enqueued."""
    id_ = "01932e34-7c8a-7d4a-9f3b-1a2b3c4d5e70"
    await world.ask("POST", "/ojs/v1/jobs", {"type": "secret.work", "args": [], "id": id_})
    [fact] = await requests(world)
    owned = execution_plan.from_enqueued(fact)
    await world.log.append(owned.changed(by=owned.by and owned.by.changed(identity="x")), expect=0)

    jobs = [{**JOBS[0], "id": id_}, JOBS[1]]
    with monkeypatch.context() as patch:
        patch.setattr("tocsin.services.operations.execution_requests.taken", die_of_taken)
        await bulk(world, jobs=jobs, idempotency_key="k")
    world.clock.advance(timedelta(hours=1).total_seconds())
    again = await bulk(world, jobs=jobs, idempotency_key="k")
    assert [item["status"] for item in again["items"]] == ["failed", "created"]
    assert "secret" not in str(again)


async def die_of_taken(*_: object, **__: object) -> list[int]:
    raise LogUnavailable("the copy dies here")


@pytest.mark.parametrize("path", ["batch", "bulk"])
async def test_too_many_jobs_are_refused(world: World, path: str) -> None:
    answer = await world.ask("POST", f"/ojs/v1/jobs/{path}", {"jobs": [{}] * (batches.MAX_BATCH + 1)})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (413, "batch_size_exceeded")
    assert error["details"]["max_batch_size"] == 1_000
    assert answer.headers["X-OJS-Max-Batch-Size"] == "1000"


async def test_answer_that_is_too_large_is_made_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.adapters.http.middleware.idempotency.MAX_ANSWER_BYTES", 10)
    first, second = [await bulk(world, idempotency_key="k") for _ in range(2)]
    assert [item["job"]["id"] for item in first["items"]] == [item["job"]["id"] for item in second["items"]]
    assert len(await world.log.read("enqueue.>")) == 3
    assert subjects.matches("enqueue.>", (await requests(world))[0].subject)


UNIQUE = [{"type": "mail.send", "args": [number], "options": {"unique": {"keys": ["args"]}}} for number in range(6)]


@pytest.mark.parametrize("decided", [0, 1, 6])
async def test_undecided_jobs_are_not_failed(world: World, monkeypatch: pytest.MonkeyPatch, decided: int) -> None:
    """A planner that is busy decides on one of them at each look, and stops after some."""
    monkeypatch.setattr(event_waiter, "POLL_PAUSES_S", (0,))
    monkeypatch.setattr(event_waiter, "FALLBACK_PAUSES_S", (0,))
    load_each, left = world.log.load_each, iter(range(decided))

    async def looked(*scopes: str) -> Any:  # noqa: ANN401 - as of the method
        if (number := next(left, None)) is not None:
            await world.log.append(execution_plan.from_enqueued((await requests(world))[number]), expect=0)
        return await load_each(*scopes)

    monkeypatch.setattr(world.log, "load_each", looked)
    answer = await world.ask("POST", "/ojs/v1/jobs/bulk", {"jobs": UNIQUE})
    body, stored = answer.json(), [fact.message.execution_id for fact in await requests(world)]
    open_ = 6 - decided
    assert (answer.status_code, body["succeeded"], body["failed"]) == (207 if open_ else 201, decided, 0)
    assert (body.get("undecided", 0), [item["job"]["id"] for item in body["items"]]) == (open_, stored)
    assert [item["status"] for item in body["items"]] == ["created"] * decided + ["undecided"] * open_


async def test_decisions_on_unique_jobs_are_received(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_waiter, "FALLBACK_PAUSES_S", (30.0,))
    log = WatchedLog()
    wishes = [request(str(number)) for number in range(3)]
    async with aclosing(EventWaiter(log)) as arrivals:
        await hearing(arrivals)
        here: Any = SimpleNamespace(log=log, arrivals=arrivals)
        decided = asyncio.create_task(jobs._decided(here, wishes, [()] * 3))
        await settle()
        for number, each in enumerate(wishes, 1):
            stored = Recorded(each, subjects.subject_of(each), number, NOON)
            await log.append(execution_plan.from_enqueued(stored), expect=0)
        facts = await decided
    received = [[subjects.scope_of(fact.message) for fact in each] for each in facts]
    assert received == [[subjects.execution(each.definition.name, each.execution_id)] for each in wishes]
    assert log.looks == 0


async def test_repeated_request_learns_what_was_decided(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_waiter, "POLL_PAUSES_S", (0,))
    monkeypatch.setattr(event_waiter, "FALLBACK_PAUSES_S", (0,))
    first = await bulk(world, jobs=UNIQUE, idempotency_key="k")
    assert (first["error"]["code"], first["error"]["retryable"]) == ("backend_error", True)
    for fact in await requests(world):
        await world.log.append(execution_plan.from_enqueued(fact), expect=0)
    [claim] = (await world.projections.entries(Bucket.ANSWERS)).values()
    assert Answer.model_validate_json(claim).is_left_out  # so the next request does not wait
    again = await bulk(world, jobs=UNIQUE, idempotency_key="k")
    assert ([item["status"] for item in again["items"]], len(await requests(world))) == (["created"] * 6, 6)


CHAIN = {"type": "chain", "steps": [JOBS[0]]}


@pytest.mark.parametrize(("path", "body"), [("jobs", JOBS[0]), ("workflows", CHAIN)], ids=["job", "workflow"])
@pytest.mark.parametrize("dies", [True, False])
async def test_key_of_one_job_or_workflow_enqueues_once(
    world: World, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], *, dies: bool
) -> None:
    """Also if the copy dies after it stored the request, and of a caller that may bring no id."""
    token = await world.token("shop", Role.OPERATOR, namespaces=("shop",))
    headers = {"Authorization": f"Bearer {token}", "Idempotency_Key": "k"}
    body = {**body, "options": {"queue": "shop.mail"}}
    publish = world.log.publish

    async def store_and_die(*given: Any, **named: Any) -> int:  # noqa: ANN401 - as of the method
        await publish(*given, **named)
        raise LogUnavailable("the copy dies here")

    with monkeypatch.context() as patch:
        if dies:
            patch.setattr(world.log, "publish", store_and_die)
        first = await world.ask("POST", f"/ojs/v1/{path}", body, **headers)
    assert first.status_code == (503 if dies else 201), first.text
    [fact] = await requests(world)
    await world.log.append(execution_plan.from_enqueued(fact), expect=0)
    world.clock.advance(timedelta(hours=1).total_seconds())
    again = await world.ask("POST", f"/ojs/v1/{path}", body, **headers)
    shown = again.json()[path[:-1]]
    assert (again.is_success, shown["id"], len(await requests(world))) == (True, fact.message.execution_id, 1)
    assert dies or again.json() == first.json()


async def given_jobs(world: World, *jobs: str) -> list[str]:
    """Store jobs that wait, also in the history, and return their ids."""
    for number, job in enumerate(jobs):
        named = {"job": job, "execution_id": f"0193a5b0-0000-7000-8000-{number:012}"}
        admission = admitted(plan().changed(definition=0)).changed(**named)
        for fact in (admission, *(task.changed(**named) for task in first_tasks(admission))):
            await world.log.append(fact, expect=await world.log.tail(subjects.scope_of(fact)))
    await recorded(world)
    return [f"0193a5b0-0000-7000-8000-{number:012}" for number in range(len(jobs))]


async def recorded(world: World) -> None:
    """Bring the history up to date."""
    known = await world.history.offset(Stream.LOG)
    facts = await world.log.read("execution.>", after=known)
    await world.history.record(Stream.LOG, facts, after=known, upto=facts[-1].sequence)


async def filtered(world: World, token: str, **body: Any) -> tuple[int, Any]:  # noqa: ANN401 - JSON
    given = {"filter": {"queue": "default"}, **body}
    answer = await world.ask("POST", "/ojs/v1/jobs/bulk/cancel", given, Authorization=f"Bearer {token}")
    return answer.status_code, answer.json()


async def test_filter_selects_no_jobs_of_others(world: World) -> None:
    ids = await given_jobs(world, "shop.a", "billing.a", "shop.b", "billing.b")
    token = await world.token("shop", Role.OPERATOR, namespaces=("shop",))
    _, answer = await filtered(world, token)
    assert [item["job_id"] for item in answer["items"]] == [ids[0], ids[2]]
    assert (answer["total_matched"], answer["next_cursor"]) == (2, None)


@pytest.mark.parametrize("bound", [{"MAX_SEARCHED": 2}, {"MAX_SECONDS": 0}])
async def test_cursor_continues_a_bounded_search(
    world: World, monkeypatch: pytest.MonkeyPatch, bound: dict[str, int]
) -> None:
    for name, value in {"PAGE_SIZE": 2, **bound}.items():
        monkeypatch.setattr(job_filter, name, value)
    ids = await given_jobs(world, *["shop.a"] * 5)
    token = await world.token("shop", Role.OPERATOR, namespaces=("shop",))
    found, body, answers = list[str](), dict[str, str](), 0
    while True:
        _, answer = await filtered(world, token, **body)
        answers += 1
        assert len(answer["items"]) <= 2
        found += [item["job_id"] for item in answer["items"]]
        if answer["next_cursor"] is None:
            break
        body = {"cursor": answer["next_cursor"]}
        await recorded(world)  # the cancelled jobs leave the list
    assert (sorted(found), answers) == (ids, 4)  # the last page is that of running executions


async def test_filter_skips_jobs_that_are_unreadable(world: World) -> None:
    """A later version may have stored an event of a new layout."""
    first, broken, last = await given_jobs(world, "shop.a", "shop.a", "shop.a")
    subject = f"execution.shop_a.{broken}.cancelled"
    sequence = world.log.receive(subject, b"{}")
    await world.history.record(Stream.LOG, [], after=await world.history.offset(Stream.LOG), upto=sequence)
    answer = await world.ask("POST", "/ojs/v1/jobs/bulk/cancel", {"filter": {"queue": "default"}})
    assert (answer.status_code, [item["job_id"] for item in answer.json()["items"]]) == (200, [first, last])


async def test_search_lets_other_requests_go_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = await given_jobs(world, *["shop.a"] * 40)
    turns, loading, at_once = 0, 0, 0
    folded: list[int] = []
    view, load = job_view.job, world.log.load

    def noted(facts: job_view.Facts, **named: Any) -> Any:  # noqa: ANN401 - as of the function
        folded.append(turns)
        return view(facts, **named)

    async def counted(scope: str) -> Any:  # noqa: ANN401 - as of the method
        nonlocal loading, at_once
        loading += 1
        at_once = max(at_once, loading)
        await asyncio.sleep(0)
        loading -= 1
        return await load(scope)

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(job_view, "job", noted)
    monkeypatch.setattr(world.log, "load", counted)
    here, caller = world.parts(), Principal("shop", frozenset({Role.OPERATOR}))
    task = asyncio.create_task(other())
    chosen = job_filter.read({"queue": "default"}, job_filter.CANCELLABLE, ("available", "scheduled"))
    selection = await job_filter.cancellable(here, caller, chosen, None)
    task.cancel()
    assert (selection.ids, len(folded)) == (ids, 40)
    assert max(folded.count(turn) for turn in folded) <= job_filter.PAGE_SIZE
    assert at_once <= job_filter.PAGE_SIZE


async def test_filters_of_two_teams_take_turns(world: World) -> None:
    ids = await given_jobs(world, "shop.a", "billing.a")
    parts = world.parts()
    authentication = Authentication(Tokens(parts.projections, parts.clock), None, parts.clock)
    app = api(parts, authentication, world.rate)

    async def ask(team: str) -> list[str]:
        headers = {"Authorization": f"Bearer {await world.token(team, Role.OPERATOR, namespaces=(team,))}"}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=LOCAL) as client:
            body = {"filter": {"queue": "default"}}
            answer = await client.post("/ojs/v1/jobs/bulk/cancel", json=body, headers=headers)
        return [item["job_id"] for item in answer.json()["items"]]

    async with parts.job_searches.turn("@shop"):
        waiting = asyncio.create_task(ask("shop"))
        assert await ask("billing") == [ids[1]]
        await recorded(world)
        assert not waiting.done()
    assert await waiting == [ids[0]]


WAITING = ("available", "scheduled")
BEFORE_RETRY = (
    started(),
    RetryScheduled(job=JOB, execution_id=ID, step="main", attempt=1, error=BOOM, delay=9, next_attempt_at=NOON),
)


@pytest.mark.parametrize(
    ("states", "meanwhile", "left"),
    [
        (WAITING, [(started(),)], "active"),
        (WAITING, [BEFORE_RETRY], "retryable"),
        (("available", "retryable"), [BEFORE_RETRY, (started(attempt=2),)], "active"),
    ],
)
async def test_filter_cancels_no_job_that_started_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch, states: Sequence[str], meanwhile: list[Sequence[Message]], left: str
) -> None:
    """Other events come between the decision of each try and its event."""
    [id_] = await given_jobs(world, "shop.a")
    append, others = world.log.append, iter(meanwhile)

    async def late(fact: Message, *, expect: int) -> int:
        for other in next(others, ()) if isinstance(fact, Cancelled) else ():
            named = other.changed(job="shop.a", execution_id=id_)
            await append(named, expect=await world.log.tail(subjects.scope_of(named)))
        return await append(fact, expect=expect)

    monkeypatch.setattr(world.log, "append", late)
    token = await world.token("shop", Role.OPERATOR, namespaces=("shop",))
    status, answer = await filtered(world, token, filter={"queue": "default", "state": [*states]})
    [item] = answer["items"]
    assert (status, item["status"], item["error"]["code"]) == (422, "skipped", "conflict")
    assert item["reason"] == f"job {id_} cannot be cancelled: it is {left}"
    assert not any(isinstance(fact.message, Cancelled) for fact in await world.facts("execution.>"))
    assert list(others) == []


async def test_filter_waits_for_the_history(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_filter, "CATCH_UP_PAUSES_S", (0,))
    await given_jobs(world, "shop.a")
    late = admitted().changed(job="shop.a", execution_id="0193a5b0-0000-7000-8000-0000000000ff")
    await world.log.append(late, expect=0)
    token = await world.token("shop", Role.OPERATOR, namespaces=("shop",))
    assert (await filtered(world, token))[0] == 503


LARGE = {"type": "mail.send", "args": [], "meta": {"body": "x" * 300_000}}
"""A valid definition, and more than a stream of inputs accepts in one message."""


@pytest.mark.parametrize("body", [LARGE, {"type": "group", "jobs": [{"type": "a.b", "args": ["x" * 60_000]}] * 5}])
async def test_request_that_is_too_large_is_refused(world: World, body: dict[str, Any]) -> None:
    answer = await world.ask("POST", "/ojs/v1/workflows" if "jobs" in body else "/ojs/v1/jobs", body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "envelope_too_large")
    assert await requests(world) == []


async def test_job_that_is_too_large_affects_no_other(world: World) -> None:
    answer = await world.ask("POST", "/ojs/v1/jobs/bulk", {"jobs": [LARGE, *JOBS]})
    first, *others = answer.json()["items"]
    assert (answer.status_code, first["error"]["code"], first["error"]["retryable"]) == (
        207,
        "envelope_too_large",
        False,
    )
    assert [item["status"] for item in others] == ["created"] * 3
    assert len(await requests(world)) == 3


@pytest.mark.parametrize("body", [{"atomicity": "atomic"}, {}])
async def test_batch_with_a_job_too_large_stores_nothing(world: World, body: dict[str, Any]) -> None:
    answer = await world.ask("POST", f"/ojs/v1/jobs/{'bulk' if body else 'batch'}", {"jobs": [*JOBS, LARGE], **body})
    assert answer.status_code == (422 if body else 413)
    assert await requests(world) == []
