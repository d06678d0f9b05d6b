"""Limits on connections, so that no client can keep the others from the API.

No limit on requests applies before a request has begun and after its answer is written. So `ConnectionTable` closes a connection
whose head does not end, that is idle, or whose client does not read the answer. While an answer is open,
a connection parses a few further requests at most, and reads no more. If there are too many connections, each further
connection replaces the connection that has waited longest for a head: a client that sends its request at once is served
even while others hold every place.

uvicorn limits idle connections only, and any byte restarts its timer. `Connection` extends uvicorn's protocol by the public
callbacks of `asyncio.Protocol` and of httptools, and is the only place that knows this protocol. One sweep over the table
replaces timers of the single connections, which would cost two timers for each request.
"""

import asyncio
import ipaddress
import resource
from collections.abc import Iterator, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final

from fastapi import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send
from typing_extensions import override
from uvicorn import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from ...settings import Server
from .api.problems import Problem, as_response
from .ojs import protocol
from .ojs.protocol import OjsHeaders

MAX_HEAD_BYTES: Final = 65_536
"""Size of a request line and its headers, or of anything else that is not part of a body, such as trailers. A piece may exceed it."""
HEADER_BYTES: Final = 128
"""What a header counts in addition, because it takes more memory than its text."""
PIECE_BYTES: Final = 256
"""What the parser is fed at once: at most 15 heads begin in it, because the shortest head has 18 bytes."""
SWEEP_INTERVAL_S: Final = 0.5
MAX_LEAVING: Final = 128
"""Connections without a place that are still open, because their heads may be on the way. Many are accepted at once."""
RESERVED_FILES: Final = MAX_LEAVING + 128
"""Open files of the process that are left for replaced connections, the log, the history and the program itself."""
_IPV6_CLIENT_BITS: Final = 64
"""An IPv6 client usually has a network of this prefix length for itself."""


# These answers have the shape that their path requires, as the answers of the application have.
def _refusing(problem: Problem) -> OjsHeaders:
    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        is_ojs = scope["path"].startswith(protocol.PREFIX)
        answer = protocol.as_response(problem, Request(scope)) if is_ojs else as_response(problem)
        await answer(scope, receive, send)

    return OjsHeaders(refuse)


too_many_connections: Final = _refusing(
    Problem(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "too-many-connections",
        "the server or this client has too many connections with running requests. Close some, or retry later",
        headers={"Retry-After": "1", "Connection": "close"},
    )
)
"""The application of a connection without a place."""
upgrade_with_body: Final = _refusing(
    Problem(
        HTTPStatus.BAD_REQUEST,
        "bad-request",
        "a request with the header `Upgrade` may have no body, which would be lost. Send it as HTTP/1.1 without `Upgrade`",
        headers={"Connection": "close"},
    )
)
"""The application of a connection whose parser skips a body, because its client offers another protocol."""


def without_head(url: bytes, status: HTTPStatus, detail: str) -> bytes:
    """Return the answer to a head that is not complete or not HTTP; then close."""
    answer: Response = PlainTextResponse(detail, status)
    if url.startswith(protocol.PREFIX.encode()):
        problem, request_id = Problem(status, "bad-request", detail), protocol.new_request_id()
        headers = {"OJS-Version": protocol.VERSION, "X-Request-Id": request_id}
        error = protocol.OjsErrorAnswer(error=protocol.as_error(problem, request_id))
        answer = protocol.OjsResponse(error.model_dump(exclude_none=True), status, headers)
    answer.headers["Connection"] = "close"
    head = b"".join(b"%s: %s\r\n" % header for header in answer.raw_headers)
    return b"HTTP/1.1 %d %s\r\n%s\r\n%s" % (status, status.phrase.encode(), head, answer.body)


class _Flow(FlowControl):
    """Reads nothing more until the parser was fed everything that was read."""

    def __init__(self, transport: asyncio.Transport, connection: "Connection") -> None:
        super().__init__(transport)
        self._connection = connection

    @override
    def resume_reading(self) -> None:
        if not self._connection.unparsed:
            super().resume_reading()


class Connection(HttpToolsProtocol):
    """An HTTP connection with limited heads, which a `ConnectionTable` may close."""

    def __init__(
        self,
        table: "ConnectionTable",
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._table = table
        self.url = b""
        self.unparsed = memoryview(b"")
        """What was read and waits for an answer, because another request follows the request that is answered."""
        self._head_bytes = 0
        self._is_in_head = False
        self.has_begun_head = True
        """False: the connection is idle between two requests."""

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        self.flow = _Flow(transport, self)
        self._table.add(self)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._table.remove(self)
        super().connection_lost(exc)

    @override
    def data_received(self, data: bytes) -> None:
        if not self.has_begun_head:
            self.has_begun_head = True
            self._table.await_head(self)
        self.unparsed = memoryview(bytes(self.unparsed) + data)
        self._parse()

    def _parse(self) -> None:
        """Feed the parser until a request has to wait for the answer to another request."""
        while self.unparsed and not self.pipeline and not self.transport.is_closing():
            piece, self.unparsed = self.unparsed[:PIECE_BYTES], self.unparsed[PIECE_BYTES:]
            super().data_received(bytes(piece))
            if self.parser.should_upgrade():  # the parser skips what follows
                self.unparsed = memoryview(b"")
            self._head_bytes += len(piece)
            if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                detail = f"the head of the request is longer than {MAX_HEAD_BYTES:,} bytes, {HEADER_BYTES} added for each header"
                self.send_400_response(detail)
        if self.unparsed:
            self.flow.pause_reading()

    @override
    def on_message_begin(self) -> None:
        self._is_in_head, self._head_bytes = True, 0
        super().on_message_begin()

    @override
    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += HEADER_BYTES
        super().on_header(name, value)

    @override
    def on_headers_complete(self) -> None:
        self._is_in_head, self._head_bytes = False, 0
        self._table.begin_request(self)
        if self.parser.should_upgrade():
            headers = dict(self.headers)
            if b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0":
                self.app = upgrade_with_body
        super().on_headers_complete()

    @override
    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    @override
    def on_response_complete(self) -> None:
        is_last = not self.pipeline
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if is_last:
            self.has_begun_head = False
            self._table.await_head(self, idle=True)
        elif self.unparsed:
            self._parse()
            if not self.pipeline:
                self.flow.resume_reading()

    @override
    def send_400_response(self, msg: str) -> None:
        self.transport.write(without_head(self.url, HTTPStatus.BAD_REQUEST, msg))
        self.transport.close()

    def refuse(self) -> None:
        """Answer the next request by 503, and close the connection."""
        self.app = too_many_connections

    def expire(self) -> None:
        """Close a connection whose next request did not come in time."""
        cycle: object = self.cycle  # uvicorn declares it without None, which it is before the first request
        if self._is_in_head and (cycle is None or self.cycle.response_complete):
            detail = "the head of the request did not arrive in time"
            self.transport.write(without_head(self.url, HTTPStatus.REQUEST_TIMEOUT, detail))
        self.transport.close()

    def abort(self) -> None:
        """Close the connection at once, without what is still to be written."""
        self._table.remove(self)
        self.transport.abort()

    @property
    def unread_bytes(self) -> int:
        """Size of the part of the answer that the system has not taken yet."""
        return self.transport.get_write_buffer_size()


class ConnectionTable:
    """The connections of one listener."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._max = most_connections(server.max_connections)
        self._exempt = tuple(_networks(server.trusted_proxies))
        self._by_client: dict[str, set[Connection]] = {}
        self._open: dict[Connection, str] = {}
        self._deadlines: dict[Connection, float] = {}
        """The connections that wait for a head, in the order in which they began to wait."""
        self._leaving: dict[Connection, None] = {}
        """The connections without a place, which the next sweep closes unless a head arrives before."""
        self._unread: dict[Connection, tuple[int, float]] = {}
        """The connections with an unread answer: its size, and the time since which it has not shrunk."""

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: Connection) -> None:
        """Add a connection, which replaces another if there are too many."""
        if self._has_room_for(connection):
            self._count(connection)
            self.await_head(connection)
        else:
            self._leave(connection)

    def remove(self, connection: Connection) -> None:
        self._leaving.pop(connection, None)
        self._deadlines.pop(connection, None)
        self._unread.pop(connection, None)
        self._discount(connection)

    def await_head(self, connection: Connection, *, idle: bool = False) -> None:
        """Expect the end of a request's head; `idle`: it has not begun."""
        self._deadlines.pop(connection, None)
        if connection in self._open:
            limit = self._server.keep_alive if idle else self._server.header_timeout
            self._deadlines[connection] = connection.loop.time() + limit

    def begin_request(self, connection: Connection) -> None:
        """Note that a connection has a request, which is refused without a place."""
        self._deadlines.pop(connection, None)
        if connection in self._leaving:
            del self._leaving[connection]
            if not self._has_room_for(connection):
                connection.refuse()
            self._count(connection)

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            self.run_once(asyncio.get_running_loop().time())

    def run_once(self, now: float) -> None:
        """Close the connections that exceed a limit at `now`, a time of the event loop."""
        for connection in list(self._leaving):
            connection.abort()
        for connection in [each for each, deadline in self._deadlines.items() if deadline <= now]:
            del self._deadlines[connection]
            connection.expire()
        for connection in list(self._open):
            size = connection.unread_bytes
            if not size:
                self._unread.pop(connection, None)
                continue
            before, since = self._unread.get(connection, (size + 1, now))
            if size < before:
                since = now
            self._unread[connection] = size, since
            if now - since >= self._server.write_timeout:
                connection.abort()

    def _count(self, connection: Connection) -> None:
        client = _client_of(connection)
        self._by_client.setdefault(client, set()).add(connection)
        self._open[connection] = client

    def _discount(self, connection: Connection) -> None:
        client = self._open.pop(connection, None)
        if client is None:
            return
        others = self._by_client[client]
        others.discard(connection)
        if not others:
            del self._by_client[client]

    def _has_room_for(self, connection: Connection) -> bool:
        """Return whether a connection may have a place; replace another connection if necessary."""
        client, most = _client_of(connection), self._server.max_connections_per_client
        is_free = most is None or len(self._by_client.get(client, ())) < most
        address = _address_of(connection)
        is_exempt = address is not None and any(address in proxy for proxy in self._exempt)
        if not (is_free or is_exempt or self._make_room(client)):
            return False
        return self._max is None or len(self._open) < self._max or self._make_room(None)

    def _make_room(self, client: str | None) -> bool:
        """Replace the connection that has waited longest for a head; `client`: of this client only."""
        for connection in self._deadlines:
            if client is None or self._open[connection] == client:
                del self._deadlines[connection]
                self._discount(connection)
                self._leave(connection)
                return True
        return False

    def _leave(self, connection: Connection) -> None:
        self._leaving[connection] = None
        if len(self._leaving) > MAX_LEAVING:
            next(iter(self._leaving)).abort()


def most_connections(wanted: int | None) -> int | None:
    """Return `wanted` or what the limit of open files allows; None: no limit."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return wanted
    room = max(1, files - RESERVED_FILES)
    return room if wanted is None else min(wanted, room)


def _address_of(connection: Connection) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    host = connection.client[0] if connection.client else ""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _client_of(connection: Connection) -> str:
    """Return an IPv4 address, or an IPv6 network of 64 bits, as text."""
    address = _address_of(connection)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, _IPV6_CLIENT_BITS), strict=False))
    return str(address)


def _networks(proxies: Sequence[str]) -> Iterator[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    for proxy in proxies:
        if proxy == "*":
            yield from (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0"))
        with suppress(ValueError):  # a name, which uvicorn compares with the peer of a local socket
            yield ipaddress.ip_network(proxy, strict=False)
