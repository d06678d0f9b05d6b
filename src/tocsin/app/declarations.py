"""The jobs and steps that the decorators of an application declare."""

import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import (
    Any,
    Concatenate,
    Final,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    cast,
    get_args,
    overload,
)

from pydantic import JsonValue
from typing_extensions import Unpack

from ..domain import identity
from ..domain.definition import (
    CatchUp,
    DefinitionError,
    DefinitionProblem,
    JobClass,
    JobDefinition,
    OnCompletion,
    OverlapPolicy,
    is_name,
    show,
)
from ..domain.definition.step import Callback
from ..domain.formats import with_calendars
from ..worker import Context, Worker
from .errors import SignatureError
from .job import Graph, Job, graph_input, read_definition
from .signature import Signature
from .trace import Step, trace_steps

P = ParamSpec("P")
R = TypeVar("R")

Calendars: TypeAlias = Mapping[str, Mapping[str, object]]
"""Calendars with their dates, by name."""

NO_CALENDARS: Final[Calendars] = {}
_SOURCE: Final = "Tocsin(calendars=…)"

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
    recovery: Mapping[str, Any]
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


def handler_of(function: Callable[..., object], signature: Signature) -> Callable[..., object]:
    """Return a handler that converts the input, calls the function, and converts its result."""
    handler = _async(function, signature) if inspect.iscoroutinefunction(function) else _sync(function, signature)
    # Not by `functools.wraps`: the worker must read the handler's own signature.
    handler.__name__, handler.__qualname__, handler.__module__ = (
        function.__name__,
        function.__qualname__,
        function.__module__,
    )
    return handler


def _async(function: Callable[..., object], signature: Signature) -> Callable[..., object]:
    async def handle(context: Context, /, *args: JsonValue, **given: JsonValue) -> JsonValue:
        call = cast("Awaitable[object]", function(**signature.arguments(context, args, given)))
        return signature.dump(await call)

    return handle


def _sync(function: Callable[..., object], signature: Signature) -> Callable[..., object]:
    def handle(context: Context, /, *args: JsonValue, **given: JsonValue) -> JsonValue:
        return signature.dump(function(**signature.arguments(context, args, given)))

    return handle


def read_calendars(written: Mapping[str, object]) -> Calendars:
    """Return calendars with their dates, which are written as in job files.

    The path of an .ics file may be a `Path`; a relative path is relative to the current folder.
    """
    from ..adapters.files.calendars import SECTION, CalendarSection  # noqa: PLC0415 - few applications have calendars

    section = CalendarSection(datetime.now(UTC).date())
    section.add({SECTION: {name: _plain(calendar) for name, calendar in written.items()}}, _SOURCE, Path.cwd())
    if section.problems:
        raise DefinitionError(*section.problems)
    return section.calendars


def _plain(calendar: object) -> object:
    if isinstance(calendar, Mapping):
        return {key: str(value) if isinstance(value, Path) else value for key, value in calendar.items()}
    return list(calendar) if isinstance(calendar, tuple) else calendar


class StepDecorator(Protocol):
    """The decorator that `@app.step(…)` returns."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Step[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Step[P, R]: ...


class Declarations:
    """The jobs and steps of an application, with their handlers."""

    def __init__(
        self, name: str, worker: Worker, defaults: Mapping[str, str], calendars: Mapping[str, object] | None = None
    ) -> None:
        """Start without jobs.

        `defaults`: fields of jobs that do not write them. `calendars`: for jobs to name.
        """
        if not is_name(name):
            reason = (
                "must be lower-case letters, digits, hyphens and dots, the first a letter or a digit, such as `billing`"
            )
            raise DefinitionError(DefinitionProblem(reason, field="name", value=show(name)))
        self.name = name
        self.worker = worker
        self._defaults = defaults
        self._calendars = read_calendars(calendars) if calendars else NO_CALENDARS
        self._jobs: dict[str, Job[..., Any]] = {}

    @property
    def owner(self) -> str:
        """The owner of the application's jobs: `app:billing`."""
        return f"{identity.APP}:{self.name}"

    @property
    def definitions(self) -> tuple[JobDefinition, ...]:
        """The definitions of all jobs, in the order of the code."""
        return tuple(job.definition for job in self._jobs.values())

    @property
    def declared(self) -> Mapping[str, Job[..., Any]]:
        """The jobs by name, in the order of the code."""
        return MappingProxyType(self._jobs)

    @overload
    def job(self, function: Callable[P, R], /) -> Job[P, R]: ...
    @overload
    def job(
        self, function: None = None, /, *, name: str | None = None, **fields: Unpack[JobFields]
    ) -> Callable[[Callable[P, R]], Job[P, R]]: ...
    def job(
        self, function: Callable[P, R] | None = None, /, *, name: str | None = None, **fields: Unpack[JobFields]
    ) -> Job[P, R] | Callable[[Callable[P, R]], Job[P, R]]:
        """Make the decorated function a job of a single step.

            @app.job(schedule="every day at 2am", lock=False)
            async def nightly(context: Context, day: date | None = None) -> Report: ...

        Each parameter has an annotation. The parameter of type `Context` may be left out. The others are the keys of the
        job's input: they make `input_schema`, and their values are converted before the function is called. The result is
        written as JSON by its annotation.

        `name`: the name of the job; by default that of the function with hyphens for underscores. The other fields are those
        of a job file.

        Raises:
            SignatureError: a parameter or the result has no usable type.
            DefinitionError: a field is invalid, or another job has the name.
        """
        if function is not None:
            return self._add_job(function, name, fields)
        return lambda decorated: self._add_job(decorated, name, fields)

    @overload
    def dag(self, function: Callable[P, R], /) -> Graph[P, R]: ...
    @overload
    def dag(
        self, function: None = None, /, *, name: str | None = None, **fields: Unpack[GraphFields]
    ) -> Callable[[Callable[P, R]], Graph[P, R]]: ...
    def dag(
        self, function: Callable[P, R] | None = None, /, *, name: str | None = None, **fields: Unpack[GraphFields]
    ) -> Graph[P, R] | Callable[[Callable[P, R]], Graph[P, R]]:
        """Make the decorated function a job with a graph of steps.

            @app.dag(schedule="every day at 3am")
            async def report(day: date = YESTERDAY) -> None:
                parts = [await extract(country, day) for country in COUNTRIES]
                await send(parts)

        The function runs when the definition is made, and not when the job runs. Its parameters stand for the job's input, and
        each call of a step for its result. These may only be passed on: as an argument of a step, or in a list of these. Steps
        that do not take each other's results run at the same time, with or without `await`.

        `on_complete`, `on_success` and `on_failure` are steps that run after all others, also if one of these failed. The arguments of
        a callback are the keys of the job's input of the same names; `context.upstream` has the results.

        `name` and the other fields: as of `job`.

        Raises:
            SignatureError, DefinitionError: as for `job`. A callback that is no step, or whose arguments the job's input lacks, is an
                `UntraceableError`.
        """
        if function is not None:
            return self._add_graph(function, name, fields)
        return lambda decorated: self._add_graph(decorated, name, fields)

    @overload
    def step(self, function: Callable[Concatenate[Context, P], R], /) -> Step[P, R]: ...
    @overload
    def step(self, function: Callable[P, R], /) -> Step[P, R]: ...
    @overload
    def step(
        self, function: None = None, /, *, name: str | None = None, **fields: Unpack[StepFields]
    ) -> StepDecorator: ...
    def step(
        self, function: Callable[..., Any] | None = None, /, *, name: str | None = None, **fields: Unpack[StepFields]
    ) -> Step[..., Any] | StepDecorator:
        """Make the decorated function a step, which functions with `@app.dag` call.

            @app.step(timeout="10m", retry={"max_attempts": 5})
            async def extract(context: Context, country: str, day: date) -> list[Row]: ...

        The context is not passed: a worker adds it. `name` is the name of the step in graphs, by default that of the function
        with hyphens; the second call in a graph is `extract-2`. `extract.named("eu")(…)` gives a call its own name, and
        `extract.after(result)(…)` lets it wait for a step whose result it does not take.

        Raises:
            SignatureError, DefinitionError: as for `job`.
        """
        if function is not None:
            return self._add_step(function, name, fields)
        return cast("StepDecorator", lambda decorated: self._add_step(decorated, name, fields))

    def _add_job(self, function: Callable[P, R], name: str | None, fields: Mapping[str, Any]) -> Job[P, R]:
        signature, name = self._checked(function, name)
        handler = f"{self.name}/{name}"
        read = partial(self._read, function, signature, fields, {"name": name, "function": handler})
        job = Job(function, signature, name, read)
        definition = job.definition
        self._refuse_taken(job)
        self._register(handler, function, signature, definition.queue)
        self._jobs[name] = job
        return job

    def _add_graph(self, function: Callable[P, R], name: str | None, fields: Mapping[str, Any]) -> Graph[P, R]:
        signature, name = self._checked(function, name)
        callbacks = {kind: fields[kind] for kind in CALLBACKS if fields.get(kind) is not None}
        fields = {field: value for field, value in fields.items() if field not in CALLBACKS}
        given = {"name": name, "input": graph_input(signature, fields.get("input", {}))}
        # The fields are checked where they are written, with a step in place of those that are not known yet.
        checked = self._read(function, signature, fields, {**given, "dag": [{"step": "step", "function": "function"}]})

        def read() -> JobDefinition:
            return self._read(
                function, signature, fields, {**given, "dag": trace_steps(self.name, function, signature, callbacks)}
            )

        graph = Graph(function, signature, name, read)
        self._refuse_taken(graph)
        self.worker.take_from(checked.queue)
        self._jobs[name] = graph
        return graph

    def _add_step(self, function: Callable[..., R], name: str | None, fields: Mapping[str, Any]) -> Step[..., R]:
        signature, name = self._checked(function, name)
        handler = f"{self.name}/{name}"
        written = {"step": name, "function": handler, **fields}
        checked = read_definition(
            function, {}, {"name": "step", "dag": [written], "input_schema": None}, self._defaults
        )
        self._register(handler, function, signature, checked.dag[0].queue)
        return Step(function, signature, handler, name, fields)

    def _checked(self, function: Callable[..., object], name: str | None) -> tuple[Signature, str]:
        if isinstance(function, Job):
            reason = f"this is the job `{function.name}` already. Decorate it once; for another job, decorate another function."
            raise SignatureError("not-a-function", function.function.__qualname__, reason)
        signature = Signature.of(function)
        return signature, function.__name__.replace("_", "-") if name is None else name

    def _read(
        self,
        function: Callable[..., object],
        signature: Signature,
        fields: Mapping[str, Any],
        given: Mapping[str, Any],
    ) -> JobDefinition:
        defaults = {**self._defaults, "input_schema": signature.schema(), **_description(function)}
        written = with_calendars(fields, self._calendars)
        return read_definition(function, written, {**given, "owner": self.owner}, defaults)

    def _register(self, handler: str, function: Callable[..., object], signature: Signature, queue: str | None) -> None:
        self.worker.task(handler)(handler_of(function, signature))
        if queue is not None:
            self.worker.take_from(queue)

    def _refuse_taken(self, job: Job[..., Any]) -> None:
        if (other := self._jobs.get(job.name)) is not None:
            first, second = (f"{each.function.__module__}.{each.function.__qualname__}()" for each in (other, job))
            reason = f"defined 2 times: {first} and {second}; pass another `name` to one of the decorators"
            raise DefinitionError(DefinitionProblem(reason, job=f"job `{job.name}`", code="duplicate-name"))


def _description(function: Callable[..., object]) -> dict[str, str]:
    """Return the first line of the docstring as the job's description."""
    lines = (function.__doc__ or "").strip().splitlines()
    return {"description": lines[0].strip()} if lines else {}
