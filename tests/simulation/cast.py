"""The simulated processes: nodes with the product's stages, workers, and users."""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from random import Random
from typing import Any, Final, cast
from zlib import crc32

from tests.domain.given import KEY
from tocsin import subjects, telemetry
from tocsin.bootstrap.commits import at_the_edge, decide, split
from tocsin.bootstrap.installation import Ports
from tocsin.bootstrap.stage_runner import compose, context_of
from tocsin.domain.agent import safe_name
from tocsin.domain.definition import DefinitionError, JobDefinition
from tocsin.domain.events import CancelRequest, Recorded, Shard, Trigger
from tocsin.domain.events.shards import ShardState
from tocsin.domain.ledger import JobNotFound
from tocsin.engine.edge import EdgeDecisions
from tocsin.engine.report_lists import ListedReports
from tocsin.engine.stage import BoundStage, BoundSubscription
from tocsin.engine.step import Sources
from tocsin.ports import DurableSpec, EventLog, LogUnavailable, OutdatedState
from tocsin.services.jobs import Registry
from tocsin.services.operations import backfill, dead_letters
from tocsin.services.operations.errors import OperationError
from tocsin.services.operations.execution_requests import Duplicate, enqueue
from tocsin.services.shards import ShardMaps
from tocsin.settings import Leader, Queue, Settings
from tocsin.settings.model import Recovery, Stages
from tocsin.stages.dependency_keeper.stage import DEPENDENCY_KEEPER
from tocsin.stages.recorder.stage import RECORDER, Recorder, Recorders
from tocsin.subjects import Stream
from tocsin.testing import InMemoryStoredLog, ManualClock
from tocsin.worker.connection import Connection, Options
from tocsin.worker.handlers import Handlers
from tocsin.worker.session import Session
from tocsin.worker.shutdown import Shutdown

from . import mq
from .agents import Hall, SimulatedChannel
from .commits import CommitServer, Member
from .forger import Forger
from .history import InMemoryHistory
from .mq import Handed, MqExecutor
from .network import Network
from .operators import Decided, Operator
from .outside import Outside, OutsideExecutor
from .ports import Intake, SimulatedHistory, SimulatedLog, SimulatedProjections
from .process import Process, ProcessClock
from .server import SimulatedBuckets, SimulatedServer
from .workload import ASSIGNED, BRIDGED, DRAINED_SHARD, FUNCTION, OUTSIDE, QUEUES, SHARDS, Action, Temper, Work, handler

ACK_WAIT: Final = 4.0
SETTINGS: Final = Settings(
    leader=Leader(ttl=4.0, renew_interval=1.0),
    stages=Stages(ack_wait=ACK_WAIT),
    recovery=Recovery(threshold=6.0, grace=2.0),
    queues={BRIDGED: Queue(transport="mq")},
)


FIRST_WORKER: Final = "worker-1"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The shared environment of every process."""

    seed: int
    network: Network
    server: SimulatedServer
    commits: CommitServer
    """The log of commits."""
    buckets: SimulatedBuckets
    history: InMemoryHistory
    temper: Temper
    settings: Settings = SETTINGS
    fetched: tuple[str, ...] = (OUTSIDE,)
    """The queues of executors outside."""
    is_operated: bool = False
    """Operators decide about queues and agents, so workers keep their names when they are replaced."""
    declared: tuple[str, ...] = ()
    """The shards that all workers but the first declare."""
    is_dependent: bool = False
    """Jobs wait for other jobs, so nodes have the dependency keeper."""
    hall: Hall = field(default_factory=Hall)
    """The channel of agents."""
    work: Work = field(default_factory=Work)
    outside: Outside = field(init=False)
    handed: Handed = field(init=False)
    decided: Decided = field(default_factory=Decided)
    named: dict[str, int] = field(default_factory=dict)
    """How often a process had each name."""
    pure: dict[str, BoundStage] = field(default_factory=dict)
    """The stages for which the loop of commits decides."""
    has_snapshots: bool = False
    """Processes begin with snapshots, and write them."""

    def __post_init__(self) -> None:
        """Have executors outside tell of what they do in the same place."""
        object.__setattr__(self, "outside", Outside(self.seed, self.work.runs, self.fetched))
        object.__setattr__(self, "handed", Handed(self.seed))


def stored_at(around: Surroundings, event: Recorded[Any]) -> datetime:
    """Return when the server stored an event (UTC); a commit names a time that may be earlier."""
    return around.commits.stored_at.get(event.sequence, event.time)


def member(around: Surroundings, process: Process) -> Member:
    """Return a process on the log of commits, under a name that no other process has."""
    around.named[process.name] = number = around.named.get(process.name, 0) + 1
    projections = SimulatedProjections(around.buckets, around.network, process) if around.has_snapshots else None
    return Member(around.commits, around.network, process, f"{process.name}-{number}", projections)


def log_of(around: Surroundings, process: Process) -> EventLog:
    """Return the log of a process that reads decisions, and may make some."""
    return member(around, process).log


class Node:
    """One process of stages."""

    def __init__(self, around: Surroundings, process: Process, names: Collection[str]) -> None:
        """Start it."""
        self._around = around
        self._process = process
        self._names = [name for name in names if name != DEPENDENCY_KEEPER.name or around.is_dependent]
        self._member = member(around, process)
        self._is_asked = asyncio.Event()
        process.spawn("node", self._run)

    async def _run(self) -> None:
        around, process, clock = self._around, self._process, self._member.clock
        view = self._member.new_view()
        self._member.view.give(view)
        log = self._member.log
        projections = SimulatedProjections(around.buckets, around.network, process)
        stored = InMemoryStoredLog(around.server)
        ports = Ports(
            settings=around.settings,
            stored=stored,
            log=log,
            projections=projections,
            clock=clock,
        )
        sources = Sources(log, projections, clock)
        channel = _channel(around, process)
        context = replace(context_of(ports, KEY), agents=channel, fetches=channel, fold=partial(getattr, view, "fold"))
        stages = compose(context, self._names)
        if "recorder" in self._names:
            history = SimulatedHistory(around.history, around.network, process)
            recorder = partial(Recorder, log, cast("Any", history), clock, past=stored)
            stages.append(RECORDER.bind(Recorders(recorder(Stream.LOG), recorder(Stream.LEDGER), None)))
        pure, others = split(stages, view, ports)
        around.pure.update({stage.name: stage for stage in pure})
        policy = EdgeDecisions(view, sources)
        leading = self._member.leading(projections, around.settings.leader)
        folds = decide(others)
        others = at_the_edge(others, policy, sources, leading, self._member.name)
        async with self._member.running(pure, leading, view, folds=folds):
            tasks = [
                self._start(stage, partial(self._read, one, policy)) for stage in others for one in stage.subscriptions
            ]
            tasks += [self._start(stage, partial(_for_ever, stage, loop)) for stage in others for loop in stage.loops]
            await self._is_asked.wait()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks or [asyncio.ensure_future(asyncio.sleep(0))])

    def _start(self, stage: BoundStage, start: Callable[[], Coroutine[Any, Any, None]]) -> "asyncio.Task[None]":
        with telemetry.bound(stage=stage.name):
            return self._process.spawn(stage.name, start)

    async def _read(self, subscription: BoundSubscription, policy: EdgeDecisions) -> None:
        intake = Intake(self._around.server, spec_of(subscription), self._around.network, self._process)
        while not self._process.is_stopping:
            await policy.apply(subscription, await intake.take(256, wait=None))

    def stop(self) -> None:
        """In good order: end the terms, free the leases, finish what is in hand."""
        self._process.is_stopping = True
        self._is_asked.set()


def spec_of(subscription: BoundSubscription) -> DurableSpec:
    """A subscription's durable."""
    return DurableSpec(subscription.durable, subscription.stream, subscription.filters, ack_wait=subscription.ack_wait)


async def _for_ever(stage: BoundStage, loop: Callable[[], Coroutine[None, None, None]]) -> None:
    await loop()
    raise RuntimeError(f"a loop of {stage.name} is over")


class WorkerProcess:
    """One process that runs handlers."""

    def __init__(self, around: Surroundings, process: Process) -> None:
        """Start it."""
        handlers = Handlers()
        handlers.add(FUNCTION, handler(around.seed, process, around.work, around.temper))
        log = SimulatedLog(around.server, around.network, process)
        noise = Random(f"{around.seed}/{process.name}/noise")
        name = process.name.partition("#")[0] if around.is_operated else safe_name(process.name)
        reports = ListedReports(log, subjects.token(name))
        connection = Connection(
            reports, _channel(around, process), ProcessClock(process), noise=lambda: f"{noise.getrandbits(128):x}"
        )
        shards = around.declared if process.name.partition("#")[0] != FIRST_WORKER else ()
        options = Options(
            (*QUEUES, ASSIGNED), concurrency=3, shutdown_timeout=3.0, name=name, nats_url=None, shards=shards
        )
        self._shutdown = Shutdown()
        process.spawn("worker", Session(options, handlers, connection, self._shutdown).run)

    def stop(self) -> None:
        """In good order."""
        self._shutdown.request()


def _channel(around: Surroundings, process: Process) -> SimulatedChannel:
    return SimulatedChannel(around.hall, around.network, process)


def outside(around: Surroundings, process: Process) -> OutsideExecutor:
    """One process of executors outside."""
    log = log_of(around, process)
    return OutsideExecutor(around.outside, log, _channel(around, process), process)


def forger(around: Surroundings, process: Process) -> Forger:
    """One process of a hostile worker."""
    log = SimulatedLog(around.server, around.network, process)
    return Forger(around.server, around.network, around.hall, log, _channel(around, process), process, seed=around.seed)


def operator(around: Surroundings, process: Process) -> Operator:
    """One operator."""
    log = log_of(around, process)
    return Operator(around.decided, log, SimulatedProjections(around.buckets, around.network, process), process)


def mq_executor(around: Surroundings, process: Process) -> MqExecutor:
    """One process of executors that know only hip-62's subjects."""
    log = SimulatedLog(around.server, around.network, process)
    intake = Intake(around.server, mq.SPEC, around.network, process)
    return MqExecutor(around.handed, around.server, log, intake, process)


class User:
    """A user who changes jobs and requests runs, and repeats each request until it is confirmed."""

    def __init__(self, around: Surroundings, process: Process) -> None:
        """With the registry that the command line uses."""
        self._log = log_of(around, process)
        self._server = around.server
        self._process = process
        projections = SimulatedProjections(around.buckets, around.network, process)
        self._registry = Registry(self._log, projections, ProcessClock(process))

    async def act(self, action: Action) -> None:
        """Do it, however often it takes."""
        while True:
            try:
                await self._act(action)
            except JobNotFound:
                return
            except (LogUnavailable, OutdatedState):
                await self._process.wait(0.3)
            else:
                return

    async def _act(self, action: Action) -> None:
        match action.verb:
            case "define" | "edit" if action.definition is not None:
                await self._define(action.definition)
            case "pause":
                await self._registry.pause(action.job)
            case "resume":
                await self._registry.resume(action.job)
            case "delete":
                await self._registry.delete(action.job)
            case "trigger":
                subject = _subject_of_user(subjects.trigger(action.job), action.message_id)
                for _ in range(action.times):
                    trigger = Trigger(trigger="manual", input=action.input)
                    await self._log.publish(subject, trigger, message_id=action.message_id)
            case "enqueue" if action.wish is not None:
                with suppress(Duplicate):
                    await enqueue(self._log, action.wish)
            case "replay" | "resolve" | "backfill":
                await self._make_up(action)
            case "cancel":
                await self._cancel(action)

    async def _define(self, definition: JobDefinition) -> None:
        if definition.partition is not None:
            drained = Shard(shard_id=DRAINED_SHARD, state=ShardState.DRAINING)
            await ShardMaps(self._log).apply((*(Shard(shard_id=shard) for shard in SHARDS), drained))
        await self._registry.apply([definition])

    async def _make_up(self, action: Action) -> None:
        if action.verb != "backfill":
            await self._settle(action)
            return
        async for _ in backfill.begin(self._log, _of_the_past(action), ProcessClock(self._process), rate=20.0):
            pass

    async def _settle(self, action: Action) -> None:
        """Replay the newest dead letter under a request name; a repeated request has no further effect."""
        letters = await self._server.read(f"dead-letter.{subjects.token(action.job)}.*.dead-lettered")
        for recorded in letters[-1:]:
            letter = recorded.subject.split(".")[2]
            with suppress(OperationError, DefinitionError):
                for _ in range(action.times):
                    if action.verb == "resolve":
                        await dead_letters.resolve(self._log, letter, reason="it does not matter")
                    else:
                        await dead_letters.replay(self._log, letter, again=True, request=action.message_id)

    async def _cancel(self, action: Action) -> None:
        """One that was planned lately, by message as the public may."""
        prefix = f"execution.{subjects.token(action.job)}.*.{action.what}"  # an admission may also be a task
        planned = [*await self._server.read(prefix), *await self._server.read(f"{prefix}.>")]
        for recorded in sorted(planned, key=lambda recorded: recorded.sequence)[-action.times :]:
            subject = subjects.cancel(action.job, recorded.subject.split(".")[2])
            await self._log.publish(_subject_of_user(subject, subject), CancelRequest(), message_id=subject)


def _of_the_past(action: Action) -> backfill.Backfill:
    instants = tuple(ManualClock().now() - timedelta(seconds=n) for n in range(1, 4))
    return backfill.Backfill(action.job, action.message_id, instants, named=3, fired=0, missing=3)


__all__ = ["ACK_WAIT", "Node", "Surroundings", "User", "WorkerProcess", "forger", "mq_executor", "operator", "spec_of"]


def _subject_of_user(subject: str, message_id: str) -> str:
    """Return the subject for a request: half of the users are programs outside."""
    return f"{subjects.PUBLIC_INPUTS}{subject}" if crc32(message_id.encode()) % 2 else subject
