"""The functions of the composition root that tests replace.

`bootstrap` imports their modules at their first use, so that `tocsin --help` and shell completion start fast.
"""

from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Final

from ... import bootstrap
from ...settings import Settings
from .event_loop import until_done

if TYPE_CHECKING:
    import asyncio

    from ...adapters.nats.admin.provision import Change, Mode
    from ...bootstrap import Installation
    from ...worker import Worker

PATIENCE: Final = 3.0
"""Seconds that a command at a terminal waits for its first connection."""


class Backend:
    """All dependencies of the commands."""

    def connect(
        self, settings: Settings, *, within: float | None = PATIENCE
    ) -> "AbstractAsyncContextManager[Installation]":
        return bootstrap.connect(settings, within=within)

    async def await_log(self, installation: "Installation") -> None:
        await bootstrap.await_log(installation)

    async def is_set_up(self, installation: "Installation", *, within: float | None) -> bool:
        return await bootstrap.is_set_up(installation, within=within)

    async def initialize(self, installation: "Installation", mode: "Mode | None" = None) -> "list[Change]":
        """See `bootstrap.initialize`; without a mode, make all changes."""
        return await (bootstrap.initialize(installation, mode) if mode else bootstrap.initialize(installation))

    def stages(self) -> tuple[str, ...]:
        return bootstrap.STAGE_NAMES

    async def run_stages(
        self, installation: "Installation", names: Sequence[str], *, ready: "asyncio.Event | None" = None
    ) -> None:
        await bootstrap.run_stages(installation, names, ready=ready)

    def serving(
        self, installation: "Installation", *, any_port: Collection[str] = (), allow_reset: bool = False
    ) -> "AbstractAsyncContextManager[str]":
        from ...bootstrap.api_server import serving  # noqa: PLC0415

        return serving(installation, any_port=any_port, allow_reset=allow_reset)

    async def run_worker(self, installation: "Installation", worker: "Worker") -> None:
        """Run a worker until it is stopped.

        A cancelled call stops a running worker gracefully; a worker that is still connecting stops at once.
        """
        async with bootstrap.worker_connection(installation, worker.options) as connection:
            await until_done(worker.serve(connection), stop=worker.stop)
