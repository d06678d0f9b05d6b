"""Fields by which a log line names its execution and its trace."""

import sys
from collections.abc import MutableMapping
from typing import Any

from .. import subjects
from ..domain.trace_context import TraceContext
from . import trace_ids


def current_traceparent() -> str | None:
    """Return the current span of OpenTelemetry, as the header `traceparent`.

    None: no span is current. A program that does not import OpenTelemetry has no spans, and pays nothing here.
    """
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry.trace import format_span_id, format_trace_id, get_current_span  # noqa: PLC0415 - see above

    span = get_current_span().get_span_context()
    if not span.is_valid:
        return None
    return TraceContext(
        format_trace_id(span.trace_id), format_span_id(span.span_id), span.trace_flags.sampled
    ).traceparent


def complete(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add the fields of its subject, its scope and its trace to a line."""
    if "execution_id" not in event:
        subject = event.get("subject") or event.get("scope")
        if isinstance(subject, str):
            for name, value in subjects.ids_in(subject).items():
                event.setdefault(name, value)
    if (
        "trace_id" not in event
        and (trace_id := trace_ids.trace_id(event.get("job"), event.get("execution_id"))) is not None
    ):
        event["trace_id"] = trace_id
    return event
