"""The composition root: the only place that knows every part, and which fits where."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from secrets import token_hex
from typing import Final

import structlog
from faststream.nats import NatsBroker

from . import __version__, archiving
from .adapters.clock import SystemClock
from .adapters.histories import open_history
from .adapters.nats.awaiting import await_log as await_nats_log
from .adapters.nats.awaiting import insistently
from .adapters.nats.connection import AWAY, FOR_EVER, Connection
from .adapters.nats.connection import connect as connect_nats
from .adapters.nats.desired import durable_specs
from .adapters.nats.event_log import NatsEventLog
from .adapters.nats.executors import ensure_executors
from .adapters.nats.naming import Names
from .adapters.nats.projections import NatsProjections
from .adapters.nats.provision import Change, provision
from .adapters.nats.security import security_of
from .adapters.nats.stage_router import stage_router
from .adapters.nats.stored_log import NatsStoredLog
from .adapters.nats.task_queue import NatsTaskQueue
from .domain import execution
from .domain.definition import Problem
from .domain.ids import fingerprint
from .domain.recovery import Policy
from .outcomes import Outcomes
from .ports import Clock, DurableSpec, EventLog, History, LogUnavailable, Projections, StoredLog
from .records.archive import Archive, Origin
from .records.cursors import Cursors
from .records.whole import WholeLog
from .settings import Settings, SettingsError
from .settings import load as load_settings
from .stage import Stage
from .stages.dag_advancer import dag_advancer
from .stages.dead_letter_sink import dead_letter_sink
from .stages.entities import Entities
from .stages.leadership import Leadership
from .stages.leadership_facts import TICKER_SIGNS, LeadershipFacts
from .stages.lease_keeper import lease_keeper
from .stages.lock_keeper import lock_keeper
from .stages.mq_bridge import mq_bridge
from .stages.planner import planner
from .stages.recorder import RECORDED, Recorder, recorder
from .stages.recoverer import recoverer
from .stages.registrar import registrar
from .stages.retrier import retrier
from .stages.ticker import ticker
from .subjects import ARCHIVER_LEASE, DEFAULT_QUEUE, INSTALLATION_KEY, RECOVERER_LEASE, TICKER_LEASE, Bucket
from .worker import Connection as WorkerConnection
from .worker.options import Options as WorkerOptions

STAGES: Final = (
    "registrar",
    "ticker",
    "planner",
    "lock_keeper",
    "dag_advancer",
    "lease_keeper",
    "retrier",
    "dead_letter_sink",
    "recoverer",
    "recorder",
    "archiver",
    "mq_bridge",
)
"""The stages, in the order in which a job passes them."""

_log = structlog.get_logger("tocsin")


class Unreachable(Exception):
    """NATS, or what an installation needs in it, is not there; the text says what to do."""


@dataclass(frozen=True)
class Installation:
    """One Tocsin on one NATS: what the command line, the stages and the workers are given."""

    settings: Settings
    names: Names
    connection: Connection
    log: EventLog
    projections: Projections
    clock: Clock
    stored: StoredLog
    """What was ever stored, wherever it is now: in the streams or in the archive."""
    archive: Archive

    @asynccontextmanager
    async def history(self) -> AsyncIterator[History]:
        """Open the history of the settings' database.

        Raises:
            Unreachable: the installation was never initialized.
            HistoryUnavailable: the database cannot be used.
        """
        database = self.settings.database
        async with open_history(
            database.url, installation=await self.identity(), max_connections=database.max_connections
        ) as history:
            yield history

    async def identity(self) -> str:
        """What the installation is known by to those who must not know its key.

        Raises:
            Unreachable: the installation was never initialized.
        """
        return fingerprint(await _report_key(self))


@asynccontextmanager
async def connect(settings: Settings, *, within: float | None = 10.0) -> AsyncIterator[Installation]:
    """Connect to the NATS of the settings, `within` so many seconds; None: however long that takes.

    Raises:
        Unreachable: nothing answers there, or what answers says no.
        SettingsError: the credentials that the settings name cannot be used.
    """
    security = security_of(settings.nats)
    names = names_of(settings)
    async with AsyncExitStack() as stack:
        try:
            connection = await stack.enter_async_context(
                connect_nats(_servers(settings), within=within, is_encrypted=security.is_encrypted, **security.client)
            )
        except LogUnavailable as error:
            raise Unreachable(str(error)) from error
        projections = NatsProjections(connection, names)
        archive = archiving.archive(settings, connection, names, projections)
        yield Installation(
            settings=settings,
            names=names,
            connection=connection,
            log=NatsEventLog(connection, names),
            stored=WholeLog(NatsStoredLog(connection, names), archive),
            projections=projections,
            archive=archive,
            clock=SystemClock(),
        )


async def await_log(installation: Installation) -> None:
    """Wait until the log answers, however long that takes: for those who run on. They may be started while it elects."""
    await await_nats_log(installation.connection, installation.names)


async def initialize(installation: Installation) -> list[Change]:
    """Create or update the streams, buckets and durables, and say what changed (`tocsin init`).

    Raises:
        ProvisionError: the server is not what is needed, or something of somebody else is in the way.
    """
    settings = installation.settings
    subscriptions = [s for stage in compose(installation, STAGES, key=b"") for s in stage.subscriptions]
    return await provision(
        installation.connection,
        installation.names,
        replicas=settings.replicas,
        queues=own_queues(settings),
        bridge=bool(bridged_queues(settings)),
        task_ack_wait=settings.worker.ack_wait,
        durables=tuple(DurableSpec(s.durable, s.stream, s.filters, ack_wait=s.ack_wait) for s in subscriptions),
    )


async def run_stages(installation: Installation, names: Sequence[str], *, ready: asyncio.Event | None = None) -> None:
    """Run stages until cancelled; then what they are handling is finished, and the lease given back.

    Raises:
        Unreachable: the installation was never initialized.
    """
    settings = installation.settings
    stages = compose(installation, names, key=await insistently(partial(_report_key, installation)))
    running = [*names]
    async with AsyncExitStack() as stack:
        stack.callback(_log.info, "stages have stopped", action="stages-stopped", stages=running)
        if {"recorder", "archiver"} & set(names):
            history = await stack.enter_async_context(installation.history())
            if "recorder" in names:
                stages.append(recorder(installation.log, history, installation.clock, past=installation.stored))
            if "archiver" in names and settings.archive.enabled:
                leadership = _leadership(installation, ARCHIVER_LEASE)
                origin = Origin(installation=await installation.identity(), root=settings.root, version=__version__)
                stages.append(
                    archiving.stage(
                        settings,
                        installation.connection,
                        installation.names,
                        installation.archive,
                        history,
                        leadership,
                        installation.clock,
                        origin,
                    )
                )
        broker = NatsBroker(
            _servers(settings),
            logger=None,
            apply_types=False,
            **FOR_EVER,
            **security_of(settings.nats).broker,
        )
        cursors = Cursors(installation.projections, installation.clock, late=archiving.late(settings))
        outcomes = Outcomes(installation.log, is_behind=cursors.is_behind)
        finish_within = settings.worker.shutdown_timeout
        for stage in stages:
            router = stage_router(
                stage,
                outcomes,
                installation.names,
                finish_within=finish_within,
                inbox_prefix=settings.nats.inbox_prefix,
            )
            broker.include_router(router)
        stack.push_async_callback(_stop, broker)
        await broker.start()
        _log.info("stages are running", action="stages-started", stages=running)
        if ready is not None:
            ready.set()
        async with asyncio.TaskGroup() as group:
            for stage in stages:
                for loop in stage.loops:
                    group.create_task(loop(), name=stage.name)
            group.create_task(_until_cancelled(running), name="until cancelled")


def _leadership(installation: Installation, lease: str) -> Leadership:
    leader = installation.settings.leader
    return Leadership(
        installation.projections,
        installation.clock,
        key=lease,
        holder=_holder(),
        ttl=leader.ttl,
        renew_interval=leader.renew_interval,
    )


async def rebuild_history(installation: Installation) -> int:
    """Forget the history and record it anew from the first fact on, beside any recorder that runs; its executions.

    Readers see it grow meanwhile.

    Raises:
        Unreachable: the installation was never initialized.
        HistoryUnavailable: the database cannot be used.
        LogUnavailable: the log did not answer.
    """
    async with installation.history() as history:
        await history.forget()
        log, clock, past = installation.log, installation.clock, installation.stored
        recorders = [Recorder(log, history, clock, stream, gathering=0, past=past) for stream in RECORDED]
        await asyncio.gather(*(one.catch_up() for one in recorders))
        return await history.count()


def compose(installation: Installation, names: Collection[str], *, key: bytes) -> list[Stage]:
    """The named stages but the recorder, which needs a database. They share what each has folded; nothing else."""
    log, projections, clock = installation.log, installation.projections, installation.clock
    settings = installation.settings
    executions = Entities(log, execution.initial, execution.evolve)
    bridged = bridged_queues(settings)

    def leadership(lease: str, signs: Sequence[str] = ()) -> Leadership:
        holder = _holder()
        return Leadership(
            projections,
            clock,
            key=lease,
            holder=holder,
            ttl=settings.leader.ttl,
            renew_interval=settings.leader.renew_interval,
            facts=LeadershipFacts(log, clock, lease=lease, holder=holder, signs=signs),
        )

    stages = (
        registrar(log, projections),
        ticker(log, leadership(TICKER_LEASE, TICKER_SIGNS), clock),
        planner(log, clock, executions),
        lock_keeper(log, executions, projections, clock),
        dag_advancer(log, executions, clock, key),
        lease_keeper(log, executions, key),
        retrier(log, executions, key),
        dead_letter_sink(log),
        recoverer(
            log,
            projections,
            leadership(RECOVERER_LEASE),
            clock,
            key,
            policy=_policy(settings),
            outside=frozenset(bridged),
            interval=settings.recovery.interval,
        ),
        *((mq_bridge(log, executions, key, bridged),) if bridged else ()),
    )
    return [_patient(stage, settings.stages.ack_wait) for stage in stages if stage.name in names]


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
    if outside := set(options.queues) & set(bridged_queues(installation.settings)):
        reason = f"its transport is `mq`: executors outside take the tasks of `{min(outside)}`, and a worker would run them too"
        raise SettingsError(Problem(reason, field=f"queues.{min(outside)}"))
    connection, names = installation.connection, installation.names
    ack_wait = installation.settings.worker.ack_wait
    await insistently(partial(ensure_executors, connection, names, options.queues, ack_wait=ack_wait), within=None)
    queues = {queue: NatsTaskQueue(connection, names, queue) for queue in options.queues}
    try:
        yield WorkerConnection(
            installation.log, queues, installation.clock, ack_wait, installation.settings.worker.cancel_grace
        )
    finally:
        for queue in queues.values():
            await queue.close()


async def _until_cancelled(stages: Sequence[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        _log.info("stages are stopping", action="stages-stopping", stages=stages)


async def _stop(broker: NatsBroker) -> None:
    with suppress(*AWAY):
        await broker.stop()


def _patient(stage: Stage, ack_wait: float) -> Stage:
    return replace(stage, subscriptions=tuple(replace(s, ack_wait=ack_wait) for s in stage.subscriptions))


async def _report_key(installation: Installation) -> bytes:
    found = await installation.projections.get(Bucket.INSTALLATION, INSTALLATION_KEY)
    if found is None:
        raise Unreachable(f"nothing is set up under {installation.names.root!r} on this NATS: run `tocsin init` first")
    return found[0]


def _policy(settings: Settings) -> Policy:
    it = settings.recovery
    return Policy(
        threshold=timedelta(seconds=it.threshold),
        max_attempts=it.max_attempts,
        max_age=timedelta(seconds=it.max_age),
        grace=timedelta(seconds=it.grace),
    )


def bridged_queues(settings: Settings) -> list[str]:
    """The queues whose executors are outside."""
    return [name for name, queue in settings.queues.items() if queue.transport == "mq"]


def own_queues(settings: Settings) -> tuple[str, ...]:
    """The queues that workers of ours serve; a durable on one of the others would wait for them for ever."""
    return tuple(sorted({DEFAULT_QUEUE, *settings.queues} - set(bridged_queues(settings))))


def durables_of(settings: Settings, stages: Iterable[Stage]) -> list[DurableSpec]:
    """Every durable of an installation: those of `stages`, and those of the executors."""
    return durable_specs(
        own_queues(settings),
        [DurableSpec(s.durable, s.stream, s.filters, ack_wait=s.ack_wait) for one in stages for s in one.subscriptions],
        bridge=bool(bridged_queues(settings)),
        task_ack_wait=settings.worker.ack_wait,
    )


def names_of(settings: Settings) -> Names:
    """The names on the wire of the installation that the settings mean."""
    return Names(settings.root, settings.trigger_prefix, settings.public_prefix, settings.mq_prefix)


def _holder() -> str:
    """Who asks for a lease: nobody else is called so."""
    return f"{socket.gethostname()}-{os.getpid()}-{token_hex(4)}"


def _servers(settings: Settings) -> list[str]:
    return [url.strip() for url in settings.nats.url.split(",")]
