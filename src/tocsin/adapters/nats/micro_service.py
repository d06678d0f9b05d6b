"""The API as a NATS micro service: `<root>.api.<operation>`.

The operations are those of the OpenAPI document. A request is a JSON object: the parameters of the operation's path and
query are taken from it, and the rest is the body. Headers are passed on (`Authorization`, `Idempotency-Key`,
`If-Match`, `X-Reason`), and so is the response. An error response is also an error of the service, with the HTTP status
as its code. Callers are authenticated as over HTTP.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from nats.aio.client import Client
from nats.micro import add_service
from nats.micro.request import Request

from .client.names import Names

NAME: Final = "tocsin-api"
FORWARDED_HEADERS: Final = ("Authorization", "Idempotency-Key", "If-Match", "If-None-Match", "X-Reason")
_FIRST_ERROR_STATUS: Final = 400


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of the API."""

    name: str
    method: str
    path: str
    """The path, with `{…}` for its parameters."""
    has_body: bool


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request in the form that the application accepts."""

    method: str
    path: str
    query: Mapping[str, Any]
    body: Any
    headers: Mapping[str, str]


Send = Callable[[ApiRequest], Awaitable[tuple[int, Mapping[str, str], bytes]]]


@asynccontextmanager
async def serve_operations(
    client: Client, names: Names, operations: Collection[Operation], send: Send, *, version: str
) -> AsyncIterator[None]:
    """Serve requests within the block; copies of the service share them."""
    service = await add_service(client, name=NAME, version=version, description="Tocsin's API")
    running: set[asyncio.Task[None]] = set()

    def handler_of(operation: Operation) -> Callable[[Request], Awaitable[None]]:
        async def handle(request: Request) -> None:
            # A separate task, so that a slow request does not delay others of its kind.
            task = asyncio.create_task(_answer(operation, request, send))
            running.add(task)
            task.add_done_callback(running.discard)

        return handle

    try:
        for operation in operations:
            subject = names.to_wire(f"api.{operation.name}")
            await service.add_endpoint(name=operation.name, subject=subject, handler=handler_of(operation))
        await client.flush()
        yield
    finally:
        await service.stop()
        await asyncio.gather(*running, return_exceptions=True)


async def _answer(operation: Operation, request: Request, send: Send) -> None:
    try:
        api_request = _api_request(operation, request)
    except ValueError as error:
        await request.respond_error("400", str(error))
        return
    status, headers, body = await send(api_request)
    response_headers = {
        name: value for name, value in headers.items() if name.lower() in {"content-type", "etag", "retry-after"}
    }
    if status < _FIRST_ERROR_STATUS:
        await request.respond(body, {**response_headers, "Status-Code": str(status)})
    else:
        await request.respond_error(str(status), _description(body), body, response_headers)


def _api_request(operation: Operation, request: Request) -> ApiRequest:
    try:
        arguments = json.loads(request.data) if request.data else {}
    except ValueError as error:
        raise ValueError(f"the request is not JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise ValueError("the request must be one JSON object")  # noqa: TRY004 - the value comes from a message
    path = operation.path
    for name in _parameters(path):
        value = arguments.pop(name, None)
        if not isinstance(value, str | int) or isinstance(value, bool) or value == "":
            raise ValueError(f"`{name}` is required")
        path = path.replace(f"{{{name}}}", quote(str(value), safe=""))
    headers = {name: value for name in FORWARDED_HEADERS if (value := (request.headers or {}).get(name))}
    query = {} if operation.has_body else arguments
    body = arguments if operation.has_body and (arguments or request.data) else None
    return ApiRequest(operation.method, path, query, body, headers)


def _parameters(path: str) -> list[str]:
    return [part.partition("}")[0] for part in path.split("{")[1:]]


def _description(body: bytes) -> str:
    """Return the detail of a problem in a line of ASCII, for a header."""
    try:
        problem = json.loads(body)
        detail = problem.get("detail") or problem["error"]["message"]
    except (ValueError, KeyError, AttributeError):
        detail = "refused"
    return " ".join(str(detail).split()).encode("ascii", "replace").decode()[:500]
