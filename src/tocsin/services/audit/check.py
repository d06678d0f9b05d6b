"""The interface of a check: events in, violations out, and debts at the end.

Each stream's events come in order.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeAlias

from ...domain.events import Message, Recorded
from .report import Debt, Proof, Violation

Taken: TypeAlias = Iterator[Violation]
Handler: TypeAlias = Callable[[Recorded[Any]], Taken]


class Check(Protocol):
    """One check of the log. It remembers open work, and as little else as possible."""

    def handlers(self) -> Mapping[type[Message], Handler]:
        """The handlers by the exact type of the event."""
        ...

    def debts(self) -> Iterator[Debt]:
        """Yield the events that are still to come."""
        ...


def violation(invariant: str, entity: str, reason: str, *facts: Recorded[Any]) -> Violation:
    """Return a violation with the events that prove it."""
    return Violation(invariant, entity, reason, tuple(Proof.of(fact) for fact in facts))


def job(name: str) -> str:
    """Return the name of a job in a finding."""
    return f"job {name}"


def execution(job: str, execution_id: str) -> str:
    """Return the name of an execution in a finding."""
    return f"execution {execution_id} of {job}"
