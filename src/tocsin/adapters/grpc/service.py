"""The calls of the gRPC service, each a request of its caller to the API."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partialmethod
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote, urlencode

import grpc
import httpx
from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp
from starlette.types import ASGIApp, Message

from ...domain.definition import show
from ...v1 import scheduler_pb2 as pb
from ..http.api.dependencies import Components
from ..http.api.events import NO_LONGER, TOO_SLOW
from ..http.event_stream import COMMENT, events

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
        """Send a request of a caller, and return the answer's JSON, or raise `Refused`."""
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
        """Yield the pieces of an endless answer, or raise `Refused`."""
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


MAX_STATUS_JOBS: Final = 5_000
"""Jobs of one scheduler status, which has no pages."""
MAX_NAME: Final = 1_000
"""Characters of a name or an id in a request; the API allows fewer."""
ACCEPTED: Final = None
"""Precedes the events of a call: all events that are stored from then on follow."""
CODE: Final = "tocsin-code"
"""The trailing metadata with the stable code of a refusal."""

STATUS: Final = {
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    412: grpc.StatusCode.ABORTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""The gRPC status of an HTTP status. A missing status is `INVALID_ARGUMENT`."""


def _time_of(text: str) -> Timestamp:
    time = Timestamp()
    time.FromDatetime(datetime.fromisoformat(text))
    return time


def _struct_of(fields: Mapping[str, Any]) -> Struct:
    struct = Struct()
    struct.update(fields)
    return struct


_MADE_BY: Final[Mapping[str, Callable[[Any], Any]]] = {
    "google.protobuf.Timestamp": _time_of,
    "google.protobuf.Struct": _struct_of,
    "google.protobuf.Value": lambda value: _struct_of({"value": value}).fields["value"],
}
"""The function that makes a message of JSON, by the type of a field."""


def message_of(kind: Any, answer: Mapping[str, Any], **fields: Any) -> Any:  # noqa: ANN401 - messages and JSON
    """Return a message with the fields of an answer; `fields` have other names there."""
    given = {**answer, **fields}
    message: dict[str, Any] = {}
    for field in kind.DESCRIPTOR.fields:
        if (value := given.get(field.name)) is not None:
            make = _MADE_BY[field.message_type.full_name] if field.message_type else None
            message[field.name] = value if make is None else make(value)
    return kind(**message)


def json_of(struct: Struct) -> Any:  # noqa: ANN401 - JSON
    """Return the JSON object of a message; JSON has no infinite number and no NaN."""
    try:
        return MessageToDict(struct)
    except ValueError as error:
        raise Refused(422, "invalid-request", f"`input` is no JSON: {error}") from None


class SchedulerService:
    """Implements the service `tocsin.v1.Scheduler`."""

    def __init__(self, api: Api, parts: Components, *, max_streams: int) -> None:
        """`max_streams`: calls of `WatchEvents` that an identity may have at a time."""
        self._api = api
        self._parts = parts
        self._max_streams = max_streams
        self._streams = Counter[str]()

    async def get_scheduler_status(self, caller: Caller, _: Any) -> Any:  # noqa: ANN401 - messages
        """Return every visible job with the counters of its runs."""
        jobs = await self._jobs(caller)
        leadership = await self._parts.leadership()
        now = self._parts.clock.now()
        return pb.GetSchedulerStatusResponse(
            scheduler_running=any(
                lease.name == "ticker" and lease.ends_at and lease.ends_at > now for lease in leadership.leases
            ),
            jobs=map(_job_status, jobs),
        )

    async def list_jobs(self, caller: Caller, request: Any) -> Any:  # noqa: ANN401 - messages
        query = {"details": True, "limit": request.page_size or 100, **_given(after=request.page_token)}
        page = await self._api.request(caller, "GET", "/v1/jobs", query=query)
        return pb.ListJobsResponse(
            jobs=[message_of(pb.Job, job) for job in page["jobs"]], next_page_token=page["next"] or ""
        )

    async def get_job(self, caller: Caller, request: Any) -> Any:  # noqa: ANN401 - messages
        return message_of(pb.Job, await self._api.request(caller, "GET", _path("jobs", request.name)))

    async def trigger_job(self, caller: Caller, request: Any) -> Any:  # noqa: ANN401 - messages
        body: dict[str, Any] = _given(reason=request.reason, idempotency_key=request.idempotency_key)
        if request.HasField("input"):
            body["input"] = json_of(request.input)
        if request.HasField("priority"):
            body["priority"] = request.priority
        answer = await self._api.request(caller, "POST", _path("jobs", request.name, "trigger"), body=body)
        return pb.TriggerJobResponse(**answer)

    async def _switch(self, caller: Caller, request: Any, *, verb: str) -> Any:  # noqa: ANN401 - messages
        body = _given(reason=request.reason)
        answer = await self._api.request(caller, "POST", _path("jobs", request.name, verb), body=body)
        return pb.SwitchJobResponse(changed=answer["changed"])

    pause_job = partialmethod(_switch, verb="pause")
    resume_job = partialmethod(_switch, verb="resume")

    async def cancel_execution(self, caller: Caller, request: Any) -> Any:  # noqa: ANN401 - messages
        path = _path("executions", request.execution_id, "cancel")
        answer = await self._api.request(caller, "POST", path, body=_given(reason=request.reason))
        return pb.CancelExecutionResponse(**answer)

    async def list_executions(self, caller: Caller, request: Any) -> Any:  # noqa: ANN401 - messages
        query = _given(job=request.job, status=request.status, cursor=request.page_token)
        query["limit"] = request.page_size or 50
        page = await self._api.request(caller, "GET", "/v1/executions", query=query)
        return pb.ListExecutionsResponse(
            executions=[message_of(pb.Execution, row, job=row["job_name"]) for row in page["executions"]],
            next_page_token=page["next"] or "",
        )

    async def watch_events(self, caller: Caller, request: Any) -> AsyncGenerator[Any, None]:  # noqa: ANN401 - messages
        """Yield `ACCEPTED`, and then events as they are stored."""
        me = await self._api.request(caller, "GET", "/v1/me")
        bound = me["namespaces"]
        identity = f"{'' if bound is None else '@' + ','.join(bound) + ' '}{me['kind']}:{me['identity']}"
        if self._streams[identity] >= self._max_streams:
            detail = f"this identity follows events {self._max_streams} times already. End a call, or retry later"
            raise Refused(429, "too-many-readers", detail)
        self._streams[identity] += 1
        try:
            query = {**_given(job=request.job, after=request.after), "type": list(request.types)}
            async with aclosing(self._api.pieces(caller, "/v1/events", query)) as pieces:
                async for event in _events(pieces):
                    yield event
        finally:
            self._streams[identity] -= 1
            if not self._streams[identity]:
                del self._streams[identity]
        raise Refused(503, "unavailable", "the server stops. Call again, after the last event")

    async def _jobs(self, caller: Caller) -> list[Any]:
        query: dict[str, str | int | bool] = {"limit": MAX_STATUS_JOBS, "runs": True}
        jobs: list[Any] = []
        while True:
            page = await self._api.request(caller, "GET", "/v1/jobs", query=query)
            jobs += page["jobs"]
            if len(jobs) > MAX_STATUS_JOBS:
                detail = f"the status has more than {MAX_STATUS_JOBS:,} jobs. Use ListJobs"
                raise Refused(429, "too-large", detail)
            if page["next"] is None:
                return jobs
            query["after"] = page["next"]


async def _events(pieces: AsyncIterator[bytes]) -> AsyncIterator[Any]:
    async for event in events(pieces):
        comment = event.get(COMMENT)
        if comment == NO_LONGER:
            raise Refused(401, "unauthenticated", comment)
        if comment == TOO_SLOW:
            raise Refused(429, "too-slow", comment)
        if "retry" in event:  # the beginning of the answer
            yield ACCEPTED
        elif "data" in event:
            stored = json.loads(event["data"])
            yield message_of(pb.Event, stored, id=event["id"], type=event["event"], event=stored["fact"])


def _job_status(job: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a message
    runs = job["runs"] or {}
    return message_of(
        pb.JobStatusProto,
        runs,
        job_name=job["name"],
        cron_expr=job["schedule"],
        last_result=(runs.get("last_result") or {}).get("status"),
        next_run=job["next_fire_time"],
        is_running=bool(runs.get("running")),
        is_paused=job["state"] == "paused",
    )


def _given(**values: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value}


def _path(*parts: str) -> str:
    """Return a path in which each part is one segment, also `.` and `..`."""
    for part in parts:
        if "/" in part or len(part) > MAX_NAME:
            raise Refused(404, "not-found", f"nothing has the name {show(part)}")
    return "/v1/" + "/".join(quote(part, safe="").replace(".", "%2E") or "-" for part in parts)
