"""The events of buckets: changed entries of KV buckets, and stored objects."""

import base64
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from pydantic import JsonValue

from . import cel
from .event_trigger import UnreadableEvent, check_size, read_event, shown_headers

_OPERATION: Final = "KV-Operation"
_MARKER: Final = "Nats-Marker-Reason"
_FIELDS: Final = ("name", "size", "digest", "description", "mtime", "nuid", "chunks", "headers", "metadata")
_MAX_NUID: Final = 200


def entry_event(
    data: bytes, headers: Mapping[str, str], time: datetime, *, bucket: str, key: str, revision: int
) -> cel.Event:
    """Return the event of a changed entry; other values than JSON are texts.

    Raises:
        UnreadableEvent: the value is too large, or neither JSON nor a text.
    """
    is_gone = headers.get(_OPERATION) in {"DEL", "PURGE"} or _MARKER in headers
    details: dict[str, JsonValue] = {"operation": "delete" if is_gone else "put", "key": key, "revision": revision}
    body: JsonValue
    try:
        body = read_event(data, "", headers, time).body
    except UnreadableEvent:
        check_size(data, headers)
        try:
            body = data.decode()
        except UnicodeDecodeError:
            raise UnreadableEvent("the value is neither JSON nor a text in UTF-8") from None
    return cel.Event(body, f"{bucket}/{key}", shown_headers(headers), time, details)


def object_event(data: bytes, time: datetime, *, bucket: str) -> cel.Event:
    """Return the event of an object's metadata, stored after an upload and at a deletion.

    Raises:
        UnreadableEvent: the message is not that of an object.
    """
    event = read_event(data, "", {}, time)
    metadata = event.body
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        raise UnreadableEvent("the metadata of the object has no name")
    return cel.Event(None, f"{bucket}/{metadata['name']}", {}, time, object_details(metadata))


def object_name(subject: str) -> str | None:
    """Return the object's name by the subject of its metadata; None: it has no name."""
    try:
        return base64.b64decode(subject.rpartition(".")[2], altchars=b"-_", validate=True).decode()
    except ValueError:
        return None


def object_details(metadata: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    shown = {name: metadata[name] for name in _FIELDS if name in metadata}
    return {"operation": "delete" if metadata.get("deleted") is True else "put", "object": shown}


def upload_of(event: cel.Event, otherwise: str) -> str:
    """Return the identity of an upload or a deletion; `otherwise`: that of its message.

    A change of the metadata alone has the identity of its upload.
    """
    shown = event.details["object"]
    nuid = shown.get("nuid") if isinstance(shown, dict) else None
    return f"{nuid}.{event.details['operation']}" if isinstance(nuid, str) and 0 < len(nuid) <= _MAX_NUID else otherwise
