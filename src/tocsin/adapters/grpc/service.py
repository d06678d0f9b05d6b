"""The calls of the gRPC service, each a request of its caller to the API."""

import json
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp

from ...domain.definition import show
from ...v1 import scheduler_pb2 as pb
from ..http.api.dependencies import Components
from ..http.api.events import NO_LONGER, TOO_SLOW
from ..http.event_stream import COMMENT, events
from .in_process import Api, Caller, Refused

MAX_STATUS_JOBS: Final = 5_000
"""Jobs of one scheduler status, which has no pages."""
MAX_NAME: Final = 1_000
"""Characters of a name or an id in a request; the API allows fewer."""
USUAL_JOBS: Final = 100
USUAL_EXECUTIONS: Final = 50
ACCEPTED: Final = None
"""Precedes the events of a call: all events that are stored from then on follow."""
CODE: Final = "tocsin-code"
"""The trailing metadata with the stable code of a refusal."""

_STATUS: Final = {
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


def job_of(details: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a message
    """Return a job as `GET /v1/jobs` shows it."""
    return pb.Job(
        name=details["name"],
        state=details["state"],
        schedule=details["schedule"] or "",
        timezone=details["timezone"],
        next_fire_time=time_of(details["next_fire_time"]),
        last_fire_time=time_of(details["last_fire_time"]),
        tags=details["tags"],
        owner=details["owner"] or "",
        paused=details["paused"],
        definition=struct_of(details["definition"]),
    )


def execution_of(row: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a message
    """Return an execution as `GET /v1/executions` shows it."""
    return pb.Execution(
        execution_id=row["execution_id"],
        job=row["job_name"],
        status=row["status"],
        trigger=row["trigger"],
        scheduled_time=time_of(row["scheduled_time"]),
        started_at=time_of(row["started_at"]),
        completed_at=time_of(row["completed_at"]),
        duration_ms=row["duration_ms"],
        attempt=row["attempt"],
        error=row["error"] or "",
        reason=row["reason"] or "",
        result=value_of(row["result"]),
    )


def event_of(event_id: str, kind: str, stored: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a message
    """Return an event as `GET /v1/events` shows it."""
    return pb.Event(
        id=event_id,
        type=kind,
        time=time_of(stored["time"]),
        sequence=stored["sequence"],
        subject=stored["subject"],
        event=struct_of(stored["fact"]),
    )


def time_of(text: str | None) -> Timestamp | None:
    if text is None:
        return None
    time = Timestamp()
    time.FromDatetime(datetime.fromisoformat(text))
    return time


def struct_of(fields: Mapping[str, Any]) -> Struct:
    struct = Struct()
    struct.update(fields)
    return struct


def json_of(struct: Struct) -> Any:  # noqa: ANN401 - JSON
    """Return the JSON object of a message.

    Raises:
        Refused: a number is infinite or not a number, which JSON cannot express.
    """
    try:
        return MessageToDict(struct)
    except ValueError as error:
        raise Refused(422, "invalid-request", f"`input` is no JSON: {error}") from None


def value_of(value: Any) -> Value | None:  # noqa: ANN401 - JSON
    """Return a JSON value as a message; None for null."""
    if value is None:
        return None
    holder = Struct()
    holder["value"] = value
    return holder.fields["value"]


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
        query = {"details": True, "limit": request.page_size or USUAL_JOBS, **_given(after=request.page_token)}
        page = await self._api.request(caller, "GET", "/v1/jobs", query=query)
        return pb.ListJobsResponse(jobs=map(job_of, page["jobs"]), next_page_token=page["next"] or "")

    async def get_job(self, caller: Caller, request: Any) -> Any:  # noqa: ANN401 - messages
        return job_of(await self._api.request(caller, "GET", _path("jobs", request.name)))

    async def trigger_job(self, caller: Caller, request: Any) -> Any:  # noqa: ANN401 - messages
        body: dict[str, Any] = _given(reason=request.reason, idempotency_key=request.idempotency_key)
        if request.HasField("input"):
            body["input"] = json_of(request.input)
        if request.HasField("priority"):
            body["priority"] = request.priority
        answer = await self._api.request(caller, "POST", _path("jobs", request.name, "trigger"), body=body)
        return pb.TriggerJobResponse(**answer)

    async def pause_job(self, caller: Caller, request: Any) -> Any:  # noqa: ANN401 - messages
        return await self._switch(caller, request, "pause")

    async def resume_job(self, caller: Caller, request: Any) -> Any:  # noqa: ANN401 - messages
        return await self._switch(caller, request, "resume")

    async def cancel_execution(self, caller: Caller, request: Any) -> Any:  # noqa: ANN401 - messages
        path = _path("executions", request.execution_id, "cancel")
        answer = await self._api.request(caller, "POST", path, body=_given(reason=request.reason))
        return pb.CancelExecutionResponse(**answer)

    async def list_executions(self, caller: Caller, request: Any) -> Any:  # noqa: ANN401 - messages
        query = _given(job=request.job, status=request.status, cursor=request.page_token)
        query["limit"] = request.page_size or USUAL_EXECUTIONS
        page = await self._api.request(caller, "GET", "/v1/executions", query=query)
        return pb.ListExecutionsResponse(
            executions=map(execution_of, page["executions"]), next_page_token=page["next"] or ""
        )

    async def watch_events(self, caller: Caller, request: Any) -> AsyncGenerator[Any, None]:  # noqa: ANN401 - messages
        """Yield `ACCEPTED`, and then events as they are stored.

        Raises:
            Refused: the caller may not read them, has too many streams, or reads too slowly.
        """
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

    async def _switch(self, caller: Caller, request: Any, verb: str) -> Any:  # noqa: ANN401 - messages
        body = _given(reason=request.reason)
        answer = await self._api.request(caller, "POST", _path("jobs", request.name, verb), body=body)
        return pb.SwitchJobResponse(changed=answer["changed"])

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
            yield event_of(event["id"], event["event"], json.loads(event["data"]))


def _job_status(job: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a message
    runs = job["runs"] or {}
    return pb.JobStatusProto(
        job_name=job["name"],
        cron_expr=job["schedule"] or "",
        last_run=time_of(runs.get("last_run")),
        last_duration_ms=runs.get("last_duration_ms"),
        last_result=(runs.get("last_result") or {}).get("status"),
        next_run=time_of(job["next_fire_time"]),
        run_count=runs.get("run_count"),
        error_count=runs.get("error_count"),
        is_running=bool(runs.get("running")),
        is_paused=job["state"] == "paused",
        skip_count=runs.get("skip_count"),
    )


def status_of(refused: Refused) -> grpc.StatusCode:
    return _STATUS.get(refused.status, grpc.StatusCode.INVALID_ARGUMENT)


def _given(**values: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value}


def _path(*parts: str) -> str:
    """Return a path in which each part is one segment, also `.` and `..`."""
    for part in parts:
        if "/" in part or len(part) > MAX_NAME:
            raise Refused(404, "not-found", f"nothing has the name {show(part)}")
    return "/v1/" + "/".join(quote(part, safe="").replace(".", "%2E") or "-" for part in parts)
