"""The trace in which a handler and the spans that it makes run."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from ..domain.trace_context import TraceContext

_OWN_TRACE: Final = nullcontext()


def in_trace(trace: TraceContext | None) -> AbstractContextManager[None]:
    """Make the span of a handler's run the current span of OpenTelemetry.

    It is current in this task and in the threads that it starts. The scheduler exports it. None: the current span stays.
    """
    return _OWN_TRACE if trace is None else _within(trace)


@contextmanager
def _within(trace: TraceContext) -> Iterator[None]:
    from opentelemetry import context  # noqa: PLC0415 - most workers make no traces
    from opentelemetry import trace as api  # noqa: PLC0415

    flags = api.TraceFlags(api.TraceFlags.SAMPLED if trace.is_sampled else api.TraceFlags.DEFAULT)
    remote = api.SpanContext(int(trace.trace_id, 16), int(trace.span_id, 16), is_remote=True, trace_flags=flags)
    token = context.attach(api.set_span_in_context(api.NonRecordingSpan(remote)))
    try:
        yield
    finally:
        context.detach(token)
