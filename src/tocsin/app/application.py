"""The application object: jobs, their handlers, and the worker that runs them."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from .. import Worker, telemetry
from ..domain.errors import TocsinError
from ..domain.events import Actor
from ..settings import Settings
from ..settings import load as load_settings
from ..subjects import DEFAULT_QUEUE
from ..worker import Connection, Options
from ..worker.event_loop import ending_loop
from ..worker.shutdown import stop_signals
from .errors import AppError, ConnectedElsewhereError
from .operations import NotConnectedError, Operations

if TYPE_CHECKING:
    from ..bootstrap.in_process import Parts
    from ..bootstrap.in_process import Running as RunningParts
    from ..client import Client
    from ..services.jobs import Plan
    from ..services.operator import Operator
    from .in_thread import AppThread

CONNECT_TIMEOUT_S: Final = 10.0
"""Seconds that an operation of the application waits for NATS."""
_is_importing: ContextVar[bool] = ContextVar("tocsin_importing", default=False)

_log = telemetry.get_logger("tocsin.app")


class RunWhileImportingError(AppError, RuntimeError):
    """A module runs its application although a command only imports it."""

    code = "run-while-importing"


_starting: Final = threading.Lock()


class AlreadyRunning(TocsinError, RuntimeError):
    """The application runs already in this process."""

    code = "already-running"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the application {name} runs already. Start it once; make another `Tocsin` with another name for other jobs"
        )


@dataclass(frozen=True, slots=True)
class Running:
    """A running application."""

    client: "Client"
    """A client of its installation."""
    url: str | None
    """The URL of the HTTP API; None: it does not run."""


class Tocsin(Operations):
    """An application: jobs defined in code, and the worker that runs them.

        app = Tocsin("billing")

        @app.job(schedule="every day at 2am", retry={"max_attempts": 5})
        async def nightly(context: Context, limit: int = 100) -> dict[str, int]: ...

        app.run()

    The jobs belong to `app:billing`. Their handlers are called `billing/nightly`, and so on.
    """

    _data_dir: Path | None = None
    _is_in_memory: bool = False
    _process: int | None = None
    """The process in which the application runs; None: it does not run."""

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
            connect=None if settings is None else partial(_connect, settings),
        )
        zone = {} if timezone is None else {"timezone": timezone}
        super().__init__(name, worker, {"queue": queue, **zone}, calendars)
        self._given_settings = settings

    @classmethod
    def embedded(cls, name: str, *, data_dir: str | Path, **options: Any) -> Self:  # noqa: ANN401 - those of `Tocsin`
        """Make an application that starts its own nats-server in `running`.

            app = Tocsin.embedded("billing", data_dir="/var/lib/billing")

        Jobs, executions and the history survive restarts in `data_dir`, which belongs to one process at a time. The other options are
        those of `Tocsin`. It needs the extra `server`.
        """
        app = cls(name, **{**options, "settings": options.get("settings") or Settings()})
        app._data_dir = Path(data_dir)
        return app

    @classmethod
    def in_memory(cls, name: str, **options: Any) -> Self:  # noqa: ANN401 - those of `Tocsin`
        """Make an application whose installation is in the memory of the process.

        It ends with the process. The other options are those of `Tocsin`. It needs the extra `server`, and no server.
        """
        app = cls(name, **{**options, "settings": options.get("settings") or Settings()})
        app._is_in_memory = True
        return app

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

    @asynccontextmanager
    async def running(self, *, server: bool = False, stages: bool = True) -> AsyncIterator[Running]:
        """Run the stages and the worker in this event loop, within the block.

            async with app.running():
                run = await app.trigger(nightly, limit=3)

        Within the block the application is connected, for `trigger` and `client`. The end of the block stops them: handlers that run have `shutdown_timeout` seconds, then they are cancelled and their tasks run
        again elsewhere, or after the next start. If a part fails meanwhile, that is logged, and the end of the block raises its error. Signals
        stay the application's.

        An application made by `embedded` or `in_memory` registers its jobs, and deletes those that its code no longer has. On the NATS of the
        settings it registers nothing: use `apply`.

        Args:
            server: run the HTTP API too.
            stages: run the stages too; False: they run elsewhere.

        Raises:
            AlreadyRunning: the application runs already.
            ConnectedElsewhereError: the application is connected already.
            WrongContext: the process was forked from one in which the application runs.
            DefinitionError, UntraceableError: the definition of a job cannot be made.
            SettingsError: the settings are invalid.
            Unreachable: NATS does not answer, or the installation was never initialized.
            StoreInUseError: another process uses the `data_dir`.
            NotInMemory: an application in memory cannot run this way.
            ExtraNotInstalled: the extra `server` is not installed.
        """
        from ..bootstrap.in_process import Parts  # noqa: PLC0415 - a program that only defines jobs needs no stages

        self._begin()
        try:
            parts = Parts(
                self.worker,
                self.definitions,
                self.owner,
                register=self._has_own_installation,
                stages=stages,
                server=server,
                by=Actor(identity=self.name, kind="program", source="app"),
            )
            async with self._running(parts) as (operator, url), self.connected(operator) as client:
                yield Running(client, url)
        finally:
            self._process = None

    def start(self, *, server: bool = False, stages: bool = True) -> "AppThread":
        """Run the stages and the worker in a background thread.

            scheduler = app.start()
            run = scheduler.trigger("nightly", {"limit": 3})

        It is for programs without an event loop, and returns when everything runs. The result is a `SyncClient` of the installation, for any number of threads; `close` stops the
        application as the end of `running` does. The end of the main thread stops it too, but not a signal that kills
        the process. A server that forks, such as Gunicorn, starts it in each process, after the fork.

        `server` and `stages`: as in `running`, as are the errors.
        """
        from .in_thread import AppThread  # noqa: PLC0415 - see `apply`

        return AppThread(self.running(server=server, stages=stages))

    def _begin(self) -> None:
        from ..client.errors import WrongContext  # noqa: PLC0415 - see `apply`

        with _starting:
            if self._process == os.getpid():
                raise AlreadyRunning(self.name)
            if self._process is not None:
                raise WrongContext(
                    f"the application {self.name} was started before this process was forked: start it after the fork, in each process"
                )
            if self._client is not None:
                raise ConnectedElsewhereError(self.name)
            self._process = os.getpid()

    @asynccontextmanager
    async def lifespan(self, _: object = None) -> AsyncIterator[dict[str, Running]]:
        """Run the application as long as a web application: `FastAPI(lifespan=app.lifespan)`.

        Requests may use `app`, or the client: `request.state.tocsin.client`.
        """
        async with self.running() as running:
            yield {"tocsin": running}

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

    @property
    def _has_own_installation(self) -> bool:
        return self._is_in_memory or self._data_dir is not None

    def _running(self, parts: "Parts") -> "RunningParts":
        from ..bootstrap.in_process import embedded, in_memory, on_nats  # noqa: PLC0415 - see `apply`

        if self._is_in_memory:
            return in_memory(self._settings(), parts)
        if self._data_dir is not None:
            return embedded(self._settings(), self._data_dir.expanduser().resolve(), parts)
        return on_nats(self._settings(), parts)

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


def _connect(settings: Settings, options: Options) -> AbstractAsyncContextManager[Connection]:
    from ..bootstrap import connect_worker  # noqa: PLC0415 - a program that only defines jobs needs no connection

    return connect_worker(options, settings)
