"""Select the messages that can be archived, and the filters that purge them.

A cursor is the sequence of a stream up to which everything is decided. A redelivered message before that sequence was handled long ago and may be archived. An archived execution is gone from the
log, so appending its first fact would succeed again; a stage therefore checks old messages first. A message younger than
`LATE` was never archived, so in most cases nothing is read.

The messages are read in order, up to a sequence up to which everything is decided:

    execution.>                                            selected if the execution is over
    dead-letter.>                                          selected if resolved, of an outsider or an event
    agent.>                                                selected if the agent is forgotten
    agent.*.all.switched, agent.*.all.granted, queue.>     selected except the newest of each subject
    ownership.>, policy.>                                  likewise
    report.>, timer.>                                      selected: inputs
    trigger.>, cancel.>, enqueue.>, public.>, outside.>    likewise
    cron.answer.>                                          selected
    other cron.>, ledger.*.due, ledger.*.passed            selected except the newest of each subject, which is the state
    lock.>                                                 likewise, and all before the oldest of what still waits
    unique.>                                               likewise; the newest too, if no execution that it names is in the log

Definitions, leadership facts and the server's own schedules stay in the stream. So do messages of a job named `*` or `>`,
because its subject as a filter would cover other jobs. They are read anyway: with several filters the server checks every
subject of a block for each message.

At every purge the server recounts the pending messages of each consumer, and serves no other request on the stream
meanwhile. A purge for each execution blocks a busy stream for seconds; a single purge for all executions older than the
oldest open execution takes hardly longer than a purge for one of them. An execution that stays open for long affects its
own job only: there, finished executions after it are purged one by one.
"""

from base64 import b64decode
from collections import defaultdict, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import inf
from typing import Final

from ..domain.events import KeyTaken, LockFact, Message, PoisonMessage, Trigger
from ..ports import Clock, LogUnavailable, Projections, StoredMessage
from ..subjects import (
    ANY,
    MQ_BRIDGE_COMPLETIONS,
    OUTSIDE_DURABLES,
    OUTSIDE_INPUTS,
    PUBLIC_INPUTS,
    WILDCARDS,
    Bucket,
    DecodeError,
    Stream,
    cursor,
    decode,
    execution,
    foreign_reason,
)

LATE: Final = timedelta(seconds=60)
KEPT: Final = 1.0
"""Seconds for which a cursor is cached, so that a backlog reads it once."""


class Cursors:
    """Reads and caches the cursors."""

    def __init__(self, projections: Projections, clock: Clock, *, late: timedelta = LATE) -> None:
        """`late`: minimum age of a message that may be archived."""
        self._projections = projections
        self._clock = clock
        self._late = late
        self._known: dict[Stream, tuple[float, int]] = {}

    async def is_behind(self, stream: Stream, sequence: int, stored_at: datetime) -> bool:
        """Return whether everything about a message is decided, so that it may be archived.

        Raises:
            LogUnavailable: the log did not answer.
        """
        if self._clock.now() - stored_at < self._late:
            return False
        read_at, upto = self._known.get(stream, (float("-inf"), 0))
        if self._clock.monotonic() - read_at > KEPT:
            read_at = self._clock.monotonic()
            entry = await self._projections.get(Bucket.CURSORS, cursor(stream))
            upto = 0 if entry is None else int(entry[0])
            self._known[stream] = read_at, upto
        return sequence <= upto


_DECISION: Final = 3
"""Index of the fact in a subject."""
_OUTSIDE: Final = tuple(f"{durable}-" for durable in (*OUTSIDE_DURABLES, MQ_BRIDGE_COMPLETIONS))
INPUTS: Final = frozenset({"report", "timer", "trigger", "cancel", "enqueue", "public", "outside"})
_OF_NAMES: Final = frozenset({"switched", "granted"})
"""Events about the name of agents."""
_TIMES: Final = frozenset({"due", "passed"})
_UNIQUE: Final = "unique"
_ANSWERS: Final = "cron.answer."
"""The beginning of the subjects of answers to triggers: each has its own, and no later message replaces it."""
ENDS: Final = {
    "execution": frozenset({"completed", "failed", "cancelled", "skipped", "fanned-out"}),
    "dead-letter": frozenset({"resolved"}),
    "agent": frozenset({"forgotten"}),
}


@dataclass
class SegmentSelection:
    """Selects messages of one stream."""

    _open: dict[str, list[StoredMessage]] = field(default_factory=dict)
    _over: dict[str, list[StoredMessage]] = field(default_factory=dict)
    _newest: dict[str, StoredMessage] = field(default_factory=dict)
    _replaced: defaultdict[str, dict[str, deque[StoredMessage]]] = field(default_factory=lambda: defaultdict(dict))
    """Events of each lock that are not the newest of their subject, by subject."""
    _foreign: defaultdict[str, list[StoredMessage]] = field(default_factory=lambda: defaultdict(list))
    """Foreign messages after the newest event of their subject: they go with it."""
    _selected: list[StoredMessage] = field(default_factory=list)
    size: int = 0
    """Number of selected messages."""

    def take(self, message: StoredMessage) -> None:
        """Take the next message."""
        tokens = message.subject.split(".")
        kind = tokens[0]
        is_foreign = foreign_reason(message.subject, message.headers) is not None
        if kind in INPUTS or message.subject.startswith(_ANSWERS):
            self._pick(message)
        elif not WILDCARDS.isdisjoint(tokens):
            return  # a public trigger named the job so
        elif is_foreign and (kind not in ENDS or tokens[-1] in _OF_NAMES):
            self._foreign[message.subject].append(message)
        elif kind in {"queue", "ownership", "policy"} or (kind == "agent" and tokens[-1] in _OF_NAMES):
            self._take_newest(message)
        elif kind in ENDS:
            if len(tokens) <= _DECISION:
                return  # not a fact of ours: leave it
            decision = "" if is_foreign else tokens[_DECISION]
            self._take_of_scope(message, ".".join(tokens[:3]), decision)
        elif kind == "lock":
            self._take_of_lock(message)
        elif kind in {_UNIQUE, "cron"} or (kind == "ledger" and tokens[-1] in _TIMES):
            self._take_newest(message)

    def idle_keys(self) -> Iterator[tuple[StoredMessage, list[str]]]:
        """Yield the newest event of each unique key that no execution among the messages has.

        With it come the scopes of its executions that are not among the selected messages.
        """
        for message in self._newest.values():
            if not message.subject.startswith(f"{_UNIQUE}."):
                continue
            scopes = _executions_of(message)
            if scopes is not None and self._open.keys().isdisjoint(scopes):
                yield message, [f"{scope}.>" for scope in scopes if scope not in self._over]

    def release(self, message: StoredMessage) -> None:
        """Select the newest event of a unique key."""
        del self._newest[message.subject]
        for released in self._replaced_with(message):
            self._pick(released)

    def selected(self) -> list[StoredMessage]:
        """Return the selected messages in the order of the stream."""
        messages = [*self._selected, *(message for scope in self._over.values() for message in scope)]
        return sorted(messages, key=lambda message: message.sequence)

    def _take_of_scope(self, message: StoredMessage, scope: str, decision: str) -> None:
        known = self._over.pop(scope, None)
        was_over = known is not None
        known = known or self._open.pop(scope, [])
        self.size -= len(known) if was_over else 0
        known.append(message)
        # A finished execution stays finished; a resolved dead letter can be replayed. Operators may never resolve the refused
        # messages of programs and executors outside, which must not fill the log.
        is_over = decision in ENDS[scope.partition(".")[0]] or (
            decision == "refused" and (scope.rpartition(".")[2].startswith(_OUTSIDE) or _is_of_event(message))
        )
        if is_over or (was_over and scope.startswith("execution.")):
            self._over[scope] = known
            self.size += len(known)
        else:
            self._open[scope] = known

    def _take_newest(self, message: StoredMessage) -> None:
        before, self._newest[message.subject] = self._newest.get(message.subject), message
        for replaced in self._replaced_with(before):
            self._pick(replaced)

    def _take_of_lock(self, message: StoredMessage) -> None:
        """Select the events of a lock that an event makes unnecessary."""
        subject = message.subject
        replaced = self._replaced[subject.rpartition(".")[0]]
        before, self._newest[subject] = self._newest.get(subject), message
        replaced.setdefault(subject, deque())
        replaced[subject].extend(self._replaced_with(before))
        event = _decoded(message)
        oldest = (event.oldest or message.sequence) if isinstance(event, LockFact) else 0
        for events in replaced.values():
            while events and events[0].sequence < oldest:
                self._pick(events.popleft())

    def _replaced_with(self, before: StoredMessage | None) -> list[StoredMessage]:
        if before is None:
            return []
        return [before, *self._foreign.pop(before.subject, ())]

    def _pick(self, message: StoredMessage) -> None:
        self._selected.append(message)
        self.size += 1


def _is_of_event(message: StoredMessage) -> bool:
    """Return whether a dead letter is the request for an event.

    Programs outside may send any number of events.
    """
    try:
        letter = decode(message.subject, message.body)
        request = decode(letter.subject, b64decode(letter.body)) if isinstance(letter, PoisonMessage) else None
    except (DecodeError, ValueError):
        return False
    return isinstance(request, Trigger) and request.event_trigger is not None


def _decoded(message: StoredMessage) -> Message | None:
    """Return the event of a message; None: it is unreadable."""
    try:
        return decode(message.subject, message.body)
    except DecodeError:
        return None


def _executions_of(message: StoredMessage) -> list[str] | None:
    """Return the executions that a unique key's event names.

    They are written as `_open` writes them. None: the event is unreadable.
    """
    event = _decoded(message)
    if not isinstance(event, KeyTaken):
        return None
    ids = (event.execution_id, *event.replaces, *(other.execution_id for other in event.others))
    return [execution(event.job, execution_id).removesuffix(".>") for execution_id in ids]


_LEVELS: Final = (1, 2, 3)
"""Leading tokens of a filter: over all entities, over those of a job, over a single entity."""


class PurgeFilters:
    """Finds the filters that purge exactly the archived messages of a stream."""

    def __init__(self, archived: Collection[StoredMessage]) -> None:
        """`archived`: compared by sequence and subject, because a restored backup may hold other messages."""
        self._archived = {(message.sequence, message.subject) for message in archived}
        self._kept: dict[str, int] = {}
        self._upto: dict[str, int] = {}

    def take(self, message: StoredMessage) -> None:
        """Take the next message of the stream, up to the newest archived message.

        Raises:
            LogUnavailable: an unarchived message of a scope precedes an archived message; a lagging replica was read.
        """
        filters = _covering(message.subject)
        if (message.sequence, message.subject) in self._archived:
            free = next((wide for wide in filters if self._kept.get(wide, inf) > message.sequence), None)
            if free is None:
                raise LogUnavailable(f"stale read of {message.subject} from a lagging replica")
            self._upto[free] = message.sequence
        else:
            for covering in filters:
                self._kept.setdefault(covering, message.sequence)

    def purges(self) -> Iterator[tuple[str, int]]:
        """Yield each filter with the sequence up to which it purges.

        Narrow filters come first, so that a finished execution goes as a whole even if a wider filter ends within it. Dead
        letters come before everything else, because a resolved dead letter can be replayed while it is in the stream.
        """
        return iter(sorted(self._upto.items(), key=_turn))


def _turn(purge: tuple[str, int]) -> tuple[bool, int]:
    subject, _ = purge
    return not subject.startswith("dead-letter."), -subject.count(".")


def _covering(subject: str) -> tuple[str, ...]:
    """Return the filters that cover a message, the widest first."""
    tokens = subject.split(".")
    if tokens[0] in ENDS or tokens[0] == _UNIQUE:
        return tuple(".".join((*tokens[:level], ">")) for level in _LEVELS if level < len(tokens))
    if subject.startswith(_ANSWERS):
        return (f"{_ANSWERS}>",)
    if tokens[0] not in INPUTS:
        return (subject,)
    if subject.startswith(OUTSIDE_INPUTS):
        return (".".join((tokens[0], ANY, tokens[2], ">")),)
    kind = tokens[:2] if subject.startswith(PUBLIC_INPUTS) else tokens[:1]
    return (".".join((*kind, ">")),)
