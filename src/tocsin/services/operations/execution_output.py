"""Output of an execution: its last lines, and the progress of each step."""

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from math import isfinite
from operator import attrgetter
from typing import Annotated, Final, TypeAlias

from pydantic import ConfigDict, Field, JsonValue

from ... import subjects
from ...archive.stream_reader import decoded
from ...domain import execution
from ...domain.definition import size_of
from ...domain.events import Message, OutputLine, Recorded, StepProgress
from ...domain.progress import MAX_DATA_BYTES, fraction_of, message_of
from ...domain.text import printable
from ...ports import EventLog, LogUnavailable, RequestRefused, StoredLog
from ...subjects import OUTPUT_STREAMS, DecodeError, Stream
from .errors import NotFound
from .lookup import ExecutionMatch

MAX_LINES: Final = OUTPUT_STREAMS[Stream.OUTPUT].messages
"""Lines of an execution that are shown."""
AT_ONCE: Final = 100
"""Attempts whose lines are read at the same time."""
FEW: Final = 3
"""Up to this number of attempts, the lines of each are read by themselves."""
MAX_READS: Final = 8
"""Reads over the lines of all attempts, before those of each are read."""
PAGE: Final = 1_000
"""Lines of all attempts in one read."""


Attempts: TypeAlias = Mapping[str, tuple[str, int]]
"""The step and the number of attempts, by the subject of their lines."""


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
    """Logged lines of an execution, oldest first, and the progress of its steps.

    An execution keeps its last 200 lines, for a limited time. Lines may be lost.
    """

    __pydantic_config__ = ConfigDict(use_attribute_docstrings=True, json_schema_serialization_defaults_required=True)

    job: Annotated[str, Field(alias="job_name")]
    execution_id: str
    lines: tuple[Line, ...] = ()
    next: int = 0
    """The place after which the next lines come: pass it as `after`."""
    is_over: bool = False
    """The execution has ended, so that few more lines can come."""
    progress: Mapping[str, Progress] = field(default_factory=dict)


async def read_output(
    log: EventLog, match: ExecutionMatch, *, after: int = 0, limit: int = MAX_LINES, stored: StoredLog | None = None
) -> ExecutionOutput:
    """Return up to `limit` lines after a sequence, and the progress of each step.

    Of the last `MAX_LINES` lines, these are the first. Unreadable messages are left out. `stored`: the log and its archive, which may have
    older lines of an execution that is over.

    Raises:
        ArchiveDamaged: the archive has lost lines that it names, or they were changed.
    """
    state = execution.fold(match.facts)
    lines = await _lines(log, match, after)
    if state.is_over and stored is not None:
        lines = await _with_archived(stored, match, lines, after)
    shown = tuple(lines[:limit])
    steps = [step.name for step in state.requested.plan.steps] if state.requested else []
    return ExecutionOutput(
        match.job,
        match.execution_id,
        shown,
        shown[-1].sequence if shown else after,
        is_over=state.is_over,
        progress=await _progress(log, match, steps),
    )


async def output_if_readable(reading: Awaitable[ExecutionOutput]) -> ExecutionOutput:
    """Return an output, or an empty output if it cannot be read."""
    try:
        return await reading
    except (LogUnavailable, RequestRefused, NotFound):
        return ExecutionOutput("", "")


def _attempts(match: ExecutionMatch) -> Attempts:
    return {
        subjects.lines(match.job, match.execution_id, *key, of_token=token): key for key, token in match.tokens.items()
    }


async def _lines(log: EventLog, match: ExecutionMatch, after: int) -> list[Line]:
    attempts = _attempts(match)
    everything = subjects.all_lines(match.job, match.execution_id)
    if after and len(attempts) > 1 and await log.tail(everything) <= after:
        return []
    lines = None if len(attempts) <= FEW else await _of_all(log, everything, attempts, after)
    return await _of_each(log, await _newest(log, attempts), after) if lines is None else lines


async def _with_archived(stored: StoredLog, match: ExecutionMatch, lines: list[Line], after: int) -> list[Line]:
    """Return the last lines of the archive and the stream, each line once."""
    attempts = _attempts(match)
    by_sequence = {line.sequence: line for line in lines}
    for message in await stored.archived_lines(match.execution_id):
        if message.sequence > after and message.subject in attempts and message.sequence not in by_sequence:
            try:
                line = _line(decoded(message), attempts[message.subject])
            except DecodeError:
                continue
            if line is not None:
                by_sequence[line.sequence] = line
    return [by_sequence[sequence] for sequence in sorted(by_sequence)][-MAX_LINES:]


async def _of_all(log: EventLog, everything: str, attempts: Attempts, after: int) -> list[Line] | None:
    """Return the last lines in a few reads; None: too many messages.

    Anyone may have written lines with a wrong seal. They are left out, and a flood of them is not read to its end.
    """
    lines: list[Line] = []
    for _ in range(MAX_READS):
        try:
            page = await log.read(everything, after=after, limit=PAGE)
        except DecodeError as error:
            after = max(after + 1, error.sequence or 0)
            continue
        if not page:
            return lines
        after = page[-1].sequence
        known = (_line(recorded, attempts.get(recorded.subject)) for recorded in page)
        lines = [*lines, *(line for line in known if line is not None)][-MAX_LINES:]
    return None


async def _newest(log: EventLog, attempts: Attempts) -> Attempts:
    """Return the attempts that can have one of the last lines.

    These are at most as many as lines are shown.
    """
    if len(attempts) <= MAX_LINES:
        return attempts
    try:
        newest = (await log.load_each(*attempts)).facts
    except DecodeError:
        return attempts
    ranked = sorted((facts[-1].sequence, subject) for subject, facts in zip(attempts, newest, strict=True) if facts)
    return {subject: attempts[subject] for _, subject in ranked[-MAX_LINES:]}


async def _of_each(log: EventLog, attempts: Attempts, after: int) -> list[Line]:
    lines: list[Line] = []
    named = list(attempts.items())
    for first in range(0, len(named), AT_ONCE):
        reads = (_of_attempt(log, subject, attempt, after) for subject, attempt in named[first : first + AT_ONCE])
        each = await asyncio.gather(*reads)
        lines = sorted((*lines, *chain.from_iterable(each)), key=attrgetter("sequence"))[-MAX_LINES:]
    return lines


async def _of_attempt(log: EventLog, subject: str, attempt: tuple[str, int], after: int) -> list[Line]:
    lines: list[Line] = []
    for _ in range(MAX_LINES):  # each unreadable message costs a read
        try:
            page = await log.read(subject, after=after, limit=MAX_LINES)
        except DecodeError as error:
            after = max(after + 1, error.sequence or 0)
            continue
        for recorded in page:
            after = recorded.sequence
            if (line := _line(recorded, attempt)) is not None:
                lines.append(line)
        if not page:
            break
    return lines


def _line(recorded: Recorded[Message], attempt: tuple[str, int] | None) -> Line | None:
    """Return a stored line; None: it is no line of a known attempt."""
    line = recorded.message
    if attempt is None or not isinstance(line, OutputLine):
        return None
    return Line(recorded.sequence, line.time, *attempt, line.level, printable(line.text))


async def _progress(log: EventLog, match: ExecutionMatch, steps: list[str]) -> dict[str, Progress]:
    """Return the progress of the newest attempt of each step that reported some."""
    tokens = {key: token for key, token in sorted(match.tokens.items()) if key[0] in steps}
    if not tokens:
        return {}
    names = (subjects.progress(match.job, match.execution_id, *key, of_token=token) for key, token in tokens.items())
    try:
        reads = await log.load_each(*names)
    except DecodeError:
        return {}
    newest = (facts[-1].message if facts else None for facts in reads.facts)
    return {
        step: _shown(progress, attempt)
        for (step, attempt), progress in zip(tokens, newest, strict=True)
        if isinstance(progress, StepProgress) and isfinite(progress.fraction)
    }


def _shown(progress: StepProgress, attempt: int) -> Progress:
    data = progress.data if size_of(progress.data) <= MAX_DATA_BYTES else {}
    fraction = fraction_of(progress.fraction) or 0.0
    return Progress(progress.time, attempt, fraction, message_of(progress.message), data)
