"""The trace of a program that requests an execution."""

import sys

from ..domain.trace_context import TraceContext


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
