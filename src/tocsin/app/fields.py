"""The fields that decorators take: those of a job file."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypedDict, get_args

from pydantic import JsonValue

from ..domain.definition import CatchUp, JobClass, OnCompletion, OverlapPolicy
from ..domain.definition.callbacks import Callback

if TYPE_CHECKING:
    from .step import Step

Duration: TypeAlias = float | str
"""Seconds, or text such as `30m`."""


class WorkFields(TypedDict, total=False):
    """The fields that a job and a step share."""

    timeout: Duration
    queue: str
    priority: int
    retry: Mapping[str, Any]


class StepFields(WorkFields, total=False):
    """The fields of a step; an absent field has the job's value."""


class Callbacks(TypedDict, total=False):
    """The steps that run after all others of a graph."""

    on_complete: "Step[..., Any]"
    """Runs always."""
    on_success: "Step[..., Any]"
    """Runs if all others completed."""
    on_failure: "Step[..., Any]"
    """Runs if one of the others failed."""


class JobFields(WorkFields, total=False):
    """The fields of a job; `docs/reference/jobs.md` has their meanings.

    The application sets `name`, `function`, `dag` and `owner`. `input_schema` comes from the signature.
    """

    schedule: str
    timezone: str
    dst: Mapping[str, str]
    exclude: Sequence[str | Mapping[str, Any]]
    only: Sequence[str | Mapping[str, Any]]
    blackout: Sequence[Mapping[str, Any]]
    shift: Literal["next_business_day", "skip"]
    input: Mapping[str, JsonValue]
    args: Sequence[JsonValue]
    execution_timeout: Duration
    overlap_policy: OverlapPolicy
    lock: bool
    concurrent: bool
    max_waiting: int
    dead_letter: bool
    tags: Collection[str]
    concurrency: Mapping[str, Any]
    depends_on: Sequence[str | Mapping[str, Any]]
    dependency_timeout: Duration
    job_class: JobClass
    acknowledgements: int
    acknowledgement_timeout: Duration
    triggers: Sequence[Mapping[str, Any]]
    partition: str | Mapping[str, Any]
    description: str
    enabled: bool
    meta: Mapping[str, JsonValue]
    catch_up: CatchUp
    catch_up_limit: int
    catch_up_max_age: Duration
    starting_deadline: Duration
    on_completion: OnCompletion
    jitter: Duration
    input_schema: Mapping[str, JsonValue]
    retention: Duration
    notify: Mapping[str, Any]
    viewers: Sequence[str]


class GraphFields(JobFields, Callbacks, total=False):
    """The fields of a job with a graph, and its callbacks."""


CALLBACKS: Final[tuple[str, ...]] = get_args(Callback)
"""The fields of `Callbacks`."""
