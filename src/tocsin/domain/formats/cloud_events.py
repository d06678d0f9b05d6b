"""Public events as CloudEvents 1.0: the attributes, which go into headers (binary content mode)."""

import re
from collections.abc import Mapping
from typing import Final, assert_never
from urllib.parse import quote

from .. import ids
from ..events import CronAlert, CronAnswer, CronMissed, CronSkipped, CronTriggered, PublicEvent
from ..text import utc_text

PREFIX: Final = "ce-"
"""The beginning of the names of headers."""
_OF_THE_SPECIFICATION: Final = (CronTriggered, CronSkipped)
_SAFE: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
"""The characters that a header holds as they are."""
_PLAIN: Final = re.compile(f"[{re.escape(_SAFE)}]*")


def headers_of(event: PublicEvent | CronAlert, source: str) -> Mapping[str, str]:
    """Return the attributes of a public event or a notification as headers.

    `source`: a URI reference of the installation. Source and id together name the event.
    """
    kind = event.event if isinstance(event, _OF_THE_SPECIFICATION) else f"x.{event.event}"
    attributes = {
        "specversion": "1.0",
        "id": _id_of(event),
        "source": source,
        "type": f"org.openjobspec.{kind}",
        "time": utc_text(event.timestamp),
        "subject": getattr(event.data, "job_id", None) or event.data.cron_name,
        "datacontenttype": "application/json",
    }
    traceparent = getattr(event.data, "traceparent", None)
    if traceparent is not None:  # the extension for distributed tracing
        attributes["traceparent"] = traceparent
    return {
        f"{PREFIX}{name}": value if _PLAIN.fullmatch(value) else quote(value, safe=_SAFE)
        for name, value in attributes.items()
    }


def _id_of(event: PublicEvent | CronAlert) -> str:
    """Return the id of an event, which is the same in each copy of it."""
    match event:
        case CronAlert(data=data):
            return data.id
        case CronTriggered(data=data):
            parts = [data.job_id]
        case CronSkipped(data=data):
            parts = [utc_text(data.scheduled_time), data.reason, *([] if data.shard is None else [data.shard])]
        case CronMissed(data=data):
            parts = [utc_text(data.until), data.reason]
        case CronAnswer(data=data):
            parts = [data.trigger_id, data.answer, data.job_id or "", data.dead_letter or ""]
        case _:
            assert_never(event)
    return ids.event_id(event.event, event.data.cron_name, event.timestamp, *parts)
