"""An installation in the memory of one process: the real stages over the in-memory ports.

It needs no server, and ends with the process. `app.running` and `tocsin.testing.Simulation` run it.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from secrets import token_bytes
from typing import Final

from .. import __version__, telemetry
from ..adapters.extras import require_extra
from ..adapters.memory.agents import InMemoryAgentChannel
from ..adapters.memory.archive import (
    InMemoryArchiveStore,
    InMemoryProjections,
    InMemoryStoredLog,
    InMemoryStreamPurge,
)
from ..adapters.memory.clock import AlarmClock, LoopClock
from ..adapters.memory.durable import InMemoryDurable
from ..adapters.memory.event_log import InMemoryEventLog
from ..adapters.memory.event_streams import InMemoryEventStreams, InMemoryFetchChannel
from ..adapters.notifications.factory import open_channel
from ..archive.archive import Archive, Origin
from ..archive.combined_log import CombinedLog
from ..domain.definition import DefinitionProblem
from ..domain.ids import fingerprint
from ..engine.delivery_policy import DeliveryPolicy
from ..engine.stage import BoundStage, BoundSubscription, Storage
from ..engine.states import StateStore
from ..engine.step import Sources
from ..ports import DurableSpec, History, NotificationChannel
from ..settings import Settings, SettingsError
from ..settings.notifications import NatsChannel
from ..telemetry.foreign import ForeignMessages
from ..worker import Connection as WorkerConnection
from ..worker.connection import Options as WorkerOptions
from .installation import Ports
from .stage_runner import STAGE_NAMES, compose, delivery_policy, start_loops
from .workers import connection_of

BATCH: Final = 256
"""The greatest number of messages that are decided together, as over NATS."""

_log = telemetry.get_logger("tocsin")


@dataclass(frozen=True, kw_only=True)
class InMemoryInstallation(Ports):
    """One Tocsin in memory.

    Several tasks of the process may use it; no other process can.
    """

    log: InMemoryEventLog
    projections: InMemoryProjections
    clock: AlarmClock
    agents: InMemoryAgentChannel
    fetches: InMemoryFetchChannel
    events: InMemoryEventStreams
    """The streams that the settings open for triggers."""
    recorded: History
    """The history, which is open as long as the installation."""
    report_key: bytes

    @asynccontextmanager
    async def history(self) -> AsyncIterator[History]:
        """Return the history as `OpenHistory` does."""
        yield self.recorded

    def storage(self) -> Storage:
        """Return the storage of the recorder and the archiver."""
        return Storage(
            history=self.recorded,
            stored=self.stored,
            streams=InMemoryStoredLog(self.log),
            purge=InMemoryStreamPurge(self.log),
            archive=self.archive,
            origin=Origin(installation=fingerprint(self.report_key), root=self.settings.root, version=__version__),
        )


@asynccontextmanager
async def open_in_memory(settings: Settings, clock: AlarmClock | None = None) -> AsyncIterator[InMemoryInstallation]:
    """Open an empty installation, for the duration of the context.

    `clock`: None is the clock of the machine. Its archive is in memory too, and its history in an SQLite database without a file.

    Raises:
        ExtraNotInstalled: the extra `server` is not installed.
        SettingsError: a setting needs NATS.
    """
    require_extra("an installation in memory", "server")
    from ..adapters.sql.memory import open_memory_history  # noqa: PLC0415 - a part of the extra

    _refuse_nats(settings)
    clock = clock or LoopClock()
    foreign = ForeignMessages()
    log = InMemoryEventLog(clock, foreign=foreign)
    projections = InMemoryProjections(clock)
    archive = Archive(InMemoryArchiveStore(), projections)
    key = token_bytes(32)
    async with open_memory_history(installation=fingerprint(key)) as history:
        yield InMemoryInstallation(
            settings=settings,
            log=log,
            projections=projections,
            clock=clock,
            stored=CombinedLog(InMemoryStoredLog(log), archive),
            archive=archive,
            foreign=foreign,
            agents=InMemoryAgentChannel(clock),
            fetches=InMemoryFetchChannel(),
            events=InMemoryEventStreams(log, settings.opened_streams),
            recorded=history,
            report_key=key,
        )


async def run_stages_in_memory(
    installation: InMemoryInstallation,
    names: Collection[str] = STAGE_NAMES,
    *,
    ready: asyncio.Event | None = None,
    channels: Mapping[str, NotificationChannel] | None = None,
) -> None:
    """Run stages until cancelled.

    When cancelled, finish the messages in progress, and release the leader leases. `channels` replaces the notification channels of
    the settings.
    """
    store = StateStore(Sources.of(installation.log, installation.projections, installation.clock))
    stages = compose(
        installation,
        names,
        store,
        key=installation.report_key,
        storage=installation.storage(),
        agents=installation.agents,
        fetches=installation.fetches,
        event_streams=installation.events,
        channels=_channels(installation) if channels is None else channels,
    )
    policy = delivery_policy(installation, store)
    async with asyncio.TaskGroup() as readers, asyncio.TaskGroup() as loops:  # the loops end first
        start_loops(loops, installation, stages)
        for stage in stages:
            for subscription in stage.subscriptions:
                spec = DurableSpec(
                    subscription.durable, subscription.stream, subscription.filters, ack_wait=subscription.ack_wait
                )
                durable = installation.log.durable(spec)
                readers.create_task(_read(stage, subscription, durable, policy), name=subscription.durable)
        _log.info("stages running", action="stages-started", stages=[stage.name for stage in stages])
        if ready is not None:
            ready.set()


@asynccontextmanager
async def connect_in_memory(
    installation: InMemoryInstallation, options: WorkerOptions
) -> AsyncIterator[WorkerConnection]:
    """Connect a worker to an installation in memory.

    Raises:
        SettingsError: the transport of a queue is `mq`, so that executors outside take its tasks.
    """
    yield connection_of(installation, installation.agents, options)


async def _read(
    stage: BoundStage, subscription: BoundSubscription, durable: InMemoryDurable, policy: DeliveryPolicy
) -> None:
    """Decide on the messages of a durable until cancelled, and finish the last batch."""
    with telemetry.bound(stage=stage.name):
        while True:
            deliveries = await durable.take(BATCH, wait=None)
            deciding = asyncio.ensure_future(policy.apply(subscription, deliveries))
            try:
                await asyncio.shield(deciding)
            except asyncio.CancelledError:
                await deciding
                raise


def _channels(installation: InMemoryInstallation) -> Mapping[str, NotificationChannel]:
    channels = installation.settings.notifications.channels
    outside = {name: channel for name, channel in channels.items() if not isinstance(channel, NatsChannel)}
    return {name: open_channel(name, channel, installation.clock, __version__) for name, channel in outside.items()}


def _refuse_nats(settings: Settings) -> None:
    """Refuse settings whose effect is on NATS."""
    problems = [
        DefinitionProblem(
            "an installation in memory has no NATS, so no executor outside can take tasks; use another transport or a server",
            field=f"queues.{queue}.transport",
            value="mq",
        )
        for queue in settings.bridged_queues
    ]
    problems += [
        DefinitionProblem(
            "an installation in memory has no NATS to publish on; use another type of channel, or a server",
            field=f"notifications.channels.{name}.type",
            value="nats",
        )
        for name, channel in settings.notifications.channels.items()
        if isinstance(channel, NatsChannel)
    ]
    if problems:
        raise SettingsError(*problems)
