"""Callbacks of a job: steps that run after all its other steps."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal, Protocol, TypeAlias

from .errors import DefinitionProblem, show

Callback: TypeAlias = Literal["on_complete", "on_success", "on_failure"]


class Called(Protocol):
    """A step, as far as its callback is concerned."""

    @property
    def name(self) -> str:
        """Unique within the job."""
        ...

    @property
    def callback(self) -> Callback | None:
        """The outcome of the others after which it runs; None: it is no callback."""
        ...

    @property
    def depends_on(self) -> Sequence[str]:
        """The names of the steps that must complete first."""
        ...


def callback_problems(steps: Sequence[Called]) -> Iterator[DefinitionProblem]:
    """Yield the problems of the callbacks among the steps of a job."""
    called = {step.name: step.callback for step in steps if step.callback is not None}
    if called and len(called) == len(steps):
        yield DefinitionProblem(
            "all steps are callbacks: give a step without `callback` too", field="dag", code="required"
        )
    counts = Counter(called.values())
    for step in steps:
        if step.callback is not None and counts[step.callback] > 1:
            reason = f"{counts[step.callback]} steps have this callback, and a job has one of each"
            yield DefinitionProblem(
                reason, field="callback", value=show(step.callback), step=step.name, code="exclusive-fields"
            )
        if step.callback is not None and step.depends_on:
            reason = "a callback runs after all steps that are no callbacks: leave `depends_on` out"
            yield DefinitionProblem(reason, field="depends_on", step=step.name, code="exclusive-fields")
        elif waited_for := [name for name in step.depends_on if name in called]:
            reason = f"`{waited_for[0]}` is a callback, which waits for this step"
            yield DefinitionProblem(reason, field="depends_on", step=step.name, code="dependency-cycle")
