"""The gateway beyond the public suite: every refusal, and the owner of each job."""

import asyncio
import json
from itertools import count
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import httpx
import pytest

from tests.cli.test_acceptance import program
from tests.ojs.served import PATIENCE, Server

ID: Final = "0193a5b0-0000-7000-8000-{:012x}"
_numbers = count(1)


def fresh() -> str:
    """A queue that no other test uses."""
    return f"q{next(_numbers)}"


async def pushed(client: httpx.AsyncClient, queue: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - fields
    options = {"queue": queue, **more.pop("options", {})}
    answer = await client.post("/ojs/v1/jobs", json={"type": "mail.send", "args": [1], "options": options, **more})
    assert answer.status_code == 201, answer.text
    job: dict[str, Any] = answer.json()["job"]
    return job


async def fetched(client: httpx.AsyncClient, *queues: str, **more: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - fields
    answer = await client.post("/ojs/v1/workers/fetch", json={"queues": queues, "wait_ms": 10_000, **more})
    assert answer.status_code == 200, answer.text
    jobs: list[dict[str, Any]] = answer.json()["jobs"]
    return jobs


async def told(client: httpx.AsyncClient, verb: str, **body: Any) -> tuple[int, dict[str, Any]]:  # noqa: ANN401 - fields
    answer = await client.post(f"/ojs/v1/workers/{verb}", json=body)
    return answer.status_code, answer.json()


def refusal(status: int, answer: dict[str, Any]) -> tuple[int, str, list[str]]:
    """The status, the code and the invalid fields of an answer."""
    error = answer["error"]
    return status, error["code"], [wrong["field"] for wrong in error["details"]["errors"]]


INVALID: Final[list[tuple[dict[str, Any], str]]] = [
    ({"type": 1}, "type"),
    ({"args": None}, "args"),
    ({"id": "1"}, "id"),
    ({"options": []}, "options"),
    ({"options": {"queue": "-a"}}, "options.queue"),
    ({"options": {"visibility_timeout_ms": 1e300}}, "options.visibility_timeout_ms"),
    ({"timeout_ms": 10**400}, "timeout_ms"),
    ({"scheduled_at": "2026-11-20T10:00:00"}, "scheduled_at"),
]
"""Each way to answer; `tests/ojs/test_envelope.py` has an example of every rule."""


@pytest.mark.parametrize(("change", "field"), INVALID)
async def test_invalid_envelope_is_answered_with_its_field(
    change: dict[str, Any], field: str, client: httpx.AsyncClient
) -> None:
    answer = await client.post("/ojs/v1/jobs", json={"type": "mail.send", "args": [], **change})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["retryable"]) == (400, "invalid_request", False)
    assert error["message"].startswith(f"`{field}` is ")
    assert error["details"]["errors"][0]["field"] == field


@pytest.mark.parametrize(
    ("policy", "field"),
    [("no", "retry"), ({"max_attempts": -1}, "retry.max_attempts"), ({"jitter": 0.1}, "retry.jitter")],
)
async def test_invalid_retry_policy_is_422(policy: Any, field: str, client: httpx.AsyncClient) -> None:  # noqa: ANN401
    answer = await client.post("/ojs/v1/jobs", json={"type": "a", "args": [], "options": {"retry": policy}})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == (422, "invalid_request", "validation_error")
    assert error["details"]["errors"][0]["field"].removeprefix("options.") == field


@pytest.mark.parametrize(
    ("content", "fragment"),
    [(b"", "JSON"), (b"[1]", "object"), (b'{"args": [NaN]}', "NaN"), (b"\xff", "0xff")],
)
async def test_a_body_that_is_no_object(content: bytes, fragment: str, client: httpx.AsyncClient) -> None:
    answer = await client.post("/ojs/v1/jobs", content=content, headers={"Content-Type": "application/json"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "invalid_payload")
    assert fragment in error["message"]


async def test_an_id_is_used_once(client: httpx.AsyncClient) -> None:
    one, other = ID.format(1), ID.format(2)
    await pushed(client, fresh(), id=one)
    again = await client.post("/ojs/v1/jobs", json={"id": one, "type": "other", "args": []})
    assert (again.status_code, again.json()["error"]["code"]) == (409, "duplicate")
    assert one in again.json()["error"]["message"]
    for batch in ([other, one], [other, other]):
        jobs = [{"id": id_, "type": "a", "args": []} for id_ in batch]
        assert (await client.post("/ojs/v1/jobs/batch", json={"jobs": jobs})).status_code == 409
        assert (await client.get(f"/ojs/v1/jobs/{other}")).status_code == 404


async def test_batch_is_stored_whole_or_not_at_all(client: httpx.AsyncClient) -> None:
    queue = fresh()
    job = {"type": "a", "args": [], "options": {"queue": queue}}
    answer = await client.post("/ojs/v1/jobs/batch", json={"jobs": [job, {**job, "args": 1}]})
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["details"]["errors"][0]["field"] == "jobs[1].args"
    refused: tuple[Any, ...] = ([], [job] * 1_001, {})
    for jobs in refused:
        answer = await client.post("/ojs/v1/jobs/batch", json={"jobs": jobs})
        assert [error["field"] for error in answer.json()["error"]["details"]["errors"]] == ["jobs"]
    answer = await client.post("/ojs/v1/jobs/batch", json={"jobs": [{**job, "args": [n]} for n in range(70)]})
    assert (answer.status_code, answer.json()["count"]) == (201, 70)
    taken: list[Any] = []
    while len(taken) < 70:
        taken += [job["args"][0] for job in await fetched(client, queue, count=100)]
    assert sorted(taken) == list(range(70))


async def test_an_unknown_job_is_404(client: httpx.AsyncClient) -> None:
    unknown, no_id = (404, "not_found"), (400, "invalid_request")
    for id_, right in ((ID.format(0xFFFF), unknown), ("no-such-job", unknown), ("n*", no_id), ("a.b", no_id)):
        for answer in (await client.get(f"/ojs/v1/jobs/{id_}"), await client.delete(f"/ojs/v1/jobs/{id_}")):
            assert (answer.status_code, answer.json()["error"]["code"]) == right, id_
        assert (await told(client, "ack", job_id=id_))[0] == right[0]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "queues"),
        ({"queues": []}, "queues"),
        ({"queues": ["Q"]}, "queues"),
        ({"queues": ["q"], "count": 101}, "count"),
        ({"queues": ["q"], "count": "1"}, "count"),
        ({"queues": ["q"], "worker_id": 1}, "worker_id"),
        ({"queues": ["q"], "visibility_timeout_ms": -1}, "visibility_timeout_ms"),
        ({"queues": ["q"], "visibility_timeout_ms": 1e300}, "visibility_timeout_ms"),
        ({"queues": ["q"], "wait_ms": "1"}, "wait_ms"),
    ],
)
async def test_invalid_fetch_is_answered_with_its_field(body: Any, field: str, client: httpx.AsyncClient) -> None:  # noqa: ANN401
    assert refusal(*await told(client, "fetch", **body)) == (400, "invalid_request", [field])


async def test_queues_are_served_in_order_within_the_count(client: httpx.AsyncClient) -> None:
    low, high = fresh(), fresh()
    lows = [(await pushed(client, low))["id"] for _ in range(2)]
    highs = [(await pushed(client, high))["id"] for _ in range(2)]
    assert [job["id"] for job in await fetched(client, high, low, high, count=3)] == [*highs, lows[0]]
    assert [job["id"] for job in await fetched(client, high, low)] == [lows[1]]
    assert await fetched(client, high, low, wait_ms=0) == []


async def test_a_fetch_may_wait_for_its_first_job(client: httpx.AsyncClient) -> None:
    one, other = fresh(), fresh()
    waiting = asyncio.create_task(fetched(client, one, other, wait_ms=20_000))
    job = await pushed(client, other)
    assert [found["id"] for found in await waiting] == [job["id"]]


async def test_only_who_holds_a_job_answers_for_it(client: httpx.AsyncClient) -> None:
    queue = fresh()
    id_ = (await pushed(client, queue))["id"]
    for verb, more in (("ack", {}), ("nack", {"error": {"code": "x", "message": ""}})):
        status, answer = await told(client, verb, job_id=id_, worker_id="b", **more)
        assert (status, answer["error"]["code"]) == (409, "conflict")
        assert id_ in answer["error"]["message"]
        assert "available" in answer["error"]["message"]
    await fetched(client, queue, worker_id="a")
    for verb, more in (("ack", {}), ("nack", {"error": {"code": "x", "message": ""}})):
        status, answer = await told(client, verb, job_id=id_, worker_id="b", **more)
        assert (status, answer["error"]["code"]) == (409, "conflict")
        assert id_ in answer["error"]["message"]
        assert "'a'" in answer["error"]["message"]
    status, beat = await told(client, "heartbeat", worker_id="b", active_jobs=[id_, ID.format(0xFFFE)])
    assert (status, beat["jobs_extended"], beat["jobs_lost"]) == (200, [], [id_, ID.format(0xFFFE)])
    status, beat = await told(client, "heartbeat", worker_id="a", active_job_ids=[id_], active_jobs=1)
    assert (status, beat["jobs_extended"], beat["jobs_lost"], beat["state"]) == (200, [id_], [], "running")
    assert (await told(client, "ack", job_id=id_, worker_id="a", result=[1]))[1]["state"] == "completed"
    status, answer = await told(client, "ack", job_id=id_, worker_id="a")
    assert (status, answer["error"]["code"]) == (409, "conflict")
    assert "completed" in answer["error"]["message"]
    refused = await client.delete(f"/ojs/v1/jobs/{id_}")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
    assert "completed" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("verb", "body", "field"),
    [("ack", {}, "job_id"), ("nack", {"job_id": 7}, "job_id"), ("heartbeat", {"active_jobs": [1]}, "active_jobs")],
)
async def test_an_answer_that_makes_no_sense(verb: str, body: Any, field: str, client: httpx.AsyncClient) -> None:  # noqa: ANN401
    assert refusal(*await told(client, verb, **body)) == (400, "invalid_request", [field])


async def test_a_failure_must_say_what_failed(client: httpx.AsyncClient) -> None:
    queue = fresh()
    id_ = (await pushed(client, queue))["id"]
    await fetched(client, queue)
    invalid: tuple[Any, ...] = (None, {"message": 1}, {"code": []}, {"details": []})
    for error in invalid:
        assert refusal(*await told(client, "nack", job_id=id_, error=error)) == (400, "invalid_request", ["error"])
    told_ = {
        "code": "boom",
        "message": "no",
        "type": "",
        "details": {"error_class": "Fatal", "a": 1},
        "retryable": False,
    }
    assert (await told(client, "nack", job_id=id_, error=told_))[1]["state"] == "discarded"
    shown = (await client.get(f"/ojs/v1/jobs/{id_}")).json()["job"]["error"]
    assert (shown["type"], shown["code"], shown["retryable"]) == ("Fatal", "boom", False)
    assert shown["details"] == {"error_class": "Fatal", "a": 1}


async def test_result_too_large_fails_once(client: httpx.AsyncClient) -> None:
    queue = fresh()
    id_ = (await pushed(client, queue))["id"]
    await fetched(client, queue)
    status, answer = await told(client, "ack", job_id=id_, result="x" * 70_000)
    assert (status, "70,002 bytes" in answer["error"]["message"]) == (413, True)
    job = (await client.get(f"/ojs/v1/jobs/{id_}")).json()["job"]
    assert (job["state"], job["error"]["type"], job["attempt"]) == ("discarded", "invalid_result", 1)


@pytest.mark.parametrize("result", ["\ud800", {"a\0": 1}, [10**30]])
async def test_result_that_cannot_be_stored_fails_once(client: httpx.AsyncClient, result: object) -> None:
    queue = fresh()
    id_ = (await pushed(client, queue))["id"]
    await fetched(client, queue)
    content = json.dumps({"job_id": id_, "result": result})
    answer = await client.post("/ojs/v1/workers/ack", content=content)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
    job = (await client.get(f"/ojs/v1/jobs/{id_}")).json()["job"]
    assert (job["state"], job["error"]["type"], job["attempt"]) == ("discarded", "invalid_result", 1)


async def test_error_is_stored_without_unstorable_characters(client: httpx.AsyncClient) -> None:
    """Programs that cut a text between the halves of an emoji send half a surrogate pair."""
    queue = fresh()
    id_ = (await pushed(client, queue))["id"]
    await fetched(client, queue)
    error = {
        "code": "a\0",
        "message": "b\ud83d",
        "backtrace": "c\ud83d",
        "details": {"d": "\ud83d"},
        "retryable": False,
    }
    answer = await client.post("/ojs/v1/workers/nack", content=json.dumps({"job_id": id_, "error": error}))
    assert (answer.status_code, answer.json()["state"]) == (200, "discarded")
    shown = (await client.get(f"/ojs/v1/jobs/{id_}")).json()["job"]["error"]
    assert (shown["code"], shown["message"]) == ("a\ufffd", "b\ufffd")
    assert "cannot be stored" in shown["details"]["left_out"]


async def test_error_too_large_is_shortened(client: httpx.AsyncClient) -> None:
    queue = fresh()
    id_ = (await pushed(client, queue))["id"]
    await fetched(client, queue)
    error = {"code": "boom", "message": "m" * 2**20, "backtrace": "b" * 2**20, "details": {"d": "x" * 2**20}}
    status, answer = await told(client, "nack", job_id=id_, error={**error, "retryable": False})
    assert (status, answer["state"]) == (200, "discarded")
    shown = (await client.get(f"/ojs/v1/jobs/{id_}")).json()["job"]["error"]
    assert (len(shown["message"]), shown["details"]) == (4_096, {"left_out": "1,048,584 bytes, more than 16,384"})


async def test_returned_job_is_the_same_attempt(client: httpx.AsyncClient) -> None:
    queue = fresh()
    id_ = (await pushed(client, queue))["id"]
    await fetched(client, queue, worker_id="a")
    assert (await told(client, "nack", job_id=id_, worker_id="a", requeue=True))[1]["state"] == "available"
    [job] = await fetched(client, queue, worker_id="b")
    assert (job["id"], job["attempt"], job["worker_id"]) == (id_, 1, "b")
    assert (await told(client, "ack", job_id=id_, worker_id="a"))[0] == 409
    assert (await told(client, "ack", job_id=id_, worker_id="b"))[0] == 200


async def test_job_passes_on_when_its_lease_ends(client: httpx.AsyncClient) -> None:
    queue = fresh()
    id_ = (await pushed(client, queue))["id"]
    [lost] = await fetched(client, queue, worker_id="a", visibility_timeout_ms=300)
    [job] = await fetched(client, queue, worker_id="b")
    assert (job["id"], job["attempt"], lost["attempt"]) == (id_, 1, 1)
    assert job["fence"] > lost["fence"] > 0
    status, answer = await told(client, "ack", job_id=id_, worker_id="a")
    assert (status, answer["error"]["code"]) == (409, "conflict")
    assert "'b'" in answer["error"]["message"]
    assert (await told(client, "heartbeat", worker_id="a", active_jobs=[id_]))[1]["jobs_lost"] == [id_]
    assert (await told(client, "ack", job_id=id_, worker_id="b"))[1]["state"] == "completed"


async def test_what_is_cancelled_while_it_is_held(client: httpx.AsyncClient) -> None:
    queue = fresh()
    id_ = (await pushed(client, queue))["id"]
    await fetched(client, queue, worker_id="a")
    answer = (await client.delete(f"/ojs/v1/jobs/{id_}")).json()["job"]
    assert (answer["state"], answer["previous_state"]) == ("cancelled", "active")
    assert (await told(client, "heartbeat", worker_id="a", active_jobs=[id_]))[1]["jobs_lost"] == [id_]
    status, refused = await told(client, "ack", job_id=id_, worker_id="a")
    assert (status, refused["error"]["code"]) == (409, "conflict")
    assert "cancelled" in refused["error"]["message"]


async def test_expired_job_is_not_fetched_on_retry(client: httpx.AsyncClient) -> None:
    queue = fresh()
    retry = {"initial_interval": "PT1S", "jitter": False}
    id_ = (await pushed(client, queue, options={"expires_at": "+PT1S", "retry": retry}))["id"]
    await fetched(client, queue)
    assert (await told(client, "nack", job_id=id_, error={"code": "x", "message": ""}))[1]["state"] == "retryable"
    assert await fetched(client, queue, wait_ms=3_000) == []
    shown = (await client.get(f"/ojs/v1/jobs/{id_}")).json()["job"]
    assert (shown["state"], shown["error"]["type"]) == ("discarded", "expired")


async def test_pausing_a_queue_affects_every_worker(client: httpx.AsyncClient) -> None:
    queue = fresh()
    assert (await client.get(f"/ojs/v1/queues/{queue}/stats")).status_code == 404
    paused = (await client.post(f"/ojs/v1/queues/{queue}/pause")).json()
    assert (paused["queue"]["paused"], paused["status"]) == (True, "paused")
    id_ = (await pushed(client, queue))["id"]
    assert await fetched(client, queue, wait_ms=0) == []
    shown = {"name": queue, "paused": True, "status": "paused", "available": 1}
    async with asyncio.timeout(PATIENCE):
        while shown not in (await client.get("/ojs/v1/queues")).json()["queues"]:  # noqa: ASYNC110 - the matcher shows it soon
            await asyncio.sleep(0.1)
    assert (await client.post(f"/ojs/v1/queues/{queue}/resume")).json()["status"] == "active"
    assert [job["id"] for job in await fetched(client, queue)] == [id_]
    answer = await client.post("/ojs/v1/queues/A/pause")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


async def test_several_queues_are_fetched_together(client: httpx.AsyncClient) -> None:
    other = fresh()
    ids = {(await pushed(client, queue))["id"] for queue in (other, "teams")}
    assert {job["id"] for job in await fetched(client, "teams", other, count=2)} == ids


async def test_fetch_of_a_client_that_left_takes_nothing(gateway: Server, client: httpx.AsyncClient) -> None:
    async with gateway.client() as leaving:
        with pytest.raises(httpx.ReadTimeout):
            await leaving.post("/ojs/v1/workers/fetch", json={"queues": ["teams"], "wait_ms": 20_000}, timeout=0.5)
    job = await pushed(client, "teams")
    assert [job["id"] for job in await fetched(client, "teams")] == [job["id"]]


async def test_too_many_queues_are_refused(client: httpx.AsyncClient) -> None:
    answer = await client.post("/ojs/v1/workers/fetch", json={"queues": [f"q{n}" for n in range(101)]})
    assert refusal(answer.status_code, answer.json()) == (400, "invalid_request", ["queues"])


async def test_queue_of_mq_executors_is_refused(client: httpx.AsyncClient) -> None:
    answer = await client.post("/ojs/v1/workers/fetch", json={"queues": ["default", "outside"]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")


async def test_steps_of_a_job_are_jobs_to_workers(client: httpx.AsyncClient) -> None:
    queue = fresh()
    dag = [
        {"name": "extract", "function": "extract"},
        {"name": "load", "function": "load", "depends_on": ["extract"]},
    ]
    job = {"name": "etl", "dag": dag, "queue": queue, "overlap_policy": "allow"}
    assert (await client.post("/v1/jobs", json=job)).status_code == 201
    execution_id = (await client.post("/v1/jobs/etl/trigger", json={"input": {"day": 1}})).json()["execution_id"]
    [extract] = await fetched(client, queue)
    assert (extract["id"], extract["type"], extract["input"]) == (f"{execution_id}:extract", "extract", {"day": 1})
    assert (await told(client, "ack", job_id=extract["id"], result=7))[1]["state"] == "completed"
    [load] = await fetched(client, queue)
    assert (load["id"], load["parent_results"]) == (f"{execution_id}:load", {"extract": 7})
    assert (await told(client, "heartbeat", active_jobs=[load["id"]]))[1]["jobs_extended"] == [load["id"]]
    assert (await told(client, "ack", job_id=load["id"]))[1]["state"] == "completed"
    assert (await client.get(f"/ojs/v1/jobs/{execution_id}")).json()["job"]["state"] == "completed"


async def test_retried_job_continues_at_its_checkpoint(client: httpx.AsyncClient) -> None:
    queue = fresh()
    retry = {"max_attempts": 2, "initial_interval_ms": 1}
    body = {"type": "rows.copy", "args": [], "options": {"queue": queue, "retry": retry}}
    assert (await client.post("/ojs/v1/jobs", json=body)).status_code == 201
    [job] = await fetched(client, queue)
    report = {"progress": 0.5, "data": {"rows": 7}, "checkpoint": {"row": 7}}
    progress = f"/ojs/v1/jobs/{job['id']}/progress"
    assert (await client.put(progress, json=report)).json()["accepted"] is True
    shown = (await client.get(progress)).json()
    assert (shown["state"], shown["progress"], shown["data"]) == ("active", 0.5, {"rows": 7})
    await told(client, "nack", job_id=job["id"], error={"code": "busy", "message": "later"})
    [again] = await fetched(client, queue)
    assert (again["id"], again["attempt"], again["last_checkpoint"]) == (job["id"], 2, {"row": 7})
    assert (await told(client, "ack", job_id=job["id"]))[1]["state"] == "completed"
    assert (await client.put(progress, json=report)).json()["accepted"] is False


async def test_cron_job_runs_and_is_shown_cancelled_audited(
    client: httpx.AsyncClient, gateway: Server, tmp_path: Path
) -> None:
    queue = fresh()
    options = {"queue": queue, "tags": ["eu"], "meta": {"team": "billing"}}
    cron = {"name": "tick", "cron": "* * * * * *", "type": "tick.tock", "options": options}
    assert (await client.post("/ojs/v1/cron", json={**cron, "overlap_policy": "skip"})).status_code == 201
    [job] = await fetched(client, queue)
    assert (job["type"], UUID(job["id"]).version, job["queue"], job["tags"]) == ("tick.tock", 7, queue, ["eu"])
    triggered_at = job["meta"].pop("cron_triggered_at")
    assert (job["meta"], triggered_at[-1]) == ({"team": "billing", "cron_name": "tick"}, "Z")
    shown = program("executions", "show", job["id"], "--nats", gateway.nats_url, "-o", "json", cwd=tmp_path)
    assert json.loads(shown.stdout)["status"] in {"running", "started"}, shown.stdout
    assert (await client.delete(f"/ojs/v1/jobs/{job['id']}")).json()["job"]["state"] == "cancelled"
    [next_one] = await fetched(client, queue)
    assert (await told(client, "ack", job_id=next_one["id"]))[1]["state"] == "completed"
    assert (await client.delete("/ojs/v1/cron/tick")).status_code == 200
    audited = program("audit", "--nats", gateway.nats_url, "-o", "json", cwd=tmp_path)
    assert audited.returncode == 0, audited.stdout


async def listed(client: httpx.AsyncClient, job_id: str) -> list[str]:
    """Wait until the history lists a job; return the ids of all that it lists."""
    while True:
        answer = await client.get("/v1/executions", params={"limit": 1_000})
        if job_id in (ids := [row["execution_id"] for row in answer.json()["executions"]]):
            return ids
        await asyncio.sleep(0.05)


async def test_reset_empties_the_history_too(client: httpx.AsyncClient) -> None:
    first, second = [await push(client) for _ in range(2)]
    await listed(client, first)
    await listed(client, second)
    (await client.post("/dev/reset")).raise_for_status()
    third = await push(client)
    assert await listed(client, third) == [third]


async def push(client: httpx.AsyncClient) -> str:
    answer = await client.post("/ojs/v1/jobs", json={"type": "reset.test", "args": []})
    return str(answer.json()["job"]["id"])
