"""The trace ids of executions, for the log lines about them.

Only some messages of an execution have its trace context. A process remembers it from those that it read or stored, so that its
lines about all others have the trace id too.
"""

import sys
from collections import OrderedDict
from collections.abc import MutableMapping
from typing import Any, Final, cast

from .. import subjects
from ..domain.events import Admitted, Dispatched, Message, Planned, Report, Skipped
from ..domain.trace_context import TraceContext, parse

MAX_KNOWN: Final = 20_000
"""Executions whose trace ids a process remembers, the last that it met."""

_CARRIERS: Final = frozenset({Dispatched, Report, Planned, Admitted, Skipped})
"""The messages of an execution with its trace context."""

_known: Final[OrderedDict[tuple[str, str], str]] = OrderedDict()
"""By job and id: jobs of the Open Job Spec may bring the id of another job's execution."""


def note(message: Message) -> None:
    """Remember the trace id of an execution if a message has its trace context.

    Events replace what a report named: a worker may report anything.
    """
    if type(message) not in _CARRIERS:
        return
    carrier = cast("Dispatched | Report | Planned | Admitted | Skipped", message)
    if carrier.traceparent is None:
        return
    key = carrier.job, carrier.execution_id
    known = _known.get(key)
    if known is not None and (known in carrier.traceparent or type(carrier) is Report):
        return
    if (context := parse(carrier.traceparent)) is not None:
        _known[key] = context.trace_id
        if len(_known) > MAX_KNOWN:
            _known.popitem(last=False)


def trace_id(job: object, execution_id: object) -> str | None:
    """Return the trace id of an execution; None: it has none, or was never met."""
    return _known.get((job, execution_id)) if isinstance(job, str) and isinstance(execution_id, str) else None


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
    if "trace_id" not in event and (known := trace_id(event.get("job"), event.get("execution_id"))) is not None:
        event["trace_id"] = known
    return event
