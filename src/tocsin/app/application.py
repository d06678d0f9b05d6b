"""The application object: jobs, their handlers, and the worker that runs them."""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from .. import Worker, telemetry
from ..settings import Settings
from ..settings import load as load_settings
from ..subjects import DEFAULT_QUEUE
from ..worker import Connect, Connection, Options
from ..worker.event_loop import ending_loop
from ..worker.shutdown import stop_signals
from .errors import AppError, ConnectedElsewhereError
from .in_process import InProcess
from .operations import NotConnectedError

if TYPE_CHECKING:
    from ..client import Client
    from ..services.jobs import Plan
    from ..services.operator import Operator

CONNECT_TIMEOUT_S: Final = 10.0
"""Seconds that an operation of the application waits for NATS."""
_is_importing: ContextVar[bool] = ContextVar("tocsin_importing", default=False)

_log = telemetry.get_logger("tocsin.app")


class RunWhileImportingError(AppError, RuntimeError):
    """A module runs its application although a command only imports it."""

    code = "run-while-importing"


class Tocsin(InProcess):
    """An application: jobs defined in code, and the worker that runs them.

        app = Tocsin("billing")

        @app.job(schedule="every day at 2am", retry={"max_attempts": 5})
        async def nightly(context: Context, limit: int = 100) -> dict[str, int]: ...

        app.run()

    The jobs belong to `app:billing`. Their handlers are called `billing/nightly`, and so on.
    """

    def __init__(  # noqa: PLR0913 - the options of an application
        self,
        name: str,
        *,
        timezone: str | None = None,
        queue: str = DEFAULT_QUEUE,
        concurrency: int = 10,
        shutdown_timeout: float = 30.0,
        secrets: Collection[str] = (),
        labels: Mapping[str, str] | None = None,
        calendars: Mapping[str, Sequence[str] | Mapping[str, Any]] | None = None,
        settings: Settings | None = None,
    ) -> None:
        """Start without jobs; nothing connects.

        Args:
            name: the name of the application: lower-case letters, digits, hyphens and dots.
            timezone: the time zone of jobs that name none; None: the setting `execution.default_timezone`.
            queue: the queue of jobs that name none.
            concurrency: as of a `Worker`.
            shutdown_timeout: as of a `Worker`.
            secrets: as of a `Worker`.
            labels: as of a `Worker`.
            calendars: the calendars that jobs may name in `exclude` and `only`, written as in job files.
            settings: the settings of the installation; None: those of the environment and `tocsin.yaml`.

        Raises:
            DefinitionError: the name or a calendar is invalid.
            ExtraNotInstalled: a calendar needs the extra `calendars`.
            ValueError: an option is out of its range, or a secret has an invalid name.
        """
        worker = Worker(
            (queue,),
            concurrency=concurrency,
            shutdown_timeout=shutdown_timeout,
            secrets=secrets,
            labels=labels,
            connect=None if settings is None else _connector(settings),
        )
        zone = {} if timezone is None else {"timezone": timezone}
        super().__init__(name, worker, {"queue": queue, **zone}, calendars)
        self._given_settings = settings

    async def apply(self, *, prune: bool = False, take_over: bool = False) -> "Plan":
        """Register the jobs, and return what that changed.

        Within `connected` or `running`, that happens in the connected installation.

        Args:
            prune: also delete the application's jobs that the code no longer has.
            take_over: also replace jobs that belong to another owner.

        Raises:
            ForeignJobError: a job belongs to another owner.
            DefinitionError: the installation cannot run a job.
            NotConnectedError: the application has an installation of its own, which does not run.
            Unreachable, NotInitialized: NATS does not answer, or has no Tocsin.
        """
        from .registration import plan_registration  # noqa: PLC0415 - a program that only runs handlers needs none

        async with self._operator() as operator:
            plan = await plan_registration(
                operator, self.definitions, self.owner, self._settings(), prune=prune, take_over=take_over
            )
            await operator.carry_out(plan)
        return plan

    @asynccontextmanager
    async def connected(self, operator: "Operator | None" = None) -> "AsyncIterator[Client]":
        """Connect for `trigger` and `client` while the context is open.

            async with app.connected():
                run = await app.trigger(report, day=date(2026, 11, 26))
                print(await run.result(timeout=60))

        `operator`: an operator to use as it is; None: the NATS of the settings. Within another such context, or within `running`, its
        connection is shared, and ends with the outer context: open it once, around all tasks that use the application.

        Raises:
            ConnectedElsewhereError: the application is connected already, and not to `operator`.
            NotConnectedError: the application has an installation of its own, which does not run.
            Unreachable, NotInitialized: NATS does not answer, or has no Tocsin.
        """
        if self._client is not None:
            if operator is not None and operator is not self._client.operator:
                raise ConnectedElsewhereError(self.name)
            yield self._client
            return
        if operator is None:
            self._require_shared_installation()
        from ..client import Client  # noqa: PLC0415 - a program that only runs handlers needs none

        async with Client(settings=self._given_settings if operator is None else None, operator=operator) as client:
            self._client = client
            try:
                yield client
            finally:
                self._client = None

    def run(self, *, apply: bool = False) -> None:
        """Run the worker until SIGTERM or SIGINT, then let handlers finish within `shutdown_timeout`.

        `apply`: also register the jobs, as soon as NATS answers. That deletes no job, and returns none to a definition that it
        had before: an old version that restarts during a deploy does not undo the new version. A warning says so, and
        `tocsin apply` does it nevertheless.

        Raises:
            NotConnectedError: the application has an installation of its own: use `running`.
            RunWhileImportingError: a command imports the module; run the application under `if __name__ == "__main__":`.
            UntraceableError, DefinitionError: with `apply`, the definition of a graph cannot be made.
        """
        if _is_importing.get():
            raise RunWhileImportingError(
                f'The application `{self.name}` runs while its module is imported. Write `if __name__ == "__main__":` above '
                "`app.run()`."
            )
        self._require_shared_installation()
        if apply:
            _ = self.definitions  # a wrong graph ends the program before it works
        with ending_loop() as runner:
            runner.run(self._run(apply=apply))

    async def _run(self, *, apply: bool) -> None:
        registering = asyncio.create_task(self._keep_registered()) if apply else None
        try:
            with stop_signals(self.worker.stop):
                await self.worker.serve()
        finally:
            if registering is not None:
                registering.cancel()
                with suppress(asyncio.CancelledError):
                    await registering

    async def _keep_registered(self) -> None:
        from .registration import keep_registered  # noqa: PLC0415 - see `apply`

        try:
            await keep_registered(self._operator, self.definitions, self.owner, self._settings())
        except Exception:
            _log.exception("jobs not registered", action="app-jobs-failed", owner=self.owner)
            raise

    @asynccontextmanager
    async def _operator(self) -> "AsyncIterator[Operator]":
        from ..bootstrap.operators import connect_operator, local_actor  # noqa: PLC0415 - see `apply`

        if self._client is not None:
            yield self._client.operator
            return
        self._require_shared_installation()
        by = local_actor(self.owner)
        async with connect_operator(self._settings(), by=by, within=CONNECT_TIMEOUT_S) as operator:
            yield operator

    def _require_shared_installation(self) -> None:
        """Raise NotConnectedError if the installation exists only within `running`."""
        if self._has_own_installation:
            raise NotConnectedError(
                f"The installation of the application `{self.name}` exists only within `app.running()`. Write `async with app.running():` "
                "around the call."
            )

    def _settings(self) -> Settings:
        return self._given_settings or load_settings()


def given_settings(app: Tocsin) -> Settings | None:
    """Return the settings that an application was made with; None: those of the environment.

    Raises:
        NotConnectedError: the application has an installation of its own.
    """
    app._require_shared_installation()  # noqa: SLF001 - of this module
    return app._given_settings  # noqa: SLF001 - of this module


@contextmanager
def importing() -> Iterator[None]:
    """Keep applications from running while a command imports their module."""
    token = _is_importing.set(True)
    try:
        yield
    finally:
        _is_importing.reset(token)


def _connector(settings: Settings) -> Connect:
    return partial(_connect, settings)


def _connect(settings: Settings, options: Options) -> AbstractAsyncContextManager[Connection]:
    from ..bootstrap import connect_worker  # noqa: PLC0415 - a program that only defines jobs needs no connection

    return connect_worker(options, settings)
