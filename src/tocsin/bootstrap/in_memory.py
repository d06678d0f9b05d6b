"""An installation in the memory of one process: the real stages over the in-memory ports."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from secrets import token_bytes
from typing import TypeVar

from .. import __version__, telemetry
from ..adapters.extras import require_extra
from ..adapters.memory.agents import InMemoryAgentChannel, InMemoryFetchChannel, InMemoryTurnChannel
from ..adapters.memory.archive import (
    InMemoryArchiveStore,
    InMemoryProjections,
    InMemoryStoredLog,
    InMemoryStreamPurge,
)
from ..adapters.memory.clock import AlarmClock, LoopClock
from ..adapters.memory.commit_log import InMemoryCommitLog
from ..adapters.memory.event_log import InMemoryEventLog
from ..adapters.memory.event_streams import InMemoryEventStreams
from ..adapters.notifications import open_channel
from ..adapters.routed_log import RoutedLog
from ..archive.log_archive import LogArchive, Origin
from ..domain.definition import DefinitionProblem
from ..domain.ids import fingerprint
from ..engine.edge import EdgeDecisions
from ..engine.foreign_reports import ForeignMessages
from ..engine.leader_election import LeaderElection
from ..engine.stage import BoundStage, Storage
from ..engine.step import Sources
from ..ports import DurableSpec, History, NotificationChannel
from ..settings import Settings, SettingsError
from ..settings.channels import NatsChannel
from ..stages.matcher.stage import FILTERS as SEEN_EARLY
from .commit_process import Commits
from .commits import at_the_edge, decide, read_durable, split, takers
from .installation import Ports, stored_log
from .leading import Leading
from .stage_runner import STAGE_NAMES, compose, context_of, event_streams_of, recorded_by, start_loops

_log = telemetry.get_logger("tocsin")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class InMemoryInstallation(Ports):
    """One Tocsin in the memory of one process."""

    inputs: InMemoryEventLog
    commits: Commits
    commit_log: InMemoryCommitLog
    """The commits that are not archived."""
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
        return Storage(
            history=self.recorded,
            stored=self.stored,
            streams=InMemoryStoredLog(self.inputs),
            purge=InMemoryStreamPurge(self.inputs),
            origin=Origin(fingerprint(self.report_key), self.settings.root, __version__),
        )


@asynccontextmanager
async def open_in_memory(settings: Settings, clock: AlarmClock | None = None) -> AsyncIterator[InMemoryInstallation]:
    """Open an empty installation, for the duration of the context.

    `clock`: None is the clock of the machine. Its archive is in memory too, and its history in an SQLite database without a file.
    """
    require_extra("an installation in memory", "server")
    from ..adapters.sql.history import open_memory_history  # noqa: PLC0415 - a part of the extra

    _refuse_nats(settings)
    clock = clock or LoopClock()
    foreign, key = ForeignMessages(), token_bytes(32)
    inputs, commit_log, projections = (
        InMemoryEventLog(clock),
        InMemoryCommitLog(clock),
        InMemoryProjections(clock),
    )
    archive = LogArchive(InMemoryArchiveStore(), projections)
    async with open_memory_history(installation=fingerprint(key)) as history:
        commits = Commits(
            commit_log,
            InMemoryTurnChannel(),
            *(inputs, projections, clock, archive, partial(_given, key), foreign),
            installation=settings.root,
            history=partial(_given, history),
            wake_at=clock.at,
            folds=True,
        )
        async with commits.reading():
            yield InMemoryInstallation(
                settings=settings,
                log=RoutedLog(inputs, commits.view),
                inputs=inputs,
                commits=commits,
                commit_log=commit_log,
                projections=projections,
                clock=clock,
                stored=stored_log(InMemoryStoredLog(inputs), commits),
                foreign=foreign,
                agents=InMemoryAgentChannel(clock),
                fetches=InMemoryFetchChannel(),
                events=InMemoryEventStreams(inputs, settings.opened_streams),
                recorded=history,
                report_key=key,
            )


async def _given(value: T) -> T:
    return value


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
    projections, clock = installation.projections, installation.clock
    process, view = await installation.commits.process(early=SEEN_EARLY)
    leader, finish_within = installation.settings.leader, installation.settings.worker.shutdown_timeout
    leading = Leading(projections, installation.inputs, clock, leader, finish_within)
    followers = {"recorder": partial(recorded_by, installation.recorded)}
    commits = installation.commits.storage(process, takers(), followers)
    event_streams, lead = event_streams_of(installation, installation.events, leading, process.name, names, clock)
    sources = Sources(installation.log, projections, clock)
    context = replace(
        context_of(installation, installation.report_key),
        storage=replace(installation.storage(), commits=commits),
        agents=installation.agents,
        fetches=installation.fetches,
        event_streams=event_streams,
        channels=_channels(installation) if channels is None else channels,
        fold=partial(getattr, view, "fold"),
    )
    stages = compose(context, names)
    policy = EdgeDecisions(view, sources)
    pure, stages = split(stages, view, installation)
    folds = process.folds or decide([*pure, *stages])
    stages = at_the_edge(stages, policy, sources, leading, process.name)
    async with process.running(pure, view, leading) if folds else process.reading(view):
        await _run(installation, stages, policy, lead, ready)


async def _run(
    installation: InMemoryInstallation,
    stages: Sequence[BoundStage],
    policy: EdgeDecisions,
    lead: LeaderElection | None,
    ready: asyncio.Event | None,
) -> None:
    async with asyncio.TaskGroup() as readers, asyncio.TaskGroup() as loops:  # the loops end first
        start_loops(loops, installation, stages)
        if lead is not None:
            loops.create_task(lead.run(), name="lease of the event listener")
        for stage in stages:
            for subscription in stage.subscriptions:
                spec = DurableSpec(
                    subscription.durable, subscription.stream, subscription.filters, ack_wait=subscription.ack_wait
                )
                durable = installation.inputs.durable(spec)
                readers.create_task(read_durable(stage, subscription, durable, policy), name=subscription.durable)
        _log.info("stages running", action="stages-started", stages=[stage.name for stage in stages])
        if ready is not None:
            ready.set()


def _channels(installation: InMemoryInstallation) -> Mapping[str, NotificationChannel]:
    channels = installation.settings.notifications.channels
    outside = {name: channel for name, channel in channels.items() if not isinstance(channel, NatsChannel)}
    return {name: open_channel(name, channel, installation.clock, __version__) for name, channel in outside.items()}


def _refuse_nats(settings: Settings) -> None:
    """Refuse settings with an effect on NATS."""
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
