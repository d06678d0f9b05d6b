"""The API as a NATS micro service: `<root>.api.<operation>`.

The operations are those of the OpenAPI document. A request is a JSON object: the parameters of the operation's path and
query are taken from it, and the rest is the body. Headers are passed on (`Authorization`, `Idempotency-Key`,
`If-Match`, `X-Reason`), and so is the response. An error response is also an error of the service, with the HTTP status
as its code. Callers are authenticated as over HTTP. Every request is answered, also one that no HTTP client could send.

Anyone in the account may send requests, faster than they are authenticated. Those beyond `MAX_RUNNING` are refused where the connection is
read, before they cost more than their answer: a queue of them would delay everything else that the API does.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import quote

from nats.aio.client import Client
from nats.micro import add_service
from nats.micro.request import Request

from ... import telemetry
from ...domain.definition.fields import text_problem
from .client.names import Names

NAME: Final = "tocsin-api"
FORWARDED_HEADERS: Final = ("Authorization", "Idempotency-Key", "If-Match", "If-None-Match", "X-Reason")
MAX_DEPTH: Final = 100
"""Levels of nesting in a request; the fields of a definition allow fewer."""
MAX_PARAMETER_BYTES: Final = 16_384
"""Bytes of the parameters of the path and the query together."""
MAX_RUNNING: Final = 32
"""Requests that are answered at the same time."""
REFUSALS_LOG_INTERVAL_S: Final = 60.0
_FIRST_ERROR_STATUS: Final = 400

_log = telemetry.get_logger("tocsin.nats")


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
    headers: Mapping[str, bytes]


Send = Callable[[ApiRequest], Awaitable[tuple[int, Mapping[str, str], bytes]]]


@asynccontextmanager
async def serve_operations(
    client: Client, names: Names, operations: Collection[Operation], send: Send, *, version: str
) -> AsyncIterator[None]:
    """Serve requests within the block; copies of the service share them."""
    service = await add_service(client, name=NAME, version=version, description="Tocsin's API")
    running: set[asyncio.Task[None]] = set()
    refusals = _Refusals()

    def handler_of(operation: Operation) -> Callable[[Request], Awaitable[None]]:
        async def handle(request: Request) -> None:
            if len(running) >= MAX_RUNNING:
                refusals.note()
                detail = "the API answers as many requests over NATS as it can. Retry later"
                await _respond_error(request, "503", detail)
                return
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
        refusals.tell()
        await asyncio.gather(*running, return_exceptions=True)


class _Refusals:
    """Logs the refusals of an interval in one line, at its end."""

    def __init__(self) -> None:
        self._number = 0
        self._end: asyncio.TimerHandle | None = None

    def note(self) -> None:
        self._number += 1
        if self._end is None:
            self._end = asyncio.get_running_loop().call_later(REFUSALS_LOG_INTERVAL_S, self.tell)

    def tell(self) -> None:
        if self._end is not None:
            self._end.cancel()
            _log.warning(
                "requests over NATS refused; too many at once",
                action="nats-requests-refused",
                refused=self._number,
                at_once=MAX_RUNNING,
            )
            self._number, self._end = 0, None


async def _answer(operation: Operation, request: Request, send: Send) -> None:
    try:
        api_request = _api_request(operation, request)
    except ValueError as error:
        await _respond_error(request, "400", _one_line(str(error)))
        return
    try:
        status, headers, body = await send(api_request)
    except Exception as error:  # noqa: BLE001 - the caller waits for an answer
        _log.error("request over NATS failed", action="nats-request-failed", operation=operation.name, exc_info=error)
        await _respond_error(request, "500", "the request failed; the log of the API says why")
        return
    response_headers = {
        name: value for name, value in headers.items() if name.lower() in {"content-type", "etag", "retry-after"}
    }
    if status < _FIRST_ERROR_STATUS:
        with suppress(ValueError):
            await request.respond(body, {**response_headers, "Status-Code": str(status)})
    else:
        await _respond_error(request, str(status), _description(body), body, response_headers)


async def _respond_error(
    request: Request, code: str, description: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> None:
    with suppress(ValueError):  # the request has no reply subject: its sender wants no answer
        await request.respond_error(code, description, body, headers)


def _api_request(operation: Operation, request: Request) -> ApiRequest:
    arguments = _arguments(request.data)
    path, parameter_bytes = operation.path, 0
    for name in _parameters(path):
        value = arguments.pop(name, None)
        if not isinstance(value, str | int) or isinstance(value, bool) or value == "":
            raise ValueError(f"`{name}` is required")
        written = quote(str(value), safe="")
        parameter_bytes += len(written)
        path = path.replace(f"{{{name}}}", written)
    headers = {
        name: value.encode("utf-8", "replace")
        for name in FORWARDED_HEADERS
        if (value := (request.headers or {}).get(name))
    }
    query = {} if operation.has_body else {name: _parameter(name, value) for name, value in arguments.items()}
    parameter_bytes += sum(len(quote(f"{name}={value}")) for name, value in query.items())
    if parameter_bytes > MAX_PARAMETER_BYTES:
        raise ValueError(f"the parameters have {parameter_bytes:,} bytes; at most {MAX_PARAMETER_BYTES:,} are allowed")
    body = arguments if operation.has_body and (arguments or request.data) else None
    return ApiRequest(operation.method, path, query, body, headers)


def _arguments(data: bytes) -> dict[str, Any]:
    try:
        arguments = json.loads(data, parse_constant=_reject_constant) if data else {}
    except RecursionError:
        raise ValueError(f"the request is nested more than {MAX_DEPTH} levels deep") from None
    except ValueError as error:
        raise ValueError(f"the request is not JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise ValueError("the request must be one JSON object")  # noqa: TRY004 - the value comes from a message
    level: list[Any] = [arguments]
    for _ in range(MAX_DEPTH):
        level = [inner for value in level for inner in _inner(value)]
        if not level:
            return arguments
    raise ValueError(f"the request is nested more than {MAX_DEPTH} levels deep")


def _inner(value: object) -> list[Any]:
    """Return the values in a value, after a check of its texts."""
    match value:
        case dict():
            return [*value, *value.values()]
        case list():
            return value
        case str() if reason := text_problem(value):
            raise ValueError(f"the request has {reason}")
        case _:
            return []


def _reject_constant(name: str) -> None:
    raise ValueError(f"JSON has no {name}")


def _parameter(name: str, value: object) -> str | int | float | list[Any] | None:
    """Return the value of a query parameter; a list repeats the parameter."""
    items = value if isinstance(value, list) else [value]
    if not all(item is None or isinstance(item, str | int | float) for item in items):
        raise ValueError(f"`{name}` must be a text, a number, true, false or a list of them")
    return cast("str | int | float | list[Any] | None", value)


def _parameters(path: str) -> list[str]:
    return [part.partition("}")[0] for part in path.split("{")[1:]]


def _description(body: bytes) -> str:
    """Return the detail of a problem in a line of ASCII, for a header."""
    try:
        problem = json.loads(body)
        detail = problem.get("detail") or problem["error"]["message"]
    except (ValueError, KeyError, AttributeError):
        detail = "refused"
    return _one_line(str(detail))


def _one_line(text: str) -> str:
    """Return a text as a line of ASCII, for a header."""
    return " ".join(text.split()).encode("ascii", "replace").decode()[:500]
