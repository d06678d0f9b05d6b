"""Answers of workers over HTTP beside other writers of the same execution."""

import asyncio
import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import httpx
import pytest

from tests.domain.given import ID, JOB, KEY, NOON, admitted, plan
from tests.http.conftest import World
from tocsin import subjects
from tocsin.adapters.http.ojs import queues
from tocsin.adapters.http.ojs import workers as ojs_workers
from tocsin.domain import execution
from tocsin.domain.access import Role
from tocsin.domain.events import Advanced, Message, Recorded, Released
from tocsin.domain.trace_context import context_in
from tocsin.ports import LogUnavailable
from tocsin.services import queue_decisions
from tocsin.services.jobs.quotas import RegisteredJobs
from tocsin.services.queue_decisions import QueueNames

SCOPE = subjects.execution(JOB, ID)


async def test_lease_is_extended_while_another_step_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = await world.log.append(admitted(plan({"a": (), "b": ()})), expect=0)
    for task in execution.dispatch(execution.fold(await world.log.load(SCOPE)), key=KEY):
        newest = await world.log.append(task, expect=newest)
    fetch = {"queues": ["default"], "count": 2, "worker_id": "w"}
    jobs = (await world.ask("POST", "/ojs/v1/workers/fetch", fetch)).json()["jobs"]
    assert sorted(job["id"] for job in jobs) == [f"{ID}:a", f"{ID}:b"]
    publish = world.log.publish

    async def overtaken(subject: str, message: Message, *, message_id: str) -> int:
        monkeypatch.setattr(world.log, "publish", publish)
        sequence = await publish(subject, message, message_id=message_id)
        end = Advanced(job=JOB, execution_id=ID, step="b", attempt=1)
        await world.log.append(end, expect=await world.log.tail(SCOPE))
        return sequence

    monkeypatch.setattr(world.log, "publish", overtaken)
    beat = {"worker_id": "w", "active_jobs": [f"{ID}:a"]}
    answer = (await world.ask("POST", "/ojs/v1/workers/heartbeat", beat)).json()
    assert (answer["jobs_extended"], answer["jobs_lost"]) == ([f"{ID}:a"], [])


async def test_leases_are_extended_before_decision_is_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease of a worker must not end because an operator's decision cannot be read."""
    newest = await world.log.append(admitted(plan({"a": ()})), expect=0)
    [task] = execution.dispatch(execution.fold(await world.log.load(SCOPE)), key=KEY)
    await world.log.append(task, expect=newest)
    [job] = (await world.ask("POST", "/ojs/v1/workers/fetch", {"queues": ["default"], "worker_id": "w"})).json()["jobs"]
    calls, load, publish = list[str](), world.log.load, world.log.publish

    async def extended(subject: str, message: Message, *, message_id: str) -> int:
        calls.append("extended")
        return await publish(subject, message, message_id=message_id)

    async def loaded(scope: str) -> list[Recorded[Message]]:
        if scope.startswith("agent."):
            calls.append("read")
            raise LogUnavailable("no answer")
        return await load(scope)

    monkeypatch.setattr(world.log, "publish", extended)
    monkeypatch.setattr(world.log, "load", loaded)
    answer = await world.ask("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w", "active_jobs": [job["id"]]})
    assert (answer.status_code, answer.json()["state"]) == (200, "running")
    assert (answer.json()["jobs_extended"], calls) == ([job["id"]], ["extended", "read"])


async def test_heartbeat_with_invalid_lease_is_refused(world: World) -> None:
    beat = {"worker_id": "w", "active_jobs": [f"{ID}:a"], "visibility_timeout_ms": "soon"}
    answer = await world.ask("POST", "/ojs/v1/workers/heartbeat", beat)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "invalid_request")
    assert error["details"]["errors"][0]["field"] == "visibility_timeout_ms"


async def test_heartbeat_of_an_ended_lease_names_the_loss(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease ends while the report of the heartbeat is stored."""
    newest = await world.log.append(admitted(plan({"a": ()})), expect=0)
    [task] = execution.dispatch(execution.fold(await world.log.load(SCOPE)), key=KEY)
    await world.log.append(task, expect=newest)
    [job] = (await world.ask("POST", "/ojs/v1/workers/fetch", {"queues": ["default"], "worker_id": "w"})).json()["jobs"]
    publish = world.log.publish

    async def overtaken(subject: str, message: Message, *, message_id: str) -> int:
        sequence = await publish(subject, message, message_id=message_id)
        [released] = execution.release(execution.fold(await world.log.load(SCOPE)), "a", reason="lease_over")
        await world.log.append(released, expect=await world.log.tail(SCOPE))
        return sequence

    monkeypatch.setattr(world.log, "publish", overtaken)
    beat = {"worker_id": "w", "active_jobs": [job["id"]]}
    answer = (await world.ask("POST", "/ojs/v1/workers/heartbeat", beat)).json()
    assert (answer["jobs_extended"], answer["jobs_lost"]) == ([], [job["id"]])


UNBORN = {"queues": ["defautl", *(f"unborn-{number}" for number in range(99))]}


async def test_empty_polls_search_unborn_queues_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many of them as an answer warns of."""
    await world.given(name="a", queue="reports")
    looked, tails, list_jobs = list[str](), world.log.tails, RegisteredJobs.jobs

    async def tails_of(*scopes: str) -> list[int]:
        looked.append(scopes[0])
        return await tails(*scopes)

    async def listed(registry: RegisteredJobs) -> Any:  # noqa: ANN401 - as of the method
        looked.append("jobs")
        return await list_jobs(registry)

    monkeypatch.setattr(world.log, "tails", tails_of)
    monkeypatch.setattr(RegisteredJobs, "jobs", listed)
    answers = [(await world.ask("POST", "/ojs/v1/workers/fetch", UNBORN)).json() for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]
    assert (answers[0]["jobs"], len(answers[0]["warnings"])) == ([], queues.MAX_WARNINGS)
    assert "Did you mean 'default'?" in answers[0]["warnings"][0]
    searched = [subjects.tasks(name)[0] for name in UNBORN["queues"][: queues.MAX_WARNINGS]]
    assert [subject for subject in looked if subject == "jobs" or "dispatched" in subject] == ["jobs", *searched]


async def test_remembered_names_of_queues_are_limited(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_decisions, "MAX_ABSENT", 3)
    names = QueueNames(world.log, world.registry.jobs, ())
    for number in range(10):
        assert await names.similar_to_absent(f"unborn-{number}") == ()
        assert len(names._absent) <= 3


async def test_new_queue_is_known_after_a_while(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_decisions, "VALID_S", 0)
    names = QueueNames(world.log, world.registry.jobs, ())
    assert await names.similar_to_absent("reports") == ()
    await world.given(name="a", queue="reports")
    assert await names.similar_to_absent("reports") is None
    assert await names.similar_to_absent("repots") == ("reports",)


async def test_empty_fetch_needs_no_names_of_queues(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unavailable(*_: str) -> list[int]:
        raise LogUnavailable("the log does not answer")

    monkeypatch.setattr(world.log, "tails", unavailable)
    answer = await world.ask("POST", "/ojs/v1/workers/fetch", {"queues": ["unborn"]})
    assert (answer.status_code, answer.json()) == (200, {"jobs": []})


async def test_recovered_job_says_so(world: World) -> None:
    """The fields in `meta` are those that `context` has for a handler of the SDK."""
    start = admitted().changed(recovered_at=NOON + timedelta(minutes=7))
    newest = await world.log.append(start, expect=0)
    [task] = execution.dispatch(execution.fold(await world.log.load(SCOPE)), key=KEY)
    await world.log.append(task, expect=newest)
    [job] = (await world.ask("POST", "/ojs/v1/workers/fetch", {"queues": ["default"]})).json()["jobs"]
    recovery = {name: job["meta"][name] for name in ("is_recovery", "original_scheduled_time", "recovery_attempt_time")}
    assert recovery == {
        "is_recovery": True,
        "original_scheduled_time": "2026-11-20T12:00:00Z",
        "recovery_attempt_time": "2026-11-20T12:07:00Z",
    }


@pytest.mark.parametrize("named", [True, False])
async def test_returned_job_stays_with_its_next_worker(
    world: World, monkeypatch: pytest.MonkeyPatch, *, named: bool
) -> None:
    newest = await world.log.append(admitted(), expect=0)
    [task] = execution.dispatch(execution.fold(await world.log.load(SCOPE)), key=KEY)
    await world.log.append(task, expect=newest)
    fetch: dict[str, object] = {"queues": ["default"], **({"worker_id": "late"} if named else {})}
    [_] = (await world.ask("POST", "/ojs/v1/workers/fetch", fetch)).json()["jobs"]
    append = world.log.append

    async def overtaken(fact: Message, *, expect: int) -> int:
        """The lease ends first, and another worker takes the job."""
        monkeypatch.setattr(world.log, "append", append)
        newest = await append(fact, expect=expect)
        state = execution.fold(await world.log.load(SCOPE))
        [again] = execution.dispatch_missing(state, at=world.clock.now(), key=KEY)
        await append(again, expect=newest)
        [_] = (await world.ask("POST", "/ojs/v1/workers/fetch", {**fetch, "worker_id": "next"})).json()["jobs"]
        return await append(fact, expect=expect)

    monkeypatch.setattr(world.log, "append", overtaken)
    nack = {**({"worker_id": "late"} if named else {}), "job_id": ID, "requeue": True}
    answer = await world.ask("POST", "/ojs/v1/workers/nack", nack)
    assert answer.status_code == 409, answer.text
    assert len([fact for fact in await world.facts("execution.>") if isinstance(fact.message, Released)]) == 1


async def test_job_returns_if_its_answer_fails(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = await world.log.append(admitted(), expect=0)
    [task] = execution.dispatch(execution.fold(await world.log.load(SCOPE)), key=KEY)
    await world.log.append(task, expect=newest)

    async def lost(*_: object) -> None:
        raise LogUnavailable("the connection is lost")

    fetch = {"queues": ["default"], "visibility_timeout_ms": 3_600_000}
    with monkeypatch.context() as patched:
        patched.setattr(ojs_workers, "_last_checkpoint", lost)
        assert (await world.ask("POST", "/ojs/v1/workers/fetch", fetch)).status_code == 503
    released: list[Recorded[Message]] = []
    for _ in range(50):
        if released := [fact for fact in await world.facts("execution.>") if isinstance(fact.message, Released)]:
            break
        await asyncio.sleep(0.01)
    assert [getattr(fact.message, "reason", None) for fact in released] == ["handed_back"]


async def test_job_returns_if_its_client_has_left(world: World) -> None:
    newest = await world.log.append(admitted(), expect=0)
    [task] = execution.dispatch(execution.fold(await world.log.load(SCOPE)), key=KEY)
    await world.log.append(task, expect=newest)
    transport, sent = world.client._transport, list[str]()
    assert isinstance(transport, httpx.ASGITransport)
    body = json.dumps({"queues": ["default"], "visibility_timeout_ms": 3_600_000}).encode()
    request = world.client.build_request("POST", "/ojs/v1/workers/fetch", content=body)
    scope = {
        "type": "http",
        "method": "POST",
        "path": request.url.path,
        "query_string": b"",
        "client": transport.client,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
    }
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> dict[str, Any]:
        return next(messages, {"type": "http.disconnect"})

    async def send(message: Any) -> None:  # noqa: ANN401 - of an ASGI application
        sent.append(message["type"])

    await transport.app(scope, receive, send)
    assert sent == []
    for _ in range(50):
        if await world.facts("execution.*.*.released.>"):
            break
        await asyncio.sleep(0.01)
    [released] = await world.facts("execution.*.*.released.>")
    assert getattr(released.message, "reason", None) == "handed_back"


@dataclass
class Workers:
    """Two workers with tokens of their own, and a task that the first of them holds as `one`."""

    world: World
    tokens: dict[str, str]

    async def answer(self, identity: str, verb: str, **body: object) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.tokens[identity]}"}
        if verb == "heartbeat":
            return await self.world.ask("POST", f"/ojs/v1/workers/{verb}", {"active_jobs": [ID], **body}, **headers)
        return await self.world.ask("POST", f"/ojs/v1/workers/{verb}", {"job_id": ID, **body}, **headers)


@pytest.fixture
async def workers(world: World) -> Workers:
    newest = await world.log.append(admitted(), expect=0)
    [task] = execution.dispatch(execution.fold(await world.log.load(SCOPE)), key=KEY)
    await world.log.append(task, expect=newest)
    it = Workers(world, {name: await world.token(name, Role.ADMIN) for name in ("first", "second")})
    fetched = await it.answer("first", "fetch", queues=["default"], worker_id="one")
    assert [job["id"] for job in fetched.json()["jobs"]] == [ID]
    return it


ANSWERS: Final[dict[str, tuple[str, dict[str, object]]]] = {
    "ack": ("ack", {"result": "forged"}),
    "nack": ("nack", {"error": {"code": "x", "message": ""}}),
    "requeue": ("nack", {"requeue": True}),
    "heartbeat": ("heartbeat", {}),
}


@pytest.mark.parametrize("worker", [{}, {"worker_id": "one"}, {"worker_id": "two"}], ids=["unnamed", "same", "other"])
@pytest.mark.parametrize("kind", ANSWERS)
async def test_other_identity_cannot_answer_for_a_held_task(
    workers: Workers, kind: str, worker: dict[str, object]
) -> None:
    verb, body = ANSWERS[kind]
    before = await workers.world.facts("*.>")
    answer = await workers.answer("second", verb, **body, **worker)
    if kind == "heartbeat":
        assert (answer.json()["jobs_extended"], answer.json()["jobs_lost"]) == ([], [ID])
    else:
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")
        assert "'one'" not in answer.text  # the name of a worker would help to forge the next answer
    assert await workers.world.facts("*.>") == before


@pytest.mark.parametrize(
    ("kind", "worker"),
    [
        *((kind, {"worker_id": "two"}) for kind in ANSWERS),
        ("requeue", {}),
        ("heartbeat", {}),
    ],
)
async def test_other_worker_of_the_same_identity_cannot_answer(
    workers: Workers, kind: str, worker: dict[str, object]
) -> None:
    verb, body = ANSWERS[kind]
    before = await workers.world.facts("*.>")
    answer = await workers.answer("first", verb, **body, **worker)
    if kind == "heartbeat":
        assert (answer.json()["jobs_extended"], answer.json()["jobs_lost"]) == ([], [ID])
    else:
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")
    assert await workers.world.facts("*.>") == before


async def test_held_task_runs_once_after_a_foreign_requeue(workers: Workers) -> None:
    assert (await workers.answer("second", "nack", requeue=True)).status_code == 409
    fetched = await workers.answer("second", "fetch", queues=["default"], worker_id="two")
    assert fetched.json()["jobs"] == []
    assert (await workers.answer("first", "heartbeat", worker_id="one")).json()["jobs_extended"] == [ID]
    returned = await workers.answer("first", "nack", worker_id="one", requeue=True)
    assert returned.status_code == 200, returned.text


async def test_fetched_job_names_its_trace(world: World) -> None:
    """In `meta` too, where a client of the specification reads it, unless the sender wrote its own there."""
    given = f"00-{'a' * 32}-{'b' * 16}-01"
    start = admitted().changed(traceparent=given)
    newest = await world.log.append(start, expect=0)
    [task] = execution.dispatch(execution.fold(await world.log.load(SCOPE)), key=KEY)
    await world.log.append(task, expect=newest)
    [job] = (await world.ask("POST", "/ojs/v1/workers/fetch", {"queues": ["default"]})).json()["jobs"]
    expected = context_in(ID, given, "process", task.step, 1, 1)
    assert expected is not None
    assert job["traceparent"] == job["meta"]["traceparent"] == expected.traceparent
