"""The inputs of a batch on their way through the waves."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from ..domain.events import Message, Recorded
from .step import Ref, Step, Then

MAX_STEPS: Final = 10_000
"""Steps of one input that say `again`; more is a defect."""


class Result(Enum):
    """The end of the decision on an input."""

    DONE = "done"
    WAIT = "wait"
    REFUSED = "refused"
    OUTDATED = "outdated"
    FAILED = "failed"
    HELD = "held"
    """An earlier input of the same ordering key was not decided."""


_RESULTS: Final = {Then.DONE: Result.DONE, Then.WAIT: Result.WAIT, Then.REFUSE: Result.REFUSED}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an input: its last step, or the error that ended its decision."""

    result: Result
    step: Step | None = None
    error: Exception | None = None

    @property
    def is_settled(self) -> bool:
        """Return whether the next input of the ordering key may be decided."""
        return self.result in {Result.DONE, Result.REFUSED}


@dataclass(eq=False, slots=True)
class Item:
    """An input on its way through the waves."""

    input: Recorded[Message]
    key: object
    outcome: Outcome | None = None
    conflicts: int = 0
    steps: int = 0
    is_alone: bool = False
    touched: list[Ref[Any]] = field(default_factory=list)
    sent: set[str] = field(default_factory=set)
    changed: set[Ref[Any]] = field(default_factory=set)
    can_wait: bool = False
    """Whether the next decision may wait until a rush is over."""

    def follow(self, step: Step) -> None:
        """End the decision with a stored step, unless the step says `again`."""
        self.steps += 1
        self.can_wait = step.can_wait
        if step.then in _RESULTS:
            self.outcome = Outcome(_RESULTS[step.then], step)
        elif self.steps >= MAX_STEPS:
            self.fail(RuntimeError(f"the decision on {self.input.subject} has {MAX_STEPS} steps"))

    def fail(self, error: Exception) -> None:
        """End the decision with an error."""
        self.outcome = Outcome(Result.FAILED, error=error)
