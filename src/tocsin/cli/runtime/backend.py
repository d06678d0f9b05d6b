"""The functions of the composition root that commands use; tests replace them.

Each is imported at its first use, so that `tocsin --help` and shell completion start fast.
"""

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ... import __version__
from ...bootstrap import operators
from ...domain.events import Actor
from ...ports import NotificationChannel
from ...services.operator import OpenHistory, Operator
from ...settings import Settings
from ...settings.notifications import NatsChannel
from .event_loop import until_done

if TYPE_CHECKING:
    import asyncio

    from ...adapters.http.remote_admin import RemoteAdmin
    from ...adapters.nats.admin.provision import Change, Mode
    from ...adapters.nats.backup.folder import BackupManifest
    from ...adapters.nats.server.cluster import RunningCluster
    from ...adapters.nats.server.embedded import RunningServer
    from ...bootstrap import Installation
    from ...bootstrap.backups import BackupPlace
    from ...bootstrap.process_metrics import Readiness
    from ...services.health import Finding, Status
    from ...worker import Worker

PATIENCE: Final = 3.0
"""Seconds that a command at a terminal waits for its first connection."""


class Backend:
    """All dependencies of the commands."""

    def connect(
        self, settings: Settings, *, within: float | None = PATIENCE
    ) -> "AbstractAsyncContextManager[Installation]":
        from ... import bootstrap  # noqa: PLC0415

        return bootstrap.connect(settings, within=within)

    async def await_log(self, installation: "Installation") -> None:
        from ... import bootstrap  # noqa: PLC0415

        await bootstrap.await_log(installation)

    async def is_set_up(self, installation: "Installation", *, within: float | None) -> bool:
        from ... import bootstrap  # noqa: PLC0415

        return await bootstrap.is_set_up(installation, within=within)

    def connect_api(self, url: str, token: str | None) -> "AbstractAsyncContextManager[Operator]":
        """Connect to the HTTP API at `url`."""
        return operators.connect_api(url, token)

    def administer(self, url: str, token: str | None) -> "AbstractAsyncContextManager[RemoteAdmin]":
        """Connect to the HTTP API at `url` for its tokens and its checks."""
        from ...adapters.http import remote_admin  # noqa: PLC0415

        return remote_admin.administer(url, token)

    def operator(self, installation: "Installation", history: OpenHistory, *, by: Actor | None) -> Operator:
        """Return the operator of an installation on NATS."""
        return operators.operator_of(installation, history, by=by)

    async def initialize(self, installation: "Installation", mode: "Mode | None" = None) -> "list[Change]":
        """See `bootstrap.initialize`; without a mode, make all changes."""
        from ... import bootstrap  # noqa: PLC0415

        return await (bootstrap.initialize(installation, mode) if mode else bootstrap.initialize(installation))

    async def status(self, installation: "Installation") -> "Status":
        return await operators.status_of(installation)

    async def examine(self, installation: "Installation", monitors: Sequence[str]) -> "list[Finding]":
        from ... import bootstrap  # noqa: PLC0415
        from ...services import health  # noqa: PLC0415

        return await health.examine(bootstrap.health_target(installation), monitors)

    @asynccontextmanager
    async def channel(self, settings: Settings, name: str) -> AsyncIterator[NotificationChannel]:
        """Open a channel of the settings; only a channel on NATS connects to NATS."""
        from ...adapters.notifications.factory import open_channel  # noqa: PLC0415
        from ...adapters.system_clock import SystemClock  # noqa: PLC0415

        channel = settings.notifications.channels[name]
        if isinstance(channel, NatsChannel):
            from ...bootstrap.stage_runner import channel_of  # noqa: PLC0415

            async with self.connect(settings) as installation:
                yield channel_of(installation, name, channel)
        else:
            yield open_channel(name, channel, SystemClock(), __version__)

    def stages(self) -> tuple[str, ...]:
        """Return the names of all stages, in flow order."""
        from ... import bootstrap  # noqa: PLC0415

        return bootstrap.STAGE_NAMES

    async def run_stages(
        self, installation: "Installation", names: Sequence[str], *, ready: "asyncio.Event | None" = None
    ) -> None:
        from ... import bootstrap  # noqa: PLC0415

        await bootstrap.run_stages(installation, names, ready=ready)

    def process_metrics(self, settings: "Settings") -> "AbstractAsyncContextManager[Readiness]":
        from ... import bootstrap  # noqa: PLC0415

        return bootstrap.process_metrics_served(settings)

    async def rebuild_history(self, installation: "Installation") -> int:
        from ... import bootstrap  # noqa: PLC0415

        return await bootstrap.rebuild_history(installation)

    async def create_backup(self, installation: "Installation", place: "BackupPlace") -> "BackupManifest":
        from ... import bootstrap  # noqa: PLC0415

        return await bootstrap.create_backup(installation, place)

    async def restore_backup(self, installation: "Installation", place: "BackupPlace") -> "BackupManifest":
        from ... import bootstrap  # noqa: PLC0415

        return await bootstrap.restore_backup(installation, place)

    def serving(
        self, installation: "Installation", *, any_port: Collection[str] = (), allow_reset: bool = False
    ) -> "AbstractAsyncContextManager[str]":
        from ...bootstrap.api_server import serving  # noqa: PLC0415

        return serving(installation, any_port=any_port, allow_reset=allow_reset)

    async def run_worker(self, installation: "Installation", worker: "Worker") -> None:
        """Run a worker until it is stopped.

        A cancelled call stops a running worker gracefully; a worker that is still connecting stops at once.
        """
        from ... import bootstrap  # noqa: PLC0415

        async with bootstrap.worker_connection(installation, worker.options) as connection:
            await until_done(worker.serve(connection), stop=worker.stop)

    def nats_server(self, store: Path | None, port: int | None) -> "AbstractAsyncContextManager[RunningServer]":
        """Return a private NATS server.

        Its data is in `store`; with None it stores nothing.
        """
        from ...adapters.nats.server.embedded import EmbeddedServer  # noqa: PLC0415

        return EmbeddedServer(store, port).running()

    def nats_cluster(self, folder: Path, size: int, port: int | None) -> "AbstractAsyncContextManager[RunningCluster]":
        """Return a private NATS cluster with its data in `folder`."""
        from ...adapters.nats.server.cluster import EmbeddedCluster  # noqa: PLC0415

        return EmbeddedCluster(folder, size, port).running()
