"""Starting and running the stages of a process."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from secrets import token_hex
from typing import Any, Final

from faststream.nats import NatsBroker
from nats.aio.client import Client
from typing_extensions import override

from .. import __version__, telemetry
from ..adapters.commit_event_streams import CommitEventStreams
from ..adapters.memory.clock import AlarmClock, LoopClock
from ..adapters.nats.admin.provision import NatsStreamPurge
from ..adapters.nats.agents import NatsAgentChannel, NatsFetchChannel
from ..adapters.nats.alerts import NatsAlertChannel
from ..adapters.nats.client.connection import Connection
from ..adapters.nats.client.connection_end import CLOSING_ERRORS
from ..adapters.nats.consumers.fed_subscribers import FedSubscribers
from ..adapters.nats.consumers.stage_router import stage_router
from ..adapters.nats.event_streams import NatsEventStreams
from ..adapters.nats.log.announcer import Announcer
from ..adapters.nats.log.stored_log import NatsStoredLog
from ..adapters.nats.submissions import NatsScreeningChannel
from ..adapters.notifications import open_channel
from ..archive.log_archive import Origin
from ..engine.clock_guard import ClockGuard
from ..engine.edge import EdgeDecisions
from ..engine.foreign_reports import ForeignReports
from ..engine.leader_election import LeaderElection
from ..engine.stage import BoundStage, StageContext, Storage
from ..engine.step import Sources
from ..engine.timezone_refresh import TimezoneWatch
from ..ports import (
    EventStreams,
    History,
    NotificationChannel,
    ScreeningChannel,
    TraceExport,
)
from ..settings import sampling_of
from ..settings.channels import ChannelSettings, NatsChannel
from ..stages import STAGES
from ..stages.archiver.stage import ARCHIVER
from ..stages.event_listener.stage import EVENT_LISTENER
from ..stages.matcher.stage import FILTERS as SEEN_EARLY
from ..stages.notifier.stage import NOTIFIER
from ..stages.planner import PLANNER
from ..stages.recorder.stage import Recorder
from ..subjects import RECORDED, stream_names
from .commits import LED, at_the_edge, decide, of_loop, split, takers
from .installation import Installation, Ports, connect_client, require_archive_extra
from .leading import Leading

STAGE_NAMES: Final = tuple(stage.name for stage in STAGES)
"""The names of all stages."""

_log = telemetry.get_logger("tocsin")


def channel_of(installation: Installation, name: str, settings: ChannelSettings) -> NotificationChannel:
    """Return a channel; `name`: as the settings call it."""
    if isinstance(settings, NatsChannel):
        return NatsAlertChannel(installation.connection, installation.names)
    return open_channel(name, settings, installation.clock, __version__)


class _Broker(NatsBroker):
    """A broker on our client: FastStream's own ends at the first refusal."""

    def __init__(self, client: Client) -> None:
        super().__init__(logger=None, apply_types=False)
        self._client = client

    @override
    async def _connect(self) -> Client:
        self.config.connect(self._client)
        return self._client

    @override
    async def stop(self, *error: Any) -> None:
        """Stop the subscribers, and leave the client open."""
        self._connection = None
        await super().stop(*error)


def context_of(ports: Ports, key: bytes) -> StageContext:
    """Return the context of stages that each process has; `replace` adds the rest."""
    return StageContext(
        settings=ports.settings,
        log=ports.log,
        projections=ports.projections,
        clock=ports.clock,
        stored=ports.stored,
        report_key=key,
        elect=partial(candidate, ports, ClockGuard(ports.log, ports.clock)),
        version=__version__,
    )


def compose(context: StageContext, names: Collection[str]) -> list[BoundStage]:
    """Start the named stages that the settings need; without `storage`, no stage that needs history."""
    started = [
        stage.run_in(context)
        for stage in STAGES
        if stage.name in names
        and stage.is_installed(context.settings)
        and (context.storage is not None or not stage.needs_history)
    ]
    return [stage for stage in started if stage is not None]


def deciding_stages(ports: Ports, key: bytes) -> list[BoundStage]:
    """Return new stages that the loop of commits decides for."""
    context = replace(context_of(ports, key), sampling=sampling_of(os.environ))
    return [of_loop(stage) for stage in compose(context, LED)]


def start_loops(group: asyncio.TaskGroup, ports: Ports, stages: Sequence[BoundStage]) -> None:
    """Start the loops of stages, and the loops of every process that runs stages."""
    for stage in stages:
        with telemetry.bound(stage=stage.name):  # a task copies the context
            for loop in stage.loops:
                group.create_task(loop(), name=stage.name)
    group.create_task(TimezoneWatch(ports.projections, ports.clock).run(), name="time-zone data")
    reports = ForeignReports(ports.projections, ports.clock, ports.foreign)
    group.create_task(reports.run(), name="foreign messages")


def _report_idle(names: Collection[str], *, is_alone: bool) -> None:
    """Log stages that lack a setting, as a warning if no other runs."""
    log = _log.warning if is_alone else _log.debug
    for stage in STAGES:
        if stage.name in names:
            log(
                "stage not running; it needs a setting",
                action="stage-not-installed",
                stage=stage.name,
                needs=stage.needs,
            )


def candidate(ports: Ports, time: ClockGuard, lease: str, *, ttl: float | None = None) -> LeaderElection:
    """Return a candidate for a leader lease (`engine.stage.Elect`).

    The candidates of a process share its measurements of the log's clock.
    """
    leader = ports.settings.leader
    span = leader.ttl if ttl is None else min(ttl, leader.ttl)
    holder = f"{socket.gethostname()}-{os.getpid()}-{token_hex(4)}"  # unique, also among the processes of a host
    return LeaderElection(
        ports.projections,
        time,
        key=lease,
        holder=holder,
        ttl=span,
        renew_interval=leader.renew_interval * span / leader.ttl,
    )


async def run_stages(  # noqa: PLR0915 - the parts of a process
    installation: Installation, names: Sequence[str], *, ready: asyncio.Event | None = None
) -> None:
    """Run stages until cancelled.

    When cancelled, finish the messages in progress, and release the leader leases.
    """
    settings = installation.settings
    require_archive_extra(settings)
    sampling = sampling_of(os.environ)
    key, storage = await installation.report_key(), None
    running = [stage.name for stage in STAGES if stage.name in names and stage.is_installed(settings)]
    _report_idle(set(names) - set(running), is_alone=not running)
    async with AsyncExitStack() as stack:
        stack.callback(_log.info, "stages stopped", action="stages-stopped", stages=running)
        process, view = await installation.commits.process(early=SEEN_EARLY)
        if any(stage.needs_history and stage.name in names for stage in STAGES):
            history = await stack.enter_async_context(installation.history())
            storage = await _storage(installation, history)
            if ARCHIVER.name in names:
                followers = {"recorder": partial(recorded_by, history)}
                commits = installation.commits.storage(process, takers(), followers)
                storage = replace(storage, commits=commits)
        sources = Sources(installation.log, installation.projections, installation.clock)
        agents = NatsAgentChannel(installation.connection, installation.names)
        fetches = NatsFetchChannel(installation.connection, installation.names)
        streams = NatsEventStreams(installation.connection, installation.names)
        finish_within = settings.worker.shutdown_timeout
        leading = Leading(
            installation.projections, installation.inputs, installation.clock, settings.leader, finish_within
        )
        event_streams, lead = event_streams_of(installation, streams, leading, process.name, running, LoopClock())
        named = settings.notifications.channels.items() if NOTIFIER.name in names else ()
        channels = {name: channel_of(installation, name, channel) for name, channel in named}
        context = replace(
            context_of(installation, key),
            storage=storage,
            agents=agents,
            fetches=fetches,
            event_streams=event_streams,
            screening=partial(_screening, installation),
            sampling=sampling,
            traces=_traces(installation) if sampling is not None and "recorder" in running else None,
            channels=channels,
            fold=partial(getattr, view, "fold"),
        )
        stages = compose(context, names)
        connection = await stack.enter_async_context(connect_client(settings, within=None))
        policy = EdgeDecisions(view, sources, streams=stream_names(settings.root))
        pure, edges = split(stages, view, installation)
        stages = at_the_edge(edges, policy, sources, leading, process.name)
        process.passes = await _fed(stack, connection, installation, pure)
        folds = process.folds or decide([*pure, *edges])
        await stack.enter_async_context(process.running(pure, view, leading) if folds else process.reading(view))
        broker = _Broker(connection.client)
        for stage in stages:
            router = stage_router(
                stage,
                policy,
                installation.names,
                finish_within=finish_within,
                inbox_prefix=settings.nats.inbox_prefix,
                fast_client=settings.nats.fast_client,
            )
            broker.include_router(router)
        stack.push_async_callback(_stop, broker)
        await _start(broker)
        _log.info("stages running", action="stages-started", stages=running)
        if ready is not None:
            ready.set()
        async with asyncio.TaskGroup() as group:
            start_loops(group, installation, stages)
            if PLANNER.name in running:
                ports_of = installation.log, installation.clock, installation.projections
                announcer = Announcer(
                    installation.connection, installation.names, *ports_of, partial(process.leads, PLANNER.name)
                )
                group.create_task(announcer.run(), name="announcer")
            if lead is not None:
                group.create_task(lead.run(), name="lease of the event listener")
            group.create_task(_log_cancellation(running), name="until cancelled")


async def _fed(
    stack: AsyncExitStack, connection: Connection, installation: Installation, stages: Sequence[BoundStage]
) -> FedSubscribers:
    broker, names = _Broker(connection.client), installation.names
    fed = FedSubscribers(broker, names, names.commits_stream, stages)
    stack.push_async_callback(_stop, broker)
    await _start(broker)
    return fed


def event_streams_of(
    ports: Ports, base: EventStreams, leading: Leading, name: str, stages: Collection[str], clock: AlarmClock
) -> tuple[EventStreams, LeaderElection | None]:
    """Return the durables of triggers, and the lease of their reader.

    `name`: the name of the process. None: no stage of the process reads any.
    """
    if EVENT_LISTENER.name not in stages:
        return base, None
    lead = leading.candidate(EVENT_LISTENER.name, name)
    return CommitEventStreams(base, ports.log, ports.projections, clock, lambda: lead.is_leading), lead


@asynccontextmanager
async def _screening(installation: Installation, sender: str) -> AsyncIterator[ScreeningChannel]:
    """Open the channel of a user outside, on a connection of its own."""
    async with connect_client(installation.settings, within=None) as connection:
        yield NatsScreeningChannel(connection, installation.names, sender)


def _traces(ports: Ports) -> TraceExport:
    from ..adapters.otel.span_exporter import OtlpSpanExporter  # noqa: PLC0415 - it needs an extra
    from ..adapters.otel.traces import Traces  # noqa: PLC0415 - likewise

    return Traces(ports.log, OtlpSpanExporter(__version__), ports.clock)


async def rebuild_history(installation: Installation) -> int:
    """Clear the history, record all stored events again, and count its executions.

    Recorders may run meanwhile, and readers see the history grow.
    """
    async with installation.history() as history:
        await history.forget()
        log, clock, past = installation.log, installation.clock, installation.stored
        recorders = [Recorder(log, history, clock, stream, gathering=0, past=past) for stream in RECORDED]
        await asyncio.gather(*(recorder.catch_up() for recorder in recorders))
        return await history.count()


async def _storage(installation: Installation, history: History) -> Storage:
    connection, names = installation.connection, installation.names
    return Storage(
        history=history,
        stored=installation.stored,
        streams=NatsStoredLog(connection, names),
        purge=NatsStreamPurge(connection, names),
        origin=Origin(installation=await installation.identity(), root=installation.settings.root, version=__version__),
    )


async def recorded_by(history: History) -> int:
    """Return the number up to which the history has the events.

    Both places are numbers of one log, and the place in a stream without newer events stands; a recorder of the other reads on in the archive.
    """
    return max([await history.offset(stream) for stream in RECORDED])


async def _start(broker: NatsBroker) -> None:
    """Start subscribers, and raise a cancellation again that the client swallowed while it connected."""
    await broker.start()
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def _log_cancellation(stages: Sequence[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        _log.info("stages stopping", action="stages-stopping", stages=stages)


async def _stop(broker: NatsBroker) -> None:
    with suppress(*CLOSING_ERRORS):
        await broker.stop()
