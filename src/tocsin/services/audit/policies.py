"""The scheduler policy (I4): each version names the preceding version, and changes something.

Memory: the newest policy.
"""

from collections.abc import Iterator, Mapping

from ...domain.events import Message, PolicyDefined, Recorded
from ...domain.policy import NO_POLICY, policy_of
from . import check
from .check import Debt, Handler, Taken

_ENTITY = "the scheduler policy"


class PolicyVersions:
    """Judges the definitions of the policy."""

    def __init__(self, *, is_whole: bool = True) -> None:
        """Set `is_whole` if the log is read from its beginning."""
        self._is_whole = is_whole
        self._newest: Recorded[PolicyDefined] | None = None

    def handlers(self) -> Mapping[type[Message], Handler]:
        """See `Check`."""
        return {PolicyDefined: self._defined}

    def debts(self) -> Iterator[Debt]:
        """See `Check`: a policy owes nothing."""
        yield from ()

    def _defined(self, recorded: Recorded[PolicyDefined]) -> Taken:
        before, self._newest = self._newest, recorded
        if before is None and not self._is_whole:
            return
        previous = 0 if before is None else before.sequence
        if recorded.message.previous != previous:
            reason = f"it replaces version {recorded.message.previous}, and the newest was {previous}"
            yield check.violation("I4", _ENTITY, reason, recorded)
        if policy_of(recorded.message) == (NO_POLICY if before is None else policy_of(before.message)):
            yield check.violation("I4", _ENTITY, "it changes nothing", recorded)
