"""The application object: jobs, their handlers, and the worker that runs them."""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, ParamSpec, TypeVar, overload

from typing_extensions import Unpack

from .. import Worker
from ..domain import identity
from ..domain.definition import DefinitionError, DefinitionProblem, JobDefinition, is_name, show
from ..settings import Settings
from ..subjects import DEFAULT_QUEUE
from ..worker import Connect, Connection, Options
from .errors import SignatureError
from .fields import JobFields
from .handler import handler_of
from .job import Job, default_name, read_definition
from .signature import Signature

P = ParamSpec("P")
R = TypeVar("R")


class Tocsin:
    """An application: jobs defined in code, and the worker that runs them.

        app = Tocsin("billing")

        @app.job(schedule="every day at 2am", retry={"max_attempts": 5})
        async def nightly(context: Context, limit: int = 100) -> dict[str, int]: ...

        app.run()

    The jobs belong to `app:billing`. Their handlers are called `billing/nightly`, and so on.
    """

    def __init__(
        self,
        name: str,
        *,
        timezone: str = "UTC",
        queue: str = DEFAULT_QUEUE,
        concurrency: int = 10,
        shutdown_timeout: float = 30.0,
        secrets: Collection[str] = (),
        labels: Mapping[str, str] | None = None,
        settings: Settings | None = None,
    ) -> None:
        """Start without jobs; nothing connects.

        Args:
            name: the name of the application: lower-case letters, digits, hyphens and dots.
            timezone: the time zone of jobs that name none.
            queue: the queue of jobs that name none.
            concurrency: as of a `Worker`.
            shutdown_timeout: as of a `Worker`.
            secrets: as of a `Worker`.
            labels: as of a `Worker`.
            settings: the settings of the installation; None: those of the environment and `tocsin.yaml`.

        Raises:
            DefinitionError: the name is invalid.
            ValueError: an option is out of its range, or a secret has an invalid name.
        """
        if not is_name(name):
            reason = (
                "must be lower-case letters, digits, hyphens and dots, the first a letter or a digit, such as `billing`"
            )
            raise DefinitionError(DefinitionProblem(reason, field="name", value=show(name)))
        self.name = name
        self.worker = Worker(
            (queue,),
            concurrency=concurrency,
            shutdown_timeout=shutdown_timeout,
            secrets=secrets,
            labels=labels,
            connect=None if settings is None else _connector(settings),
        )
        self._defaults = {"timezone": timezone, "queue": queue}
        self._jobs: dict[str, Job[..., Any]] = {}

    @property
    def owner(self) -> str:
        """The owner of the application's jobs: `app:billing`."""
        return f"{identity.APP}:{self.name}"

    @property
    def definitions(self) -> tuple[JobDefinition, ...]:
        """The definitions of all jobs, in the order of the code."""
        return tuple(job.definition for job in self._jobs.values())

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

    def run(self) -> None:
        """Run the worker until SIGTERM or SIGINT, then let handlers finish within `shutdown_timeout`."""
        self.worker.run()

    def _add_job(self, function: Callable[P, R], name: str | None, fields: Mapping[str, Any]) -> Job[P, R]:
        _refuse_decorated(function)
        signature = Signature.of(function)
        name = default_name(function) if name is None else name
        given = {"name": name, "function": f"{self.name}/{name}", "owner": self.owner}
        defaults = {**self._defaults, "input_schema": signature.schema(), **_description(function)}
        job = Job(function, signature, read_definition(function, fields, given, defaults))
        self._refuse_taken(job)
        self.worker.task(given["function"])(handler_of(function, signature))
        self.worker.take_from(job.definition.queue)
        self._jobs[job.name] = job
        return job

    def _refuse_taken(self, job: Job[..., Any]) -> None:
        if (other := self._jobs.get(job.name)) is not None:
            first, second = (f"{each.function.__module__}.{each.function.__qualname__}()" for each in (other, job))
            reason = f"defined 2 times: {first} and {second}; pass another `name` to one of the decorators"
            raise DefinitionError(DefinitionProblem(reason, job=f"job `{job.name}`", code="duplicate-name"))


def _refuse_decorated(function: object) -> None:
    if isinstance(function, Job):
        reason = (
            f"this is the job `{function.name}` already. Decorate it once; for another job, decorate another function."
        )
        raise SignatureError("not-a-function", function.function.__qualname__, reason)


def _description(function: Callable[..., object]) -> dict[str, str]:
    """Return the first line of the docstring as the job's description."""
    lines = (function.__doc__ or "").strip().splitlines()
    return {"description": lines[0].strip()} if lines else {}


def _connector(settings: Settings) -> Connect:
    return partial(_connect, settings)


def _connect(settings: Settings, options: Options) -> AbstractAsyncContextManager[Connection]:
    from ..bootstrap import connect_worker  # noqa: PLC0415 - a program that only defines jobs needs no connection

    return connect_worker(options, settings)
