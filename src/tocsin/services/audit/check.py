"""What every check is: facts go in one by one, each stream in its order; out come violations, and in the end debts."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeAlias

from ...domain.events import Message, Recorded
from .report import Debt, Proof, Violation

Taken: TypeAlias = Iterator[Violation]
Handler: TypeAlias = Callable[[Recorded[Any]], Taken]


class Check(Protocol):
    """One look at the log. It remembers what is open, and as little of the rest as its invariant allows."""

    def handlers(self) -> Mapping[type[Message], Handler]:
        """What to do with facts of which (exact) types."""
        ...

    def debts(self) -> Iterator[Debt]:
        """What is still to come after all that was taken in."""
        ...


def violation(invariant: str, entity: str, reason: str, *facts: Recorded[Any]) -> Violation:
    """A violation, with the facts that show it."""
    return Violation(invariant, entity, reason, tuple(Proof.of(fact) for fact in facts))


def job(name: str) -> str:
    """How a job is named in a finding."""
    return f"job {name}"


def execution(job: str, execution_id: str) -> str:
    """How an execution is named in a finding."""
    return f"execution {execution_id} of {job}"
