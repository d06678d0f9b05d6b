"""Workflows over HTTP beyond the public suite: each refusal, nesting, results, cancellation and repeated requests."""

import asyncio
from collections.abc import Mapping
from itertools import count
from typing import Any, Final
from uuid import UUID

import httpx
import pytest

from tests.ojs.test_gateway import fetched, told

BASE: Final = "0193a5b0-0000-7000-9000-{:012x}"
_numbers = count(1)


def fresh() -> str:
    """A queue that no other test uses."""
    return f"wf-{next(_numbers)}"


def job(name: str, queue: str = "default", **options: Any) -> dict[str, Any]:  # noqa: ANN401 - options
    return {"type": f"t.{name}", "args": [name], "options": {"queue": queue, **options}}


async def created(client: httpx.AsyncClient, body: Mapping[str, Any], status: int = 201) -> dict[str, Any]:
    answer = await client.post("/ojs/v1/workflows", json=body)
    assert answer.status_code == status, answer.text
    shown: dict[str, Any] = answer.json()["workflow"]
    return shown


async def read(client: httpx.AsyncClient, id: str) -> dict[str, Any]:  # noqa: A002 - the field has this name
    answer = await client.get(f"/ojs/v1/workflows/{id}")
    assert answer.status_code == 200, answer.text
    shown: dict[str, Any] = answer.json()["workflow"]
    return shown


async def until(client: httpx.AsyncClient, id: str, state: str) -> dict[str, Any]:  # noqa: A002 - as above
    """Read a workflow until it has a state."""
    shown: dict[str, Any] = {}
    for _ in range(600):
        if (shown := await read(client, id))["state"] == state:
            return shown
        await asyncio.sleep(0.05)
    raise AssertionError(f"workflow {id} is still {shown['state']}")


async def work(client: httpx.AsyncClient, queue: str, *, fails: tuple[str, ...] = ()) -> dict[str, Any]:
    """Take the next job of a queue, and end it."""
    [task] = await fetched(client, queue)
    if task["type"].removeprefix("t.") in fails:
        error = {"code": "handler_error", "message": f"no {task['type']}", "retryable": False}
        status, answer = await told(client, "nack", job_id=task["id"], error=error)
    else:
        status, answer = await told(client, "ack", job_id=task["id"], result={"by": task["type"]})
    assert status == 200, answer
    return {**task, "answer": answer}


A: Final = {"type": "t.a", "args": []}
DEEP: Final[dict[str, Any]] = {"type": "group", "jobs": [A]}
for _ in range(5):
    DEEP["jobs"] = [{"type": "chain", "steps": [{"type": "group", "jobs": DEEP["jobs"]}]}]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "type"),
        ({"type": "saga", "steps": [A]}, "type"),
        ({"type": "chain"}, "steps"),
        ({"type": "chain", "steps": []}, "steps"),
        ({"type": "chain", "steps": {}}, "steps"),
        ({"type": "group", "steps": [A]}, "jobs"),
        ({"type": "group", "jobs": [A] * 101}, "jobs"),
        ({"type": "batch", "jobs": [A]}, "callbacks"),
        ({"type": "batch", "jobs": [A], "callbacks": {}}, "callbacks"),
        ({"type": "batch", "jobs": [A], "callbacks": {"on_error": A}}, "callbacks"),
        ({"type": "batch", "jobs": [A], "callbacks": {"on_success": A, "on_error": A}}, "callbacks.on_error"),
        ({"type": "batch", "jobs": [A] * 100, "callbacks": {"on_success": A}}, "callbacks.on_success"),
        ({"type": "chain", "steps": [A, {"type": "t.b"}]}, "steps[1].args"),
        ({"type": "chain", "steps": [A, {"type": "T", "args": []}]}, "steps[1].type"),
        ({"type": "chain", "steps": [A, 1]}, "steps[1]"),
        ({"type": "chain", "steps": [{**A, "options": 1}]}, "steps[0].options"),
        (
            {"type": "chain", "steps": [{**A, "options": {"retry": {"max_attempts": -1}}}]},
            "steps[0].retry.max_attempts",
        ),
        ({"type": "chain", "steps": [{**A, "id": BASE.format(1)}]}, "steps[0].id"),
        ({"type": "chain", "steps": [{**A, "scheduled_at": "+PT5S"}]}, "steps[0].scheduled_at"),
        ({"type": "chain", "steps": [{**A, "options": {"unique": {}}}]}, "steps[0].options.unique"),
        ({"type": "chain", "steps": [A], "options": {"expires_at": "+PT5S"}}, "options.expires_at"),
        ({"type": "chain", "steps": [A], "pending": True}, "pending"),
        ({"type": "chain", "steps": [A], "options": {"pending": True}}, "options.pending"),
        ({"type": "group", "jobs": [{"type": "chain", "steps": [A], "pending": True}]}, "jobs[0].pending"),
        ({"type": "chain", "steps": [{**A, "pending": True}]}, "steps[0].pending"),
        ({"type": "chain", "steps": [{**A, "pending": True}], "options": {"pending": False}}, "steps[0].pending"),
        ({"steps": [{**A, "id": "a"}], "pending": True}, "pending"),
        (
            {"type": "chain", "steps": [{**A, "options": {"retry": {"on_exhaustion": "dead_letter"}}}]},
            "steps[0].options.retry.on_exhaustion",
        ),
        ({"type": "chain", "steps": [A], "options": {"retry": {"on_exhaustion": 1}}}, "options.retry.on_exhaustion"),
        ({"type": "chain", "steps": [A], "options": {"retry": {"on_exhaustion": []}}}, "options.retry.on_exhaustion"),
        ({"type": "chain", "steps": [{"type": "group"}]}, "steps[0].jobs"),
        ({"type": "group", "jobs": [{"type": "chain", "steps": [A, {"type": "t.b"}]}]}, "jobs[0].steps[1].args"),
        ({"type": "chain", "steps": [A], "id": "wf_1"}, "id"),
        ({"type": "chain", "steps": [A], "name": "n" * 256}, "name"),
        ({"type": "chain", "steps": [{**A, "meta": {"k": "v" * 9_000}}] * 30}, "meta"),
        ({"type": "chain", "steps": [{**A, "args": ["v" * 60_000]}] * 10}, "steps"),
        ({"steps": [A]}, "steps[0].id"),
        ({"steps": [{**A, "id": "a"}, {**A, "id": "a"}]}, "steps[1].id"),
        ({"steps": [{**A, "id": "a.b"}]}, "steps[0].id"),
        ({"steps": [{**A, "id": "a", "depends_on": "b"}]}, "steps[0].depends_on"),
        ({"steps": [{**A, "id": "a", "depends_on": {}}]}, "steps[0].depends_on"),
        ({"steps": [{**A, "id": "a", "depends_on": ["b"]}]}, "steps"),
        ({"steps": [{**A, "id": "a", "depends_on": ["b"]}, {**A, "id": "b", "depends_on": ["a"]}]}, "steps"),
        ({"steps": [{**A, "id": "a", "options": {"callback_type": "on_end"}}]}, "steps[0].options.callback_type"),
        ({"steps": [{**A, "id": "a"}, {**A, "id": "b", "options": {"callback_type": "on_complete"}}]}, "steps"),
    ],
)
async def test_invalid_workflow_is_answered_with_its_field(
    body: dict[str, Any], field: str, client: httpx.AsyncClient
) -> None:
    answer = await client.post("/ojs/v1/workflows", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "invalid_workflow"), answer.text
    assert error["details"]["errors"][0]["field"] == field
    assert error["details"]["validation_errors"][0]["path"] == f"$.{field}"
    assert "pydantic" not in error["message"]


async def test_nesting_beyond_the_limit_is_refused(client: httpx.AsyncClient) -> None:
    answer = await client.post("/ojs/v1/workflows", json=DEEP)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "invalid_workflow")
    assert "at most 5" in error["message"]


@pytest.mark.parametrize("id", ["0193a5b0-0000-7000-9fff-000000000000", "wf_1", "x.y", "*"])
async def test_unknown_workflow_is_not_found(id: str, client: httpx.AsyncClient) -> None:  # noqa: A002 - as above
    for method in ("GET", "DELETE"):
        answer = await client.request(method, f"/ojs/v1/workflows/{id}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


async def test_job_is_no_workflow(client: httpx.AsyncClient) -> None:
    pushed = (await client.post("/ojs/v1/jobs", json={"type": "t.a", "args": []})).json()["job"]
    assert (await client.get(f"/ojs/v1/workflows/{pushed['id']}")).status_code == 404


async def test_nested_workflow_passes_results_on(client: httpx.AsyncClient) -> None:
    queue = fresh()
    inner = {"type": "group", "id": "wf_inner", "name": "fan", "jobs": [job("b", queue), job("c", queue)]}
    workflow = await created(client, {"type": "chain", "steps": [job("a", queue), inner, job("d", queue)]})
    assert UUID(workflow["id"]).version == 7
    assert [step["state"] for step in workflow["steps"]] == ["pending", "waiting", "waiting"]
    assert [step["job_id"] for step in workflow["steps"] if "job_id" in step] == [f"{workflow['id']}:0", None]
    tasks = [await work(client, queue) for _ in range(4)]
    assert [task["parent_results"] for task in tasks] == [
        [],
        [{"by": "t.a"}],
        [{"by": "t.a"}],
        [{"by": "t.a"}, {"0": {"by": "t.b"}, "1": {"by": "t.c"}}],
    ]
    shown = await until(client, workflow["id"], "completed")
    assert (shown["steps_total"], shown["steps_completed"], shown["metadata"]["job_count"]) == (3, 3, 4)
    fan = shown["steps"][1]
    assert (fan["type"], fan["id"], fan["name"], fan["state"]) == ("group", "wf_inner", "fan", "completed")
    assert [step["result"] for step in fan["jobs"]] == [{"by": "t.b"}, {"by": "t.c"}]


async def test_callbacks_receive_all_results(client: httpx.AsyncClient) -> None:
    queue, after = fresh(), fresh()
    callbacks = {kind: job(kind, after) for kind in ("on_complete", "on_success", "on_failure")}
    body = {"type": "batch", "jobs": [job("a", queue), job("b", queue)], "callbacks": callbacks}
    workflow = await created(client, body)
    for _ in range(2):
        await work(client, queue, fails=("b",))
    called = [await work(client, after) for _ in range(2)]
    assert {task["type"] for task in called} == {"t.on_complete", "t.on_failure"}
    assert [task["parent_results"] for task in called] == [[{"by": "t.a"}, None]] * 2
    shown = await until(client, workflow["id"], "completed")
    assert {kind: step["state"] for kind, step in shown["callbacks"].items()} == {
        "on_complete": "completed",
        "on_success": "cancelled",
        "on_failure": "completed",
    }
    assert shown["metadata"]["failed_job_ids"] == [f"{workflow['id']}:1"]
    [error] = shown["metadata"]["errors"]
    assert (error["code"], error["message"], error["attempt"]) == ("handler_error", "no t.b", 1)


async def test_failed_callback_fails_the_batch(client: httpx.AsyncClient) -> None:
    queue = fresh()
    body = {"type": "batch", "jobs": [job("a", queue)], "callbacks": {"on_success": job("y", queue)}}
    workflow = await created(client, body)
    for _ in range(2):
        await work(client, queue, fails=("y",))
    shown = await until(client, workflow["id"], "failed")
    assert [error["callback"] for error in shown["metadata"]["errors"]] == ["on_success"]


async def test_failed_chain_names_its_step(client: httpx.AsyncClient) -> None:
    queue = fresh()
    workflow = await created(client, {"type": "chain", "steps": [job(name, queue) for name in "abc"]})
    await work(client, queue)
    failed = await work(client, queue, fails=("b",))
    assert failed["answer"]["state"] == "discarded"
    shown = await until(client, workflow["id"], "failed")
    assert [step["state"] for step in shown["steps"]] == ["completed", "failed", "cancelled"]
    assert shown["metadata"]["failed_step_index"] == 1
    assert shown["steps"][0]["result"] == {"by": "t.a"}


async def test_job_that_waits_for_a_retry_is_pending(client: httpx.AsyncClient) -> None:
    queue = fresh()
    first = job("a", queue, retry={"max_attempts": 2, "initial_interval": "PT1H"})
    workflow = await created(client, {"type": "chain", "steps": [first, job("b", queue)]})
    [task] = await fetched(client, queue)
    assert [step["state"] for step in (await read(client, workflow["id"]))["steps"]] == ["active", "waiting"]
    status, answer = await told(client, "nack", job_id=task["id"], error={"code": "x", "message": "y"})
    assert (status, answer["state"]) == (200, "retryable")
    shown = await read(client, workflow["id"])
    assert (shown["state"], [step["state"] for step in shown["steps"]]) == ("running", ["pending", "waiting"])


async def test_job_of_a_workflow_is_an_ordinary_job(client: httpx.AsyncClient) -> None:
    queue = fresh()
    first = {**job("a", queue, tags=["x"], retry={"max_attempts": 2, "initial_interval_ms": 1_000}), "meta": {"k": 1}}
    workflow = await created(client, {"type": "chain", "steps": [first, job("b", queue)]})
    [task] = await fetched(client, queue)
    assert (task["workflow_id"], task["meta"]["k"], task["tags"]) == (workflow["id"], 1, ["x"])
    status, answer = await told(client, "nack", job_id=task["id"], error={"code": "x", "message": "y"})
    assert (status, answer["state"], answer["max_attempts"]) == (200, "retryable", 2)
    assert (await work(client, queue))["id"] == task["id"]
    shown = (await client.get(f"/ojs/v1/jobs/{task['id']}")).json()["job"]
    assert (shown["state"], shown["attempt"], shown["result"]) == ("completed", 2, {"by": "t.a"})
    [second] = await fetched(client, queue)
    shown = (await client.get(f"/ojs/v1/jobs/{second['id']}")).json()["job"]
    assert (shown["type"], shown["state"], shown.get("tags")) == ("t.b", "active", None)


async def test_id_of_a_workflow_is_no_job(client: httpx.AsyncClient) -> None:
    workflow = await created(client, {"type": "chain", "steps": [job("a", fresh())]})
    for id_ in (workflow["id"], f"{workflow['id']}:9"):
        assert (await client.get(f"/ojs/v1/jobs/{id_}")).status_code == 404


async def test_job_of_a_workflow_is_not_cancelled_alone(client: httpx.AsyncClient) -> None:
    workflow = await created(client, {"type": "group", "jobs": [job("a", fresh())]})
    answer = await client.delete(f"/ojs/v1/jobs/{workflow['jobs'][0]['job_id']}")
    assert (answer.status_code, answer.json()["error"]["details"]) == (409, {"workflow_id": workflow["id"]})
    assert (await read(client, workflow["id"]))["state"] == "running"


async def test_cancelled_workflow_keeps_its_results(client: httpx.AsyncClient) -> None:
    queue = fresh()
    workflow = await created(client, {"type": "group", "jobs": [job(name, queue) for name in "abc"]})
    done = await work(client, queue)
    [held] = await fetched(client, queue)
    answer = await client.delete(f"/ojs/v1/workflows/{workflow['id']}")
    shown = answer.json()["workflow"]
    assert (answer.status_code, shown["state"]) == (200, "cancelled")
    assert (shown["steps_cancelled"], shown["steps_already_completed"]) == (2, 1)
    assert "cancelled_at" in shown["metadata"]
    assert (await told(client, "ack", job_id=held["id"]))[0] == 409
    again = await client.delete(f"/ojs/v1/workflows/{workflow['id']}")
    assert (again.status_code, again.json()["error"]["code"]) == (409, "conflict")
    states = {step["job_id"]: step["state"] for step in (await read(client, workflow["id"]))["jobs"]}
    assert states.pop(done["id"]) == "completed"
    assert set(states.values()) == {"cancelled"}


async def test_repeated_request_returns_the_same_workflow(client: httpx.AsyncClient) -> None:
    queue, id_ = fresh(), BASE.format(next(_numbers))
    body = {"type": "chain", "id": id_, "steps": [job("a", queue), job("b", queue)]}
    assert (await created(client, body))["id"] == id_
    await work(client, queue)
    assert (await created(client, body, 200))["steps_completed"] == 1
    for other in ({**body, "steps": body["steps"][:1]}, {**body, "name": "other"}):
        answer = await client.post("/ojs/v1/workflows", json=other)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "duplicate")
    job_ = {"type": "t.a", "args": [], "id": id_}
    assert (await client.post("/ojs/v1/jobs", json=job_)).json()["error"]["code"] == "duplicate"


async def test_concurrent_requests_create_one_workflow(client: httpx.AsyncClient) -> None:
    queue, id_ = fresh(), BASE.format(next(_numbers))
    bodies = [{"type": "group", "id": id_, "jobs": [job("a", queue)], "name": name} for name in ("x", "x", "y", "y")]
    answers = await asyncio.gather(*(client.post("/ojs/v1/workflows", json=body) for body in bodies))
    name = (await read(client, id_))["name"]
    for body, answer in zip(bodies, answers, strict=True):
        assert answer.status_code in ({200, 201} if body["name"] == name else {409})
    await work(client, queue)
    await until(client, id_, "completed")


KEEPS: Final = {"options": {"retry": {"on_exhaustion": "dead_letter"}}}


async def test_retried_chain_continues_at_its_failed_step(client: httpx.AsyncClient) -> None:
    queue = fresh()
    steps = [job(name, queue) for name in "abc"]
    workflow = await created(client, {"type": "chain", "name": "etl", "steps": steps, **KEEPS})
    path = f"/ojs/v1/workflows/{workflow['id']}/retry"
    early = await client.post(path)
    assert (early.status_code, early.json()["error"]["code"]) == (409, "conflict")
    await work(client, queue)
    await work(client, queue, fails=("b",))
    await until(client, workflow["id"], "failed")
    answers = await asyncio.gather(*(client.post(path) for _ in range(4)))
    assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409], [a.text for a in answers]
    [retried] = [answer.json()["workflow"] for answer in answers if answer.is_success]
    assert (retried["retry_of"], retried["name"]) == (workflow["id"], "etl")
    assert [step["state"] for step in retried["steps"]][::2] == ["completed", "waiting"]
    second = await work(client, queue)
    third = await work(client, queue)
    assert (second["type"], second["parent_results"]) == ("t.b", [{"by": "t.a"}])
    assert (third["type"], third["parent_results"]) == ("t.c", [{"by": "t.a"}, {"by": "t.b"}])
    await until(client, retried["id"], "completed")
    assert (await read(client, workflow["id"]))["state"] == "failed"


async def test_retried_batch_calls_back_by_new_outcome(client: httpx.AsyncClient) -> None:
    queue = fresh()
    callbacks = {kind: job(kind.replace("_", "-"), queue) for kind in ("on_failure", "on_success", "on_complete")}
    body = {"type": "batch", "jobs": [job("a", queue), job("b", queue)], "callbacks": callbacks, **KEEPS}
    workflow = await created(client, body)
    for _ in range(4):
        await work(client, queue, fails=("b", "on-complete"))
    await until(client, workflow["id"], "failed")
    answer = await client.post(f"/ojs/v1/workflows/{workflow['id']}/retry")
    assert answer.status_code == 201, answer.text
    retried = answer.json()["workflow"]
    done = [await work(client, queue) for _ in range(3)]
    assert done[0]["type"] == "t.b"
    assert {task["type"] for task in done[1:]} == {"t.on-success", "t.on-complete"}
    shown = await until(client, retried["id"], "completed")
    assert [member["state"] for member in shown["jobs"]] == ["completed", "completed"]


async def test_workflow_without_a_dead_letter_is_not_retried(client: httpx.AsyncClient) -> None:
    queue = fresh()
    workflow = await created(client, {"type": "group", "jobs": [job("a", queue)]})
    await work(client, queue, fails=("a",))
    await until(client, workflow["id"], "failed")
    answer = await client.post(f"/ojs/v1/workflows/{workflow['id']}/retry")
    assert (answer.status_code, "on_exhaustion" in answer.json()["error"]["message"]) == (409, True)


async def test_dead_letter_of_workflow_is_its_failed_job(client: httpx.AsyncClient) -> None:
    queue = fresh()
    workflow = await created(client, {"type": "chain", "steps": [job("a", queue), job("b", queue)], **KEEPS})
    await work(client, queue)
    await work(client, queue, fails=("b",))
    await until(client, workflow["id"], "failed")
    listed = list[dict[str, Any]]()
    async with asyncio.timeout(60):
        while not listed:  # a stage stores it after the failure
            listed = (await client.get("/ojs/v1/dead-letter", params={"queue": queue})).json()["jobs"]
            await asyncio.sleep(0.05)
    assert [(dead["id"], dead["type"]) for dead in listed] == [(f"{workflow['id']}:1", "t.b")]
    answer = await client.post(f"/ojs/v1/dead-letter/{listed[0]['id']}/retry")
    assert (answer.status_code, answer.json()["error"]["details"]["workflow_id"]) == (409, workflow["id"])
    assert (await client.delete(f"/ojs/v1/dead-letter/{listed[0]['id']}")).status_code == 200


async def events_of(client: httpx.AsyncClient, id: str) -> list[dict[str, Any]]:  # noqa: A002 - as above
    """The events of a workflow and its jobs, oldest first."""
    answer = await client.get("/ojs/v1/events", params={"limit": 1_000})
    assert answer.is_success, answer.text
    listed = answer.json()["events"]
    assert len({event["id"] for event in listed}) == len(listed)
    return [event for event in reversed(listed) if event["data"].get("workflow_id") == id]


async def test_pages_of_events_split_no_change(client: httpx.AsyncClient) -> None:
    """The report on the last job of a chain completes the job, its step and the workflow."""
    queue = fresh()
    workflow = await created(client, {"type": "chain", "name": "etl", "steps": [job("a", queue)]})
    await work(client, queue)
    await until(client, workflow["id"], "completed")
    wanted = {event["id"] for event in await events_of(client, workflow["id"])}
    paged, cursor = list[str](), None
    while not wanted <= set(paged):
        query = {"limit": 1} if cursor is None else {"limit": 1, "cursor": cursor}
        page = (await client.get("/ojs/v1/events", params=query)).json()
        paged += [event["id"] for event in page["events"]]
        if (cursor := page["next_cursor"]) is None:
            break
    assert wanted <= set(paged)
    assert len(paged) == len(set(paged))


async def test_events_of_a_chain(client: httpx.AsyncClient) -> None:
    queue = fresh()
    workflow = await created(client, {"type": "chain", "name": "etl", "steps": [job(name, queue) for name in "abc"]})
    await work(client, queue)
    await work(client, queue, fails=("b",))
    await until(client, workflow["id"], "failed")
    events = await events_of(client, workflow["id"])
    assert [event["type"] for event in events if event["type"].startswith("workflow.")] == [
        "workflow.created",
        "workflow.started",
        "workflow.step_completed",
        "workflow.step_failed",
        "workflow.failed",
    ]
    [done] = [event["data"] for event in events if event["type"] == "workflow.step_completed"]
    assert (done["workflow_type"], done["workflow_name"], done["step_index"]) == ("chain", "etl", 0)
    assert (done["step_type"], done["job_id"], done["remaining_steps"]) == ("t.a", f"{workflow['id']}:0", 2)
    jobs = [(event["type"], event["subject"]) for event in events if event["type"].startswith("job.")]
    first, second = f"{workflow['id']}:0", f"{workflow['id']}:1"
    assert jobs == [
        ("job.enqueued", first),
        ("job.started", first),
        ("job.completed", first),
        ("job.enqueued", second),
        ("job.started", second),
        ("job.failed", second),
        ("job.discarded", second),
    ]
    [failed] = [event["data"] for event in events if event["type"] == "workflow.failed"]
    assert (failed["failed_step_id"], failed["failed_step_type"]) == ("1", "t.b")
    assert failed["error"]["code"] == "handler_error"


async def test_events_of_a_batch(client: httpx.AsyncClient) -> None:
    queue = fresh()
    callbacks = {"on_complete": job("x", queue), "on_success": job("y", queue)}
    workflow = await created(client, {"type": "batch", "jobs": [job("a", queue)], "callbacks": callbacks})
    await work(client, queue, fails=("a",))
    await work(client, queue)
    await until(client, workflow["id"], "completed")
    events = [event for event in await events_of(client, workflow["id"]) if event["type"].startswith("workflow.")]
    assert [event["type"].removeprefix("workflow.") for event in events] == [
        *("created", "started", "job_failed", "callback_fired", "completed"),
    ]
    assert [event["data"]["callback"] for event in events if event["type"].endswith("fired")] == ["on_complete"]


async def test_cancelled_workflow_has_an_event(client: httpx.AsyncClient) -> None:
    workflow = await created(client, {"type": "group", "jobs": [job("a", fresh())]})
    await client.delete(f"/ojs/v1/workflows/{workflow['id']}")
    assert (await events_of(client, workflow["id"]))[-1]["type"] == "workflow.cancelled"


async def test_steps_that_name_their_dependencies(client: httpx.AsyncClient) -> None:
    queue = fresh()
    steps = [
        {**job("a", queue), "id": "first", "depends_on": []},
        {"type": "t.b", "args": [], "id": "left", "depends_on": ["first"]},
        {"type": "t.c", "args": [], "id": "right", "depends_on": ["first"]},
        {"type": "t.d", "args": [], "id": "last", "depends_on": ["right", "left"]},
    ]
    workflow = await created(client, {"name": "diamond", "steps": steps, "options": {"queue": queue}})
    assert (workflow["name"], workflow["type"]) == ("diamond", "dag")
    tasks = [await work(client, queue) for _ in range(4)]
    assert tasks[3]["parent_results"] == [{"by": "t.c"}, {"by": "t.b"}]
    shown = await until(client, workflow["id"], "completed")
    assert [(step["id"], step["state"], step["depends_on"]) for step in shown["steps"]] == [
        ("first", "completed", []),
        ("left", "completed", ["first"]),
        ("right", "completed", ["first"]),
        ("last", "completed", ["right", "left"]),
    ]


async def test_steps_with_callbacks_are_a_batch(client: httpx.AsyncClient) -> None:
    queue, after = fresh(), fresh()
    callback = {"depends_on": ["a", "b"], "args": []}
    steps = [
        {**job("a", queue), "id": "a", "depends_on": []},
        {**job("b", queue), "id": "b", "depends_on": []},
        {**callback, "id": "ok", "type": "t.ok", "options": {"callback_type": "on_success", "queue": after}},
        {**callback, "id": "no", "type": "t.no", "options": {"callback_type": "on_failure", "queue": after}},
    ]
    workflow = await created(client, {"name": "batch", "steps": steps})
    assert (workflow["type"], workflow["jobs_total"]) == ("batch", 2)
    for _ in range(2):
        await work(client, queue, fails=("a",))
    assert (await work(client, after))["type"] == "t.no"
    await until(client, workflow["id"], "completed")
