"""What the stages need from the outside world, and nothing about how it is done.

Every port has one behaviour suite in `tests/conformance/`, run over each of its implementations. The exceptions here are
for broken plumbing; a failed job is a fact.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from pydantic import JsonValue

from .domain.events import Message, Recorded, Timer
from .listing import EVERY_DEAD_LETTER, EVERY_EXECUTION, DeadLetterQuery, ExecutionQuery, Page
from .subjects import Bucket, Stream


class SequenceConflict(Exception):
    """Another writer appended to this scope first: fold again, decide again."""


class HistoryUnavailable(Exception):
    """The database of the history cannot be used as the settings name it; the text says why, and what would be right."""


class LogUnavailable(Exception):
    """The log did not answer; whether it stored what was sent is unknown. Redelivery and the guards sort it out."""


class NotAllowed(LogUnavailable):
    """The log does not let this client do what it asked. Its rules may change, so that no work is given up for it."""


class EventLog(Protocol):
    """The append-only log: guarded facts, unguarded inputs, delays that the log itself keeps."""

    async def append(self, fact: Message, *, expect: int) -> int:
        """Store a fact if the last sequence in its scope (`subjects.scope_of`) is `expect` (0: none); its sequence.

        Raises:
            SequenceConflict: the scope has moved.
            LogUnavailable: no answer.
        """
        ...

    async def publish(self, subject: str, message: Message, *, message_id: str) -> int:
        """Store an input; a second one of the same `message_id` within the log's window is not stored again."""
        ...

    async def delay(self, timer: Timer, *, until: datetime, scope: str, expect: int) -> None:
        """Have the log itself publish `timer` at `until` (UTC), if the last sequence in `scope` is `expect`.

        Raises:
            SequenceConflict: the scope has moved.
        """
        ...

    async def load(self, scope: str) -> list[Recorded[Message]]:
        """The last message of each subject in a scope, oldest first: enough to fold it."""
        ...

    async def load_each(self, *scopes: str) -> list[list[Recorded[Message]]]:
        """What `load` says of each of some scopes of one stream, at the price of one."""
        ...

    async def tail(self, scope: str) -> int:
        """The last sequence in a scope (0: none), as whoever guards appends knows it: no replica that lags answers."""
        ...

    async def now(self) -> datetime:
        """What time it is by the log's own clock (UTC)."""
        ...

    async def last(self, subject: str) -> Recorded[Message] | None:
        """The newest message that matches a subject or filter of one stream."""
        ...

    async def get(self, stream: Stream, sequence: int) -> Recorded[Message] | None:
        """One message by its sequence."""
        ...

    async def read(self, subject: str, *, after: int = 0, limit: int = 1_000) -> list[Recorded[Message]]:
        """Up to `limit` messages that match a subject or filter, those behind the sequence `after`, oldest first."""
        ...

    def follow(self, stream: Stream, *filters: str, after: int | None) -> AsyncIterator["Batch"]:
        """Everything that matches, for ever, through reconnects; without filters the whole stream.

        From behind the sequence `after`, or for `None` the last message of each subject and then what comes. Unreadable
        messages are left out.
        """
        ...

    def watch(self, stream: Stream, *filters: str, after: int | datetime) -> AsyncIterator["Headings"]:
        """That something was stored and when, for ever, through reconnects; no bodies travel, and none is read.

        From behind the sequence `after`, or from what was stored at that instant (UTC) or later.
        """
        ...

    async def progress(self, stream: Stream, durable: str) -> "Progress | None":
        """How far a durable of a stream has got; None: there is no such durable."""
        ...


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages that a follower got at once.

    `caught_up`: the log had no more at that moment. `upto`: the last sequence that this batch accounts for.
    """

    messages: Sequence[Recorded[Message]]
    caught_up: bool
    upto: int


@dataclass(frozen=True, slots=True)
class Heading:
    """That a message was stored: all but what it says."""

    subject: str
    sequence: int
    time: datetime


@dataclass(frozen=True, slots=True)
class Headings:
    """Headings that a watcher got at once; `caught_up` and `upto` as a `Batch` has them."""

    headings: Sequence[Heading]
    caught_up: bool
    upto: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a durable has got in its stream."""

    floor: int
    """Up to this sequence it will deliver nothing any more: all was acknowledged or ended, or lies before its start."""
    is_idle: bool
    """Nothing is to be delivered, and nothing that was waits for its acknowledgement."""

    def is_past(self, sequence: int) -> bool:
        """Whether a message that was stored a while ago will not be delivered any more."""
        return self.is_idle or self.floor >= sequence


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as it is stored, unread: for whoever keeps the log elsewhere, or proves it."""

    stream: Stream
    sequence: int
    time: datetime
    """When the log stored it, UTC."""
    subject: str
    """Relative."""
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Extent:
    """What a stream holds: `messages` of them, under sequences from `first` to `last` (0: none was ever stored)."""

    first: int
    last: int
    messages: int


class StoredLog(Protocol):
    """The streams as they are stored; or the streams and what was archived of them, as one."""

    async def archived(self, stream: Stream) -> int:
        """The sequence up to which some of a stream may be in the archive alone (0: none is)."""
        ...

    async def extent(self, stream: Stream) -> Extent:
        """What a stream holds now."""
        ...

    def messages(
        self, stream: Stream, *filters: str, after: int | datetime = 0, upto: int
    ) -> AsyncIterator[Sequence[StoredMessage]]:
        """Everything that matches, oldest first, and then the end; without filters the whole stream.

        From behind the sequence `after`, or from what was stored at that instant (UTC) or later, to the sequence `upto`.
        """
        ...


class Housekeeping(Protocol):
    """Taking out of the streams what is kept elsewhere."""

    async def decided(self, stream: Stream) -> int:
        """The sequence up to which every durable of a stream has dealt with what it was given: it comes to none again."""
        ...

    async def purge(self, subject: str, *, upto: int) -> None:
        """Remove what matches a subject or filter, up to a sequence. Removing what is absent is no error."""
        ...


class ArchiveStore(Protocol):
    """Where the objects of the archive are kept. None is ever changed or removed."""

    async def put(self, name: str, body: bytes) -> None:
        """Keep an object, whole or not at all. The same object again is no error."""
        ...

    async def get(self, name: str) -> bytes | None:
        """An object; None: there is none of that name."""
        ...


class Delivery(Protocol):
    """One message as a durable hands it out."""

    @property
    def subject(self) -> str:
        """Relative."""
        ...

    @property
    def body(self) -> bytes:
        """As it was published."""
        ...

    @property
    def sequence(self) -> int:
        """In its stream."""
        ...

    @property
    def time(self) -> datetime:
        """When the log stored it, UTC."""
        ...

    @property
    def message_id(self) -> str | None:
        """What its publisher called it."""
        ...

    @property
    def delivered(self) -> int:
        """1 the first time."""
        ...

    async def ack(self) -> None:
        """Dealt with."""
        ...

    async def nak(self, delay: float) -> None:
        """Hand it back, to come again after `delay` seconds."""
        ...

    async def term(self) -> None:
        """Never again."""
        ...

    async def in_progress(self) -> None:
        """Still at work: start the acknowledgement wait anew."""
        ...


@dataclass(frozen=True, slots=True)
class DurableSpec:
    """A durable consumer, as data; `filters` are relative subjects of its one stream."""

    name: str
    stream: Stream
    filters: tuple[str, ...]
    ack_wait: float = 30.0
    """Seconds after which what nobody acknowledged is delivered again."""
    max_ack_pending: int = 20_000
    """How many messages may be out at once, over all who share the durable."""
    begins_behind_cursor: bool = True
    """Made anew, it begins behind what is decided; else with all that its stream still holds."""


class TaskQueue(Protocol):
    """The durable that the executors of one queue share."""

    async def take(self, limit: int, *, wait: float) -> Sequence[Delivery]:
        """Up to `limit` tasks, whatever is there; waits up to `wait` seconds for the first."""
        ...


@dataclass(frozen=True, slots=True)
class QueueStanding:
    """How a queue stands: its tasks that nobody has taken yet, and those that somebody has and has not acknowledged."""

    name: str
    is_paused: bool
    waiting: int
    in_hand: int


class TaskQueues(Protocol):
    """The queues of an installation, by name."""

    async def open(self, queue: str) -> TaskQueue:
        """A queue to take tasks from; it is made when it is first asked for."""
        ...

    async def pause(self, queue: str) -> None:
        """Hand out nothing more; what is handed out already is not touched."""
        ...

    async def resume(self, queue: str) -> None:
        """Hand out tasks again."""
        ...

    async def standing(self, queue: str) -> QueueStanding | None:
        """How a queue stands; None: there is none of that name."""
        ...

    async def names(self) -> Sequence[str]:
        """Every queue that there is."""
        ...


class Projections(Protocol):
    """Small read models by key, with an optional life time."""

    async def get(self, bucket: Bucket, key: str) -> tuple[bytes, int] | None:
        """The value and its revision."""
        ...

    async def put(
        self, bucket: Bucket, key: str, value: bytes, *, expect: int | None = None, ttl: float | None = None
    ) -> int:
        """Store a value, for `ttl` seconds if given, if its revision is `expect` (0: absent; None: whatever); its revision.

        Raises:
            SequenceConflict: the revision is another.
        """
        ...

    async def remove(self, bucket: Bucket, key: str, *, expect: int | None = None) -> None:
        """Remove a key, if its revision is `expect`. Removing what is absent is no error."""
        ...

    async def entries(self, bucket: Bucket) -> dict[str, bytes]:
        """Every key and its value."""
        ...


@dataclass(frozen=True, slots=True)
class ExecutionRow:
    """One execution as the history shows it (hip-62, Execution History)."""

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
    dag_state: dict[str, object]  # step -> {status, attempt, started_at, ended_at, error, worker, result}
    error_type: str | None = None
    traceback: str | None = None
    reason: str | None = None
    """Why it was skipped or cancelled."""
    result: JsonValue = None
    tags: tuple[str, ...] = ()
    created_by: str | None = None
    """Who asked for it; None: its schedule."""
    replay_of: str | None = None
    """The dead letter that it replays."""


@dataclass(frozen=True, slots=True)
class DeadLetterRow:
    """One dead letter as the history shows it (hip-62, Dead Letter Handling)."""

    id: str
    job_name: str
    execution_id: str | None
    attempts: int
    last_error: str | None
    input: dict[str, object]
    first_attempt: datetime
    last_attempt: datetime
    resolved: bool


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job as the history shows it, deleted ones too (scratchbird §9.2)."""

    job_id: str
    job_name: str
    state: str  # ENABLED | DISABLED | PAUSED | DELETED
    schedule_type: str | None  # ONE_TIME | RECURRING
    next_run_time: datetime | None
    last_scheduled_time: datetime | None
    created_at: datetime
    created_by: str | None
    definition: dict[str, object] | None


class History(Protocol):
    """The read model of what has happened. It keeps its own place in each stream, moved with the rows or not at all."""

    async def offset(self, stream: Stream) -> int:
        """The last sequence of a stream that is folded in (0: none)."""
        ...

    async def record(self, stream: Stream, messages: Sequence[Recorded[Message]], *, after: int, upto: int) -> None:
        """Fold messages in and move the place from `after` to `upto`, in one transaction.

        Raises:
            SequenceConflict: the place is not at `after` any more: another recorder was faster.
        """
        ...

    async def executions(self, query: ExecutionQuery = EVERY_EXECUTION) -> Page[ExecutionRow]:
        """A page of the executions that a query asks for."""
        ...

    async def count(self, query: ExecutionQuery = EVERY_EXECUTION) -> int:
        """How many executions a query asks for, whatever its cursor and limit."""
        ...

    async def execution(self, execution_id: str) -> ExecutionRow | None:
        """One execution."""
        ...

    async def dead_letters(self, query: DeadLetterQuery = EVERY_DEAD_LETTER) -> Page[DeadLetterRow]:
        """A page of the dead letters that a query asks for."""
        ...

    async def jobs(self) -> Sequence[JobRow]:
        """Every job, deleted ones too, by name."""
        ...

    async def expire(self, now: datetime, *, after: timedelta) -> int:
        """Forget some executions and resolved dead letters that have been over for too long at `now` (UTC); how many.

        Too long is `after`, or what the job's own definition says. Ask again until none is left.
        """
        ...

    async def forget(self) -> None:
        """Forget everything, the places in this installation's streams too: it is to be recorded anew, from the first fact."""
        ...


class Clock(Protocol):
    """What time it is."""

    def now(self) -> datetime:
        """Aware, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that never step back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Let others work for so long."""
        ...
