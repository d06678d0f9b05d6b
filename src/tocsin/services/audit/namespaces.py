"""The namespaces (I4): each declaration names the preceding declaration, and changes something.

Memory: the newest declaration.
"""

from collections.abc import Iterator, Mapping

from ...domain.events import Message, NamespacesDefined, Recorded
from . import check
from .check import Debt, Handler, Taken

_ENTITY = "the namespaces"


class NamespaceVersions:
    """Judges the declarations of namespaces."""

    def __init__(self, *, is_whole: bool = True) -> None:
        """Set `is_whole` if the log is read from its beginning."""
        self._is_whole = is_whole
        self._newest: Recorded[NamespacesDefined] | None = None

    def handlers(self) -> Mapping[type[Message], Handler]:
        """See `Check`."""
        return {NamespacesDefined: self._defined}

    def debts(self) -> Iterator[Debt]:
        """See `Check`: a declaration owes nothing."""
        yield from ()

    def _defined(self, recorded: Recorded[NamespacesDefined]) -> Taken:
        before, self._newest = self._newest, recorded
        if before is None and not self._is_whole:
            return
        previous = 0 if before is None else before.sequence
        if recorded.message.previous != previous:
            reason = f"it replaces version {recorded.message.previous}, and the newest was {previous}"
            yield check.violation("I4", _ENTITY, reason, recorded)
        if recorded.message.namespaces == (() if before is None else before.message.namespaces):
            yield check.violation("I4", _ENTITY, "it changes nothing", recorded)
