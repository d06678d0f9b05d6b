"""The append-only log, as stages see it."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import datetime
from typing import Final, Protocol, TypeAlias

import msgspec

from .. import subjects
from ..domain.events import Message, Recorded
from ..domain.log_events import LeaderChange
from ..subjects import MAX_INPUT_SIZE, Stream, scope_of
from .errors import MessageTooLarge, RequestRefused

MAX_TOGETHER: Final = 1_000
"""The number of inputs that `InputLog.publish_together` stores: the limit of an atomic batch of the server."""
MAX_SUBJECT_BYTES: Final = 3_500
"""Bytes of a subject of the log. A server ends the connection of a client that sends more than about 4,000."""

Decode: TypeAlias = Callable[[str, bytes], Message]
"""Makes a message of its subject and body; raises `subjects.DecodeError`."""


class Append(msgspec.Struct, frozen=True):
    """One decision: events of one scope, in order.

    `expect` is the last sequence in the scope before the first event; each later event expects the event before it.
    """

    events: tuple[Message, ...]
    expect: int

    @property
    def scope(self) -> str:
        """The scope that the guard covers."""
        return scope_of(self.events[0])


class Publish(msgspec.Struct, frozen=True):
    """An input without a guard.

    It is stored once for each `message_id` within the log's deduplication window.
    """

    subject: str
    message: Message
    message_id: str
    ttl: float | None = None
    """Seconds after which the log removes it; None: it stays."""


Write: TypeAlias = Append | Publish


class Written(msgspec.Struct, frozen=True):
    """The result of one write.

    `sequences`: of the messages that were stored, in order. With an error, some events of a decision may be
    stored, or none.
    """

    sequences: tuple[int, ...]
    error: Exception | None = None


class Publisher(Protocol):
    """Stores inputs, or raises `LogUnavailable`. Workers have no more of the log than this."""

    async def publish(self, subject: str, message: Message, *, message_id: str, ttl: float | None = None) -> int:
        """Store an input.

        A second input of the same `message_id` in one stream, within the log's deduplication window, is not stored. The log
        removes it after `ttl` seconds, rounded up; only the stream of the MQ bridge accepts a `ttl`.

        Raises:
            RequestRefused: the log cannot store it.
        """

    async def write(self, writes: "Sequence[Publish]") -> "list[Written]":
        """Store several inputs in one request, and return the result of each."""


class InputLog(Publisher, Protocol):
    """The streams beside the log of commits: inputs, output and notifications.

    Each request raises `LogUnavailable` if the log did not answer.
    """

    async def publish_together(self, inputs: "Sequence[Publish]") -> None:
        """Store up to `MAX_TOGETHER` inputs of one stream: all of them, or none.

        Inputs without a `ttl`. They are stored once, as `publish` does: if all of them were stored before within the
        deduplication window, nothing is stored.

        Raises:
            RepeatedInput: some of them were stored before, and others were not.
            RequestRefused: the log cannot store one of them.
        """

    async def append(self, fact: Message, *, expect: int) -> int:
        """Store an event and return its sequence.

        `expect` is the last sequence in the event's scope (`subjects.scope_of`); 0: the scope is empty.

        Raises:
            SequenceConflict: the scope has a newer event.
        """

    async def remove(self, subject: str, sequence: int) -> None:
        """Remove a message of a subject's stream, unless it is gone.

        Only messages that are no events may be removed: messages of the MQ bridge, and reports that prove no claim.
        """

    async def write(self, writes: "Sequence[Write]") -> "list[Written]":
        """Store several writes at once and return the result of each, in order.

        No two writes may share the scope of a guard. A refused write does not affect the others. Each result's error is
        what `append` or `publish` would raise.

        Raises:
            ValueError: two writes share a scope.
        """

    async def load(self, scope: str) -> list[Recorded[Message]]:
        """Return the messages that are enough to fold a scope, oldest first.

        These are the last message of each subject; and for a lock also all events from the oldest of an execution that
        still waits (`lock.first_needed`).
        """

    async def load_each(self, *scopes: str) -> "Loaded":
        """Return what `load` returns for each of several scopes or subjects of one stream.

        It needs few requests.
        """

    async def tail(self, scope: str) -> int:
        """Return the last sequence in a scope (0: none), never a stale one."""

    async def tails(self, *scopes: str) -> list[int]:
        """Return what `tail` returns for each of several scopes."""

    async def end(self, stream: Stream) -> int:
        """Return the last sequence of a stream; 0: it is empty.

        As for `tail`, the result is never a stale read.
        """

    async def replicas(self) -> int:
        """Return the number of servers that keep the log of commits, as configured."""

    async def now(self) -> datetime:
        """Return the time (UTC) by the log's own clock."""

    async def last(self, subject: str) -> Recorded[Message] | None:
        """Return the newest message that matches a subject or filter of one stream.

        Among events, it is the newest readable event.
        """

    async def get(self, subject: str, sequence: int) -> Recorded[Message] | None:
        """Return a message by its sequence in the stream of a subject or scope.

        The subject names the job, because a sequence alone does not say in which partition it is.
        """

    async def read(self, subject: str, *, after: int = 0, limit: int = 1_000) -> list[Recorded[Message]]:
        """Return up to `limit` matching messages after the sequence `after`, oldest first.

        Only an empty result is the end of the messages.
        """

    def follow(
        self, stream: Stream, *filters: str, after: int | None, decode: Decode = subjects.decode
    ) -> AsyncGenerator["Batch", None]:
        """Yield all matching messages forever, through reconnects; without filters, the whole stream.

        It starts after the sequence `after`. For `None` it starts with the last message of each subject. `decode` makes
        a message of its subject and body, and may read less than the whole body. Unreadable messages are left out.
        """


class EventLog(InputLog, Protocol):
    """The log of decisions, and the streams beside it.

    Decisions are guarded events; their sequences are numbers, which count all events.
    """

    async def has_newer(self, *filters: str, after: int) -> bool:
        """Return whether a matching event was stored after the number `after`.

        As for `tail`, the result is never a stale read.
        """

    async def leaders(self, lease: str, *, after: int = 0) -> list[LeaderChange]:
        """Return the changes of the leader of a stage after the number `after`, oldest first."""


class Loaded(msgspec.Struct, frozen=True):
    """The contents of several scopes.

    `facts` are the events of each scope, in the order of the request. `upto` is the last sequence of the stream that
    the answer covers; 0: nothing was found, so the age of the answer is unknown.
    """

    facts: Sequence[Sequence[Recorded[Message]]]
    upto: int


class Encoded(Protocol):
    """An event as it is stored, not decoded."""

    @property
    def sequence(self) -> int:
        """The number."""

    @property
    def subject(self) -> str:
        """The relative subject."""

    @property
    def time(self) -> datetime:
        """The time (UTC) at which the event was stored."""

    @property
    def body(self) -> bytes | msgspec.Raw:
        """The fields, as JSON."""

    @property
    def cause(self) -> str:
        """The name of its cause (`domain.commit.CommitEvent`); empty: unknown."""


class Batch(msgspec.Struct, frozen=True):
    """Messages that a follower received together.

    `caught_up`: the log's leader had no more at that moment. `upto`: the last sequence that this batch covers.
    `size`: the bytes of the bodies of inputs.
    """

    messages: Sequence[Recorded[Message]]
    caught_up: bool
    upto: int
    undone: Sequence[str] = ()
    """Scopes with events of the follower that were not stored after all.

    `messages` has all events that are stored.
    """
    encoded: Sequence[Encoded] = ()
    """The events as they are stored, also unreadable events. Only the log of commits hands them on."""
    size: int = 0


async def write_each(log: InputLog, writes: Sequence[Write]) -> list[Written]:
    """Implement `EventLog.write` by one request for each message."""
    check_scopes(writes)
    return await asyncio.gather(*(_store(log, write) for write in writes))


def check_scopes(writes: Sequence[Write]) -> list[str]:
    """Return the scope that guards each write; empty for inputs.

    A server may look a scope's guard up once for several messages that arrive together, and would store both decisions.

    Raises:
        ValueError: two writes share a scope, or a decision has no events, or events of several scopes.
    """
    scopes: list[str] = []
    checked: set[str] = set()
    for write in writes:
        if not isinstance(write, Append):
            scopes.append("")
            continue
        if not write.events:
            raise ValueError("a decision without an event")
        scope = write.scope
        if len(write.events) > 1 and any(scope_of(event) != scope for event in write.events[1:]):
            raise ValueError(f"a decision about {scope} has an event of another scope")
        if scope in checked:
            raise ValueError(f"two writes are guarded by {scope}: decide on the second after the first is stored")
        checked.add(scope)
        scopes.append(scope)
    return scopes


_USUAL_SUBJECT: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def check_size(subject: str, body: bytes) -> None:
    """Reject a request that is too large, unless the request changes a job.

    Raises:
        MessageTooLarge: it is larger than an input may be.
    """
    is_large = len(body) > MAX_INPUT_SIZE and not subjects.is_change(subject)
    if is_large and subjects.stream_of(subject) is Stream.REQUESTS:
        reason = f"the request has {len(body):,} bytes, and at most {MAX_INPUT_SIZE:,} are allowed"
        raise MessageTooLarge(f"{subject}: {reason}", reason)


def check_subject(subject: str) -> None:
    """Reject a subject under which no message can be stored.

    Raises:
        RequestRefused: it is too long, or a token is empty or has a wildcard or white space.
    """
    if len(subject) <= MAX_SUBJECT_BYTES and _USUAL_SUBJECT.fullmatch(subject):
        return
    if len(subject.encode(errors="replace")) > MAX_SUBJECT_BYTES:
        reason = f"a subject has at most {MAX_SUBJECT_BYTES:,} bytes"
        raise RequestRefused(f"{subject[:60]}…: {reason}", reason)
    has_blanks = " " in subject or not subject.isprintable()
    if has_blanks or "*" in subject or ">" in subject or not all(subject.split(".")):
        reason = "a subject has tokens that are not empty, without `*`, `>` and blanks, separated by dots"
        raise RequestRefused(f"{subject!r}: {reason}", reason)


async def _store(log: InputLog, write: Write) -> Written:
    sequences: list[int] = []
    try:
        match write:
            case Append():
                for event in write.events:
                    sequences.append(await log.append(event, expect=sequences[-1] if sequences else write.expect))
            case Publish():
                sequences.append(
                    await log.publish(write.subject, write.message, message_id=write.message_id, ttl=write.ttl)
                )
    except Exception as error:  # noqa: BLE001 - returned to the caller
        return Written(tuple(sequences), error)
    return Written(tuple(sequences))
