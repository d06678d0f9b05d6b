"""The model, and the rules that span its fields."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, Self

from pydantic import ConfigDict, Field, JsonValue, ValidationInfo, model_validator

from .. import schedule as calendar
from .. import step_graph
from ..documented_model import DocumentedModel
from ..schedule import DstPolicy
from .errors import DefinitionError, DefinitionProblem, show
from .fields import (
    Args,
    CatchUp,
    Flag,
    Function,
    Name,
    Object,
    OverlapPolicy,
    Seconds,
    StepName,
    Text,
    Timeout,
    is_stored,
    size_of,
)
from .inputs import input_problems

MAX_PLAN_BYTES: Final = 524_288
"""The inputs and args of a job and of all its steps together, as compact UTF-8 JSON."""
MAIN: Final = "main"
"""The name of the one step of a job without a DAG."""


class _Model(DocumentedModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _open_to_newer_versions(cls, data: Any, info: ValidationInfo) -> Any:  # noqa: ANN401 - before validation
        """A field that a newer version recorded must not make the log unreadable for this one."""
        known = cls.__pydantic_fields__.keys()
        if is_stored(info) and isinstance(data, dict) and not data.keys() <= known:
            return {key: value for key, value in data.items() if key in known}
        return data


class RetryPolicy(_Model):
    """When to try again (hip-62, Retry Policy): the first attempt counts, delays grow until `max_delay`."""

    max_attempts: int = Field(default=3, ge=1, le=100, strict=True)
    initial_delay: Seconds = 30.0
    multiplier: float = Field(default=2.0, ge=1, strict=True)
    max_delay: Seconds = 300.0
    jitter: float = Field(default=0.1, ge=0, le=1, strict=True)
    """The share of a delay by which it may be longer or shorter."""
    max_delay_with_jitter: bool = False
    """`max_delay` bounds the delay with its jitter too, as ojs-retry §5.3 has it; in hip-62 the jitter comes on top."""
    backoff: Literal["exponential", "linear", "polynomial", "none"] = "exponential"
    """How delays grow with the number of failures n: `multiplier^(n-1)`, `n`, `n^multiplier`, or not (ojs-retry §3)."""
    non_retryable_errors: tuple[Text, ...] = ()
    """Types of errors after which no attempt follows; one that ends with `*` covers every type that it begins."""


class Step(_Model):
    """A node of a job's graph. None means: as the job has it."""

    name: StepName
    function: Function
    depends_on: tuple[Text, ...] = ()
    timeout: Timeout | None = None
    input: Object | None = None
    args: Args | None = None
    queue: Name | None = None
    retry: RetryPolicy | None = None


class JobDefinition(_Model):
    """A named job: when it runs, what it runs, and what holds when it overlaps, fails or was missed."""

    name: Name
    schedule: Text | None = None
    """Cron, `@every`, or a phrase such as `every weekday at 7am`. None: the job runs by trigger only."""
    timezone: Text = "UTC"
    dst: DstPolicy | None = None
    """What becomes of local times that do not exist, or exist twice; by default as ojs-cron §5.2 says."""
    function: Function | None = None
    dag: tuple[Step, ...] = ()
    """Either this or `function`."""
    input: Object = {}
    args: Args = ()
    """Positional arguments, as the Open Job Spec hands them to a job."""
    timeout: Timeout = 300.0
    execution_timeout: Timeout | None = None
    """How long an execution may take from its admission to its end, with all steps, retries and delays; None: however long."""
    retry: RetryPolicy = RetryPolicy()
    overlap_policy: OverlapPolicy = "skip"
    dead_letter: Flag = False
    tags: tuple[Text, ...] = ()
    queue: Name = "default"
    description: Text | None = None
    enabled: Flag = True
    meta: Object = {}
    catch_up: CatchUp = "once"
    """After a pause of the scheduler: fire the newest missed instant, none, or every one."""
    catch_up_limit: int = Field(default=100, ge=1, le=1_000, strict=True)
    """How many missed instants `catch_up: all` fires at most: the newest ones."""
    catch_up_max_age: Seconds = 86_400.0
    """How old a missed instant may be that `catch_up: all` fires."""
    starting_deadline: Timeout | None = None
    """How late an instant may fire at all; None: however late."""
    input_schema: Object | None = None
    """A JSON Schema that `input` satisfies, here and at every trigger."""
    owner: Text | None = None
    """Whose the job is, beside its creator: a person, or whatever keeps a file of jobs in step."""
    retention: Timeout | None = None
    """How long the history keeps its executions once they are over; None: as long as the installation keeps any."""
    viewers: tuple[Text, ...] = ()
    """The identities that may see the job, beside its creator, its owner and administrators; none named: everyone."""

    def steps(self) -> tuple[Step, ...]:
        """The steps with everything resolved: no field but `depends_on` is empty for want of being said."""
        plain = () if self.function is None else (Step.model_construct(name=MAIN, function=self.function),)
        inherited = {
            "timeout": self.timeout,
            "input": self.input,
            "args": self.args,
            "queue": self.queue,
            "retry": self.retry,
        }
        return tuple(
            step.model_copy(update={field: value for field, value in inherited.items() if getattr(step, field) is None})
            for step in (*plain, *self.dag)
        )

    @model_validator(mode="after")
    def _is_registrable(self, info: ValidationInfo) -> Self:
        if not is_stored(info) and (problems := tuple(_problems(self))):
            raise DefinitionError(*problems)
        return self


def check_input(
    definition: JobDefinition,
    input: Mapping[str, JsonValue],  # noqa: A002 - the field is called so
    args: Sequence[JsonValue] | None = None,
) -> None:
    """Check what a trigger would run the job with.

    Args:
        definition: the job.
        input: its input, already merged with the trigger's.
        args: the trigger's positional arguments; None: the job's.

    Raises:
        DefinitionError: it is no plain JSON, too large, refers to secrets in a wrong way, or does not fit `input_schema`.
    """
    problems = tuple(input_problems(input, definition.args if args is None else args, definition.input_schema))
    if problems:
        raise DefinitionError(*(replace(problem, job=f"job `{definition.name}`") for problem in problems))


def _problems(definition: JobDefinition) -> Iterator[DefinitionProblem]:
    yield from _schedule_problems(definition)
    if (definition.function is None) == (not definition.dag):
        both = definition.function is not None
        yield DefinitionProblem(
            "`function` and `dag` exclude each other: give one" if both else "give either `function` or `dag`",
            code="exclusive-fields" if both else "required",
        )
    for name, count in step_graph.namesakes(definition.dag).items():
        yield DefinitionProblem(
            f"{count} steps have this name, and each needs its own", field="name", step=name, code="duplicate-name"
        )
    for problem in step_graph.problems(definition.dag):
        yield DefinitionProblem(problem.reason, field="depends_on", step=problem.step, code=problem.code)
    wrong = [*_inputs_problems(definition)]
    yield from wrong or _plan_problems(definition)  # one input that is too large makes all of them so


def _schedule_problems(definition: JobDefinition) -> Iterator[DefinitionProblem]:
    try:
        calendar.validate_timezone(definition.timezone)
    except calendar.ScheduleError as error:
        yield _unscheduled("timezone", definition.timezone, error)
        return
    if definition.schedule is not None:
        try:
            calendar.parse(definition.schedule, definition.timezone, dst=definition.dst)
        except calendar.ScheduleError as error:
            yield _unscheduled("schedule", definition.schedule, error)


def _unscheduled(field: str, written: str, error: calendar.ScheduleError) -> DefinitionProblem:
    suggestion = f" (try: {error.suggestion})" if error.suggestion else ""
    return DefinitionProblem(
        error.problem.removeprefix(f"{field}: ") + suggestion, field=field, value=show(written), code=error.code
    )


def _inputs_problems(definition: JobDefinition) -> Iterator[DefinitionProblem]:
    yield from input_problems(definition.input, definition.args, definition.input_schema)
    for step in definition.dag:
        if step.input is not None or step.args is not None:
            given = definition.input if step.input is None else step.input
            for problem in input_problems(given, definition.args if step.args is None else step.args):
                yield replace(problem, step=step.name)


def _plan_problems(definition: JobDefinition) -> Iterator[DefinitionProblem]:
    """Every execution stores its plan, with the inputs of all steps, in one message."""
    inputs = (
        definition.input,
        definition.args,
        *(value for step in definition.dag for value in (step.input, step.args)),
    )
    size = sum(size_of(value) for value in inputs if value)
    if size > MAX_PLAN_BYTES:
        reason = (
            f"{size:,} bytes of JSON in all inputs together, more than {MAX_PLAN_BYTES:,}: keep large data in a store"
        )
        yield DefinitionProblem(reason, field="input", code="too-large")
