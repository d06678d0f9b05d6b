"""The steps of a workflow."""

from collections.abc import Mapping
from typing import Self

from typing_extensions import override

from ..events import PlannedStep, Workflow
from .steps import IN_FLIGHT, PersistentDict, Step, StepStates
from .workflow import Outcome, Walk


class WorkflowSteps(StepStates):
    """The steps of a workflow, walked once for each state that a decision needs."""

    __slots__ = ("_walk", "_workflow")

    def __init__(self, workflow: Workflow, planned: Mapping[str, PlannedStep], steps: Mapping[str, Step]) -> None:
        """Start with a state of each step."""
        self._workflow = workflow
        self._walk: Walk | None = None
        self.planned = planned
        self._steps = PersistentDict(dict(steps))
        self.in_flight = sum(step.phase in IN_FLIGHT for step in steps.values())

    @property
    def walk(self) -> Walk:
        """The walk through this state."""
        if self._walk is None:
            self._walk = Walk(self._workflow, self.planned, self._steps)
        return self._walk

    @property
    @override
    def has_ready(self) -> bool:
        return bool(self.walk.ready)

    @property
    @override
    def is_completed(self) -> bool:
        return self.walk.outcome is Outcome.COMPLETED

    @override
    def with_step(self, name: str, step: Step) -> Self:
        old, new = self._steps.get(name), object.__new__(type(self))
        new._workflow, new._walk, new.planned = self._workflow, None, self.planned
        new._steps = self._steps.updated({name: step})
        new.in_flight = self.in_flight + (step.phase in IN_FLIGHT) - (old is not None and old.phase in IN_FLIGHT)
        return new

    @override
    def ready_steps(self, last: str | None) -> tuple[PlannedStep, ...]:
        return tuple(self.planned[name] for name in self.walk.ready)
