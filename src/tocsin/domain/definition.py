"""The definition of a job, normalized: what every specification's spelling is read into, and what the ledger stores.

A value of these classes is valid by construction: names, durations, the schedule, the graph of the steps, the size and the
schema of the input have been checked (ojs-cron §2.2; hip-62, Job Registry and Job Input Sanitization). Durations are
seconds. What was valid when it was recorded must stay readable when rules get stricter or a time zone disappears, so
reading from the log passes `context=STORED`, which leaves out every check that is about what may be registered.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

import jsonschema
import referencing.exceptions
from jsonschema.protocols import Validator
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationInfo,
    model_validator,
)
from typing_extensions import override

from . import calendar, duration, step_graph
from .calendar import DstPolicy
from .secret_reference import SecretReferenceError, find_references

STORED: Final[Mapping[str, bool]] = {"stored": True}
"""The validation context for what is read from the log."""

MAX_INPUT_BYTES: Final = 65_536
"""Input and args together, as compact UTF-8 JSON (hip-62: payloads exceeding 64KB are rejected)."""

MAX_PLAN_BYTES: Final = 524_288
"""The inputs and args of a job and of all its steps together, as compact UTF-8 JSON."""

MAX_DEPTH: Final = 64
"""Levels of nesting in a JSON value: more than anyone writes, and far below what stops a parser."""

MAIN: Final = "main"
"""The name of the one step of a job without a DAG."""

_MAX_INTEGER_BITS: Final = 64
_SENTENCE: Final = 200  # characters: a schema validator quotes what it looked at, however long

OverlapPolicy: TypeAlias = Literal["skip", "allow", "cancel_previous", "enqueue"]
CatchUp: TypeAlias = Literal["once", "skip", "all"]

# --- what can be wrong -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a definition, addressed so that a person finds it and a program can mark it."""

    reason: str
    """What would be right."""
    field: str = ""
    """The field as it was spelled, dotted where it is nested; empty where the definition as a whole is meant."""
    value: str | None = None
    """What was written there, shortened."""
    step: str | None = None
    job: str | None = None
    """The name of the job, or its place in the document where it has no usable one."""
    source: str | None = None
    """The file."""
    unknown: bool = False
    """The field itself is what is wrong."""

    @override
    def __str__(self) -> str:
        """The line that people read."""
        where = [part for part in (self.source, self.job) if part]
        subject = " in ".join(
            part for part in (self.field and f"`{self.field}`", self.step and f"step `{self.step}`") if part
        )
        if self.unknown:
            text = f"unknown field {subject}{self.reason}"
        elif self.value is not None:
            text = f"{subject} is {self.value}: {self.reason}"
        else:
            text = f"{subject}: {self.reason}" if subject else self.reason
        return ": ".join([*where, text])


class DefinitionError(ValueError):
    """A definition is refused, or an input; `problems` holds everything that is wrong and not only the first thing."""

    def __init__(self, *problems: Problem) -> None:
        """Refuse for these reasons."""
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


def shorten(text: str, limit: int = 60) -> str:
    """A text of at most so many characters, for a line about it."""
    return text if len(text) <= limit else f"{text[: limit - 3]}…"


def show(value: object) -> str:
    """A value as an error message shows it: short, whatever it is."""
    match value:
        case None | bool() | float() | str():
            text = json.dumps(value, ensure_ascii=False, default=str)
            return shorten(text)
        case int():
            return str(value) if value.bit_length() <= _MAX_INTEGER_BITS else "a very large number"
        case Mapping():
            return "a mapping" if value else "an empty mapping"
        case list() | tuple():
            return "a list" if value else "an empty list"
        case _:
            return f"{value} ({type(value).__name__})"


# --- the types of fields ---------------------------------------------------------------------------------------------


def _is_stored(info: ValidationInfo) -> bool:
    return bool((info.context or {}).get("stored"))


def _plain(value: object, info: ValidationInfo) -> object:
    """Only what every executor in every language can read, and small enough to be looked at."""
    if not _is_stored(info) and (reason := _json_problem(value)):
        raise ValueError(reason)
    return value


def _matching(pattern: str, limit: int, meaning: str) -> Callable[[str], str]:
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if len(text) > limit or not compiled.fullmatch(text):
            raise ValueError(f"must match {pattern}, {meaning}, at most {limit} characters")
        return text

    return check


def _storable(text: str) -> str:
    if _UNSTORABLE.search(text):
        raise ValueError("a character that cannot be stored (U+0000 or half a surrogate pair)")
    return text


_LOWER: Final = r"[a-z0-9][a-z0-9\-\.]*"
_LOWER_MEANING: Final = "lower-case letters, digits, hyphens and dots, the first a letter or a digit"

Name: TypeAlias = Annotated[str, AfterValidator(_matching(_LOWER, 255, _LOWER_MEANING))]
StepName: TypeAlias = Annotated[
    str, AfterValidator(_matching(r"[A-Za-z0-9][A-Za-z0-9_\-]*", 64, "letters, digits, underscores and hyphens"))
]
Function: TypeAlias = Annotated[str, AfterValidator(_matching(r"[!-~]+", 255, "printable ASCII without spaces"))]
Text: TypeAlias = Annotated[str, AfterValidator(_storable)]
Seconds: TypeAlias = Annotated[float, BeforeValidator(duration.parse, json_schema_input_type=float | str), Field(ge=0)]
Timeout: TypeAlias = Annotated[float, BeforeValidator(duration.parse, json_schema_input_type=float | str), Field(gt=0)]
Object: TypeAlias = Annotated[dict[str, JsonValue], BeforeValidator(_plain)]
Args: TypeAlias = Annotated[tuple[JsonValue, ...], BeforeValidator(_plain)]
Flag: TypeAlias = Annotated[bool, Field(strict=True)]


# --- the model -------------------------------------------------------------------------------------------------------


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _open_to_newer_versions(cls, data: Any, info: ValidationInfo) -> Any:  # noqa: ANN401 - before validation
        """A field that a newer version recorded must not make the log unreadable for this one."""
        known = cls.__pydantic_fields__.keys()
        if _is_stored(info) and isinstance(data, dict) and not data.keys() <= known:
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
    retention: Timeout | None = None
    """How long the history keeps its executions once they are over; None: as long as the installation keeps any."""
    """Whose the job is, beside its creator: a person, or whatever keeps a file of jobs in step."""
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
        if not _is_stored(info) and (problems := tuple(_problems(self))):
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
    problems = tuple(_input_problems(input, definition.args if args is None else args, definition.input_schema))
    if problems:
        raise DefinitionError(*(replace(problem, job=f"job `{definition.name}`") for problem in problems))


# --- the rules that span fields --------------------------------------------------------------------------------------


def _problems(definition: JobDefinition) -> Iterator[Problem]:
    yield from _schedule_problems(definition)
    if (definition.function is None) == (not definition.dag):
        both = definition.function is not None
        yield Problem(
            "`function` and `dag` exclude each other: give one" if both else "give either `function` or `dag`"
        )
    for name, count in step_graph.namesakes(definition.dag).items():
        yield Problem(f"{count} steps have this name, and each needs its own", field="name", step=name)
    for name, reason in step_graph.problems(definition.dag):
        yield Problem(reason, field="depends_on", step=name)
    wrong = [*_inputs_problems(definition)]
    yield from wrong or _plan_problems(definition)  # one input that is too large makes all of them so


def _inputs_problems(definition: JobDefinition) -> Iterator[Problem]:
    yield from _input_problems(definition.input, definition.args, definition.input_schema)
    for step in definition.dag:
        if step.input is not None or step.args is not None:
            given = definition.input if step.input is None else step.input
            for problem in _input_problems(given, definition.args if step.args is None else step.args):
                yield replace(problem, step=step.name)


def _plan_problems(definition: JobDefinition) -> Iterator[Problem]:
    """Every execution stores its plan, with the inputs of all steps, in one message."""
    inputs = (
        definition.input,
        definition.args,
        *(value for step in definition.dag for value in (step.input, step.args)),
    )
    size = sum(_size(value) for value in inputs if value)
    if size > MAX_PLAN_BYTES:
        reason = (
            f"{size:,} bytes of JSON in all inputs together, more than {MAX_PLAN_BYTES:,}: keep large data in a store"
        )
        yield Problem(reason, field="input")


def _size(value: Mapping[str, JsonValue] | Sequence[JsonValue]) -> int:
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def _schedule_problems(definition: JobDefinition) -> Iterator[Problem]:
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


def _unscheduled(field: str, written: str, error: calendar.ScheduleError) -> Problem:
    suggestion = f" (try: {error.suggestion})" if error.suggestion else ""
    return Problem(error.problem.removeprefix(f"{field}: ") + suggestion, field=field, value=show(written))


def _input_problems(
    input: Mapping[str, JsonValue],  # noqa: A002 - the field is called so
    args: Sequence[JsonValue],
    schema: dict[str, JsonValue] | None = None,
) -> Iterator[Problem]:
    for field, value in (("input", input), ("args", args)):
        if reason := _json_problem(value):
            yield Problem(reason, field=field)
            return
        try:
            find_references(value if isinstance(value, dict) else list(value))
        except SecretReferenceError as error:
            yield Problem(str(error), field=field)
    size = sum(_size(value) for value in (input, args) if value)
    if size > MAX_INPUT_BYTES:
        yield Problem(
            f"{size:,} bytes of JSON, more than {MAX_INPUT_BYTES:,}: keep large data in a store and refer to it",
            field="input",
        )
    if schema is not None:
        yield from _schema_problems(schema, input)


def _schema_problems(schema: dict[str, JsonValue], instance: Mapping[str, JsonValue]) -> Iterator[Problem]:
    kind: type[Validator] = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
        if outside := [reference for reference in _schema_references(schema) if not reference.startswith("#")]:
            # Looking one up would mean that whoever registers a job chooses what the scheduler fetches.
            yield Problem("a schema may refer to its own parts only", field="input_schema.$ref", value=show(outside[0]))
            return
        for error in kind(schema, registry=referencing.Registry()).iter_errors(instance):
            path = ".".join(("input", *(str(part) for part in error.absolute_path)))
            yield Problem(shorten(error.message, _SENTENCE), field=path)
    except jsonschema.SchemaError as error:
        path = ".".join(("input_schema", *(str(part) for part in error.absolute_path)))
        yield Problem(f"no valid JSON Schema: {shorten(error.message, _SENTENCE)}", field=path)
    except RecursionError:
        yield Problem("no usable JSON Schema: it refers to itself without end", field="input_schema")
    except (referencing.exceptions.Unresolvable, re.error) as error:
        yield Problem(f"no usable JSON Schema: {shorten(str(error), _SENTENCE)}", field="input_schema")


def _schema_references(schema: JsonValue | Mapping[str, JsonValue]) -> Iterator[str]:
    match schema:
        case Mapping():
            for key, value in schema.items():
                if key in {"$ref", "$dynamicRef", "$recursiveRef"} and isinstance(value, str):
                    yield value
                yield from _schema_references(value)
        case list():
            for value in schema:
                yield from _schema_references(value)


def _json_problem(value: object) -> str | None:
    """Why a value is no plain JSON; None if it is. Bounded in time and depth, whatever aliases or loops it is made of."""
    stack: list[tuple[int, object]] = [(0, value)]
    seen = 0
    while stack:
        depth, current = stack.pop()
        seen += 1
        if seen > MAX_INPUT_BYTES:
            return f"more than {MAX_INPUT_BYTES:,} values: keep large data in a store and refer to it"
        if depth > MAX_DEPTH:
            return f"nested more than {MAX_DEPTH} levels deep"
        match current:
            case Mapping():
                if odd := [key for key in current if not isinstance(key, str)]:
                    return f"the key {show(odd[0])} is no text: put it in quotes"
                stack.extend((depth + 1, inner) for inner in (*current, *current.values()))
            case list() | tuple():
                stack.extend((depth + 1, inner) for inner in current)
            case _ if reason := _scalar_problem(current):
                return reason
    return None


def _scalar_problem(value: object) -> str | None:
    match value:
        case None | bool():
            return None
        case int():
            return (
                None if value.bit_length() <= _MAX_INTEGER_BITS else "an integer of more than 64 bits: write it as text"
            )
        case float():
            return None if isfinite(value) else "JSON has no infinity and no NaN"
        case str():
            # JSON may escape half a surrogate pair, which is no character; PostgreSQL stores no U+0000.
            return (
                "a character that cannot be stored (U+0000 or half a surrogate pair)"
                if _UNSTORABLE.search(value)
                else None
            )
        case _:
            return f"{show(value)} is nothing that JSON knows: put it in quotes"


_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")
