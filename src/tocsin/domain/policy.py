"""The scheduler policy: limits that an administrator sets for the whole installation (scratchbird §3.4).

Each field is optional. A field that is not set changes nothing, so that a limit can be set alone.
"""

from collections.abc import Iterable, Iterator, Mapping, Reversible
from dataclasses import replace
from typing import Annotated, Final, TypeAlias

from pydantic import Field, ValidationError

from .definition import DefinitionError, DefinitionProblem, JobDefinition, Timeout
from .definition.errors import problems
from .documented_model import DocumentedModel
from .duration import short
from .events import Message, PolicyDefined, Recorded, newest_of
from .formats.document import listed, nearest

MAX_JOBS: Final = 1_000_000
"""The greatest `max_concurrent_jobs`, as many as an agent may announce."""
MAX_DAYS: Final = 36_500
"""The greatest `job_history_retention_days`: a hundred years."""

DEFAULT_TIMEOUT_S: Final[float] = JobDefinition.model_fields["timeout"].default
"""The timeout of definitions that nothing else gives one."""

_Count: TypeAlias = Annotated[int, Field(ge=1, strict=True)]


class Policy(DocumentedModel, frozen=True, extra="forbid"):
    """The fields of the scheduler policy; None: the field is not set."""

    max_concurrent_jobs: Annotated[_Count, Field(le=MAX_JOBS)] | None = None
    """The number of tasks that the matcher gives one agent at most; a worker's own `concurrency` may be lower."""
    job_timeout: Timeout | None = None
    """The timeout of jobs that are registered without a timeout, and the longest that a job or a step may have."""
    job_history_retention_days: Annotated[_Count, Field(le=MAX_DAYS)] | None = None
    """The days for which the history keeps finished executions and resolved dead letters. A job's own `retention` precedes it."""
    enable_job_history: Annotated[bool, Field(strict=True)] | None = None
    """Whether the history records executions. The log always records them."""


NO_POLICY: Final = Policy()
SCRATCHBIRD: Final = Policy(
    max_concurrent_jobs=10, job_timeout=3_600.0, job_history_retention_days=30, enable_job_history=True
)
"""The defaults of ScratchBird's scheduler."""
UNUSED: Final[Mapping[str, str]] = {
    "polling_interval": "it has no effect, because no agent polls: the matcher sends each task at once"
}
"""Fields of ScratchBird that are accepted and have no effect, with the reason."""


def slots(announced: int, ceiling: int | None) -> int:
    """Return the number of tasks that an agent may hold; `ceiling`: that of the policy."""
    return announced if ceiling is None else min(announced, ceiling)


class PolicyError(DefinitionError):
    """A policy is refused; `problems` lists all problems."""

    code = "invalid-policy"


def fold(facts: Reversible[Recorded[Message]]) -> Policy:
    """Return the policy after the events of its scope, oldest first."""
    newest = newest_of(facts, PolicyDefined)
    return NO_POLICY if newest is None else policy_of(newest.message)


def policy_of(fact: PolicyDefined) -> Policy:
    """Return the policy of an event, also with values that only a later version permits."""
    return Policy.model_construct(**{name: getattr(fact, name) for name in Policy.model_fields})


def shown(policy: Policy) -> dict[str, str]:
    """Return the fields that are set, as a person writes them."""
    values = policy.model_dump(exclude_none=True)
    return {name: short(value) if name == "job_timeout" else str(value).lower() for name, value in values.items()}


def changed(current: Policy, changes: Mapping[str, object]) -> Policy:
    """Return a policy with other values of some fields; None unsets a field.

    Raises:
        PolicyError: a field is unknown, or a value is invalid.
    """
    written = {name: value for name, value in changes.items() if name not in UNUSED}
    try:
        valid = Policy.model_validate(written)
    except ValidationError as error:
        raise PolicyError(*map(_with_hint, problems(error))) from None
    return current.model_copy(update=valid.model_dump(include=set(written)))


def _with_hint(problem: DefinitionProblem) -> DefinitionProblem:
    if not problem.unknown:
        return problem
    known = (*Policy.model_fields, *UNUSED)
    near = nearest(problem.field, known)
    return replace(problem, reason=f", did you mean `{near}`?" if near else f": the fields are {listed(known)}")


def with_timeout(definition: JobDefinition, policy: Policy, otherwise: float) -> JobDefinition:
    """Return a definition with a timeout: its own, the policy's, its format's, or `otherwise`."""
    if "timeout" in definition.model_fields_set:
        return definition
    by_format = definition.timeout if definition.timeout != DEFAULT_TIMEOUT_S else otherwise
    return definition.model_copy(update={"timeout": policy.job_timeout or by_format})


def check_timeouts(definitions: Iterable[JobDefinition], policy: Policy) -> None:
    """Raise DefinitionError for each timeout that is longer than the policy permits."""
    ceiling = policy.job_timeout
    if ceiling is None:
        return
    reason = f"above the ceiling of {short(ceiling)}, `job_timeout` of the scheduler policy: give it {short(ceiling)} or less"
    found = [
        DefinitionProblem(
            reason,
            field="timeout",
            value=short(seconds),
            step=step,
            job=f"job `{definition.name}`",
            code="timeout-above-policy",
        )
        for definition in definitions
        for step, seconds in timeouts_above(definition, ceiling)
    ]
    if found:
        raise DefinitionError(*found)


def timeouts_above(definition: JobDefinition, ceiling: float) -> Iterator[tuple[str | None, float]]:
    """Yield the timeouts above a ceiling, with their steps; None: the job itself."""
    timeouts = ((None, definition.timeout), *((step.name, step.timeout) for step in definition.dag))
    return ((step, seconds) for step, seconds in timeouts if seconds is not None and seconds > ceiling)
