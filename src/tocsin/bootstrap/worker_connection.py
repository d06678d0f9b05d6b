"""The connection of a worker over NATS."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from .. import __version__
from ..adapters.nats.admin.desired_state import require_layout
from ..adapters.nats.agents import NatsAgentChannel
from ..adapters.nats.client.jetstream_wait import retry_until_available
from ..adapters.nats.client.wire import STREAM_NOT_FOUND
from ..domain.definition import DefinitionProblem
from ..ports import Unreachable
from ..settings import SettingsError
from ..settings import load as load_settings
from ..subjects import Stream
from ..worker import Connection as WorkerConnection
from ..worker.connection import Options as WorkerOptions
from .installation import Installation, await_log, connect


@asynccontextmanager
async def connect_worker(options: WorkerOptions) -> AsyncIterator[WorkerConnection]:
    """Connect a worker over NATS.

    It waits without a time limit until NATS answers.

    Raises:
        Unreachable: NATS refuses the connection, or the installation was never initialized.
    """
    settings = load_settings(options={("nats", "url"): options.nats_url})
    async with connect(settings, within=None) as installation:
        await await_log(installation)
        async with worker_connection(installation, options) as worker:
            yield worker


@asynccontextmanager
async def worker_connection(installation: Installation, options: WorkerOptions) -> AsyncIterator[WorkerConnection]:
    """Connect a worker in a connected installation.

    Raises:
        Unreachable: another version of Tocsin initialized the installation, with another layout.
        SettingsError: the transport of a queue is `mq`, so that executors outside take its tasks.
    """
    settings = installation.settings
    if outside := set(options.queues) & set(settings.bridged_queues):
        reason = (
            f"a worker cannot use queue `{min(outside)}`: its transport is `mq`, so that executors outside take its tasks; "
            "use another queue, or set its transport to matched"
        )
        raise SettingsError(DefinitionProblem(reason, field=f"queues.{min(outside)}"))
    connection, names = installation.connection, installation.names
    await retry_until_available(partial(require_layout, connection, names), within=None)
    await retry_until_available(partial(_require_log, installation), within=None)
    yield WorkerConnection(
        installation.log,
        NatsAgentChannel(connection, names),
        installation.clock,
        settings.worker.cancel_grace,
        settings.worker.concurrency,
        __version__,
    )


async def _require_log(installation: Installation) -> None:
    """Check that the installation exists.

    Raises:
        Unreachable: it was never initialized.
    """
    stream = installation.names.stream(Stream.LOG)
    info = await installation.connection.find(f"STREAM.INFO.{stream}", absent=STREAM_NOT_FOUND, by_leader=False)
    if info is None:
        raise Unreachable(f"there is no stream {stream} on this NATS: run `tocsin init` first")
