"""What a worker is given."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from ..adapters.nats.admin.resources import ensure_executors
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
    """What a worker needs, over NATS, however long that takes to answer; its queues are made where they are not there yet.

    Raises:
        Unreachable: what answers says no, or nobody initialized the installation.
    """
    settings = load_settings(options={("nats", "url"): options.nats_url})
    async with connect(settings, within=None) as installation:
        await await_log(installation)
        async with worker_connection(installation, options) as worker:
            yield worker


@asynccontextmanager
async def worker_connection(installation: Installation, options: WorkerOptions) -> AsyncIterator[WorkerConnection]:
    """What a worker needs of an installation.

    Raises:
        SettingsError: the tasks of one of its queues are handed over to executors outside.
    """
    if outside := set(options.queues) & set(installation.settings.bridged_queues):
        reason = f"its transport is `mq`: executors outside take the tasks of `{min(outside)}`, and a worker would run them too"
        raise SettingsError(DefinitionProblem(reason, field=f"queues.{min(outside)}"))
    connection, names = installation.connection, installation.names
    ack_wait = installation.settings.worker.ack_wait
    await retry_until_available(
        partial(ensure_executors, connection, names, options.queues, ack_wait=ack_wait), within=None
    )
    queues = {queue: NatsTaskQueue(connection, names, queue) for queue in options.queues}
    try:
        yield WorkerConnection(
            installation.log, queues, installation.clock, ack_wait, installation.settings.worker.cancel_grace
        )
    finally:
        for queue in queues.values():
            await queue.close()
