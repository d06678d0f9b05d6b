"""Output of an execution: its last lines, and the progress of each step.

Any worker may have written it, so no text of it reaches a terminal unchanged.
"""

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import isfinite
from typing import Final

from pydantic import JsonValue

from ... import subjects
from ...domain import execution
from ...domain.definition import size_of
from ...domain.events import OutputLine, StepProgress
from ...domain.progress import MAX_DATA_BYTES, fraction_of, message_of
from ...domain.text import printable
from ...ports import EventLog, LogUnavailable, RequestRefused
from ...subjects import OUTPUT_STREAMS, DecodeError, Stream
from .errors import NotFound
from .lookup import ExecutionMatch

MAX_LINES: Final = OUTPUT_STREAMS[Stream.OUTPUT].messages
"""Lines that an execution keeps."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line that a handler logged."""

    sequence: int
    """Its position in the stream; continue after the last."""
    time: datetime
    """When the handler logged it, by the worker's clock."""
    step: str
    attempt: int
    level: str
    text: str


@dataclass(frozen=True, slots=True)
class Progress:
    """The newest progress of a step."""

    time: datetime
    """When the handler reported it, by the worker's clock."""
    attempt: int
    fraction: float
    """From 0 to 1."""
    message: str
    data: Mapping[str, JsonValue] = field(default_factory=dict)
    """Details of a worker over HTTP."""


@dataclass(frozen=True, slots=True)
class ExecutionOutput:
    """Lines of an execution, oldest first, and the progress of its steps."""

    job: str
    execution_id: str
    lines: tuple[Line, ...] = ()
    next: int = 0
    """The sequence after which the next lines come."""
    is_over: bool = False
    """The execution had ended before the lines were read, so that few more lines can come."""
    progress: Mapping[str, Progress] = field(default_factory=dict)


async def read_output(
    log: EventLog, match: ExecutionMatch, *, after: int = 0, limit: int = MAX_LINES
) -> ExecutionOutput:
    """Return up to `limit` lines after a sequence, and the progress of each step.

    Unreadable messages are left out.

    Raises:
        LogUnavailable: the log does not answer.
    """
    state = execution.fold(match.facts)
    lines, place = await _lines(log, match, after, limit)
    steps = [step.name for step in state.requested.plan.steps] if state.requested else []
    return ExecutionOutput(
        match.job, match.execution_id, lines, place, is_over=state.is_over, progress=await _progress(log, match, steps)
    )


async def output_if_readable(reading: Awaitable[ExecutionOutput]) -> ExecutionOutput:
    """Return an output, or an empty output if it cannot be read."""
    try:
        return await reading
    except (LogUnavailable, RequestRefused, NotFound):
        return ExecutionOutput("", "")


async def _lines(log: EventLog, match: ExecutionMatch, after: int, limit: int) -> tuple[tuple[Line, ...], int]:
    subject = subjects.lines(match.job, match.execution_id)
    lines: list[Line] = []
    for _ in range(MAX_LINES):  # each unreadable message costs a read
        try:
            page = await log.read(subject, after=after, limit=limit - len(lines))
        except DecodeError as error:
            after = max(after + 1, error.sequence or 0)
            continue
        for recorded in page:
            after = recorded.sequence
            if isinstance(recorded.message, OutputLine):
                lines.append(_line(recorded.message, recorded.sequence))
        if not page or len(lines) >= limit:
            break
    return tuple(lines), after


def _line(line: OutputLine, sequence: int) -> Line:
    return Line(sequence, line.time, printable(line.step), line.attempt, line.level, printable(line.text))


async def _progress(log: EventLog, match: ExecutionMatch, steps: list[str]) -> dict[str, Progress]:
    if not steps:
        return {}
    prefix = subjects.progress(match.job, match.execution_id).removesuffix(">")
    try:
        reads = await log.load_each(*(f"{prefix}{step}" for step in steps))
    except DecodeError:
        return {}
    newest = (facts[-1].message if facts else None for facts in reads.facts)
    return {
        step: _shown(progress)
        for step, progress in zip(steps, newest, strict=True)
        if isinstance(progress, StepProgress) and isfinite(progress.fraction)
    }


def _shown(progress: StepProgress) -> Progress:
    data = progress.data if size_of(progress.data) <= MAX_DATA_BYTES else {}
    fraction = fraction_of(progress.fraction) or 0.0
    return Progress(progress.time, progress.attempt, fraction, message_of(progress.message), data)
