"""The jobs on whose runs the executions of a job wait (scratchbird, Job Dependencies)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, ValidationInfo
from pydantic_core import PydanticCustomError

from .errors import DefinitionProblem, excess, show
from .fields import Name, StoredModel, Timeout, is_name, is_stored, short_for

MAX_DEPENDENCIES: Final = 100
"""The largest number of jobs on which a job depends."""
LONGEST_WINDOW_S: Final = 31 * 86_400.0
"""Seconds of the longest window. All runs of a job in the window are read and kept in memory."""
DEFAULT_DEPENDENCY_TIMEOUT: Final = 86_400.0
"""Seconds for which an execution waits for its dependencies, unless its definition says otherwise."""


def _bounded(seconds: float, info: ValidationInfo) -> float:
    if seconds > LONGEST_WINDOW_S and not is_stored(info):
        reason = "a window has at most 31 days: write `31d` or less"
        raise PydanticCustomError("too_large", reason)
    return seconds


class JobDependency(StoredModel):
    """A job whose last run in a window must end before an execution may start.

    The window of an execution for the time T is (T - `within`, T]. A run belongs to it by its own scheduled time.
    """

    job: Name
    """The name of the job that must run before."""
    within: Annotated[Timeout, AfterValidator(_bounded)] | None = None
    """The length of the window in seconds. None: since the instant of the dependent's schedule before T, at most 31 days."""
    on: Literal["completed", "finished"] = "completed"
    """`completed`: the run must succeed; a replay of a failed run counts for it. `finished`: it may also fail or be cancelled."""


def _listed(value: Any) -> Any:  # noqa: ANN401 - before validation
    if isinstance(value, str | Mapping):
        example = value if isinstance(value, str) and is_name(value) else "load"
        raise PydanticCustomError("list_type", f"must be a list of jobs, such as [{example}]")
    return value


_Dependency: TypeAlias = Annotated[
    JobDependency, BeforeValidator(short_for("job", str), json_schema_input_type=JobDependency | str)
]
Dependencies: TypeAlias = Annotated[
    tuple[_Dependency, ...],
    BeforeValidator(_listed, json_schema_input_type=tuple[_Dependency, ...]),
]
"""Dependencies, each written as an object or as the name of the job alone."""


def upstream_jobs(dependencies: Sequence[JobDependency]) -> tuple[str, ...]:
    """Return the names of the jobs for whose runs an execution waits."""
    return tuple(dependency.job for dependency in dependencies)


def dependency_problems(
    job: str, dependencies: Sequence[JobDependency], *, repeats: bool
) -> Iterator[DefinitionProblem]:
    """Yield the problems of a job's own dependencies.

    `repeats`: whether its schedule names more than one instant, so that each window has a beginning.
    """
    advice = "let one job depend on a part of them"
    if too_many := excess(len(dependencies), "jobs", MAX_DEPENDENCIES, "depends_on", advice):
        yield from too_many
        return
    seen: set[str] = set()
    for dependency in dependencies:
        name = dependency.job
        if name == job:
            yield DefinitionProblem(
                "a job cannot depend on itself", field="depends_on", value=show(name), code="dependency-cycle"
            )
        elif name in seen:
            yield DefinitionProblem(
                f"`{name}` is named more than once", field="depends_on", value=show(name), code="duplicate-dependency"
            )
        elif dependency.within is None and not repeats:
            reason = (
                "without a schedule that repeats, the window has no beginning: write how old the run may be, such as "
                f"{{job: {name}, within: 6h}}"
            )
            yield DefinitionProblem(reason, field="depends_on", value=show(name), code="required")
        seen.add(name)
