"""Log lines of what a process stores.

The end of an execution has a line at info, every other message at debug. Each message is stored once, so all copies of a
stage together write one line for it. Only a process that dies right after a write leaves its line out. Lines hold names and
numbers, and no inputs or results of jobs.
"""

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from .... import telemetry
from ....domain.events import Cancelled, Completed, Failed, Failure, Message, Skipped
from ....domain.history import failure_summary
from ....domain.trace_context import parse
from ....ports import Append, Delay, Publish, Write
from ....telemetry import trace_ids

MAX_CHARACTERS: Final = 300
"""Characters that a line shows of a text that a job or a person wrote."""
_ENDS: Final = frozenset({Completed, Failed, Cancelled, Skipped})
_SHOWN: Final = (
    *("job", "execution_id", "step", "attempt", "delivery", "scheduled_time", "trigger", "queue", "function"),
    *("worker", "agent_id", "outcome", "reason", "fence", "recovery", "id"),
)
"""The fields of messages that lines show."""
_PLAIN: Final = (str, int, float, datetime)
"""The types of values that lines show: an executor's answer that is sent again may hold any JSON in any field."""
_NAME: Final = "tocsin.decisions"
_level: Final = logging.getLogger(_NAME)
_log: Final = telemetry.get_logger(_NAME)


def write_lines(write: Write, sequences: Sequence[int]) -> None:
    """Write the lines of a write of which the messages under `sequences` were stored."""
    if isinstance(write, Append):
        for event, sequence in zip(write.events, sequences, strict=False):
            _write_event(event, sequence)
    elif not _level.isEnabledFor(logging.DEBUG):
        return
    elif isinstance(write, Delay):
        name = _name_of(write.timer)
        _log.debug(f"{name} set", action=name, until=write.until, **_fields(write.timer))
    else:
        name = _name_of(write.message)
        _log.debug(f"{name} sent", action=name, subject=write.subject, **_fields(write.message))


def note_traces(writes: Iterable[Write]) -> None:
    """Remember the trace ids that the events of writes name."""
    for write in writes:
        if isinstance(write, Append):
            for event in write.events:
                trace_ids.note(event)
        elif isinstance(write, Publish):
            trace_ids.note(write.message)


def _write_event(event: Message, sequence: int) -> None:
    if type(event) in _ENDS:
        if _level.isEnabledFor(logging.INFO):
            name = _name_of(event)
            _log.info(f"execution {name}", action=f"execution-{name}", sequence=sequence, **_fields(event))
    elif _level.isEnabledFor(logging.DEBUG):
        name = _name_of(event)
        _log.debug(f"{name} stored", action=name, sequence=sequence, **_fields(event))


def _name_of(message: Message) -> str:
    if getattr(message, "admits", None) is not None:
        return "admitted"
    return getattr(message, "type", None) or getattr(message, "event", None) or type(message).__name__


def _fields(message: Message) -> dict[str, Any]:
    values = ((name, getattr(message, name, None)) for name in _SHOWN)
    fields: dict[str, Any] = {name: _short(value) for name, value in values if isinstance(value, _PLAIN)}
    error = getattr(message, "error", None)
    if isinstance(error, Failure):
        fields["error"] = _short(failure_summary(error))
    own = parse(getattr(message, "traceparent", None))  # a trigger has no execution yet
    trace_id = own.trace_id if own is not None else trace_ids.trace_id(fields.get("execution_id"))
    return fields if trace_id is None else {**fields, "trace_id": trace_id}


def _short(value: object) -> object:
    return value[:MAX_CHARACTERS] if isinstance(value, str) else value
