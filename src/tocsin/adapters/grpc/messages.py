"""The messages of the gRPC service, made of the JSON of the API."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp

from ...v1 import scheduler_pb2 as pb
from .in_process import Refused


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
    """Return a time of the API as a timestamp."""
    if text is None:
        return None
    time = Timestamp()
    time.FromDatetime(datetime.fromisoformat(text))
    return time


def struct_of(fields: Mapping[str, Any]) -> Struct:
    """Return a JSON object as a message."""
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
