"""The connection of a worker to its queues over NATS."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from .. import __version__
from ..adapters.nats.admin.desired_state import require_layout
from ..adapters.nats.admin.resources import ensure_executors
from ..adapters.nats.agents import NatsAgentChannel
from ..adapters.nats.client.jetstream_wait import retry_until_available
from ..adapters.nats.consumers.task_queues import NatsTaskQueue
from ..domain.definition import DefinitionProblem
from ..settings import SettingsError
from ..settings import load as load_settings
from ..worker import Connection as WorkerConnection
from ..worker.connection import Options as WorkerOptions
from .installation import Installation, await_log, connect


@asynccontextmanager
async def connect_worker(options: WorkerOptions) -> AsyncIterator[WorkerConnection]:
    """Connect a worker over NATS, and create its missing queues.

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
    """Open the queues of a worker in a connected installation.

    Raises:
        Unreachable: another version of Tocsin initialized the installation, with another layout.
        SettingsError: the transport of a queue is `mq`, so that executors outside take its tasks; or the matcher assigns the
            tasks of some queues, and not of others.
    """
    if outside := set(options.queues) & set(installation.settings.bridged_queues):
        reason = (
            f"a worker cannot use queue `{min(outside)}`: its transport is `mq`, so that executors outside take its tasks; "
            "use another queue, or set its transport to native"
        )
        raise SettingsError(DefinitionProblem(reason, field=f"queues.{min(outside)}"))
    assigned = set(options.queues) & set(installation.settings.matched_queues)
    pulled = [queue for queue in options.queues if queue not in assigned]
    if assigned and pulled:
        reason = (
            f"a worker cannot use the queues `{min(assigned)}` and `{pulled[0]}` together: the matcher assigns the tasks of the "
            "first, and a worker takes those of the second by itself; start a worker for each, or give both one transport"
        )
        raise SettingsError(DefinitionProblem(reason, field=f"queues.{min(assigned)}"))
    connection, names = installation.connection, installation.names
    ack_wait = installation.settings.worker.ack_wait
    await retry_until_available(partial(require_layout, connection, names), within=None)
    await retry_until_available(partial(ensure_executors, connection, names, pulled, ack_wait=ack_wait), within=None)
    queues = {queue: NatsTaskQueue(connection, names, queue) for queue in pulled}
    try:
        yield WorkerConnection(
            installation.log,
            queues,
            installation.clock,
            ack_wait,
            installation.settings.worker.cancel_grace,
            installation.settings.worker.concurrency,
            NatsAgentChannel(connection, names),
            frozenset(assigned),
            __version__,
        )
    finally:
        for queue in queues.values():
            await queue.close()
