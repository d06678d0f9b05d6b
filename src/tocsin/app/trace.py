"""The steps of a graph, and the plan of a call of its function."""

import functools
import inspect
import traceback
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextvars import ContextVar
from copy import copy
from types import CodeType
from typing import Any, Final, Generic, NoReturn, ParamSpec, TypeVar, cast

from pydantic import JsonValue, ValidationError

from ..domain.definition import MAX_STEPS
from ..domain.definition.bindings import INPUT, UPSTREAM, VALUE
from .signature import Signature, leaves_of, value_problems
from .stand_ins import StandIn, UntraceableError, place, reference_of

_running: ContextVar["Trace | None"] = ContextVar("tocsin_trace", default=None)
_SEQUENCES: Final = (list, tuple)


class Trace:
    """The steps that the function of a graph has called so far."""

    def __init__(self, app: str, code: CodeType, inputs: Collection[str]) -> None:
        """`app`: the application of the steps; `inputs`: the keys of the job's input."""
        self._inputs = inputs
        self.steps: list[dict[str, Any]] = []
        self._app = app
        self._code = code
        self._names: set[str] = set()

    @staticmethod
    def current() -> "Trace | None":
        """Return the plan that is being made; None: code runs as usual."""
        return _running.get()

    def input(self, name: str) -> StandIn:
        """Return the stand-in for a key of the input."""
        return StandIn(self, self._code, INPUT + name, f"the input `{name}`")

    def add(self, step: "Step[..., Any]", args: tuple[object, ...], kwargs: Mapping[str, object]) -> StandIn:
        """Add a step; return the stand-in for its result."""
        if step.handler.partition("/")[0] != self._app:
            self.refuse(
                f"it calls {step!r} of another application. Call steps of `{self._app}`, or let a job depend on another job."
            )
        if len(self.steps) == MAX_STEPS:
            self.refuse(f"it calls more than {MAX_STEPS:,} steps. Let one step do more of the work.")
        arguments = self._arguments(step, args, kwargs)
        bind = {name: self._binding(step, name, value) for name, value in arguments.items()}
        depends_on = dict.fromkeys(_upstream([*bind.values(), *map(self._waited_for, step.waits_for)]))
        name = self._name(step)
        written = {"step": name, "function": step.handler, **step.fields, "bind": bind}
        self.steps.append({**written, "depends_on": [*depends_on]} if depends_on else written)
        return StandIn(self, self._code, UPSTREAM + name, f"the result of the step `{name}`")

    def add_callback(self, kind: str, step: object) -> None:
        """Add a step that runs after all others, with arguments from the job's input."""
        if not isinstance(step, Step):
            self.refuse(f"`{kind}` is {step!r}. Pass a function with `@app.step`.")
        inputs = {name: self.input(name) for name in step.signature.parameters if name in self._inputs}
        self.add(step, (), inputs)
        self.steps[-1]["callback"] = kind

    def refuse(self, reason: str) -> NoReturn:
        """Refuse an act of the function, with its line."""
        raise UntraceableError(f"{place(self._code)}: {reason}")

    def _name(self, step: "Step[..., Any]") -> str:
        """Return the step's name in this plan, numbered from its second call on."""
        name, number = step.own_name or step.name, 1
        while name in self._names:
            if step.own_name is not None:
                self.refuse(f"two steps are named `{name}`. Give each its own name.")
            number += 1
            name = f"{step.name}-{number}"
        self._names.add(name)
        return name

    def _arguments(
        self, step: "Step[..., Any]", args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> Mapping[str, object]:
        try:
            return step.signature.call.bind(*args, **kwargs).arguments
        except TypeError as error:
            self.refuse(
                f"it calls {step.name}({step.signature.shape}): {error}. Write the arguments without the context."
            )

    def _binding(self, step: "Step[..., Any]", name: str, value: object) -> JsonValue:
        if isinstance(value, Iterator):
            value = list(value)
        if isinstance(value, StandIn):
            return self._reference(value)
        if isinstance(value, _SEQUENCES) and any(isinstance(part, StandIn) for part in value):
            return [self._reference(part) if isinstance(part, StandIn) else self._refuse_part(name) for part in value]
        try:
            if any(isinstance(leaf, StandIn) for leaf in leaves_of(value)):
                self._refuse_part(name)
        except RecursionError:
            self.refuse(
                f"`{name}` of {step.name}() is nested too deeply, or contains itself. Keep large data in a store."
            )
        try:
            return {VALUE: step.signature.parameters[name].written(value)}
        except (ValidationError, ValueError) as error:
            problems = value_problems(error, name) if isinstance(error, ValidationError) else [f"`{name}`: {error}"]
            self.refuse(f"it calls {step.name}({step.signature.shape}) with a wrong constant: {'; '.join(problems)}.")

    def _reference(self, value: StandIn) -> str:
        reference = reference_of(value, self)
        if reference is None:
            self.refuse(f"{value!r} belongs to another graph. Call its step in this graph.")
        return reference

    def _refuse_part(self, name: str) -> NoReturn:
        self.refuse(
            f"`{name}` mixes results with other values. Pass one result, or a list or tuple of results; pass constants as "
            "parameters of their own."
        )

    def _waited_for(self, result: object) -> JsonValue:
        if isinstance(result, _SEQUENCES):
            return [self._waited_for(each) for each in result]
        reference = self._reference(result) if isinstance(result, StandIn) else ""
        if not reference.startswith(UPSTREAM):
            self.refuse(f"`after` got {result!r}. Pass results of steps.")
        return reference


def trace_steps(
    app: str, function: Callable[..., object], signature: Signature, callbacks: Mapping[str, object]
) -> list[dict[str, Any]]:
    """Return the steps of a graph as a job file has them, last its callbacks."""
    trace = Trace(app, inspect.unwrap(function).__code__, signature.parameters)
    token = _running.set(trace)
    try:
        returned = function(**{name: trace.input(name) for name in signature.parameters})
        if inspect.iscoroutine(returned):
            returned = _finished(trace, returned)
    except RecursionError:
        trace.refuse(
            "it calls itself, perhaps through another graph. A plan has no circles: decide inside of a step when to stop."
        )
    finally:
        _running.reset(token)
    if not trace.steps:
        trace.refuse("it calls no step. Call functions with `@app.step`; a single function needs only `@app.job`.")
    results = returned if isinstance(returned, _SEQUENCES) else [] if returned is None else [returned]
    if not all(isinstance(result, StandIn) for result in results):
        trace.refuse("it returns a value of its own. Return the result of a step, a list of results, or nothing.")
    for kind, step in callbacks.items():
        trace.add_callback(kind, step)
    return trace.steps


def _finished(trace: Trace, coroutine: Coroutine[Any, Any, object]) -> object:
    """Return the value of a coroutine that waits only for steps."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    except RecursionError:
        raise
    except (AttributeError, RuntimeError) as error:
        if not _lacks_loop(error):
            raise
        trace.refuse(f"it waits for something that is no step ({error}). Wait inside of a step.")
    else:
        trace.refuse("it waits for something that is no step. Wait inside of a step.")
    finally:
        coroutine.close()


def _lacks_loop(error: Exception) -> bool:
    """Return whether a library raised an error because no event loop runs."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    package, _, _ = frame.f_globals.get("__name__", "").partition(".")
    return package in {"anyio", "asyncio", "sniffio"} or str(error) == "no running event loop"


def _upstream(bindings: Sequence[JsonValue]) -> Iterator[str]:
    """Yield the steps with results to which bindings refer."""
    for binding in bindings:
        if isinstance(binding, list):
            yield from _upstream(binding)
        elif isinstance(binding, str) and binding.startswith(UPSTREAM):
            yield binding.removeprefix(UPSTREAM)


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
        """`handler`: the name of the function for workers; `name`: of the step in graphs."""
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
