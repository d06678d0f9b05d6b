"""Locks (I5): one holder at a time, under fencing tokens that only grow.

Memory: the newest holder of each lock, and the tokens of open executions.
"""

from collections.abc import Iterator, Mapping

from ...domain.events import Acquired, Admitted, Message, Recorded
from . import check
from .check import Handler, Taken
from .executions import Executions
from .report import Debt


class Locks:
    """Follows every lock."""

    def __init__(self, executions: Executions, *, is_whole: bool = True) -> None:
        """Use `executions`, which takes each event first.

        `is_whole`: the log is read from its beginning.
        """
        self._executions = executions
        self._is_whole = is_whole
        self._held: dict[str, Recorded[Acquired]] = {}
        self._running: dict[str, Recorded[Admitted]] = {}
        self._tokens: dict[str, set[int]] = {}

    def handlers(self) -> Mapping[type[Message], Handler]:
        """See `Check`."""
        return {Acquired: self._acquired, Admitted: self._admitted}

    def _acquired(self, recorded: Recorded[Acquired]) -> Taken:
        before = self._held.get(recorded.subject)
        if before is not None:
            if recorded.sequence <= before.sequence:
                yield check.violation("I5", recorded.subject, "its token did not grow", before, recorded)
            if not self._executions.is_over(before.message.execution_id):
                yield check.violation(
                    "I5", recorded.subject, "acquired while its holder was not over", before, recorded
                )
        self._held[recorded.subject] = recorded
        self._tokens.setdefault(recorded.message.execution_id, set()).add(recorded.sequence)
        if before is not None:
            self._tokens.pop(before.message.execution_id, None)

    def _admitted(self, recorded: Recorded[Admitted]) -> Taken:
        admitted, entity = recorded.message, check.execution(recorded.message.job, recorded.message.execution_id)
        policy = admitted.plan.overlap_policy
        if (admitted.fence is None) != (policy == "allow"):
            yield check.violation(
                "I5", entity, f"it runs under fence {admitted.fence} with policy {policy!r}", recorded
            )
        if admitted.fence is None:
            return
        if self._is_whole and admitted.fence not in self._tokens.get(admitted.execution_id, ()):
            yield check.violation(
                "I5", entity, f"fence {admitted.fence} is not the token of a lock of its own", recorded
            )
        before = self._running.get(admitted.job)
        others = before is not None and before.message.execution_id != admitted.execution_id
        if before is not None and others and self._executions.is_open(before.message.execution_id):
            yield check.violation("I5", entity, "it runs beside another that holds the lock", before, recorded)
        self._running[admitted.job] = recorded

    def debts(self) -> Iterator[Debt]:
        """See `Check`: a lock owes nothing."""
        yield from ()
