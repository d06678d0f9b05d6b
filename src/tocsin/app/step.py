"""A step of an application: a decorated function that graphs call."""

import functools
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, Generic, ParamSpec, TypeVar, cast

from .signature import Signature
from .trace import Trace

P = ParamSpec("P")
R = TypeVar("R")


class Step(Generic[P, R]):
    """A function that is a step.

    In the function of a graph, a call adds a step to its plan, and returns a stand-in for the result. Anywhere else it calls
    the function.
    """

    def __init__(
        self, function: Callable[..., R], signature: Signature, handler: str, name: str, fields: Mapping[str, Any]
    ) -> None:
        """Make a step.

        `handler` is the name of the function for workers, `name` that of the step in graphs.
        """
        functools.update_wrapper(self, function)
        self.function = function
        self.signature = signature
        self.handler = handler
        self.name = name
        self.fields = fields
        self.own_name: str | None = None
        self.waits_for: tuple[object, ...] = ()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Add a step to the plan that is being made, or call the function."""
        trace = Trace.current()
        return self.function(*args, **kwargs) if trace is None else cast("R", trace.add(self, args, kwargs))

    def named(self, name: str) -> "Step[P, R]":
        """Return the step under another name, for one call: `extract.named("extract-eu")("eu")`."""
        return self._with(own_name=name)

    def after(self, *results: object) -> "Step[P, R]":
        """Return the step, for one call, after steps whose results it does not take."""
        return self._with(waits_for=(*self.waits_for, *results))

    def __repr__(self) -> str:
        """Show the name of the step."""
        return f"<step {self.name}>"

    def _with(self, **changes: object) -> "Step[P, R]":
        changed = copy(self)
        vars(changed).update(changes)
        return changed
