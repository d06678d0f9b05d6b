"""Guarded messages that a stream accepted, one by one or as atomic batches."""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from ... import subjects
from ...ports import (
    Append,
    EventLog,
    LogUnavailable,
    OutdatedState,
    RequestRefused,
    Write,
    Written,
    check_scopes,
    write_each,
)
from ...subjects import Stream
from .stored_stream import StoredStream

StoreTogether: TypeAlias = Callable[[Sequence[Append]], Awaitable[Sequence[int]]]
"""Stores decisions of one stream as an atomic batch and returns the sequences of their messages."""


class Proposal:
    """Messages that passed their guards and are in flight until `store` is called.

    A replicated stream stores a message only after its replicas have it. Until then no read sees the message, and a guard
    of another string does not see it either.
    """

    def __init__(self, stream: StoredStream, messages: Sequence[tuple[str, bytes]], scopes: Sequence[str]) -> None:
        """Let the messages (subject and body) be in flight."""
        self._stream = stream
        self._messages = messages
        self._scopes = scopes
        stream.begin(scopes)

    def store(self) -> list[int]:
        """Store the messages and return their sequences, which are consecutive."""
        self._stream.end(self._scopes)
        return [self._stream.store(subject, body) for subject, body in self._messages]


async def write_together(log: EventLog, writes: Sequence[Write], store_together: StoreTogether) -> list[Written]:
    """Implement `EventLog.write` by one atomic batch for the decisions of each stream.

    One failed guard refuses the whole batch. Its events are then stored one by one, as by `write_each`.

    Raises:
        ValueError: two writes share a scope.
    """
    check_scopes(writes)
    by_stream: dict[Stream, list[int]] = defaultdict(list)
    for index, write in enumerate(writes):
        if isinstance(write, Append):
            by_stream[subjects.stream_of(write.scope)].append(index)
    results: dict[int, Written] = {}
    for indexes in by_stream.values():
        decisions = [write for index in indexes if isinstance(write := writes[index], Append)]
        if sum(len(decision.events) for decision in decisions) == 1:
            continue
        try:
            sequences = iter(await store_together(decisions))
        except (OutdatedState, LogUnavailable, RequestRefused):
            continue
        for index, decision in zip(indexes, decisions, strict=True):
            results[index] = Written(tuple(next(sequences) for _ in decision.events))
    left = [index for index in range(len(writes)) if index not in results]
    singles = await write_each(log, [writes[index] for index in left])
    results.update(zip(left, singles, strict=True))
    return [results[index] for index in range(len(writes))]
