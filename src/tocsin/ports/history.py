"""The history: the read model of executions, dead letters and jobs."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple, Protocol, Self, runtime_checkable

import msgspec
from pydantic import JsonValue
from pydantic_core import to_json

from ..domain.definition import shorten
from ..domain.errors import TocsinError
from ..domain.events import Message, PassedReason, Recorded
from ..domain.totals import Total
from ..subjects import ANY, Stream
from .event_log import Encoded
from .queries import EVERY_DEAD_LETTER, EVERY_EXECUTION, CountQuery, DeadLetterQuery, ExecutionQuery, Page
from .summaries import HistorySummaries

MAX_LISTED_BYTES: Final = 1_024
"""Bytes of the input and of the last error in the row of a dead letter."""
CATCH_UP_PAUSES_S: Final = (0.005, 0.01, 0.02, 0.04, *(0.08,) * 24)
"""The pauses in which a reader waits for the history: 2 s."""


@dataclass(frozen=True, slots=True)
class ExecutionRow:
    """One execution in the history (hip-62, Execution History)."""

    job_name: str
    execution_id: str
    trigger: str
    status: str  # pending | running | completed | failed | cancelled | skipped
    scheduled_time: datetime
    started_at: datetime | None
    completed_at: datetime | None
    duration_ms: int | None
    attempt: int
    worker: str | None
    error: str | None
    dag_state: dict[str, object]  # step -> {status, attempt, started_at, ended_at, error, worker, result, phase}
    error_type: str | None = None
    traceback: str | None = None
    reason: str | None = None
    """The reason for a skip or a cancellation."""
    result: JsonValue = None
    tags: tuple[str, ...] = ()
    created_by: str | None = None
    """The identity that requested the execution; None: the schedule."""
    replay_of: str | None = None
    """The dead letter that this execution replays."""
    definition: int | None = None
    """The sequence of its definition; 0: the job was not registered; None: its trigger was refused, or it is unknown."""
    agent: str | None = None
    """The id of the agent's process that claimed a step last; None: no step was claimed, or the worker is no agent."""
    shard: str | None = None
    """The shard on which it runs; None: the job is not divided."""
    occurrence_id: str | None = None
    """The id under which it and those of other shards were fanned out; None: it stands for itself."""
    start_delay_ms: int | None = None
    """The milliseconds by which its job's jitter delayed its start; None: none."""


@dataclass(frozen=True, slots=True)
class DeadLetterRow:
    """One dead letter in the history (hip-62, Dead Letter Handling)."""

    id: str
    job_name: str
    execution_id: str | None
    attempts: int
    last_error: str | None
    input: dict[str, object]
    """The input of the execution, or the message that could not be used and its place; empty if it has more than 1,024 bytes."""
    first_attempt: datetime
    last_attempt: datetime
    resolved: bool
    definition: int | None = None
    """The sequence of the definition that the execution ran under; None: nothing ran, or the job was not registered."""
    input_size: int = 0
    """Bytes of the whole input as JSON."""
    input_beginning: str | None = None
    """The first 1,024 bytes of the input as JSON, if it has more."""

    def __post_init__(self) -> None:
        """Bound what a row carries, because strangers choose the input and the error."""
        if self.last_error is not None:
            object.__setattr__(self, "last_error", shorten(self.last_error, MAX_LISTED_BYTES))
        if self.input_beginning is None and not self.input_size:  # no copy of a row
            text = to_json(self.input, inf_nan_mode="null")
            object.__setattr__(self, "input_size", len(text))
            if len(text) > MAX_LISTED_BYTES:
                object.__setattr__(self, "input_beginning", text[:MAX_LISTED_BYTES].decode(errors="ignore"))
                object.__setattr__(self, "input", {})


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job in the history, also after its deletion (scratchbird §9.2)."""

    job_id: str
    job_name: str
    state: str  # ENABLED | DISABLED | PAUSED | DELETED
    schedule_type: str | None  # ONE_TIME | RECURRING
    next_run_time: datetime | None
    last_scheduled_time: datetime | None
    created_at: datetime
    created_by: str | None
    definition: dict[str, object] | None


class ExecutionCount(NamedTuple):
    """Executions of a definition, a trigger and a status in a span of time.

    The status of skips that only announce an instant is `execution_counts.ANNOUNCED`.
    """

    start: datetime
    """The beginning of the span."""
    definition: int | None
    """The sequence of their definition; 0: the job was not registered; None: it is unknown."""
    trigger: str
    status: str
    total: int


class PassedSpan(NamedTuple):
    """Instants of an active job that did not fire, after `start` and up to `until`."""

    start: datetime
    until: datetime
    reason: PassedReason
    total: int
    definition: int


class Duration(NamedTuple):
    """The duration of an execution, and the sequence of its definition (see `ExecutionRow`)."""

    definition: int | None
    duration_ms: int


class KeptEvent(msgspec.Struct, frozen=True, array_like=True):
    """An event that the history keeps (`Encoded`)."""

    sequence: int
    subject: str
    time: datetime
    body: msgspec.Raw

    @property
    def cause(self) -> str:
        """Nothing: the history does not keep causes."""
        return ""


class KeptEvents(NamedTuple):
    """Events that the history keeps, oldest first."""

    events: Sequence[KeptEvent]
    upto: int
    """The number up to which they are complete: where the history ended when it was read."""
    is_whole: bool = True
    """False: earlier events of the part may be missing, because of a retention or a policy."""


class KeptPart(NamedTuple):
    """The part of the events that the history finds by an index.

    It is an execution, its dead letter, a job's ledger, or all executions of a job.
    """

    kind: str
    """`execution`, `dead-letter` or `ledger`."""
    job: str | None
    """None: the job is unknown; the id names one execution."""
    id: str | None
    """The id of an execution or a dead letter; None: all of the job."""
    filters: tuple[str, ...]

    @classmethod
    def of(cls, *filters: str) -> Self | None:
        """Return the part that has all events of some filters; None: no index finds them."""
        parts = {_part_of(filter_) for filter_ in filters}
        part = parts.pop() if len(parts) == 1 else None
        return None if part is None else cls(*part, filters)

    @property
    def stream(self) -> Stream:
        """The stream that has these events."""
        return Stream.LEDGER if self.kind == "ledger" else Stream.LOG


def _part_of(filter_: str) -> tuple[str, str | None, str | None] | None:
    kind, *tokens = filter_.split(".")
    if kind not in {"execution", "dead-letter", "ledger"} or len(tokens) < 2:  # noqa: PLR2004 - a job and what follows
        return None
    job = None if tokens[0] == ANY else tokens[0]
    id_ = None if kind == "ledger" or tokens[1] in {ANY, ">"} else tokens[1]
    return None if job is None and id_ is None else (kind, job, id_)


class HistoryUnavailable(TocsinError):
    """The history database is not usable; the text says what to do."""

    code = "history-unavailable"


class HistoryUrlInvalid(HistoryUnavailable):
    """`database.url` names no database that can be opened."""

    code = "history-url-invalid"


class HistoryTooNew(HistoryUnavailable):
    """A newer version of Tocsin has written the history database."""

    code = "history-too-new"


class HistoryNotFound(HistoryUnavailable):
    """The settings name no history of this installation."""

    code = "history-not-found"


class HistoryIncomplete(HistoryUnavailable):
    """The history is being emptied, or its rebuild was interrupted."""

    code = "history-incomplete"


class History(Protocol):
    """The read model of executions, dead letters and jobs.

    Its offsets in the streams move in the same transaction as its rows.
    """

    @property
    def summaries(self) -> HistorySummaries:
        """The counts and short rows for overviews."""

    async def offset(self, stream: Stream) -> int:
        """Return the last sequence of a stream that is recorded (0: none)."""

    async def record(
        self,
        stream: Stream,
        messages: Sequence[Recorded[Message]],
        *,
        after: int,
        upto: int,
        opens: bool = True,
        encoded: Sequence[Encoded] = (),
    ) -> None:
        """Record messages and move the offset from `after` to `upto`, in one transaction.

        Without `opens`, executions that the history does not have yet are left out. `encoded`: the same events as they are stored, which
        an `EventHistory` keeps.

        Raises:
            SequenceConflict: the offset is no longer at `after`: another recorder was faster.
        """

    async def executions(self, query: ExecutionQuery = EVERY_EXECUTION) -> Page[ExecutionRow]:
        """Return a page of executions."""

    async def count(self, query: ExecutionQuery = EVERY_EXECUTION) -> int:
        """Return the number of executions that match, ignoring cursor and limit."""

    async def execution(self, execution_id: str) -> ExecutionRow | None:
        """Return one execution."""

    async def dead_letters(self, query: DeadLetterQuery = EVERY_DEAD_LETTER) -> Page[DeadLetterRow]:
        """Return a page of dead letters."""

    async def counts(self, query: CountQuery) -> Sequence[ExecutionCount]:
        """Count the executions of a job in spans of equal width, in any order."""

    async def passed(self, job: str, since: datetime, until: datetime, *, limit: int) -> Sequence[PassedSpan]:
        """Return spans of missed and superseded instants that overlap a time, oldest first."""

    async def durations(
        self, job: str, spans: Sequence[tuple[datetime, datetime]], *, limit: int
    ) -> Sequence[Sequence[Duration]]:
        """Return for each span [start, end) the durations of its first executions, at most `limit`.

        Executions without a duration are left out.
        """

    async def jobs(self) -> Sequence[JobRow]:
        """Return every job by name, also deleted jobs."""

    async def totals(self) -> Mapping[Total, int] | None:
        """Return every total; None: after `forget`, until everything that was recorded before is recorded again."""

    async def expire(self, now: datetime, *, after: timedelta) -> int:
        """Delete some expired executions and resolved dead letters; return their number.

        A row expires `after` its end, or after the time that the job's own definition sets. Call again until nothing is
        left. The totals of jobs that are neither registered nor in the history are deleted then.
        """

    async def forget(self) -> None:
        """Delete everything, including the offsets, so that recording starts again."""


@runtime_checkable
class EventHistory(Protocol):
    """A history that keeps the events of executions, dead letters and ledgers.

    They leave it with the row of their execution; the decisions on the time of a job leave with its executions, but for the newest.
    """

    async def offset(self, stream: Stream) -> int:
        """Return the last number of a stream that is recorded (0: none)."""

    async def events(
        self, part: KeptPart, *, after: int = 0, since: datetime | None = None, limit: int | None = None
    ) -> KeptEvents:
        """Return the events of a part after a number, oldest first.

        No event is before an instant (UTC). With `limit`, it returns about so many, and at least one if there is any. Call it again with the
        number of the last event.
        """

    async def newest(self, part: KeptPart) -> KeptEvents:
        """Return the newest event of each subject, oldest first."""


async def recorded_upto(history: History | EventHistory, stream: Stream, number: int, pauses: Iterable[float]) -> int:
    """Return the place of the history, once it reached a number.

    It stops after some pauses (seconds).
    """
    for pause in pauses:
        if (place := await history.offset(stream)) >= number:
            return place
        await asyncio.sleep(pause)
    return await history.offset(stream)
