"""A job of an application: a decorated function, and its definition."""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, Generic, ParamSpec, TypeVar

from ..domain.definition import DefinitionError, DefinitionProblem, JobDefinition
from ..domain.formats import read_job
from ..domain.schedule import zone_in
from .signature import Signature

P = ParamSpec("P")
R = TypeVar("R")

OWNED: Final = frozenset({"owner", "dag", "function"})
"""Fields that the application sets."""


class Job(Generic[P, R]):
    """A function that is a job.

    A call runs the function itself, for example in a test.
    """

    def __init__(self, function: Callable[P, R], signature: Signature, definition: JobDefinition) -> None:
        """`function` handles the tasks of `definition`."""
        functools.update_wrapper(self, function)
        self.function = function
        self.signature = signature
        self.definition = definition

    @property
    def name(self) -> str:
        """The name of the job."""
        return self.definition.name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        """Show the name of the job."""
        return f"<job {self.name}>"


def default_name(function: Callable[..., object]) -> str:
    """Return the default name of a job: that of the function, with hyphens."""
    return function.__name__.replace("_", "-")


def read_definition(
    function: Callable[..., object], written: Mapping[str, Any], given: Mapping[str, Any], defaults: Mapping[str, Any]
) -> JobDefinition:
    """Return the definition of a job from the fields of its decorator.

    Args:
        function: the decorated function, which the problems name as their source.
        written: the fields of the decorator.
        given: fields that the application sets.
        defaults: fields of the application, for those that are not written.

    Raises:
        DefinitionError: lists all problems, as for a job file.
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
    schema, input_ = fields["input_schema"], fields.get("input") or {}
    if fields.get("schedule") is None or not isinstance(schema, Mapping) or not isinstance(input_, Mapping):
        return
    for name in schema.get("required", ()):
        if name not in input_:
            reason = f"the schedule passes no value: give the parameter a default, or write `input={{{name!r}: …}}`"
            yield DefinitionProblem(reason, field=f"input.{name}", code="required")
