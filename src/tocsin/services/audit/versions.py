"""Declarations that replace each other (I4): each names the preceding declaration, and changes something.

Memory: the newest declaration.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

from ...domain.events import Message, NamespacesDefined, PolicyDefined, Recorded
from ...domain.policy import NO_POLICY, policy_of
from . import check
from .check import Debt, Handler, Taken

D = TypeVar("D", NamespacesDefined, PolicyDefined)


class Versions(Generic[D]):
    """Judges the versions of what an event declares as a whole."""

    def __init__(
        self, kind: type[D], entity: str, content: Callable[[D], object], nothing: object, *, is_whole: bool
    ) -> None:
        """`kind`: the event.

        `content` returns what it declares, `nothing` is in force before the first. `is_whole`: the log is read from its beginning.
        """
        self._kind: type[D] = kind
        self._entity = entity
        self._content: Callable[[D], object] = content
        self._nothing = nothing
        self._is_whole = is_whole
        self._newest: Recorded[D] | None = None

    def handlers(self) -> Mapping[type[Message], Handler]:
        return {self._kind: self._defined}

    def debts(self) -> Iterator[Debt]:
        """See `Check`: a declaration owes nothing."""
        yield from ()

    def _defined(self, recorded: Recorded[D]) -> Taken:
        before, self._newest = self._newest, recorded
        if before is None and not self._is_whole:
            return
        previous = 0 if before is None else before.sequence
        if recorded.message.previous != previous:
            reason = f"it replaces version {recorded.message.previous}, and the newest was {previous}"
            yield check.violation("I4", self._entity, reason, recorded)
        if self._content(recorded.message) == (self._nothing if before is None else self._content(before.message)):
            yield check.violation("I4", self._entity, "it changes nothing", recorded)


def of_policy(*, is_whole: bool = True) -> Versions[PolicyDefined]:
    """Return the check of the scheduler policy."""
    return Versions(PolicyDefined, "the scheduler policy", policy_of, NO_POLICY, is_whole=is_whole)


def of_namespaces(*, is_whole: bool = True) -> Versions[NamespacesDefined]:
    """Return the check of the namespaces."""
    return Versions(NamespacesDefined, "the namespaces", lambda fact: fact.namespaces, (), is_whole=is_whole)
