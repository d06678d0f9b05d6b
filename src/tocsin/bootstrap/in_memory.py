"""An installation in the memory of one process: the real stages over the in-memory ports.

It needs no server, and ends with the process. `app.running` and `tocsin.testing.Simulation` run it.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from secrets import token_bytes, token_hex

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
from ..adapters.memory.commit_log import InMemoryCommitLog, InMemoryTurnChannel
from ..adapters.memory.event_streams import InMemoryEventStreams, InMemoryFetchChannel
from ..adapters.memory.exploded_log import ExplodedLog
from ..adapters.notifications.factory import open_channel
from ..archive.archive import Archive, Origin
from ..archive.combined_log import CombinedLog
from ..archive.commit_reader import CommitReader
from ..domain.commit import Seal
from ..domain.definition import DefinitionProblem
from ..domain.ids import fingerprint
from ..engine.edge import EdgeDecisions
from ..engine.stage import BoundStage, Storage
from ..engine.step import Sources
from ..ports import DurableSpec, History, NotificationChannel
from ..settings import Settings, SettingsError
from ..settings.notifications import NatsChannel
from ..telemetry.foreign import ForeignMessages
from ..worker import Connection as WorkerConnection
from ..worker.connection import Options as WorkerOptions
from .commit_process import KEY, PARTITION, CommitProcess
from .commits import at_the_edge, read_durable, split
from .installation import Ports
from .leading import Leading
from .stage_runner import STAGE_NAMES, compose, start_loops
from .workers import connection_of

_log = telemetry.get_logger("tocsin")


@dataclass(frozen=True, kw_only=True)
class InMemoryInstallation(Ports):
    """One Tocsin in memory.

    Several tasks of the process may use it; no other process can.
    """

    log: ExplodedLog
    projections: InMemoryProjections
    clock: AlarmClock
    agents: InMemoryAgentChannel
    fetches: InMemoryFetchChannel
    events: InMemoryEventStreams
    """The streams that the settings open for triggers."""
    recorded: History
    """The history, which is open as long as the installation."""
    report_key: bytes
    commits: InMemoryCommitLog
    commit_reader: CommitReader
    turns: InMemoryTurnChannel = field(default_factory=InMemoryTurnChannel)

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
    log = ExplodedLog(clock, foreign=foreign)
    projections = InMemoryProjections(clock)
    archive = Archive(InMemoryArchiveStore(), projections)
    key = token_bytes(32)
    commits = InMemoryCommitLog(clock)
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
            commits=commits,
            commit_reader=_reader(commits, settings.root, key),
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
    sources = Sources(installation.log, installation.projections, installation.clock)
    stages = compose(
        installation,
        names,
        key=installation.report_key,
        storage=installation.storage(),
        agents=installation.agents,
        fetches=installation.fetches,
        event_streams=installation.events,
        channels=_channels(installation) if channels is None else channels,
        fold=partial(getattr, installation.log, "fold"),
    )
    process = CommitProcess(
        installation.commits,
        installation.log,
        installation.clock,
        installation.report_key,
        installation=installation.settings.root,
        name=f"memory-{token_hex(4)}",
        turns=installation.turns,
        foreign=installation.foreign,
        wake_at=installation.clock.at,
    )
    pure, stages = split(stages, installation.log, installation)
    leading = Leading(installation.projections, installation.log, installation.clock, installation.settings.leader)
    policy = EdgeDecisions(installation.log, sources, foreign=installation.foreign)
    folds = any(stage.subscriptions for stage in stages)
    stages = at_the_edge(stages, policy, sources, leading, process.name)
    async with process.running(pure, installation.log, leading, folds=folds):
        await _run(installation, stages, policy, ready)


async def _run(
    installation: InMemoryInstallation,
    stages: Sequence[BoundStage],
    policy: EdgeDecisions,
    ready: asyncio.Event | None,
) -> None:
    async with asyncio.TaskGroup() as readers, asyncio.TaskGroup() as loops:  # the loops end first
        start_loops(loops, installation, stages)
        for stage in stages:
            for subscription in stage.subscriptions:
                spec = DurableSpec(
                    subscription.durable, subscription.stream, subscription.filters, ack_wait=subscription.ack_wait
                )
                durable = installation.log.durable(spec)
                readers.create_task(read_durable(stage, subscription, durable, policy), name=subscription.durable)
        _log.info("stages running", action="stages-started", stages=[stage.name for stage in stages])
        if ready is not None:
            ready.set()


def _reader(commits: InMemoryCommitLog, installation: str, key: bytes) -> CommitReader:
    async def seal() -> Seal:
        return Seal(installation, PARTITION, {KEY: key})

    return CommitReader(commits, PARTITION, seal, KEY)


@asynccontextmanager
async def connect_in_memory(
    installation: InMemoryInstallation, options: WorkerOptions
) -> AsyncIterator[WorkerConnection]:
    """Connect a worker to an installation in memory.

    Raises:
        SettingsError: the transport of a queue is `mq`, so that executors outside take its tasks.
    """
    yield connection_of(installation, installation.agents, options)


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
