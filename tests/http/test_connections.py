"""Limits on connections: the API answers while others hold as many connections as they can."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from socket import SO_RCVBUF, SOL_SOCKET, socket
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from tests.http.conftest import READ_BYTES, Heads, World
from tests.system.running import DEADLINE
from tocsin.adapters.http import connections
from tocsin.adapters.http.connections import (
    MAX_HEAD_BYTES,
    RESERVED_FILES,
    Connection,
    ConnectionTable,
    most_connections,
)
from tocsin.adapters.http.server import answering
from tocsin.adapters.http.sockets import listen
from tocsin.settings import Server, Settings

ATTACKER = "127.0.0.2"
HALF_A_HEAD = b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half: "
CHUNKED = b"POST /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[..., Awaitable[Streams]]


@asynccontextmanager
async def served(app: ASGIApp, **limits: object) -> AsyncIterator[tuple[httpx.AsyncClient, Connect]]:
    """Serve an application; yield a client, and a function that connects from an address."""
    listener = listen("127.0.0.1", 0)
    host, port = listener.getsockname()[:2]
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(answering(app, listener, Server.model_validate(limits)))  # type: ignore[arg-type]

        async def connect(source: str = ATTACKER) -> Streams:
            reader, writer = await asyncio.open_connection(host, port, local_addr=(source, 0))
            stack.callback(writer.close)
            return reader, writer

        client = httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=DEADLINE)
        yield await stack.enter_async_context(client), connect


def waiting_app() -> tuple[Starlette, asyncio.Event]:
    """Return an application whose `/wait` answers after an event, and whose other paths answer at once."""
    event = asyncio.Event()

    async def wait(_: Request) -> Response:
        await event.wait()
        return JSONResponse("waited")

    async def health(_: Request) -> Response:
        return JSONResponse("well")

    app = Starlette(routes=[Route("/wait", wait), Route("/v1/health", health)])
    app.state.closing = asyncio.Event()
    return app, event


@pytest.mark.parametrize("source", [ATTACKER, "127.0.0.1"])
async def test_health_answers_while_heads_are_half_sent(source: str, world: World) -> None:
    limits = {"max_connections": 60, "max_connections_per_client": 40, "header_timeout": 600}
    async with served(world.app(), **limits) as (client, connect):
        for _ in range(150):
            _, writer = await connect(source)
            writer.write(HALF_A_HEAD)
        for _ in range(3):
            answer = await client.get("/v1/health", headers={"Connection": "close"})
            assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("piece", [b"a", b"\r\n"])
async def test_trickled_head_does_not_extend_its_time(piece: bytes) -> None:
    app, _ = waiting_app()
    async with served(app, header_timeout=0.5, keep_alive=600) as (_, connect):
        reader, writer = await connect()
        writer.write(HALF_A_HEAD if piece == b"a" else b"")

        async def trickle() -> None:
            while True:
                writer.write(piece)
                await asyncio.sleep(0.05)

        trickling = asyncio.create_task(trickle())
        try:
            async with asyncio.timeout(DEADLINE):
                answer = await reader.read()
        except ConnectionResetError:
            return  # a piece arrived after the server had closed the connection
        finally:
            trickling.cancel()
        assert answer.startswith(b"HTTP/1.1 408 ") or piece == b"\r\n"


async def test_silent_connection_is_closed() -> None:
    app, _ = waiting_app()
    async with served(app, header_timeout=0.2) as (_, connect):
        reader, _ = await connect()
        async with asyncio.timeout(DEADLINE):
            assert await reader.read() == b""


async def test_empty_lines_do_not_keep_an_idle_connection() -> None:
    app, _ = waiting_app()
    async with served(app, header_timeout=0.5, keep_alive=600) as (_, connect):
        reader, writer = await connect()
        writer.write(HALF_A_HEAD + b"no\r\n\r\n")
        await reader.readuntil(b'"well"')
        writer.write(b"\r\n")
        async with asyncio.timeout(DEADLINE):
            assert await reader.read() == b""


async def test_running_request_outlives_the_header_timeout() -> None:
    app, event = waiting_app()
    async with served(app, header_timeout=1) as (client, _):
        request = asyncio.create_task(client.get("/wait"))
        await asyncio.sleep(1 + 2 * connections.SWEEP_INTERVAL_S)
        event.set()
        assert (await request).json() == "waited"


async def test_client_with_too_many_requests_is_refused_alone() -> None:
    app, event = waiting_app()
    async with served(app, max_connections_per_client=3) as (client, connect):
        held = [await connect() for _ in range(3)]
        for _, writer in held:
            writer.write(b"GET /wait HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        await client.get("/v1/health")  # the heads have arrived
        reader, writer = await connect()
        writer.write(HALF_A_HEAD + b"no\r\n\r\n")
        async with asyncio.timeout(DEADLINE):
            answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"urn:tocsin:problem:too-many-connections" in answer
        assert (await client.get("/v1/health")).status_code == 200
        event.set()
        async with asyncio.timeout(DEADLINE):
            assert [await reader.readuntil(b'"waited"') for reader, _ in held]


class Peer:
    """A connection as the table sees it."""

    def __init__(self, address: str) -> None:
        self.client, self.loop = (address, 1), asyncio.get_running_loop()
        self.is_refused = self.is_closed = False

    def refuse(self) -> None:
        self.is_refused = True

    def abort(self) -> None:
        self.is_closed = True


def connected(table: ConnectionTable, address: str = ATTACKER) -> Any:  # noqa: ANN401 - stands for a connection
    peer: Any = Peer(address)
    table.add(peer)
    return peer


ONE_LIMIT = pytest.mark.parametrize("limit", ["max_connections_per_client", "max_connections"])


@ONE_LIMIT
async def test_silent_connection_beyond_the_limit_makes_no_room(limit: str) -> None:
    table, served_peers = ConnectionTable(Server.model_validate({limit: 3})), 0
    for _ in range(10):
        connected(table)  # without a request
        peer = connected(table)
        table.begin_request(peer)
        served_peers += not peer.is_refused
        if peer.is_refused:
            table.remove(peer)
    assert served_peers == 3


@ONE_LIMIT
async def test_replaced_connection_has_no_request_beyond_the_limit(limit: str) -> None:
    table, served_peers = ConnectionTable(Server.model_validate({limit: 3})), 0
    waiting = connected(table)
    for _ in range(10):
        following = connected(table)
        table.begin_request(waiting)
        served_peers += not waiting.is_refused
        if waiting.is_refused:
            table.remove(waiting)
        waiting = following
    assert served_peers == 3


async def test_refused_client_replaces_no_connection_of_another() -> None:
    table = ConnectionTable(Server(max_connections=5, max_connections_per_client=3))
    others = [connected(table, "127.0.0.1") for _ in range(2)]
    for _ in range(3):
        table.begin_request(connected(table))
    for _ in range(4):
        connected(table)
    for other in others:
        table.begin_request(other)
        assert not other.is_refused
    assert len(table) == 5


async def test_trusted_proxy_may_have_many_connections() -> None:
    app, event = waiting_app()
    limits = {"max_connections_per_client": 2, "trusted_proxies": ["127.0.0.0/8"]}
    async with served(app, **limits) as (client, _):
        requests = [asyncio.create_task(client.get("/wait")) for _ in range(8)]
        await asyncio.sleep(0.1)
        event.set()
        assert {(await request).status_code for request in requests} == {200}


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_connection_with_an_unread_answer_is_closed(
    monkeypatch: pytest.MonkeyPatch, *, is_streamed: bool
) -> None:
    size = 64 * 1_048_576
    ended, aborted = asyncio.Event(), asyncio.Event()
    abort = Connection.abort

    def observed_abort(connection: Connection) -> None:
        aborted.set()
        abort(connection)

    monkeypatch.setattr(Connection, "abort", observed_abort)

    async def pieces() -> AsyncIterator[bytes]:
        try:
            for _ in range(size // 65_536):
                yield b"x" * 65_536
        finally:
            ended.set()

    async def big(_: Request) -> Response:
        return StreamingResponse(pieces()) if is_streamed else Response(b"x" * size)

    app = Starlette(routes=[Route("/big", big)])
    app.state.closing = asyncio.Event()
    async with served(app, write_timeout=0.5, keep_alive=600) as (client, _):
        with socket() as lazy:
            lazy.setsockopt(SOL_SOCKET, SO_RCVBUF, 4_096)
            lazy.connect((client.base_url.host, client.base_url.port))
            lazy.sendall(b"GET /big HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            async with asyncio.timeout(DEADLINE):
                await aborted.wait()
            lazy.settimeout(DEADLINE)
            received = await asyncio.to_thread(_read, lazy)
        assert received < size
        if is_streamed:
            async with asyncio.timeout(DEADLINE):
                await ended.wait()


def _read(sock: socket) -> int:
    """Return the number of bytes until the end."""
    received = 0
    try:
        while piece := sock.recv(65_536):
            received += len(piece)
    except ConnectionResetError:
        pass
    return received


def test_open_files_limit_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (1_024, 4_096))
    assert most_connections(10_000) == most_connections(None) == 1_024 - RESERVED_FILES
    assert most_connections(100) == 100


def echoing_app(*, listens: bool) -> tuple[Starlette, asyncio.Event]:
    """Return an application that answers by what it was sent, after an event; `listens`: it notices that the client left."""
    event = asyncio.Event()

    async def echo(request: Request) -> Response:
        body = await request.body()
        end = asyncio.ensure_future(request.receive() if listens else event.wait())
        await event.wait()
        end.cancel()
        return Response(f"<{request.url.path} {len(body)}>")

    app = Starlette(routes=[Route("/{path:path}", echo, methods=["GET", "POST"])])
    app.state.closing = asyncio.Event()
    return app, event


BODIES = {"without-body": 0, "small-body": 300, "large-body": 200_000}


@pytest.mark.parametrize("listens", [False, True])
@pytest.mark.parametrize("kind", BODIES)
async def test_pipelined_requests_wait_unparsed_for_the_open_answer(heads: Heads, kind: str, *, listens: bool) -> None:
    size = BODIES[kind]
    number = 40_000 if not size else 2_000_000 // size
    app, event = echoing_app(listens=listens)
    one = b"POST /%d HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" if size else b"GET /%d HTTP/1.1\r\n\r\n"
    async with served(app, request_timeout=600) as (_, connect):
        reader, writer = await connect()
        writer.write(b"".join(one % ((n, size, b"x" * size) if size else (n,)) for n in range(number)))
        await heads.have_begun.wait()
        event.set()
        async with asyncio.timeout(DEADLINE):
            for n in range(number):
                assert (await reader.readuntil(b">")).endswith(b"</%d %d>" % (n, size))
    assert heads.begun.total() == number
    assert heads.most_open <= 16
    assert heads.most_unanswered_bytes <= size + 2 * READ_BYTES


ENDLESS_BEGINNINGS = {
    "url": b"GET /",
    "header": HALF_A_HEAD,
    "trailer": CHUNKED + b"1\r\na\r\n0\r\nX-Trailer: ",
    "chunk-extension": CHUNKED + b"1;",
}


@pytest.mark.parametrize("endless", ENDLESS_BEGINNINGS)
@pytest.mark.parametrize("filling", [b"a" * 65_536, b"a: b\r\nc" * 9_000])
async def test_endless_line_is_refused_at_its_limit(heads: Heads, endless: str, filling: bytes) -> None:
    app, event = echoing_app(listens=True)
    async with served(app, header_timeout=600) as (_, connect):
        reader, writer = await connect()
        writer.write(ENDLESS_BEGINNINGS[endless])
        with suppress(ConnectionError):
            async with asyncio.timeout(DEADLINE):
                while not reader.at_eof():
                    writer.write(filling)
                    await writer.drain()
                    await asyncio.sleep(0)
        event.set()
    assert heads.most_unanswered_bytes <= MAX_HEAD_BYTES + 2 * READ_BYTES


@pytest.mark.parametrize(
    ("method", "size", "status"), [(b"GET", 0, b"200"), (b"POST", 0, b"200"), (b"POST", 600, b"400")]
)
async def test_upgrade_loses_no_body(method: bytes, size: int, status: bytes) -> None:
    app, event = echoing_app(listens=False)
    event.set()
    head = b"%s /a HTTP/1.1\r\nX: %s\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: %d\r\n\r\n"
    async with served(app, keep_alive=1) as (_, connect):
        reader, writer = await connect()
        writer.write(head % (method, b"x" * 300, size) + b"y" * size)
        async with asyncio.timeout(DEADLINE):
            answer = await reader.read()
    assert answer.split()[1] == status
    assert answer.count(b"content-length: ") == 1


@pytest.mark.parametrize("number", [400, 600])
async def test_number_of_headers_is_limited(number: int) -> None:
    app, event = waiting_app()
    event.set()
    async with served(app) as (_, connect):
        reader, writer = await connect()
        writer.write(b"GET /wait HTTP/1.1\r\n" + b"a:\r\n" * number + b"\r\n")
        async with asyncio.timeout(DEADLINE):
            status = await reader.readline()
    assert status.split()[1] == (b"200" if number == 400 else b"400")


async def test_half_sent_body_is_answered_in_time(world: World) -> None:
    world.settings = Settings(server=Server(request_timeout=0.3))
    async with served(world.app(), keep_alive=0.2) as (_, connect):
        reader, writer = await connect()
        writer.write(
            b"POST /v1/explain HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
        )
        async with asyncio.timeout(DEADLINE):
            answer = await reader.read()  # until the server closes the connection
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"urn:tocsin:problem:timeout" in answer
    assert b"outcome is unknown" in answer
