"""Log lines of stored messages.

The end of an execution and the registration of a job have a line at info. Every other message has one at debug, and so has each
time that a paused job skips. Each message is stored once, so all copies of a stage together write one line for it. Only a process that dies right after a write leaves its line out. Lines hold names and
numbers, and no inputs or results of jobs.
"""

import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from datetime import datetime
from time import monotonic
from typing import Any, Final

from .. import telemetry
from ..domain.events import (
    Cancelled,
    Completed,
    CronSkipped,
    Defined,
    Due,
    Failed,
    Failure,
    Message,
    PublicEvent,
    Skipped,
    Started,
)
from ..domain.ids import occurrence_id
from ..domain.log_events import ABOUT_THE_LOG
from ..domain.trace_context import parse
from ..engine.watcher import Shown
from ..ports import Append, Publish, Write
from ..telemetry import trace_ids

MAX_CHARACTERS: Final = 300
"""Characters that a line shows of a text that a job or a person wrote."""
MAX_STARTS: Final = 20_000
"""Executions with a remembered start: the last that the process stored."""
MAX_SKIPS: Final = 2_000
_ENDS: Final = frozenset({Completed, Failed, Cancelled, Skipped})
_SHOWN: Final = {
    name: name
    for name in (
        *("job", "execution_id", "step", "attempt", "delivery", "scheduled_time", "trigger", "queue", "function"),
        *("worker", "agent_id", "outcome", "reason", "fence", "recovery", "id"),
    )
}
"""The fields of messages that lines show, and their names in lines."""
_SHOWN_OF_PUBLIC: Final = {
    "cron_name": "job",
    "job_id": "execution_id",
    **{name: name for name in ("scheduled_time", "reason", "answer", "code", "count", "until")},
}
"""Fields from the data of public events."""
_PLAIN: Final = (str, int, float, datetime)
"""The types of values that lines show: an executor's answer that is sent again may hold any JSON in any field."""
_NAME: Final = "tocsin.decisions"
_level: Final = logging.getLogger(_NAME)
_log: Final = telemetry.get_logger(_NAME)
_starts: Final[OrderedDict[tuple[str, str], float]] = OrderedDict()
"""By job and id of the execution."""
_skips: Final[OrderedDict[tuple[object, ...], str]] = OrderedDict()
"""The executions that this process skipped, the last `MAX_SKIPS`, by what `cron.skipped` says of them."""


def note(write: Write, sequences: Sequence[int]) -> None:
    """Remember the trace ids of a write, and write its lines."""
    note_traces([write])
    write_lines(write, sequences)


def note_decisions(shown: Shown) -> None:
    """Remember the trace ids of an own commit, and write its log lines."""
    is_shown = _level.isEnabledFor(logging.INFO)
    for event, one in zip(shown.events, shown.recorded, strict=False):  # without recorded events if none is decoded
        if one is not None and one.message is not ABOUT_THE_LOG:
            _note_traces(one.message)
            if is_shown:
                _write_event(one.message, one.sequence, stage=event.by)


def write_lines(write: Write, sequences: Sequence[int]) -> None:
    """Write the lines of a write after its messages were stored under `sequences`."""
    if isinstance(write, Append):
        if _level.isEnabledFor(logging.INFO):
            for event, sequence in zip(write.events, sequences, strict=False):
                _write_event(event, sequence)
    elif not _level.isEnabledFor(logging.DEBUG):
        return
    else:
        for message in getattr(write.message, "reports", (write.message,)):
            name = _name_of(message)
            _log.debug(f"{name} sent", action=name, subject=write.subject, **_fields(message))


def note_traces(writes: Iterable[Write]) -> None:
    """Remember the trace ids that the events of writes name."""
    for write in writes:
        if isinstance(write, Append):
            for event in write.events:
                _note_traces(event)
        elif isinstance(write, Publish):
            trace_ids.note(write.message)


def _note_traces(event: Message) -> None:
    trace_ids.note(event)
    if type(event) is Skipped and _level.isEnabledFor(logging.DEBUG):
        _skips[event.job, event.scheduled_time, event.reason, event.shard] = event.execution_id
        if len(_skips) > MAX_SKIPS:
            _skips.popitem(last=False)


def _write_event(event: Message, sequence: int, **bound: str) -> None:
    is_end = type(event) in _ENDS
    if is_end and not (type(event) is Skipped and event.reason == "disabled" and event.trigger == "cron"):
        name = _name_of(event)
        fields = _fields(event) | _duration(event) | bound
        _log.info(f"execution {name}", action=f"execution-{name}", sequence=sequence, **fields)
    elif type(event) is Defined:
        fields = _fields(event) | _schedule(event) | bound
        _log.info("job registered", action="job-registered", sequence=sequence, **fields)
    else:
        _note_start(event)
        if _level.isEnabledFor(logging.DEBUG):
            name = _name_of(event)
            _log.debug(f"{name} stored", action=name, sequence=sequence, **_fields(event), **bound)


def _name_of(message: Message) -> str:
    if getattr(message, "admits", None) is not None:
        return "admitted"
    return getattr(message, "type", None) or getattr(message, "event", None) or type(message).__name__


def _fields(message: Message) -> dict[str, Any]:
    carrier, names = (message.data, _SHOWN_OF_PUBLIC) if isinstance(message, PublicEvent) else (message, _SHOWN)
    values = ((names[field], getattr(carrier, field, None)) for field in names)
    fields: dict[str, Any] = {name: _short(value) for name, value in values if isinstance(value, _PLAIN)}
    fields |= _execution_of(message)
    delay = getattr(getattr(message, "plan", None), "start_delay", None)
    if delay is not None:
        fields["start_delay_ms"] = round(delay * 1_000)
    error = getattr(message, "error", None)
    if isinstance(error, Failure):
        fields["error"] = _short(error.summary)
    own = parse(getattr(carrier, "traceparent", None))  # a trigger has no execution yet
    trace_id = own.trace_id if own is not None else trace_ids.trace_id(fields.get("job"), fields.get("execution_id"))
    return fields if trace_id is None else {**fields, "trace_id": trace_id}


def _execution_of(message: Message) -> dict[str, str]:
    """Return the execution of a message that does not name it."""
    if isinstance(message, Due):
        return {"execution_id": occurrence_id(message.job, message.scheduled_time)}
    if isinstance(message, CronSkipped):
        data = message.data
        skipped = _skips.get((data.cron_name, data.scheduled_time, data.reason, data.shard))
        return {} if skipped is None else {"execution_id": skipped}
    return {}


def _schedule(event: Defined) -> dict[str, Any]:
    definition = event.definition
    names = ("schedule", "timezone", "overlap_policy", "jitter")
    return {name: _short(value) for name in names if (value := getattr(definition, name))}


def _note_start(event: Message) -> None:
    if type(event) is Started and (key := (event.job, event.execution_id)) not in _starts:
        _starts[key] = monotonic()
        if len(_starts) > MAX_STARTS:
            _starts.popitem(last=False)


def _duration(end: Message) -> dict[str, int]:
    """Return the time since the first start of an execution, if this process stored it."""
    start = _starts.pop((getattr(end, "job", ""), getattr(end, "execution_id", "")), None)
    return {} if start is None else {"duration_ms": round((monotonic() - start) * 1_000)}


def _short(value: object) -> object:
    return value[:MAX_CHARACTERS] if isinstance(value, str) else value
