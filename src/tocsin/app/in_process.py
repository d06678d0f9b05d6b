"""An application that runs its stages and its worker in its own event loop."""

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from ..domain.errors import TocsinError
from ..domain.events import Actor
from ..settings import Settings, load
from .errors import ConnectedElsewhereError
from .operations import Operations

if TYPE_CHECKING:
    from ..bootstrap.in_process import Home
    from ..client import Client
    from ..services.operator import Operator
    from .in_thread import AppThread


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


class InProcess(Operations, ABC):
    """The part of `Tocsin` that runs an installation, or its part of a shared one."""

    _given_settings: Settings | None
    """Those of the constructor; None: those of the environment."""
    _data_dir: Path | None = None
    _is_in_memory: bool = False
    _process: int | None = None
    """The process in which the application runs; None: it does not run."""

    @classmethod
    def embedded(cls, name: str, *, data_dir: str | Path, **options: Any) -> Self:  # noqa: ANN401 - those of `Tocsin`
        """Make an application that starts its own nats-server in `running`.

            app = Tocsin.embedded("billing", data_dir="/var/lib/billing")

        Jobs, executions and the history survive restarts in `data_dir`, which belongs to one process at a time. The other options are
        those of `Tocsin`. It needs the extra `server`.
        """
        app = cls(name, **{"settings": Settings(), **options})
        app._data_dir = Path(data_dir)
        return app

    @classmethod
    def in_memory(cls, name: str, **options: Any) -> Self:  # noqa: ANN401 - those of `Tocsin`
        """Make an application whose installation is in the memory of the process.

        It ends with the process. The other options are those of `Tocsin`. It needs the extra `server`, and no server.
        """
        app = cls(name, **{"settings": Settings(), **options})
        app._is_in_memory = True
        return app

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
            home = self._home()
            parts = Parts(
                self.worker,
                self.definitions,
                self.owner,
                register=home.is_own,
                stages=stages,
                server=server,
                by=Actor(identity=self.name, kind="program", source="app"),
            )
            async with home.running(parts) as running, self.connected(running.operator) as client:
                yield Running(client, running.url)
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
        from .in_thread import AppThread  # noqa: PLC0415 - as above

        return AppThread(self.running(server=server, stages=stages))

    def _begin(self) -> None:
        """Note that the application runs in this process.

        Raises:
            AlreadyRunning, ConnectedElsewhereError, WrongContext: see `start`.
        """
        from ..client.errors import WrongContext  # noqa: PLC0415 - as above

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

    @abstractmethod
    def connected(self, operator: "Operator | None" = None) -> "AbstractAsyncContextManager[Client]":
        """Connect while the context is open."""

    @asynccontextmanager
    async def lifespan(self, _: object = None) -> AsyncIterator[dict[str, Running]]:
        """Run the application as long as a web application: `FastAPI(lifespan=app.lifespan)`.

        Requests may use `app`, or the client: `request.state.tocsin.client`.
        """
        async with self.running() as running:
            yield {"tocsin": running}

    @property
    def _has_own_installation(self) -> bool:
        """Whether the installation exists only within `running`."""
        return self._is_in_memory or self._data_dir is not None

    def _home(self) -> "Home":
        from ..bootstrap.in_process import Embedded, InMemory, OnNats  # noqa: PLC0415 - as above

        settings = self._given_settings
        if self._is_in_memory:
            return InMemory(settings or Settings())
        if self._data_dir is not None:
            return Embedded(settings or Settings(), self._data_dir)
        return OnNats(settings or load())
