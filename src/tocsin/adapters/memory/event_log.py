"""The event log in memory."""

import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Final

from ... import subjects
from ...domain.events import Message, Recorded
from ...domain.log_events import LeaderChange
from ...engine.report_lists import read_message
from ...ports import (
    Append,
    Batch,
    Decode,
    DurableSpec,
    Loaded,
    LogUnavailable,
    MessageTooLarge,
    Progress,
    Publish,
    RepeatedInput,
    Write,
    Written,
    check_size,
    check_subject,
    write_each,
)
from ...subjects import (
    INPUT_STREAMS,
    MAX_CHANGE_SIZE,
    MAX_INPUT_SIZE,
    OUTPUT_STREAMS,
    STREAM_SUBJECTS,
    DecodeError,
    Stream,
)
from ...telemetry import trace_ids
from .. import decision_lines
from .clock import AlarmClock, ManualClock
from .durable import InMemoryDurable
from .stored_stream import MAX_BYTES, Entry, StoredStream

_EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"


class InMemoryEventLog:
    """Implement `ports.EventLog`, with the durables that read it."""

    def __init__(self, clock: AlarmClock | None = None, *, replicas: int = 1) -> None:
        """Start with empty streams. `replicas`: the number that it says the log of commits has."""
        self._replicas = replicas
        self.clock: AlarmClock = clock or ManualClock()
        self._streams = {stream: _stream(stream, self.clock) for stream in Stream}
        self._durables: dict[tuple[Stream, str], InMemoryDurable] = {}

    async def append(self, fact: Message, *, expect: int) -> int:
        decision = Append((fact,), expect)
        subject, body, scope = subjects.subject_of(fact), fact.encode(), decision.scope
        guard = {_EXPECTED: str(expect), f"{_EXPECTED}-Subject": scope}
        check_subject(subject)
        _check_size(subject, body, "".join(f"{name}: {value}\r\n" for name, value in guard.items()))
        stream = self._capturing(subject)
        stream.check(scope, expect)
        return self._logged(decision, [stream.store(subject, body, headers=guard)])

    async def publish(self, subject: str, message: Message, *, message_id: str, ttl: float | None = None) -> int:
        check_subject(subject)
        body = message.encode()
        _check_size(subject, body, f"Nats-Msg-Id: {message_id}\r\n")
        sequence = self.receive(subject, body, message_id=message_id)
        if ttl is not None:
            self.clock.after(math.ceil(ttl), partial(self._capturing(subject).remove, sequence))
        return self._logged(Publish(subject, message, message_id, ttl), [sequence])

    async def publish_together(self, inputs: Sequence[Publish]) -> None:
        bodies = [write.message.encode() for write in inputs]
        for write, body in zip(inputs, bodies, strict=True):
            check_subject(write.subject)
            _check_size(write.subject, body, f"Nats-Msg-Id: {write.message_id}\r\n")
            self._capturing(write.subject).check_size(write.subject, body, write.message_id)
        known = [self._capturing(write.subject).knows_id(write.message_id) for write in inputs]
        if all(known):
            return
        if any(known) or len({write.message_id for write in inputs}) < len(inputs):
            raise RepeatedInput(f"{inputs[0].subject}: a batch repeats an input")
        for write, body in zip(inputs, bodies, strict=True):
            self._logged(write, [self.receive(write.subject, body, message_id=write.message_id)])

    async def remove(self, subject: str, sequence: int) -> None:
        self._streams[subjects.stream_of(subject)].remove(sequence)

    async def write(self, writes: Sequence[Write]) -> list[Written]:
        return await write_each(self, writes)

    def receive(
        self, subject: str, body: bytes, *, message_id: str | None = None, headers: Mapping[str, str] | None = None
    ) -> int:
        """Store a body that any client published on a captured subject; return its sequence.

        A server accepts wildcards in the subject of a message. Headers of a guard are stored, and not checked.
        """
        return self._capturing(subject).store(subject, body, message_id=message_id, headers=headers)

    @staticmethod
    def _logged(write: Write, sequences: Sequence[int]) -> int:
        decision_lines.note(write, sequences)
        return sequences[0]

    async def load(self, scope: str) -> list[Recorded[Message]]:
        return self._load(scope)

    async def load_each(self, *scopes: str) -> Loaded:
        facts = [self._load(scope) for scope in scopes]
        stream = self._streams[subjects.stream_of(scopes[0])]
        return Loaded(facts, stream.last_sequence if any(map(stream.last, scopes)) else 0)

    def _load(self, scope: str) -> list[Recorded[Message]]:
        stream = self._streams[subjects.stream_of(scope)]
        return [self._recorded(entry) for entry in stream.last_of_each((scope,))]

    async def tail(self, scope: str) -> int:
        entry = self._streams[subjects.stream_of(scope)].last(scope)
        return 0 if entry is None else entry.sequence

    async def tails(self, *scopes: str) -> list[int]:
        return [await self.tail(scope) for scope in scopes]

    async def end(self, stream: Stream) -> int:
        return self._streams[stream].last_sequence

    async def replicas(self) -> int:
        return self._replicas

    async def has_newer(self, *filters: str, after: int) -> bool:
        return bool(self._streams[subjects.stream_of(filters[0])].matching(filters, after))

    async def leaders(self, lease: str, *, after: int = 0) -> list[LeaderChange]:  # noqa: ARG002 - no stage decides here
        return []

    async def now(self) -> datetime:
        return self.clock.now()

    async def last(self, subject: str) -> Recorded[Message] | None:
        stream = self._streams[subjects.stream_of(subject)]
        entry = stream.last(subject)
        return None if entry is None else self._recorded(entry)

    async def get(self, subject: str, sequence: int) -> Recorded[Message] | None:
        entry = self._streams[subjects.stream_of(subject)].get(sequence)
        return None if entry is None else self._recorded(entry)

    async def read(self, subject: str, *, after: int = 0, limit: int = 1_000) -> list[Recorded[Message]]:
        messages: list[Recorded[Message]] = []
        for entry in self._streams[subjects.stream_of(subject)].matching((subject,), after):
            try:
                recorded = self._recorded(entry)
            except DecodeError:
                if not messages:
                    raise
                break
            messages.append(recorded)
            if len(messages) == limit:
                break
        return messages

    async def follow(
        self, stream: Stream, *filters: str, after: int | None, decode: Decode = subjects.decode
    ) -> AsyncGenerator[Batch, None]:
        stored = self._streams[stream]
        entries = stored.last_of_each(filters or (">",)) if after is None else _behind(stored, filters, after)
        is_first = True
        while True:
            upto = stored.last_sequence
            if entries or is_first:
                messages = _readable(entries, decode)
                for recorded in messages:
                    trace_ids.note(recorded.message)
                yield Batch(messages, caught_up=True, upto=upto, size=sum(len(entry.body) for entry in entries))
            is_first = False
            if stored.last_sequence == upto:
                await stored.stored.wait()
            entries = _behind(stored, filters, upto)

    def progress_of_all(self, stream: Stream) -> list[Progress]:
        return [durable.progress for (of, _), durable in self._durables.items() if of is stream]

    @property
    def is_idle(self) -> bool:
        """Whether no durable has anything left to deliver or to settle."""
        return all(durable.is_idle for durable in self._durables.values())

    def stream(self, stream: Stream) -> StoredStream:
        return self._streams[stream]

    def durable(self, spec: DurableSpec) -> InMemoryDurable:
        """Return the durable of a spec, and create it at the first call."""
        durable = self._durables.get((spec.stream, spec.name))
        if durable is None:
            durable = InMemoryDurable(self._streams[spec.stream], spec, self.clock)
            self._durables[spec.stream, spec.name] = durable
        if durable.spec != spec:
            raise ValueError(f"durable {spec.name!r} exists as {durable.spec}")
        return durable

    @staticmethod
    def _recorded(entry: Entry) -> Recorded[Message]:
        recorded = entry.recorded(read_message)
        trace_ids.note(recorded.message)
        return recorded

    def _capturing(self, subject: str) -> StoredStream:
        stream = subjects.stream_of(subject)
        if not any(subjects.matches(captured, subject) for captured in STREAM_SUBJECTS[stream]):
            raise LogUnavailable(f"{subject}: no stream captures it")
        return self._streams[stream]


def _stream(stream: Stream, clock: AlarmClock) -> StoredStream:
    size = MAX_CHANGE_SIZE if stream is Stream.REQUESTS else MAX_INPUT_SIZE
    return StoredStream(clock, OUTPUT_STREAMS.get(stream), max_size=size if stream in INPUT_STREAMS else None)


def _check_size(subject: str, body: bytes, headers: str) -> None:
    """Refuse what a server refuses, which counts the headers too."""
    check_size(subject, body)
    size = len(f"NATS/1.0\r\n{headers}\r\n") + len(body)
    if size > MAX_BYTES:
        raise MessageTooLarge.of(subject, size, MAX_BYTES)


def _behind(stored: StoredStream, filters: Sequence[str], after: int) -> list[Entry]:
    covers = subjects.any_of(filters)
    return [entry for entry in stored.entries_after(after) if covers(entry.subject)]


def _readable(entries: Sequence[Entry], decode: Decode) -> list[Recorded[Message]]:
    recorded: list[Recorded[Message]] = []
    for entry in entries:
        try:
            recorded.append(entry.recorded(decode))
        except DecodeError:
            continue
    return recorded
