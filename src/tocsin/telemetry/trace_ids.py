"""The trace ids of executions, for the log lines about them."""

from collections import OrderedDict
from typing import Final, cast

from ..domain.events import Admitted, Dispatched, Message, Planned, Report, Skipped
from ..domain.trace_context import parse

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
    """Return the trace id of an execution of a job.

    None: it has no trace, or this process has not met it.
    """
    return _known.get((job, execution_id)) if isinstance(job, str) and isinstance(execution_id, str) else None
