"""The rules of ojs-http-binding for every endpoint: versions, types of bodies, pages, and answers of the server itself."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.http.conftest import World
from tests.http.test_connections import served, waiting_app
from tests.system.running import DEADLINE
from tocsin.adapters.http.connections import MAX_HEAD_BYTES

OJS = "application/openjobspec+json"
FETCH = "/ojs/v1/workers/fetch"
NO_QUEUE = b'{"queues": []}'
"""A body that is read, and refused for its field."""


@pytest.mark.parametrize("version", ["2.0", "0.9", "1.1", "1.0x", "10", "1.00", "x", "1.0, 2.0", "1\udc80"])
@pytest.mark.parametrize(("method", "path"), [("GET", "/ojs/v1/queues"), ("POST", FETCH), ("GET", "/ojs/v1/none")])
async def test_unsupported_version_is_refused(version: str, method: str, path: str, world: World) -> None:
    sent = version.encode(errors="surrogateescape")
    answer = await world.client.request(method, path, headers=[(b"OJS-Version", sent)])
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["retryable"]) == (422, "unsupported", False)
    assert error["details"]["supported_versions"] == ["1.0"]
    assert answer.headers["OJS-Version"] == "1.0"
    assert error["request_id"] == answer.headers["X-Request-Id"]


@pytest.mark.parametrize("version", ["", "1", "1.0", "1.0.0", "1.0.7", "1.0.0-rc.1", "1.0-rc.1"])
async def test_supported_version_is_accepted(version: str, world: World) -> None:
    answer = await world.ask("GET", "/ojs/v1/queues", OJS_Version=version)
    assert (answer.status_code, answer.headers["OJS-Version"]) == (200, "1.0")


async def test_manifest_answers_clients_of_any_version(world: World) -> None:
    answer = await world.ask("GET", "/ojs/manifest", OJS_Version="2.0")
    assert (answer.status_code, answer.json()["ojs_version"]) == (200, "1.0")


async def sent(world: World, path: str, body: bytes, media_type: str | None, method: str = "POST") -> tuple[int, str]:
    """Send a body; return the status, and the first invalid field."""
    headers = {} if media_type is None else {"Content-Type": media_type}
    answer = await world.client.request(method, path, content=body, headers=headers)
    details = answer.json().get("error", {}).get("details") or {}
    return answer.status_code, (details.get("errors") or [{}])[0].get("field", "")


@pytest.mark.parametrize(
    "media_type",
    ["text/plain", "application/x-www-form-urlencoded", "application/cloudevents+json", "application/jsonp", "json"],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("POST", path) for path in (FETCH, "/ojs/v1/jobs", "/ojs/v1/cron", "/ojs/v1/queues/q/pause")),
        *(("PATCH", "/ojs/v1/cron/job"), ("DELETE", "/ojs/v1/admin/queues/q/jobs")),
    ],
)
async def test_body_of_another_type_is_refused(media_type: str, method: str, path: str, world: World) -> None:
    assert await sent(world, path, NO_QUEUE, media_type, method) == (400, "Content-Type")


@pytest.mark.parametrize("media_type", [None, OJS, "application/json", "Application/JSON; charset=utf-8", f"{OJS};v=1"])
async def test_body_of_a_known_type_is_read(media_type: str | None, world: World) -> None:
    assert await sent(world, FETCH, NO_QUEUE, media_type) == (400, "queues")


async def test_streamed_body_of_another_type_is_refused(world: World) -> None:
    async def pieces() -> Any:  # noqa: ANN401 - httpx has the type
        yield NO_QUEUE

    answer = await world.client.post(FETCH, content=pieces(), headers={"Content-Type": "text/plain"})
    assert answer.json()["error"]["details"]["errors"][0]["field"] == "Content-Type"


async def test_type_without_a_body_is_ignored(world: World) -> None:
    await world.given(name="job", queue="mail")
    for answer in (
        await world.ask("GET", "/ojs/v1/queues", Content_Type="text/plain"),
        await world.ask("POST", "/ojs/v1/queues/mail/pause", Content_Type="text/plain"),
    ):
        assert answer.status_code == 200


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "latin-1"])
async def test_body_is_utf_8(encoding: str, world: World) -> None:
    body = json.dumps({"queues": ["ä"]}, ensure_ascii=False).encode(encoding)
    answer = await world.client.post(FETCH, content=body, headers={"Content-Type": f"{OJS}; charset={encoding}"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_payload")


async def test_new_job_has_a_location(world: World) -> None:
    answer = await world.ask("POST", "/ojs/v1/jobs", {"type": "mail.send", "args": []})
    assert (answer.status_code, answer.headers["Location"]) == (201, f"/ojs/v1/jobs/{answer.json()['job']['id']}")


async def pages_of(world: World, path: str, name: str, limit: int) -> list[list[str]]:
    """Return the names in each page of a list, read by cursors."""
    pages, query = list[list[str]](), {"limit": str(limit)}
    while True:
        answer = await world.client.get(path, params=query)
        assert answer.status_code == 200, answer.text
        place = answer.json()["pagination"]
        pages.append([item["name"] for item in answer.json()[name]])
        assert place["has_more"] == bool(place["next_cursor"])
        if not place["has_more"]:
            return pages
        query = {"limit": str(limit), "cursor": place["next_cursor"]}


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 200])
@pytest.mark.parametrize(("path", "name"), [("/ojs/v1/queues", "queues"), ("/ojs/v1/cron", "cron_jobs")])
async def test_cursors_list_each_name_once(limit: int, path: str, name: str, world: World) -> None:
    names = ["a", "a-1", "a.1", "b", "z"]
    for each in names:
        await world.given(name=each, queue=each)
    pages = await pages_of(world, path, name, limit)
    assert [each for page in pages for each in page] == sorted(names)
    assert [len(page) for page in pages[:-1]] == [limit] * (len(pages) - 1)


@pytest.mark.parametrize(("path", "name"), [("/ojs/v1/queues", "queues"), ("/ojs/v1/cron", "cron_jobs")])
async def test_page_continues_after_a_name_that_is_gone(path: str, name: str, world: World) -> None:
    for each in ("a", "b", "c"):
        await world.given(name=each, queue=each)
    first = (await world.ask("GET", f"{path}?limit=2")).json()["pagination"]
    await world.registry.delete("a")
    await world.registry.delete("b")
    await world.given(name="aa", queue="aa")
    following = (await world.ask("GET", f"{path}?limit=2&cursor={first['next_cursor']}")).json()
    assert [item["name"] for item in following[name]] == ["c"]
    assert following["pagination"] == {"total": 2, "limit": 2, "offset": 0, "has_more": False, "next_cursor": None}


@pytest.mark.parametrize(("path", "name"), [("/ojs/v1/queues", "queues"), ("/ojs/v1/cron", "cron_jobs")])
async def test_page_has_50_items_by_default(path: str, name: str, world: World) -> None:
    for number in range(51):
        await world.given(name=f"job-{number:02}", queue=f"queue-{number:02}")
    answer = (await world.ask("GET", path)).json()
    assert (len(answer[name]), answer["pagination"]["total"]) == (50, 51)


@pytest.mark.parametrize("path", ["/ojs/v1/queues", "/ojs/v1/cron", "/ojs/v1/dead-letter"])
async def test_pages_have_up_to_200_items(path: str, world: World) -> None:
    assert (await world.ask("GET", f"{path}?limit=200")).json()["pagination"]["limit"] == 200


def parsed(answer: bytes) -> httpx.Response:
    """Return an answer as it was written to the connection."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert int(headers["content-length"]) == len(body)
    return httpx.Response(int(status.split()[1]), headers=headers, content=body)


def checked(answer: httpx.Response) -> tuple[int, str]:
    """Check the shape of an error; return the status and the code."""
    error = answer.json()["error"]
    assert (answer.headers["Content-Type"], answer.headers["OJS-Version"]) == (OJS, "1.0")
    assert error["request_id"] == answer.headers["X-Request-Id"] != ""
    assert error["message"]
    return answer.status_code, error["code"]


@pytest.mark.parametrize(
    "rest",
    [b"", b"OJS-Version: 2.0\r\n", b"Content-Type: text/plain\r\nContent-Length: 1\r\n"],
    ids=["", "version", "body"],
)
async def test_refused_connection_has_the_shape_of_ojs(rest: bytes) -> None:
    app, event = waiting_app()
    async with served(app, max_connections_per_client=1) as (client, connect):
        _, holder = await connect()
        holder.write(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
        await client.get("/v1/health")  # the head has arrived
        reader, writer = await connect()
        writer.write(b"GET /ojs/v1/queues HTTP/1.1\r\nHost: a\r\nX-Request-Id: mine\r\n" + rest + b"\r\n")
        async with asyncio.timeout(DEADLINE):
            answer = parsed(await reader.read())
        event.set()
    assert checked(answer) == (503, "backend_error")
    assert (answer.headers["Retry-After"], answer.json()["error"]["retryable"]) == ("1", True)
    assert (answer.headers["X-Request-Id"], answer.headers["Connection"]) == ("mine", "close")


@pytest.mark.parametrize("limit", ["max_connections_per_client", "max_connections"])
async def test_refused_version_makes_no_room(limit: str) -> None:
    event, running = asyncio.Event(), asyncio.Semaphore(0)

    async def wait(_: Request) -> Response:
        running.release()
        await event.wait()
        return JSONResponse("waited")

    app = Starlette(routes=[Route("/wait", wait)])
    app.state.closing = asyncio.Event()
    async with served(app, **{limit: 2}) as (_, connect), asyncio.timeout(DEADLINE):
        for _ in range(2):
            _, writer = await connect()
            writer.write(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
            await running.acquire()
        for _ in range(3):
            reader, writer = await connect()
            writer.write(b"GET /ojs/v1/queues HTTP/1.1\r\nHost: a\r\nOJS-Version: 2.0\r\n\r\n")
            await reader.readuntil(b"}}")
            reader, writer = await connect()
            writer.write(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
            assert parsed(await reader.read()).status_code == 503
        event.set()


@pytest.mark.parametrize(
    ("rest", "status"),
    [(b"X: " + b"a" * MAX_HEAD_BYTES, 400), (b"Content-Length: x\r\n\r\n", 400), (b"X-Half: ", 408)],
)
@pytest.mark.parametrize("is_ojs", [True, False])
async def test_incomplete_head_has_the_shape_of_its_path(rest: bytes, status: int, *, is_ojs: bool) -> None:
    app, _ = waiting_app()
    async with served(app, header_timeout=0.2) as (_, connect):
        reader, writer = await connect()
        path = b"/ojs/v1/queues" if is_ojs else b"/v1/jobs"
        writer.write(b"POST " + path + b" HTTP/1.1\r\nHost: a\r\n" + rest)
        async with asyncio.timeout(DEADLINE):
            answer = parsed(await reader.read())
    assert answer.headers["Connection"] == "close"
    if is_ojs:
        assert checked(answer) == (status, "invalid_request")
    else:
        assert (answer.status_code, answer.headers["Content-Type"]) == (status, "text/plain; charset=utf-8")
