"""The connection of a worker over NATS."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from .. import __version__, subjects
from ..adapters.nats.agents import NatsAgentChannel
from ..domain.definition import DefinitionProblem
from ..engine.report_lists import ListedReports
from ..ports import AgentChannel
from ..settings import Settings, SettingsError
from ..settings import load as load_settings
from ..worker import Connection as WorkerConnection
from ..worker.connection import Options as WorkerOptions
from .installation import Installation, Ports, connect
from .nats_roles import WORKER


@asynccontextmanager
async def connect_worker(options: WorkerOptions, settings: Settings | None = None) -> AsyncIterator[WorkerConnection]:
    """Connect a worker over NATS.

    It waits without a time limit until NATS answers. `settings`: None: the settings of the environment.
    """
    settings = settings or load_settings(options={("nats", "url"): options.nats_url})
    async with connect(settings, within=None) as installation, worker_connection(installation, options) as worker:
        yield worker


@asynccontextmanager
async def worker_connection(installation: Installation, options: WorkerOptions) -> AsyncIterator[WorkerConnection]:
    """Connect a worker in a connected installation.

    It makes no request of JetStream, for which a worker's user has no right.
    """
    _check_name(installation.settings, options.name)
    connection = connection_of(installation, NatsAgentChannel(installation.connection, installation.names), options)
    yield replace(connection, log=ListedReports(installation.inputs, subjects.token(options.name)))


def connection_of(ports: Ports, agents: AgentChannel, options: WorkerOptions) -> WorkerConnection:
    """Return the connection of a worker over the ports of an installation.

    Raises:
        SettingsError: the transport of a queue is `mq`, so that executors outside take its tasks.
    """
    settings = ports.settings
    if outside := set(options.queues) & set(settings.bridged_queues):
        reason = (
            f"a worker cannot use queue `{min(outside)}`: its transport is `mq`, so that executors outside take its tasks; "
            "use another queue, or set its transport to matched"
        )
        raise SettingsError(DefinitionProblem(reason, field=f"queues.{min(outside)}"))
    return WorkerConnection(
        ports.log,
        agents,
        ports.clock,
        settings.worker.cancel_grace,
        settings.worker.concurrency,
        __version__,
        settings.worker.leader_candidate,
        settings.worker.shards,
    )


def _check_name(settings: Settings, name: str) -> None:
    """Check that the NATS user of the settings may use the name of an agent.

    NATS refuses another name too, but only reports it, and the worker would wait for tasks.
    """
    accounts, user = settings.agents.accounts, settings.nats.user
    required = next((account for account in accounts if user == f"{WORKER}-{account}"), None)
    if required is not None and name != required:
        reason = f"the NATS user {user} is for agents named {required}, not {name}: write `Worker(name={required!r})`"
    elif user == WORKER and name in accounts:
        reason = f"only the NATS user {WORKER}-{name} may use the agent's name {name}: use it, or another name"
    else:
        return
    raise SettingsError(DefinitionProblem(reason, field="nats.user"))
