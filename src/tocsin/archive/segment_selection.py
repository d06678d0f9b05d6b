"""Select the messages of a stream that can be archived.

The messages are read in order, up to a sequence up to which everything is decided:

    execution.>                                            selected if the execution is over
    dead-letter.>                                          selected if its last fact is its resolution
    agent.>                                                selected if the agent is forgotten
    agent.*.all.switched                                   selected except the newest of each subject
    report.>, timer.>, trigger.>, cancel.>, enqueue.>      selected: handled inputs
    cron.>, ledger.*.due, ledger.*.passed                  selected except the newest of each subject, which is the state
    lock.>                                                 likewise, and all before the oldest of what still waits

Definitions, leadership facts and the server's own schedules stay in the stream. So do messages of a job named `*` or `>`,
because its subject as a filter would cover other jobs. They are read anyway: with several filters the server checks every
subject of a block for each message.
"""

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Final

from ..domain.events import LockFact
from ..ports import StoredMessage
from ..subjects import WILDCARDS, DecodeError, decode

_DECISION: Final = 3
"""Index of the fact in a subject."""
INPUTS: Final = frozenset({"report", "timer", "trigger", "cancel", "enqueue"})
_TIMES: Final = frozenset({"due", "passed"})
ENDS: Final = {
    "execution": frozenset({"completed", "failed", "cancelled", "skipped"}),
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
    _ripe: list[StoredMessage] = field(default_factory=list)
    size: int = 0
    """Number of selected messages."""

    def take(self, message: StoredMessage) -> None:
        """Take the next message."""
        tokens = message.subject.split(".")
        kind = tokens[0]
        if kind in INPUTS:
            self._pick(message)
        elif not WILDCARDS.isdisjoint(tokens):
            return  # a public trigger named the job so
        elif kind == "agent" and tokens[-1] == "switched":
            self._take_newest(message)
        elif kind in ENDS:
            if len(tokens) <= _DECISION:
                return  # not a fact of ours: leave it
            self._take_of_scope(message, ".".join(tokens[:3]), tokens[_DECISION])
        elif kind == "lock":
            self._take_of_lock(message)
        elif kind == "cron" or (kind == "ledger" and tokens[-1] in _TIMES):
            self._take_newest(message)

    def ripe(self) -> list[StoredMessage]:
        """Return the selected messages in the order of the stream."""
        selected = [*self._ripe, *(message for scope in self._over.values() for message in scope)]
        return sorted(selected, key=lambda message: message.sequence)

    def _take_of_scope(self, message: StoredMessage, scope: str, decision: str) -> None:
        known = self._over.pop(scope, None)
        was_over = known is not None
        known = known or self._open.pop(scope, [])
        self.size -= len(known) if was_over else 0
        known.append(message)
        # A finished execution stays finished; a resolved dead letter can be replayed.
        if decision in ENDS[scope.partition(".")[0]] or (was_over and scope.startswith("execution.")):
            self._over[scope] = known
            self.size += len(known)
        else:
            self._open[scope] = known

    def _take_newest(self, message: StoredMessage) -> None:
        """Select the message that `message` replaces."""
        before, self._newest[message.subject] = self._newest.get(message.subject), message
        if before is not None:
            self._pick(before)

    def _take_of_lock(self, message: StoredMessage) -> None:
        """Select the events of a lock that an event makes unnecessary."""
        subject = message.subject
        replaced = self._replaced[subject.rpartition(".")[0]]
        before, self._newest[subject] = self._newest.get(subject), message
        replaced.setdefault(subject, deque())
        if before is not None:
            replaced[subject].append(before)
        needed = _first_needed(message)
        for events in replaced.values():
            while events and events[0].sequence < needed:
                self._pick(events.popleft())

    def _pick(self, message: StoredMessage) -> None:
        self._ripe.append(message)
        self.size += 1


def _first_needed(message: StoredMessage) -> int:
    """Return the sequence from which a lock is read after an event."""
    try:
        event = decode(message.subject, message.body)
    except DecodeError:
        return 0
    return (event.oldest or message.sequence) if isinstance(event, LockFact) else 0
