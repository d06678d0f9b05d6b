"""The API over a real nats-server answers `/v1/health` while other clients attack it."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from datetime import UTC, datetime
from pathlib import Path
from socket import create_connection, socket
from typing import Any, Final

import httpx
import pytest
import structlog
from nats.aio.msg import Msg

from tests.http.conftest import READ_BYTES, Heads
from tests.system.running import DEADLINE, Running, running
from tocsin import Worker
from tocsin.adapters.http.auth.tokens import Tokens
from tocsin.adapters.http.server import InProcessClient
from tocsin.adapters.nats import micro_service
from tocsin.adapters.nats.client.connection import connect
from tocsin.bootstrap.api_server import serving
from tocsin.domain.access import Role

ATTACKER = "127.0.0.2"
ATTACKERS_PATIENCE_S = 10.0


@pytest.fixture
async def tocsin(nats_url: str, tmp_path: Path) -> AsyncIterator[Running]:
    server = {
        "port": 0,
        "max_connections": 200,
        "max_connections_per_client": 100,
        "max_event_streams_per_caller": None,
        "rate": None,
    }
    async with running(nats_url, tmp_path, worker=Worker(), server=server, metrics={"enabled": False}) as everything:
        yield everything


async def healthy(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/health", headers={"Connection": "close"})
    assert answer.status_code == 200, answer.text


async def test_half_sent_heads(tocsin: Running) -> None:
    async with serving(tocsin.installation) as url, httpx.AsyncClient(base_url=url, timeout=DEADLINE) as client:
        place = client.base_url.host, client.base_url.port or 0
        with ExitStack() as held:

            def attack() -> None:
                for _ in range(1_100):
                    half = held.enter_context(create_connection(place, DEADLINE, (ATTACKER, 0)))
                    half.sendall(b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half: ")

            attacking = asyncio.create_task(asyncio.to_thread(attack))
            while not attacking.done():
                await healthy(client)
            await attacking
            await healthy(client)


@pytest.mark.parametrize("port", ["api", "metrics"])
async def test_pipelined_requests_without_a_token(nats_url: str, tmp_path: Path, heads: Heads, port: str) -> None:
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        metrics_port = free.getsockname()[1]
    async with (
        running(nats_url, tmp_path, server={"port": 0}, metrics={"port": metrics_port}) as tocsin,
        serving(tocsin.installation) as url,
        httpx.AsyncClient(base_url=url, timeout=DEADLINE) as client,
    ):
        place = client.base_url.host, metrics_port if port == "metrics" else client.base_url.port or 0
        requests = b"GET / HTTP/1.1\r\n\r\n" * 9_700
        writers = [(await asyncio.open_connection(*place, local_addr=(ATTACKER, 0)))[1] for _ in range(40)]
        for writer in writers:
            writer.write(requests)  # the answers are never read
        while len(heads.begun) < len(writers):
            await healthy(client)
        for writer in writers:
            writer.close()
    assert heads.most_open <= 16
    assert heads.most_unanswered_bytes <= 2 * READ_BYTES


async def test_calculations(tocsin: Running) -> None:
    # The clocks skip each time of the first schedule, and the times of the second are 28 years apart.
    explanations = [
        {"schedule": text, "timezone": "Europe/Berlin", "count": 1_000} for text in ("30 2 * 3 0L", "0 12 29 2 1#5")
    ]
    month = datetime.now(UTC).month % 12 + 1  # the jobs fire within a year, but not during the test
    jobs = [{"name": f"job-{n:04}", "schedule": f"* * * * {month} *", "function": "f"} for n in range(20)]
    planned = [{"name": f"planned-{n:04}", "schedule": "* * * * * *", "function": "f"} for n in range(2_000)]
    async with (
        serving(tocsin.installation) as url,
        httpx.AsyncClient(base_url=url, timeout=DEADLINE) as client,
        httpx.AsyncClient(base_url=url, timeout=ATTACKERS_PATIENCE_S) as attacker,
    ):
        applied = await client.post("/v1/jobs:apply", json={"jobs": jobs})
        assert applied.status_code == 200
        attacks = [
            *(asyncio.create_task(attacker.post("/v1/explain", json=explanations[n % 2])) for n in range(8)),
            *(asyncio.create_task(attacker.get("/v1/schedule", params={"hours": 8_784})) for _ in range(4)),
            asyncio.create_task(attacker.post("/v1/jobs:apply", json={"jobs": planned, "dry_run": True})),
        ]
        answers = 0
        while not all(attack.done() for attack in attacks):
            await healthy(client)
            answers += 1
        results = await asyncio.gather(*attacks, return_exceptions=True)
        # The attacker may leave first: 2,000 schedules take longer than its patience.
        assert {type(result) for result in results} <= {httpx.Response, httpx.ReadTimeout}
        assert {result.status_code for result in results if isinstance(result, httpx.Response)} <= {200, 422}
        assert answers > 1
        await healthy(client)


async def test_readers_that_never_read(tocsin: Running) -> None:
    job = {"name": "job", "schedule": "0 0 1 1 *", "function": "f", "description": "x" * 10_000}
    async with serving(tocsin.installation) as url, httpx.AsyncClient(base_url=url, timeout=DEADLINE) as client:
        assert (await client.post("/v1/jobs", json=job)).status_code == 201
        place = client.base_url.host, client.base_url.port or 0
        with ExitStack() as held:
            for _ in range(400):
                lazy = held.enter_context(create_connection(place, DEADLINE, (ATTACKER, 0)))
                lazy.sendall(b"GET /v1/events?after=0.0 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            async with client.stream("GET", "/v1/events") as events:
                lines = events.aiter_lines()
                assert await anext(lines) == "retry: 2000"
                for number in range(30):
                    changed = {**job, "description": f"{number:010}" * 1_000}
                    assert (await client.put("/v1/jobs/job", json=changed)).status_code == 200
                    await healthy(client)
                    while f"{number:010}" not in await anext(lines):
                        pass


async def test_streams_of_a_viewer_that_never_reads(nats_url: str, tmp_path: Path) -> None:
    async with (
        running(nats_url, tmp_path, server={"port": 0}, metrics={"enabled": False}) as tocsin,
        serving(tocsin.installation) as url,
    ):
        jobs = [{"name": f"job-{n:04}", "schedule": "0 0 1 1 *", "function": "f"} for n in range(500)]
        tokens = Tokens(tocsin.installation.projections, tocsin.installation.clock)
        (admin, _), (viewer, _) = [await tokens.create(role, [role]) for role in (Role.ADMIN, Role.VIEWER)]
        bearer = {"Authorization": f"Bearer {admin}"}
        async with AsyncExitStack() as held:
            client = httpx.AsyncClient(base_url=url, timeout=DEADLINE, headers=bearer)
            await held.enter_async_context(client)
            for number in range(4):
                text = {"description": f"{number}" * 2_000}
                assert (await client.post("/v1/jobs:apply", json={"jobs": [job | text for job in jobs]})).is_success
            place = client.base_url.host, client.base_url.port or 0
            streams = [await asyncio.open_connection(*place, local_addr=(ATTACKER, 0)) for _ in range(190)]
            for _, writer in streams:
                held.callback(writer.close)
                writer.write(
                    b"GET /v1/events?after=0.0 HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\n\r\n"
                    % viewer.encode()
                )
            async with asyncio.timeout(DEADLINE):
                answers = [await reader.readline() for reader, _ in streams]
            statuses = Counter(answer.split()[1] for answer in answers)
            assert statuses == {b"200": 10, b"503": 180}
            async with client.stream("GET", "/v1/events?after=0.0") as events:
                assert events.status_code == 200
                lines = events.aiter_lines()
                for _ in range(2_000):
                    while not (await anext(lines)).startswith("id:"):
                        pass
            await healthy(client)


def code_of(message: Msg) -> str:
    return (message.headers or {}).get("Nats-Service-Error-Code", "")


def refused(lines: Sequence[Mapping[str, Any]]) -> list[int]:
    return [line["refused"] for line in lines if line.get("action") == "nats-requests-refused"]


async def told(lines: Sequence[Mapping[str, Any]], number: int) -> None:
    """Wait until the lines tell so many refusals."""
    while sum(refused(lines)) < number:  # noqa: ASYNC110 - a log line sets no event
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("is_request", [True, False])
async def test_flood_over_nats_without_a_token(
    nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_request: bool
) -> None:
    server = {"port": 0, "over_nats": True}
    number, answers, done = 10_000, Counter[str](), asyncio.Event()
    most_running, running_now, requested, request = 0, 0, 0, InProcessClient.request

    async def observed(client: InProcessClient, *arguments: Any) -> Any:  # noqa: ANN401 - those of `request`
        nonlocal most_running, running_now, requested
        running_now += 1
        requested += 1
        most_running = max(most_running, running_now)
        try:
            return await request(client, *arguments)
        finally:
            running_now -= 1

    async def count(message: Msg) -> None:
        answers[code_of(message)] += 1
        if answers.total() == number:
            done.set()

    monkeypatch.setattr(InProcessClient, "request", observed)
    if is_request:
        monkeypatch.setattr(micro_service, "REFUSALS_LOG_INTERVAL_S", 0.2)
    with structlog.testing.capture_logs() as lines:
        async with (
            running(
                nats_url, tmp_path, server=server, auth={"admin_token": "a1" * 32}, metrics={"enabled": False}
            ) as tocsin,
            serving(tocsin.installation) as url,
            httpx.AsyncClient(base_url=url, timeout=DEADLINE) as client,
            connect([nats_url]) as attacker,
        ):
            inbox = "" if not is_request else attacker.client.new_inbox()
            if is_request:
                await attacker.client.subscribe(inbox, cb=count)
            subject = f"{tocsin.settings.root}.api.listJobs"
            for _ in range(number):
                await attacker.client.publish(subject, b"{}", reply=inbox)
            await attacker.client.flush()
            await healthy(client)
            async with asyncio.timeout(DEADLINE):
                if is_request:
                    await done.wait()
                    assert answers.keys() == {"401", "503"}
                    await told(lines, answers["503"])  # though no other request is refused
                while (code := code_of(await attacker.client.request(subject, b"{}", timeout=DEADLINE))) == "503":
                    number += 1
            assert code == "401"  # after the flood
    assert most_running <= micro_service.MAX_RUNNING
    assert sum(refused(lines)) + requested == number + 1  # each was either refused or passed on
    assert 0 not in refused(lines)
    assert is_request or len(refused(lines)) == 1
    assert not [line for line in lines if line.get("action") in {"nats-error", "nats-request-failed"}]


async def test_clients_that_leave(tocsin: Running) -> None:
    jobs = [{"name": f"job-{n:04}", "schedule": "* * * * * *", "function": "f"} for n in range(500)]
    requests = [
        ("/v1/jobs:apply", {"jobs": jobs, "dry_run": True, "days": 30}),
        ("/v1/explain", {"schedule": "0 12 29 2 1#5", "timezone": "Europe/Berlin", "count": 1_000}),
    ]
    async with serving(tocsin.installation) as url, httpx.AsyncClient(base_url=url, timeout=DEADLINE) as client:
        place = client.base_url.host, client.base_url.port or 0
        for path, request in requests:
            valid = await client.post(path, json=request)
            assert valid.status_code == 200, valid.text[:500]
        for _ in range(10):
            for path, request in requests:
                body = json.dumps(request).encode()
                _, writer = await asyncio.open_connection(*place, local_addr=(ATTACKER, 0))
                writer.write(
                    b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                    b"Content-Length: %d\r\n\r\n%s" % (path.encode(), len(body), body)
                )
                await writer.drain()
                await healthy(client)
                writer.close()
            await healthy(client)
        async with asyncio.timeout(DEADLINE):  # no thread is held by a request whose client left
            while (await client.post("/v1/explain", json={"schedule": "@daily"})).status_code == 503:
                await healthy(client)


async def test_hostile_lists(tocsin: Running) -> None:
    lists = {
        "/v1/jobs": ("limit", "after"),
        "/v1/executions": ("limit", "cursor"),
        "/v1/dead-letters": ("limit", "cursor"),
        "/v1/agents": ("limit", "cursor"),
        "/v1/queues": ("limit", "cursor"),
        "/ojs/v1/cron": ("limit", "offset"),
        "/ojs/v1/queues": ("limit", "offset"),
        "/ojs/v1/dead-letter": ("limit", "offset", "cursor"),
        "/ojs/v1/events": ("limit", "cursor"),
        "/ojs/v1/admin/queues": ("page", "per_page"),
        "/ojs/v1/admin/workers": ("page", "per_page"),
        "/ojs/v1/admin/jobs": ("page", "per_page", "since", "cursor"),
        "/ojs/v1/admin/dead-letter": ("page", "until", "cursor"),
    }
    values = (str(10**40), str(-(10**40)), "0", "-1", "nan", "1e308", "\x00", "9" * 5_000, "[]", "🙂")
    async with serving(tocsin.installation) as url, httpx.AsyncClient(base_url=url, timeout=DEADLINE) as client:

        async def attack(path: str) -> set[int]:
            answers = [await client.get(path, params={name: value}) for name in lists[path] for value in values]
            return {answer.status_code for answer in answers}

        attacks = [asyncio.create_task(attack(path)) for path in lists]
        while not all(attack.done() for attack in attacks):
            await healthy(client)
        for path, statuses in zip(lists, attacks, strict=True):
            assert statuses.result() <= {200, 400, 422}, (path, statuses.result())
        for path in lists:
            assert (await client.get(path)).status_code == 200


BODIES: Final = {
    "names": b'{"dag":[{%b}],%b}' % ((b",".join(b'"a%d":1' % number for number in range(20_000)),) * 2),
    "name": b'{"%b":1}' % (b"k" * 1_000_000),
    "items": b'{"name":"x","function":"f","tags":[1%b],"options":{"tags":[1%b]}}' % ((b",1" * 20_000,) * 2),
    "steps": b'{"name":"x","dag":[{}%b]}' % (b",{}" * 300_000),
    "jobs": b'{"jobs":[{}%b]}' % (b',{"x":1,"y":1}' * 900),
}


@pytest.mark.parametrize("body", BODIES)
async def test_answers_to_bodies_with_countless_errors_are_short(tocsin: Running, body: str) -> None:
    async with serving(tocsin.installation) as url, httpx.AsyncClient(base_url=url, timeout=DEADLINE) as client:
        paths = (await client.get("/v1/openapi.json")).json()["paths"]
        asked = [(m, path) for path, of_path in paths.items() for m in of_path if "requestBody" in of_path[m]]
        for method, path in asked:
            target = path.replace("{name}", "x").replace("{id}", "0" * 36)
            headers = {"Content-Type": "application/json"}
            answer = await client.request(method.upper(), target, content=BODIES[body], headers=headers)
            assert answer.status_code < 500, (method, path, answer.text[:500])
            assert len(answer.content) < 500_000, (method, path, answer.text[:500])
        assert len(asked) > 40
