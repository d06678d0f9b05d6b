"""A job of an application: a decorated function, and its definition."""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, Generic, ParamSpec, TypeVar, cast

from pydantic import JsonValue, ValidationError
from typing_extensions import override

from ..domain.definition import DefinitionError, DefinitionProblem, JobDefinition, shorten
from ..domain.formats import read_job
from ..domain.schedule import zone_in
from .errors import SignatureError
from .signature import Signature, value_problems
from .trace import Trace

P = ParamSpec("P")
R = TypeVar("R")

OWNED: Final = frozenset({"owner", "dag", "function"})
"""Fields that the application sets."""


class Job(Generic[P, R]):
    """A function that is a job.

    A call runs the function itself, for example in a test.
    """

    def __init__(
        self, function: Callable[P, R], signature: Signature, name: str, read: Callable[[], JobDefinition]
    ) -> None:
        """`read` makes the definition at its first use."""
        functools.update_wrapper(self, function)
        self.function = function
        self.signature = signature
        self.name = name
        self._read = read

    @cached_property
    def definition(self) -> JobDefinition:
        """The definition of the job.

        Raises:
            UntraceableError: the function of a graph does something that cannot be a part of a plan.
            DefinitionError: the graph has too many steps, or is too large.
        """
        return self._read()

    def written_input(self, given: Mapping[str, object]) -> dict[str, JsonValue]:
        """Return the input of a trigger as JSON, checked by the function's annotations.

        Raises:
            DefinitionError: a key is unknown, missing, or of another type.
        """
        written: dict[str, JsonValue] = {}
        problems: list[DefinitionProblem] = []
        for name, value in given.items():
            parameter = self.signature.parameters.get(name)
            if parameter is None:
                known = ", ".join(f"`{each}`" for each in self.signature.parameters) or "none"
                problems.append(DefinitionProblem(f": the parameters are {known}", field=f"input.{name}", unknown=True))
                continue
            try:
                written[name] = parameter.written(value)
            except ValueError as error:
                reason = "; ".join(value_problems(error, name)) if isinstance(error, ValidationError) else str(error)
                problems.append(DefinitionProblem(reason, field=f"input.{name}", code="schema-mismatch"))
        for parameter in self.signature.parameters.values():
            if parameter.is_required and parameter.name not in {*given, *self.definition.input}:
                reason = "required, and not given"
                problems.append(DefinitionProblem(reason, field=f"input.{parameter.name}", code="required"))
        if problems:
            raise DefinitionError(*(replace(problem, job=f"job `{self.name}`") for problem in problems))
        return written

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function."""
        if (trace := Trace.current()) is not None:
            trace.refuse(f"it calls the job `{self.name}`. Decorate a function with `@app.step` to call it in a graph.")
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<job {self.name}>"


def name_of(job: Job[..., Any] | str) -> str:
    """Return the name of a job, which may be its decorated function."""
    return job if isinstance(job, str) else job.name


def request_of(
    job: Job[..., Any] | str, declared: Mapping[str, Job[..., Any]], given: Mapping[str, object]
) -> tuple[str, dict[str, JsonValue]]:
    """Return the name of a job, and the input of a trigger as JSON.

    The input of a job that is not declared is returned as it is.
    """
    known = declared.get(job) if isinstance(job, str) else job
    return name_of(job), cast("dict[str, JsonValue]", given) if known is None else known.written_input(given)


class Graph(Job[P, R]):
    """A function that is a job because it calls steps.

    In the function of another graph, a call adds its steps there.
    """

    @override
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, which calls its steps."""
        return self.function(*args, **kwargs)


def graph_input(signature: Signature, written: object) -> object:
    """Return the input of a graph's job, with the defaults of its function.

    The function does not run when the job does, so the definition must have them. Written input that is no mapping is returned as it
    is, because `read_definition` explains it.
    """
    if signature.context is not None:
        reason = "the function runs when the plan is made, before any attempt. Take the context in the steps."
        raise SignatureError("context-in-graph", signature.function, reason, parameter=signature.context)
    defaults: dict[str, JsonValue] = {}
    for parameter in signature.parameters.values():
        if not parameter.is_required:
            try:
                defaults[parameter.name] = parameter.written(parameter.default)
            except ValueError as error:
                reason = f"its default cannot be written as JSON: {shorten(str(error))}. Use a value of its type."
                raise SignatureError("default-not-json", signature.function, reason, parameter=parameter.name) from None
    return {**defaults, **written} if isinstance(written, Mapping) else written


def read_definition(
    function: Callable[..., object], written: Mapping[str, Any], given: Mapping[str, Any], defaults: Mapping[str, Any]
) -> JobDefinition:
    """Return the definition of a job from the fields of its decorator.

    `written`: the fields of the decorator. `given`: fields that the application sets. `defaults`: fields of the
    application, for fields that are not written.
    """
    if "timezone" not in written and zone_in(str(written.get("schedule") or "")):
        defaults = {name: value for name, value in defaults.items() if name != "timezone"}
    fields = {**defaults, **written, **given}
    problems = [*_owned_problems(written), *_unfilled_problems(fields)]
    try:
        definition = read_job(fields)
    except DefinitionError as error:
        problems += [problem for problem in error.problems if not (problems and problem.field == "input")]
    else:
        if not problems:
            return definition
    source, job = f"{function.__module__}.{function.__qualname__}()", f"job `{given['name']}`"
    raise DefinitionError(*(replace(problem, source=source, job=job) for problem in problems))


def _owned_problems(written: Mapping[str, Any]) -> Iterator[DefinitionProblem]:
    for field in sorted(written.keys() & OWNED):
        yield DefinitionProblem("the application sets this field: leave it out", field=field, code="exclusive-fields")


def _unfilled_problems(fields: Mapping[str, Any]) -> Iterator[DefinitionProblem]:
    """Yield a problem for each parameter without a value at the instants of a schedule."""
    schema, input_ = fields.get("input_schema"), fields.get("input") or {}
    if fields.get("schedule") is None or not isinstance(schema, Mapping) or not isinstance(input_, Mapping):
        return
    for name in schema.get("required", ()):
        if name not in input_:
            reason = f"the schedule passes no value: give the parameter a default, or write `input={{{name!r}: …}}`"
            yield DefinitionProblem(reason, field=f"input.{name}", code="required")
