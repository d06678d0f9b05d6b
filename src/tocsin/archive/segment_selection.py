"""Select the messages of a stream that can be archived.

The messages are read in order, up to a sequence up to which everything is decided:

    execution.>                                            selected if the execution is over
    dead-letter.>                                          selected if its last fact is its resolution
    report.>, timer.>, trigger.>, cancel.>, enqueue.>      selected: handled inputs
    lock.>, cron.>, ledger.*.due, ledger.*.passed          selected except the newest of each subject, which is the state

Definitions, leadership facts and the server's own schedules stay in the stream. So do messages of a job named `*` or `>`,
because its subject as a filter would cover other jobs. They are read anyway: with several filters the server checks every
subject of a block for each message.
"""

from dataclasses import dataclass, field
from typing import Final

from ..ports import StoredMessage
from ..subjects import WILDCARDS

_DECISION: Final = 3
"""Index of the fact in a subject."""
INPUTS: Final = frozenset({"report", "timer", "trigger", "cancel", "enqueue"})
_STATES: Final = frozenset({"lock", "cron"})
_TIMES: Final = frozenset({"due", "passed"})
ENDS: Final = {
    "execution": frozenset({"completed", "failed", "cancelled", "skipped"}),
    "dead-letter": frozenset({"resolved"}),
}


@dataclass
class SegmentSelection:
    """Selects messages of one stream."""

    _open: dict[str, list[StoredMessage]] = field(default_factory=dict)
    _over: dict[str, list[StoredMessage]] = field(default_factory=dict)
    _newest: dict[str, StoredMessage] = field(default_factory=dict)
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
        elif kind in ENDS:
            if len(tokens) <= _DECISION:
                return  # not a fact of ours: leave it
            self._take_of_scope(message, ".".join(tokens[:3]), tokens[_DECISION])
        elif kind in _STATES or (kind == "ledger" and tokens[-1] in _TIMES):
            before, self._newest[message.subject] = self._newest.get(message.subject), message
            if before is not None:
                self._pick(before)

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

    def _pick(self, message: StoredMessage) -> None:
        self._ripe.append(message)
        self.size += 1
