"""One schedule: hours of faults in a few seconds, then peace, in which everything must finish."""

import asyncio
import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from itertools import pairwise
from random import Random
from string import ascii_lowercase
from typing import Any, Final, Literal, TypeAlias

import structlog

from tocsin.bootstrap import STAGE_NAMES

from . import faults as faults_
from . import judgement
from .agents import Hall
from .cast import SETTINGS, Node, Surroundings, User, WorkerProcess, forger, mq_executor, operator, outside
from .clock import ServerClock
from .commits import CommitServer, foreign_body
from .focus import Focus, focus_of
from .forger import Forger
from .history import InMemoryHistory
from .loop import Deadlock, Endless, VirtualLoop
from .mq import MqExecutor
from .network import Network
from .operators import Decision, at_the_end
from .outside import OutsideExecutor
from .process import Process, adopt, current, wake
from .server import SimulatedBuckets, SimulatedServer
from .trace import Trace
from .workload import Action

TROUBLE: Final = (6.0, 25.0)
"""Seconds for which things go wrong."""
PEACE: Final = 400.0
"""Seconds within which all must be over, once nothing goes wrong any more."""
LOOK: Final = 1.0
SNAPSHOTS: Final = 0.4
"""The share of schedules in which processes begin with snapshots."""
FAR: Final = "node-1"
"""The machine that is far away, where one is."""

Engine: TypeAlias = Literal["fused", "separate", "mixed"]
"""Processes have all stages, one stage each, or random stages."""
_SHARES: Final[tuple[Engine, ...]] = ("fused", "fused", "fused", "mixed", "mixed", "separate")
"""The layouts of seeds, in their shares."""
Played: TypeAlias = Node | WorkerProcess | OutsideExecutor | MqExecutor | Forger


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a schedule. `violations` holds the invariants first."""

    seed: int
    violations: tuple[str, ...]
    digest: str
    facts: int
    seconds: float
    trace: Trace
    engine: Engine

    def without_trace(self) -> "Result":
        """The same, lighter to carry about."""
        return replace(self, trace=Trace())


@dataclass(slots=True)
class Seat:
    """A role in the cast: the process that plays it dies and is replaced."""

    name: str
    play: Callable[[Process], Played]
    process: Process | None = None
    played: Played | None = None
    generation: int = 0


@dataclass(slots=True)
class Simulation:
    """One schedule, from its seed on."""

    seed: int
    engine: Engine
    trace: Trace = field(default_factory=Trace)
    defects: list[str] = field(default_factory=list)
    tasks: "list[asyncio.Task[Any]]" = field(default_factory=list)
    chance: Random = field(init=False)
    loop: VirtualLoop = field(init=False)
    clock: ServerClock = field(init=False)
    around: Surroundings = field(init=False)
    focus: Focus = field(init=False)
    faults: faults_.Faults = field(init=False)
    seats: list[Seat] = field(default_factory=list)
    is_peace: bool = False

    def __post_init__(self) -> None:
        """Set the scene."""
        self.chance = Random(f"{self.seed}/events")
        self.loop = VirtualLoop(self._started)  # type: ignore[abstract] # the simulation uses no other method
        self.clock = ServerClock(self.loop)
        self.focus = focus_of(self.seed)
        self.faults = self.focus.troubled(faults_.draw(Random(f"{self.seed}/faults")))
        network = Network(self.loop, Random(f"{self.seed}/network"), self.trace, self.faults, on_crash=self._replace)
        server = SimulatedServer(self.clock, network)
        settings = SETTINGS.model_copy(update={"queues": {**SETTINGS.queues, **self.focus.queues}})
        self.around = Surroundings(
            self.seed,
            network,
            server,
            CommitServer(self.clock, network, server, settings),
            SimulatedBuckets(self.clock),
            InMemoryHistory(),
            self.focus.temper,
            settings,
            self.focus.fetched,
            self.focus.decisions is not None,
            hall=Hall(*self.focus.loss),
            is_dependent=self.focus.is_dependent,
            declared=self.focus.declared,
            has_snapshots=Random(f"{self.seed}/snapshots").random() < SNAPSHOTS,
        )

    def run(self) -> Result:
        """Play it."""
        try:
            violations = self.loop.run(self._main())
        except Deadlock:
            violations = ["progress: everybody waits for ever"]
        except Endless:
            violations = ["progress: there is no end to it"]
        for task in self.loop.end(self.tasks):
            violations.append(f"plumbing: {task} does not end")
        found = (*dict.fromkeys(self.defects), *self.loop.errors, *violations)
        facts = sum(stream.last_sequence for stream in self.around.server._streams.values())
        return Result(self.seed, found, self.trace.digest(), facts, self.loop.time(), self.trace, self.engine)

    async def _main(self) -> list[str]:
        workload = Random(f"{self.seed}/workload")
        until = workload.uniform(*TROUBLE)
        script = self.focus.actions(workload, until)
        self._cast(workload)
        doing = [self._user("user", [action]) for action in script]
        decisions = self.focus.decisions
        if decisions is not None:
            doing += [self._operator([each]) for each in decisions(Random(f"{self.seed}/operators"), until)]
        happening = [self.loop.create_task(event) for event in self._events()]
        await self._sleep(until)
        for event in happening:
            event.cancel()
        self._make_peace()
        await asyncio.wait(doing)
        end = [Action(0.0, "delete", job) for job in dict.fromkeys(action.job for action in script)]
        if workload.random() < 0.5:
            await self._sleep(workload.uniform(0.0, 6.0))
        shown = await self._shown()
        await asyncio.wait([self._user("janitor", end)])
        if decisions is not None:
            await asyncio.wait([self._operator(at_the_end())])
            self._replace_drained()
        return shown + await self._settled()

    async def _shown(self) -> list[str]:
        """Return differences in the definitions as projected, while there are any."""
        deadline = self.loop.time() + PEACE / 4
        while self.loop.time() < deadline and not judgement.is_registered(self.around):
            await self._sleep(LOOK)
        return judgement.wrong_definitions(self.around)

    async def _settled(self) -> list[str]:
        deadline = self.loop.time() + PEACE
        await self._sleep(2 * LOOK)
        while (left := judgement.left_over(self.around)) and self.loop.time() < deadline:
            await self._sleep(LOOK)
        if left:
            return [f"progress: {one}" for one in left] + judgement.violations(self.around)
        return judgement.violations(self.around)

    def _make_peace(self) -> None:
        self.is_peace = True
        self.around.network.faults = faults_.NONE
        self._note("--", "peace")
        for seat in self.seats:
            if seat.process is not None and seat.process.is_alive:
                seat.process.thaw()
                seat.process.skew = timedelta()
                seat.process.distance = 0.0
            else:
                self._seat(seat)

    def _cast(self, chance: Random) -> None:
        for number in range(chance.choice(self.focus.nodes)):
            parts = _layout(self.engine, Random(f"{self.seed}/{number}/layout"))
            for part, names in enumerate(parts):
                name = f"node-{number + 1}" + ("" if len(parts) == 1 else ascii_lowercase[part])
                self.seats.append(Seat(name, partial(self._node, names)))
        for number in range(chance.choice(self.focus.workers)):
            self.seats.append(Seat(f"worker-{number + 1}", lambda process: WorkerProcess(self.around, process)))
        for number in range(self.focus.outside):
            self.seats.append(Seat(f"outside-{number + 1}", partial(outside, self.around)))
        for number in range(self.focus.mq):
            self.seats.append(Seat(f"mq-{number + 1}", partial(mq_executor, self.around)))
        for number in range(self.focus.forgers):
            self.seats.append(Seat(f"forger-{number + 1}", partial(forger, self.around)))
        for seat in self.seats:
            self._seat(seat)

    def _node(self, names: tuple[str, ...], process: Process) -> Node:
        return Node(self.around, process, names)

    def _seat(self, seat: Seat) -> None:
        if seat.process is not None and seat.process.is_alive:
            return
        seat.generation += 1
        skew = timedelta(seconds=round(self.chance.uniform(-1.0, 1.0) * self.around.network.faults.skew, 3))
        seat.process = self._process(f"{seat.name}#{seat.generation}", skew)
        if seat.name.startswith(FAR):
            seat.process.distance = self.around.network.faults.distant
        self._note(seat.process.name, f"** starts, its clock off by {skew.total_seconds()}s")
        seat.played = seat.play(seat.process)

    def _process(self, name: str, skew: timedelta = timedelta()) -> Process:
        behind = -self.chance.uniform(0.0, 1_000.0)
        return Process(name, self.loop, self.clock, skew, behind, on_defect=lambda what: self._defect(name, what))

    def _replace(self, process: Process) -> None:
        for seat in self.seats:
            if seat.process is process:
                delay = 0.5 if self.is_peace else self.chance.choice((0.1, 1.0, 5.0))
                self.loop.call_later(delay, self._seat, seat)

    def _defect(self, name: str, what: str) -> None:
        self._note(name, f"** {what}")
        self.defects.append(f"plumbing: {name.split('#', maxsplit=1)[0]}: {what}")

    def _user(self, name: str, script: list[Action]) -> "asyncio.Task[None]":
        process = self._process(name)
        user = User(self.around, process)

        async def act() -> None:
            for action in script:
                await process.wait(max(0.0, action.at - self.loop.time()))
                self._note(name, f"** {action.verb} {action.job} {action.message_id}")
                await user.act(action)

        return process.spawn(name, act)

    def _operator(self, script: list[Decision]) -> "asyncio.Task[None]":
        process = self._process("operator")
        decider = operator(self.around, process)

        async def act() -> None:
            for decision in script:
                await process.wait(max(0.0, decision.at - self.loop.time()))
                self._note(process.name, f"** decides to {decision.verb} {decision.name} {decision.queue}")
                await decider.act(decision)

        return process.spawn(process.name, act)

    def _replace_drained(self) -> None:
        """Replace the workers that take no more tasks."""
        for seat in self.seats:
            if seat.name in self.around.decided.drained:
                self._stop(seat)

    def _events(self) -> list[Any]:
        faults = self.faults
        happening: tuple[tuple[float, Callable[[], None]], ...] = (
            (faults.deploys, self._deploy),
            (faults.server_restarts, self._restart_server),
            (faults.redeliveries, self._redeliver),
            (faults.clock_steps, self._step_clock),
            (faults.foreign, self._store_foreign),
        )
        return [self._every(mean, event) for mean, event in happening if mean]

    async def _every(self, mean: float, event: Callable[[], None]) -> None:
        while True:
            await self._sleep(self.chance.expovariate(1.0 / mean))
            event()

    def _deploy(self) -> None:
        self._stop(self.chance.choice(self.seats))

    def _stop(self, seat: Seat) -> None:
        """Stop a process in good order; another replaces it."""
        process, played = seat.process, seat.played
        if process is None or played is None or not process.is_alive or process.is_stopping:
            return
        self._note(process.name, "** is asked to stop")
        process.is_stopping = True
        token = current.set(process)
        played.stop()
        current.reset(token)
        self.loop.call_later(4.0, self.around.network.kill, process)

    def _restart_server(self) -> None:
        self._note("server", "** restarts, and counts deliveries anew")
        for durable in self.around.server._durables.values():
            for sequence, out in durable._out.items():
                out.delivered = 0
                if out.alarm is not None:
                    out.alarm.cancel()
                durable._requeue(sequence)

    def _redeliver(self) -> None:
        durables = list(self.around.server._durables.values())
        if not durables:
            return
        durable = self.chance.choice(durables)
        if durable._upto:
            durable.again(self.chance.randint(1, durable._upto))

    def _store_foreign(self) -> None:
        commits = self.around.commits
        self._note("server", "** a foreign message is stored in the log")
        commits.publish(foreign_body(commits.stored, self.chance))

    def _step_clock(self) -> None:
        process = self.chance.choice(self.seats).process
        if process is not None:
            step = self.chance.choice((-3600.0, -30.0, -5.0, -1.5, 1.5, 5.0, 9.0, 30.0, 3600.0))
            process.skew += timedelta(seconds=step)
            self._note(process.name, f"** its clock is set by {step}s")
            self.loop.call_later(self.chance.uniform(2.0, 8.0), self._set_right, process)

    def _set_right(self, process: Process) -> None:
        process.skew = timedelta()

    async def _sleep(self, seconds: float) -> None:
        awake: asyncio.Future[None] = self.loop.create_future()
        self.loop.call_later(seconds, wake, awake)
        await awake

    def _started(self, task: "asyncio.Task[Any]") -> None:
        self.tasks.append(task)
        adopt(task)

    def _note(self, who: str, what: str) -> None:
        self.trace.note(self.loop.time(), who, what)


def _layout(engine: Engine, chance: Random) -> Sequence[tuple[str, ...]]:
    """Return the stages of each process of a node."""
    names = list(STAGE_NAMES)
    if engine == "fused":
        return [tuple(names)]
    if engine == "separate":
        return [(name,) for name in names]
    chance.shuffle(names)
    ends = sorted(chance.sample(range(1, len(names)), chance.randint(1, 5)))
    return [tuple(names[first:last]) for first, last in pairwise((0, *ends, len(names)))]


def engine_of(seed: int) -> Engine:
    """Return the layout that a seed plays unless a caller names another."""
    return Random(f"{seed}/engine").choice(_SHARES)


def play(seed: int, engine: Engine | None = None) -> Result:
    """Play the schedule of a seed, in the layout of the seed if `engine` names none."""
    with quiet():
        try:
            gc.disable()  # a third of the time would go into looking for garbage that the end of the schedule brings anyway
            return Simulation(seed, engine or engine_of(seed)).run()
        finally:
            gc.enable()


def play_lightly(seed: int, engine: Engine | None = None) -> Result:
    """The same, without its trace."""
    return play(seed, engine).without_trace()


class quiet:  # noqa: N801 - a context manager, used as a verb
    """No log lines: a schedule writes thousands."""

    def __enter__(self) -> None:
        self._before = structlog.get_config()
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))

    def __exit__(self, *_: object) -> None:
        structlog.configure(**self._before)
