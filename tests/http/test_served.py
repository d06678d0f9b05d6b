"""The API on a real socket over a real nats-server, with stages and a worker."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from socket import AF_INET, SOCK_STREAM, socket
from typing import Any, Final

import httpx
import pytest
from structlog.testing import capture_logs

from tests.system.running import DEADLINE, Running, running
from tocsin import Context, Worker
from tocsin.adapters.http.auth.tokens import Tokens
from tocsin.adapters.http.sockets import PortInUseError
from tocsin.bootstrap.api_server import serving
from tocsin.domain.access import MASK, Binding, Role
from tocsin.domain.events import Completed
from tocsin.ports import LogUnavailable
from tocsin.subjects import Bucket, Stream

EVERYWHERE = "0.0.0.0"  # noqa: S104 - the default, which must not be listened on
JOB = {"name": "greet", "schedule": "@daily", "function": "greet", "overlap_policy": "allow"}


def greeter() -> Worker:
    worker = Worker()

    @worker.task("greet")
    async def greet(_: Context) -> str:
        return "hello"

    return worker


@asynccontextmanager
async def served(of: Running) -> AsyncIterator[httpx.AsyncClient]:
    """One copy of the API, and a client of it."""
    async with serving(of.installation) as url, httpx.AsyncClient(base_url=url, timeout=DEADLINE) as client:
        yield client


@pytest.fixture
async def tocsin(nats_url: str, tmp_path: Path) -> AsyncIterator[Running]:
    async with running(
        nats_url, tmp_path, worker=greeter(), server={"port": 0, "over_nats": True}, metrics={"port": 0}
    ) as everything:
        yield everything


class Reader:
    """A client that listens to events."""

    def __init__(self, client: httpx.AsyncClient, **query: str) -> None:
        self._client = client
        self._query = query
        self.last_id = ""

    @asynccontextmanager
    async def events(self) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        headers = {"Last-Event-ID": self.last_id} if self.last_id else {}
        async with self._client.stream("GET", "/v1/events", params=self._query, headers=headers) as answer:
            assert answer.status_code == 200
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            yield self._read(answer)

    async def _read(self, answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
        async for line in answer.aiter_lines():
            name, _, value = line.partition(": ")
            if name == "id":
                self.last_id = value
            elif name == "data":
                yield json.loads(value)


async def test_registered_and_triggered_job_runs_and_is_shown(tocsin: Running) -> None:
    async with served(tocsin) as client:
        assert (await client.post("/v1/jobs", json=JOB)).status_code == 201
        asked = (await client.post("/v1/jobs/greet/trigger")).json()
        await tocsin.ended("greet", Completed)

        shown = (await client.get(f"/v1/executions/{asked['execution_id']}")).json()
        assert (shown["status"], shown["trigger"], shown["result"]) == ("completed", "api", "hello")
        facts = (await client.get(f"/v1/executions/{asked['execution_id']}/events")).json()["facts"]
        assert [fact["fact"]["type"] for fact in facts] == ["dispatched", "started", "completed"]
        [task] = [fact["fact"] for fact in facts if fact["fact"]["type"] == "dispatched"]
        assert (task["token"], task["v"], task["admits"]["plan"]["steps"][0]["name"]) == (MASK, 2, "main")

        async def listed() -> list[Any]:
            rows: list[Any] = (await client.get("/v1/executions", params={"job": "greet"})).json()["executions"]
            return [row for row in rows if row["status"] == "completed"]

        [row] = await tocsin.until(listed)
        assert row["execution_id"] == asked["execution_id"]
        assert (await client.get("/v1/health")).json()["status"] == "ok"

        async def has_read() -> bool:
            return (await client.get("/v1/health")).json()["jobs_read"] is True

        async def is_counted() -> bool:
            # The status counts the displayed jobs, which the registrar's edge writes after the commit.
            return bool((await client.get("/v1/status")).json()["jobs"]["registered"] == 1)

        assert await tocsin.until(has_read)
        assert await tocsin.until(is_counted)


async def test_write_of_one_copy_is_visible_to_another(tocsin: Running) -> None:
    async with served(tocsin) as one, served(tocsin) as two:
        for number in range(20):
            name = f"job-{number}"
            assert (await one.post("/v1/jobs", json={**JOB, "name": name})).status_code == 201
            assert (await two.get(f"/v1/jobs/{name}")).status_code == 200
            assert (await two.put(f"/v1/jobs/{name}", json={**JOB, "schedule": "@hourly"})).status_code == 422
            etag = (await two.get(f"/v1/jobs/{name}")).headers["ETag"]
            paused = await two.post(f"/v1/jobs/{name}/pause", headers={"If-Match": etag})
            assert paused.status_code == 200
            assert (await one.get(f"/v1/jobs/{name}")).json()["state"] == "paused"
            assert (await one.delete(f"/v1/jobs/{name}", headers={"If-Match": etag})).status_code == 412


async def test_concurrent_duplicates_over_two_copies_run_once(tocsin: Running) -> None:
    async with served(tocsin) as one, served(tocsin) as two:
        await one.post("/v1/jobs", json=JOB)
        headers = {"Idempotency-Key": "the same"}
        asking = [copy.post("/v1/jobs/greet/trigger", json={}, headers=headers) for copy in (one, two) * 8]
        answers = await asyncio.gather(*asking)
        assert {answer.status_code for answer in answers} == {202}
        [execution_id] = {answer.json()["execution_id"] for answer in answers}
        other = (await two.post("/v1/jobs/greet/trigger", json={})).json()["execution_id"]
        ended = await tocsin.ended("greet", Completed, 2)
        assert {fact.execution_id for fact in ended} == {execution_id, other}


async def test_event_stream_resumes_where_the_reader_stopped(tocsin: Running) -> None:
    async with served(tocsin) as one, served(tocsin) as two:
        reader = Reader(one, job="greet")
        async with reader.events() as events:
            await one.post("/v1/jobs", json=JOB)
            first = await anext(events)
            assert (first["fact"]["type"], first["fact"]["definition"]["function"]) == ("defined", "greet")
            execution_id = (await one.post("/v1/jobs/greet/trigger")).json()["execution_id"]
            seen = [await anext(events), await anext(events)]

        await tocsin.ended("greet", Completed)
        resumed = Reader(two, job="greet")
        resumed.last_id = reader.last_id
        async with resumed.events() as events:
            while len(seen) < 4:
                seen.append(await anext(events))
        facts = [event["fact"] for event in seen if "type" in event["fact"]]
        [public] = [event["fact"]["event"] for event in seen if "type" not in event["fact"]]
        assert ([fact["type"] for fact in facts], public) == (["dispatched", "started", "completed"], "cron.triggered")
        assert {fact["execution_id"] for fact in facts} == {execution_id}


async def test_events_are_filtered_by_type_from_the_start(tocsin: Running) -> None:
    async with served(tocsin) as client:
        await client.post("/v1/jobs", json=JOB)
        await client.post("/v1/jobs/greet/trigger")
        await tocsin.ended("greet", Completed)
        async with Reader(client, after="0.0", type="completed").events() as events:
            assert (await anext(events))["fact"]["type"] == "completed"
        refused = await client.get("/v1/events", params={"after": "yesterday"})
        assert refused.status_code == 422
        assert [error["field"] for error in refused.json()["errors"]] == ["Last-Event-ID"]


async def test_public_events_are_streamed(tocsin: Running) -> None:
    async with served(tocsin) as client:
        job = {**JOB, "name": "secondly", "schedule": "* * * * * *"}
        assert (await client.post("/v1/jobs", json=job)).status_code == 201
        async with Reader(client, after="0.0", type="cron.triggered").events() as events:
            first = await anext(events)
    assert (first["subject"], first["fact"]["event"]) == ("cron.triggered.secondly", "cron.triggered")
    assert first["fact"]["data"]["run_count"] == 1
    assert re.fullmatch(r"[^+]+Z", first["fact"]["data"]["scheduled_time"])


async def test_events_of_a_hidden_job_are_withheld(tocsin: Running) -> None:
    async with served(tocsin) as client:
        tokens = Tokens(tocsin.installation.projections, tocsin.installation.clock)
        admin, _ = await tokens.create("root", [Role.ADMIN])
        viewer, _ = await tokens.create("eve", [Role.VIEWER])
        as_admin = {"Authorization": f"Bearer {admin}"}
        await client.post("/v1/jobs", json={**JOB, "name": "hidden", "viewers": ["carl"]}, headers=as_admin)
        await client.post("/v1/jobs", json={**JOB, "name": "shown"}, headers=as_admin)
        client.headers["Authorization"] = f"Bearer {viewer}"
        async with Reader(client, after="0.0").events() as events:
            assert (await anext(events))["fact"]["job"] == "shown"


async def test_a_copy_that_ends_closes_its_streams(tocsin: Running) -> None:
    begun = asyncio.Event()

    async def listen(url: str) -> list[str]:
        lines = []
        async with (
            httpx.AsyncClient(base_url=url, timeout=DEADLINE) as client,
            client.stream("GET", "/v1/events") as answer,
        ):
            async for line in answer.aiter_lines():
                lines.append(line)
                begun.set()
        return lines

    async with serving(tocsin.installation) as url:
        listening = asyncio.create_task(listen(url))
        async with asyncio.timeout(DEADLINE):
            await begun.wait()
    async with asyncio.timeout(DEADLINE):
        assert (await listening)[0] == "retry: 2000"


@pytest.mark.parametrize("section", ["server", "metrics"])
async def test_busy_port_is_explained(section: str, tocsin: Running) -> None:
    with socket(AF_INET, SOCK_STREAM) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with_port = getattr(tocsin.settings, section).model_copy(update={"port": port})
        busy = tocsin.settings.model_copy(update={section: with_port})
        installation = replace(tocsin.installation, settings=busy)
        setting, variable = f"{section}.port", f"TOCSIN_{section.upper()}__PORT"
        text = f"port {port} on 127.0.0.1 is in use: stop the program that listens there, or change `{setting}` ({variable})"
        with pytest.raises(PortInUseError, match=f"^{re.escape(text)}$"):
            async with serving(installation):
                pass
        async with serving(installation, any_port={setting}) as url:
            assert not url.endswith(f":{port}")


async def test_metrics_listen_on_an_address_of_their_own(tocsin: Running) -> None:
    metrics = tocsin.settings.metrics.model_copy(update={"port": 0, "host": "127.0.0.2"})
    installation = replace(tocsin.installation, settings=tocsin.settings.model_copy(update={"metrics": metrics}))
    with capture_logs() as logs:
        async with serving(installation):
            [page] = [line["url"] for line in logs if line.get("action") == "metrics-serving"]
            assert page.startswith("http://127.0.0.2:")
            async with httpx.AsyncClient() as client:
                assert (await client.get(page)).status_code == 200


async def test_without_authentication_only_loopback_is_served(tocsin: Running) -> None:
    assert tocsin.settings.server.host == EVERYWHERE
    async with serving(tocsin.installation) as url:
        assert url.startswith("http://127.0.0.1:")
    await Tokens(tocsin.installation.projections, tocsin.installation.clock).create("ada", [Role.VIEWER])
    async with serving(tocsin.installation) as url:
        assert url.startswith(f"http://{EVERYWHERE}:")


async def test_api_that_starts_during_an_outage_serves_later(tocsin: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    projections = tocsin.installation.projections
    await Tokens(projections, tocsin.installation.clock).create("ada", [Role.VIEWER])
    failures = [LogUnavailable("no leader")]
    entries = projections.entries

    async def entries_later(bucket: Bucket) -> dict[str, bytes]:
        if bucket is Bucket.TOKENS and failures:
            raise failures.pop()
        return await entries(bucket)

    monkeypatch.setattr(projections, "entries", entries_later)
    async with serving(tocsin.installation) as url:
        assert url.startswith(f"http://{EVERYWHERE}:")
    assert not failures


MALFORMED: Final[dict[str, tuple[str, bytes]]] = {
    "not JSON": ("listJobs", b"{"),
    "not UTF-8": ("listJobs", b'{"tag": "\xff"}'),
    "no object": ("listJobs", b"[1]"),
    "deep": ("listJobs", b'{"tag": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "deep body": ("registerJob", b'{"input": ' + b'{"a":' * 500 + b"1" + b"}" * 501),
    "NaN": ("registerJob", b'{"name": "n", "function": "f", "input": {"a": NaN}}'),
    "infinity in a query": ("listJobs", b'{"limit": Infinity}'),
    "huge integer": ("listJobs", b'{"limit": 1' + b"0" * 5_000 + b"}"),
    "half a surrogate pair in a query": ("listJobs", b'{"tag": "\\ud800"}'),
    "half a surrogate pair in a path": ("getJob", b'{"name": "\\ud800"}'),
    "half a surrogate pair in a body": ("registerJob", b'{"name": "n", "description": "\\udfff", "function": "f"}'),
    "long query": ("listJobs", b'{"tag": "' + b"a" * 200_000 + b'"}'),
    "long path": ("getJob", b'{"name": "' + b"a" * 200_000 + b'"}'),
    "nested query": ("listJobs", b'{"limit": {"a": [1, {"b": null}]}}'),
    "path of another type": ("getJob", b'{"name": [1]}'),
    "unknown parameter": ("listJobs", b'{"\\n": "\\r\\n"}'),
}


async def test_malformed_requests_over_nats_are_answered(tocsin: Running) -> None:
    async with served(tocsin):
        client, root = tocsin.installation.connection.client, tocsin.settings.root
        for case, (operation, body) in MALFORMED.items():
            answer = await client.request(f"{root}.api.{operation}", body, timeout=DEADLINE)
            status = (answer.headers or {})["Nats-Service-Error-Code"]
            assert 400 <= int(status) < 500, (case, status)
        wrong = {"Authorization": "Bearer \u00e4\u20ac", "X-Reason": "\u20ac"}
        answer = await client.request(f"{root}.api.listJobs", b"", timeout=DEADLINE, headers=wrong)
        assert (answer.headers or {})["Nats-Service-Error-Code"] == "401"
        answer = await client.request(f"{root}.api.listJobs", b"", timeout=DEADLINE)
        assert (answer.headers or {})["Status-Code"] == "200"


async def test_the_same_operations_are_answered_over_nats(tocsin: Running) -> None:
    async with served(tocsin):
        client, root = tocsin.installation.connection.client, tocsin.settings.root

        async def ask(operation: str, **fields: object) -> tuple[Any, dict[str, str]]:
            body = json.dumps(fields).encode() if fields else b""
            answer = await client.request(f"{root}.api.{operation}", body, timeout=DEADLINE)
            return json.loads(answer.data or b"null"), dict(answer.headers or {})

        answered, headers = await ask("registerJob", **JOB)
        assert (answered["name"], headers["Status-Code"], headers["etag"]) == (
            "greet",
            "201",
            f'"{answered["sequence"]}"',
        )
        assert (await ask("listJobs", limit=5))[0]["jobs"][0]["name"] == "greet"
        paused, _ = await ask("pauseJob", name="greet", reason="maintenance")
        assert paused["changed"] is True
        asked, _ = await ask("triggerJob", name="greet", input={"a": 1})
        await tocsin.ended("greet", Completed)
        assert (await ask("getExecution", id=asked["execution_id"]))[0]["by"] == {
            "identity": "anonymous",
            "kind": "nats",
            "source": "nats",
        }
        missing, headers = await ask("getJob", name="nobody")
        assert (missing["status"], headers["Nats-Service-Error-Code"]) == (404, "404")
        assert "nobody" in headers["Nats-Service-Error"]
        _, headers = await ask("getJob", name="../executions")
        assert headers["Nats-Service-Error-Code"] in {"404", "422"}
        _, headers = await ask("getJob")
        assert headers["Nats-Service-Error"] == "`name` is required"


async def test_nats_caller_needs_a_token_too(tocsin: Running) -> None:
    tokens = Tokens(tocsin.installation.projections, tocsin.installation.clock)
    token, _ = await tokens.create("eve", [Role.VIEWER])
    async with served(tocsin):
        client, subject = tocsin.installation.connection.client, f"{tocsin.settings.root}.api"
        stranger = await client.request(f"{subject}.listJobs", b"", timeout=DEADLINE)
        assert (stranger.headers or {})["Nats-Service-Error-Code"] == "401"
        headers = {"Authorization": f"Bearer {token}"}
        known = await client.request(f"{subject}.listJobs", b"", timeout=DEADLINE, headers=headers)
        assert json.loads(known.data) == {"jobs": [], "next": None}
        refused = await client.request(
            f"{subject}.registerJob", json.dumps(JOB).encode(), timeout=DEADLINE, headers=headers
        )
        assert (refused.headers or {})["Nats-Service-Error-Code"] == "403"


async def test_only_a_worker_fetches_hidden_tasks(tocsin: Running) -> None:
    async with served(tocsin) as client:
        tokens = Tokens(tocsin.installation.projections, tocsin.installation.clock)
        given = {role: (await tokens.create(role, [role]))[0] for role in (Role.ADMIN, Role.AUTHOR, Role.OPERATOR)}
        given[Role.WORKER], _ = await tokens.create("mailer", [Role.WORKER], binding=Binding(("mail",), ("mail/*",)))

        async def ask(role: Role, path: str, body: object) -> httpx.Response:
            return await client.post(path, json=body, headers={"Authorization": f"Bearer {given[role]}"})

        hidden = {**JOB, "name": "hidden", "queue": "mail", "function": "mail/send", "viewers": ["carl"]}
        assert (await ask(Role.ADMIN, "/v1/jobs", {**hidden, "input": {"to": "bea"}})).status_code == 201
        started = (await ask(Role.ADMIN, "/v1/jobs/hidden/trigger", {})).json()["execution_id"]
        fetch = {"queues": ["mail"], "worker_id": "w", "wait_ms": 20_000}
        for role in (Role.AUTHOR, Role.OPERATOR):
            assert (await ask(role, "/ojs/v1/workers/fetch", fetch)).status_code == 403
        [job] = (await ask(Role.WORKER, "/ojs/v1/workers/fetch", fetch)).json()["jobs"]
        assert (job["id"], job["input"]) == (started, {"to": "bea"})
        forged = {"job_id": started, "worker_id": "w", "result": "forged"}
        for role, status in ((Role.AUTHOR, 403), (Role.OPERATOR, 403), (Role.ADMIN, 409), (Role.WORKER, 200)):
            assert (await ask(role, "/ojs/v1/workers/ack", forged)).status_code == status


async def test_invented_queues_are_empty_and_create_no_consumer(tocsin: Running) -> None:
    connection, names = tocsin.installation.connection, tocsin.installation.names
    request = f"CONSUMER.NAMES.{names.stream(Stream.LOG)}"
    async with served(tocsin) as client:
        await client.post("/v1/jobs", json={**JOB, "queue": "reports"})
        before = (await connection.manage(request, b"{}"))["consumers"]
        for number in range(200):
            fetch = {"queues": ["default", f"invented-{number}"]}
            answer = await client.post("/ojs/v1/workers/fetch", json=fetch)
            if answer.status_code == 429:
                await asyncio.sleep(float(answer.headers["Retry-After"]) + 1)
                answer = await client.post("/ojs/v1/workers/fetch", json=fetch)
            assert (answer.status_code, answer.json()["jobs"], len(answer.json()["warnings"])) == (200, [], 1)
        assert (await connection.manage(request, b"{}"))["consumers"] == before
        answer = await client.post("/ojs/v1/workers/fetch", json={"queues": ["repots"]})
        [warning] = answer.json()["warnings"]
        assert ("'repots'" in warning, "Did you mean 'reports'?" in warning) == (True, True)
        assert (await client.post("/ojs/v1/workers/fetch", json={"queues": ["reports"]})).json() == {"jobs": []}


async def test_queue_of_a_pushed_job_is_known(tocsin: Running) -> None:
    async with served(tocsin) as client:
        fetch = {"queues": ["pushed"], "wait_ms": 20_000}
        assert (await client.post("/ojs/v1/workers/fetch", json={"queues": ["pushed"]})).json()["warnings"]
        job = {"type": "mail.send", "args": [], "options": {"queue": "pushed"}}
        assert (await client.post("/ojs/v1/jobs", json=job)).status_code == 201

        async def fetched() -> list[Any]:
            answer = await client.post("/ojs/v1/workers/fetch", json=fetch)
            return list(answer.json().get("jobs", ()))

        [_] = await tocsin.until(fetched)


async def test_probes_share_requests_to_the_log(nats_url: str, tmp_path: Path) -> None:
    """Probes need no token: 300 of them cost a few requests, and not one each."""
    async with (
        running(nats_url, tmp_path, stages=(), server={"port": 0}, metrics={"enabled": False}) as idle,
        served(idle) as client,
    ):
        requests = await idle.public(f"$JS.API.STREAM.INFO.{idle.installation.names.commits_stream}")
        began = asyncio.get_running_loop().time()
        for path in ("/v1/health", "/ojs/v1/health"):
            answers = await asyncio.gather(*(client.get(path) for _ in range(150)))
            assert {answer.json()["status"] for answer in answers} == {"ok"}
        seconds = asyncio.get_running_loop().time() - began
        await idle.installation.connection.client.flush()
        assert 1 <= requests.qsize() <= 10 + seconds
