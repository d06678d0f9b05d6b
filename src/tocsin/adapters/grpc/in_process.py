"""Requests of gRPC calls to the HTTP API of the same process."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

import httpx
from starlette.types import ASGIApp, Message

BASE_URL: Final = "http://localhost"
"""The host of requests. Without a token, the API answers only under a loopback name."""
MAX_PIECES: Final = 16
"""Pieces of an endless answer that wait for a reader."""

Query = Mapping[str, str | int | bool | Sequence[str]]


class Refused(Exception):
    """The API refused a request."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a gRPC call, as the API sees it."""

    address: str
    authorization: tuple[bytes, ...] = ()
    """The values of all its entries; the API refuses a call with several."""
    traceparent: str | None = None
    """The trace of the call (W3C Trace Context)."""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        given = [(b"host", b"localhost"), *((b"authorization", value) for value in self.authorization)]
        return given if self.traceparent is None else [*given, (b"traceparent", self.traceparent.encode())]


class Api:
    """The HTTP API of this process."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def request(
        self, caller: Caller, method: str, path: str, *, query: Query | None = None, body: object = None
    ) -> Any:  # noqa: ANN401 - JSON
        """Send a request of a caller, and return the JSON of its answer.

        Raises:
            Refused: the API refused it.
        """
        transport = httpx.ASGITransport(self._app, raise_app_exceptions=False, client=(caller.address, 0))
        try:
            request = httpx.Request(method, BASE_URL + path, params=query, json=body, headers=caller.headers)
        except httpx.InvalidURL:
            raise Refused(422, "invalid-request", "the fields of the request are too long") from None
        response = await transport.handle_async_request(request)
        content = await response.aread()
        if not response.is_success:
            raise _refusal(response.status_code, content)
        return json.loads(content) if content else None

    async def pieces(self, caller: Caller, path: str, query: Query) -> AsyncGenerator[bytes, None]:
        """Yield the pieces of an endless answer.

        Raises:
            Refused: the API refused the request.
        """
        messages: asyncio.Queue[Message | None] = asyncio.Queue(MAX_PIECES)
        running = asyncio.create_task(self._answer(_scope(caller, path, query), messages))
        try:
            start = await messages.get()
            if start is None:
                raise _refusal(HTTPStatus.INTERNAL_SERVER_ERROR, b"")
            async with aclosing(_bodies(messages)) as bodies:
                if start["status"] != HTTPStatus.OK:
                    raise _refusal(start["status"], b"".join([piece async for piece in bodies]))
                async for piece in bodies:
                    yield piece
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _answer(self, scope: dict[str, Any], messages: "asyncio.Queue[Message | None]") -> None:
        requests = iter([{"type": "http.request", "body": b"", "more_body": False}])

        async def receive() -> Message:
            if (request := next(requests, None)) is not None:
                return request
            await asyncio.Event().wait()  # a call that ends cancels this task
            return {"type": "http.disconnect"}

        with suppress(Exception):  # the API has logged it
            await self._app(scope, receive, messages.put)
        await messages.put(None)  # not after a cancellation: nothing takes pieces from a full queue then


async def _bodies(messages: "asyncio.Queue[Message | None]") -> AsyncGenerator[bytes, None]:
    while (message := await messages.get()) is not None:
        if message["type"] == "http.response.body":
            yield message.get("body", b"")


def _scope(caller: Caller, path: str, query: Query) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": urlencode(query, doseq=True).encode(),
        "headers": caller.headers,
        "client": (caller.address, 0),
        "server": ("localhost", 80),
    }


def _refusal(status: int, content: bytes) -> Refused:
    try:
        problem = json.loads(content)
        detail = problem["detail"]
        if errors := problem.get("errors"):
            detail = f"{detail} {json.dumps(errors, ensure_ascii=False)}"
        return Refused(status, problem["type"].rpartition(":")[2], detail)
    except (ValueError, KeyError, TypeError):
        return Refused(status, "unforeseen", f"the API answered {status}")
