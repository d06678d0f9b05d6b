"""What of the log is ripe for the archive: everything about executions that are over, and what has been dealt with or replaced.

The messages of a stream are looked at in their order, up to a sequence up to which everybody has decided everything:

    execution.>                                            taken if it is over by then
    dead-letter.>                                          taken if its last fact says that nothing is left to be done
    report.>, timer.>, trigger.>, cancel.>, enqueue.>      taken: inputs that were dealt with
    lock.>, cron.>, ledger.*.due, ledger.*.passed          taken but for the newest of each subject, which says how things stand

Definitions, leaderships and the delays that the server itself keeps stay where they are, and so does whatever is told of a job
that somebody called `*` or `>`: as a filter, its subject would cover others. They are read with the rest: by
several filters a server reads what has holes by looking, for each message, at all subjects of its block.
"""

from dataclasses import dataclass, field
from typing import Final

from ..ports import StoredMessage
from ..subjects import WILDCARDS

_DECISION: Final = 3
"""Where a subject says what was decided."""
INPUTS: Final = frozenset({"report", "timer", "trigger", "cancel", "enqueue"})
_STATES: Final = frozenset({"lock", "cron"})
_TIMES: Final = frozenset({"due", "passed"})
ENDS: Final = {
    "execution": frozenset({"completed", "failed", "cancelled", "skipped"}),
    "dead-letter": frozenset({"resolved"}),
}


@dataclass
class SegmentSelection:
    """Sorts the messages of one stream."""

    _open: dict[str, list[StoredMessage]] = field(default_factory=dict)
    _over: dict[str, list[StoredMessage]] = field(default_factory=dict)
    _newest: dict[str, StoredMessage] = field(default_factory=dict)
    _ripe: list[StoredMessage] = field(default_factory=list)
    size: int = 0
    """How many messages are ripe."""

    def take(self, message: StoredMessage) -> None:
        """Look at one more."""
        tokens = message.subject.split(".")
        kind = tokens[0]
        if kind in INPUTS:
            self._pick(message)
        elif not WILDCARDS.isdisjoint(tokens):
            return  # told of what a public trigger named so
        elif kind in ENDS:
            if len(tokens) <= _DECISION:
                return  # none of ours: it is not for us to remove
            self._take_of_scope(message, ".".join(tokens[:3]), tokens[_DECISION])
        elif kind in _STATES or (kind == "ledger" and tokens[-1] in _TIMES):
            before, self._newest[message.subject] = self._newest.get(message.subject), message
            if before is not None:
                self._pick(before)

    def ripe(self) -> list[StoredMessage]:
        """What is to be archived, in the order of the stream."""
        found = [*self._ripe, *(message for scope in self._over.values() for message in scope)]
        return sorted(found, key=lambda message: message.sequence)

    def _take_of_scope(self, message: StoredMessage, scope: str, decision: str) -> None:
        known = self._over.pop(scope, None)
        was_over = known is not None
        known = known or self._open.pop(scope, [])
        self.size -= len(known) if was_over else 0
        known.append(message)
        # An end is an end for an execution; a dead letter that was dealt with may be replayed all the same.
        if decision in ENDS[scope.partition(".")[0]] or (was_over and scope.startswith("execution.")):
            self._over[scope] = known
            self.size += len(known)
        else:
            self._open[scope] = known

    def _pick(self, message: StoredMessage) -> None:
        self._ripe.append(message)
        self.size += 1
