"""The log of commits in the simulation: its server, and the processes that read it and store in it.

The server explodes each commit into the streams of the simulated server, as messages under their subjects, for rules and audits. It folds the log as it grows, so that a process's fold can be compared.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property, partial
from random import Random
from typing import Final

from tests.commits.processes import NAMES, bound, same_state
from tests.domain.given import KEY
from tests.stored_events import StoredEvents
from tocsin import subjects
from tocsin.adapters.commit_view import CommitView
from tocsin.adapters.memory.archive import InMemoryProjections
from tocsin.adapters.routed_log import RoutedLog
from tocsin.bootstrap.commit_process import KEY as KEY_ID
from tocsin.bootstrap.commit_process import PARTITION, CommitProcess
from tocsin.bootstrap.commits import of_loop
from tocsin.bootstrap.effects import Effects
from tocsin.bootstrap.leading import Leading
from tocsin.domain.commit import Commit, LogHead, OverlappingRanges, Seal
from tocsin.domain.events import Message, Recorded, Started
from tocsin.domain.log_events import is_log_event
from tocsin.engine.causes import Effect
from tocsin.engine.commit_loop import MAX_SLEEP_S
from tocsin.engine.commit_writer import Chain
from tocsin.engine.fold import EVENTS, Fold
from tocsin.engine.fresh_fold import apply
from tocsin.engine.report_lists import decode, listed
from tocsin.engine.snapshots import Folding, Snapshots
from tocsin.engine.stage import BoundStage
from tocsin.ports import Batch, Clock, Decode, InputLog, LogUnavailable, Projections, Write, Written
from tocsin.ports.commit_log import Bodies, CommitRefused, ReceiveTurn, StoredBody
from tocsin.services.audit.decide_again import DecideAgain, Input
from tocsin.settings import Leader, Settings
from tocsin.stages.matcher.stage import FILTERS as SEEN_EARLY
from tocsin.stages.recoverer import RECOVERER, Recoverer
from tocsin.stages.registrar import REGISTRAR, Registrar
from tocsin.subjects import DECISION_STREAMS, Stream

from .clock import ServerClock
from .network import InFlight, Network
from .ports import SimulatedLog
from .process import Process, ProcessClock
from .server import SimulatedServer

INSTALLATION: Final = "tocsin"
FOLD_KEY: Final = KEY
FAR_BEHIND: Final = 3
"""Messages that a lagging leader of the stream lacks, at most."""
SNAPSHOT_S: Final = (0.5, 4.0)
"""Seconds between two snapshots."""
ANOTHER: Final = 0.3
"""The share of snapshots that a process writes although another process should."""
A_DAY: Final = timedelta(days=1)


def seal() -> Seal:
    """Return the seal of the installation."""
    return Seal(INSTALLATION, PARTITION, {KEY_ID: FOLD_KEY})


@dataclass(slots=True)
class CommitServer:
    """The messages of the log, in the order of the server."""

    clock: ServerClock
    network: Network
    exploded: SimulatedServer
    settings: Settings
    stored: list[StoredBody] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    again: DecideAgain = field(init=False)
    """Decides each commit again as it is stored, by equality (b) of the design."""
    chain: Chain = field(init=False)
    foreign: int = 0
    deliveries: int = 0
    """Followers that have not received yet what is stored."""
    stored_at: dict[int, datetime] = field(default_factory=dict)
    """When the server stored each event (UTC), by its number."""
    turns: "list[tuple[Process, ReceiveTurn]]" = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _in_flight: int = 0

    def __post_init__(self) -> None:
        """Begin with an empty log."""
        self.chain = Chain(seal(), LogHead(KEY_ID), self._note_foreign)
        self.again = DecideAgain(self._stages, FOLD_KEY)

    def _stages(self) -> list[BoundStage]:
        recoverer = RECOVERER.bind(Recoverer.of(KEY, self.settings))
        registrar = of_loop(REGISTRAR.bind(Registrar(KEY)))
        return [*bound([name for name in NAMES if name != recoverer.name]), recoverer, registrar]

    def _note_foreign(self, _stored: StoredBody, _reason: str) -> None:
        self.foreign += 1

    @property
    def last(self) -> int:
        """The last sequence."""
        return self.stored[-1].sequence if self.stored else 0

    def accept(self, body: bytes, expect: int) -> int | InFlight:
        """Store a commit under its guard, at once or when the replicas have it."""
        chance, faults = self.network.chance, self.network.faults
        if self.last and chance.random() < faults.lagging_leader:
            raise CommitRefused(PARTITION, max(0, self.last - chance.randint(1, FAR_BEHIND)))
        if self._in_flight:
            raise CommitRefused(PARTITION, None)
        if self.last != expect:
            raise CommitRefused(PARTITION, self.last)
        if not faults.replicating:
            return self.receive(body)
        self._in_flight += 1
        return InFlight(chance.uniform(0.0, faults.replicating), partial(self._land, body))

    def _land(self, body: bytes) -> int:
        self._in_flight -= 1
        return self.receive(body)

    def publish(self, body: bytes) -> None:
        """Store bytes without a guard, as a foreign publisher does; not while a commit is on its way to the replicas."""
        if not self._in_flight:
            self.receive(body)

    def receive(self, body: bytes) -> int:
        """Store a message, and look at it as every reader does."""
        self.stored.append(StoredBody(self.last + 1, self.clock.now(), body))
        number = self.chain.head.number
        if (commit := self.chain.take(self.stored[-1])) is not None:
            try:
                differences = self.again.take(commit, self._inputs_of(commit))
            except OverlappingRanges as error:
                self.violations.append(f"I3: something was decided twice: {commit.writer}, after {number}: {error}")
            else:
                self.violations += (
                    f"AGAIN: {commit.writer} stored {one.number} of {one.stage} on {one.cause}: {one.reason}"
                    for one in differences
                )
            self.commits.append(commit)
            self._explode(commit)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        return self.last

    @property
    def fold(self) -> Fold:
        """The fold of all commits."""
        return self.again.fold

    def _inputs_of(self, commit: Commit) -> dict[Input, list[Recorded[Message]]]:
        found: dict[Input, list[Recorded[Message]]] = {}
        for source, place in self.again.inputs_of(commit):
            if (entry := self.exploded.stream(Stream(source)).get(place)) is not None:
                found[source, place] = list(listed(entry.recorded(decode)))
        return found

    def _explode(self, commit: Commit) -> None:
        for number, event in enumerate(commit.events, commit.first):
            if is_log_event(event.subject):
                continue
            self.stored_at[number] = self.stored[-1].time
            stream = self.exploded.stream(subjects.stream_of(event.subject))
            stream.last_sequence = number - 1
            stream.store(event.subject, bytes(event.body), time=commit.at)

    async def newer(self, after: int) -> list[StoredBody]:
        """Wait for messages after a sequence, and return all."""
        while self.last <= after:
            await self._changed.wait()
        return [stored for stored in self.stored if stored.sequence > after]

    def differs(self, fold: Fold, number: int, *, is_from_snapshot: bool) -> bool:
        """Return whether a fold is not that of the log up to an event.

        Commits without events may be in it or not. The writer of a snapshot may have no stages, and then it let go of states
        that a stage without a term has not taken.
        """
        begins = (fold.stages, frozenset[str]()) if is_from_snapshot else (fold.stages,)
        return all(self._differs(fold, number, stages) for stages in begins)

    def _differs(self, fold: Fold, number: int, stages: frozenset[str]) -> bool:
        fresh = Fold(FOLD_KEY)
        fresh.stages = stages
        is_known = False
        for commit in self.commits:
            if commit.first > number + 1:
                break
            apply(fresh, commit)
            if commit.first + len(commit.events) - 1 == number:
                is_known = True
                if same_state(fresh, fold):
                    return False
        return is_known


@dataclass(frozen=True)
class StoredCommits(StoredEvents):
    """All that is stored, where decisions are commits."""

    stored_at: Mapping[int, datetime] = field(default_factory=dict)

    @cached_property
    def in_order(self) -> Sequence[Recorded[Message]]:
        """The log and the reports in the order of the server: the time of a commit is no later than its storage."""
        events = ((self.stored_at[recorded.sequence], recorded) for recorded in self.log)
        reports = ((recorded.time, recorded) for recorded in self.reports)
        return [recorded for _, recorded in sorted((*reports, *events), key=lambda stored: stored[0])]


class SimulatedCommits:
    """Implements `ports.CommitLog` for one process."""

    def __init__(self, server: CommitServer, network: Network, process: Process) -> None:
        self._server = server
        self._network = network
        self._process = process
        self._unanswered: bytes | None = None
        """The commit that the server may have stored, for all that the process knows."""

    async def append(self, partition: int, body: bytes, *, expect: int) -> int:
        del partition
        if self._unanswered not in {None, body}:
            self._server.violations.append(f"SENT: {self._process.name} sent a commit while another was not answered")
        self._unanswered = body
        answer = partial(self._server.accept, body, expect)
        try:
            sequence = await self._network.ask(self._process, f"append a commit behind {expect}", answer)
        except CommitRefused:
            self._unanswered = None
            raise
        self._unanswered = None
        return sequence

    async def next(self, partition: int, *, after: int) -> StoredBody | None:
        del partition
        stored = self._server.stored

        def answer() -> StoredBody | None:
            return stored[after] if after < len(stored) else None

        return await self._network.ask(self._process, f"next after {after}", answer, is_read=True)

    async def follow(self, partition: int, *, after: int) -> AsyncGenerator[Bodies, None]:
        del partition
        yield Bodies(bodies := self._server.stored[after:], caught_up=True, upto=after + len(bodies))
        after += len(bodies)
        while True:
            bodies = await self._server.newer(after)
            self._server.deliveries += 1
            try:
                await self._process.wait(self._network.following(self._process))
            finally:
                self._server.deliveries -= 1
            after = bodies[-1].sequence
            yield Bodies(bodies, caught_up=True, upto=after)

    async def now(self) -> datetime:
        return await self._network.ask(self._process, "read the time", self._server.clock.now, is_read=True)

    async def purge(self, partition: int, *, upto: int) -> None:
        raise NotImplementedError


class SimulatedTurns:
    """Implements `ports.TurnChannel` for one process."""

    def __init__(self, server: CommitServer, network: Network, process: Process) -> None:
        self._server = server
        self._network = network
        self._process = process

    async def ask(self, name: str) -> None:
        self._process.check()
        if self._network.chance.random() < self._network.faults.lost:
            raise LogUnavailable("a turn")
        for process, receive in tuple(self._server.turns):
            process.call_later(self._network.latency(process), partial(receive, name))

    @asynccontextmanager
    async def asked(self, receive: ReceiveTurn) -> AsyncIterator[None]:
        entry = self._process, receive
        self._server.turns.append(entry)
        try:
            yield
        finally:
            self._server.turns.remove(entry)


class JudgedView(CommitView):
    """A view that compares the fold of its process whenever something is undone."""

    judge: CommitServer

    def undone(self, scopes: Iterable[str], newest: int, /) -> None:
        scopes = list(scopes)
        super().undone(scopes, newest)
        if self.is_folding and self.judge.differs(self.fold, newest, is_from_snapshot=self.loop.places.begins_after(1)):
            self.judge.violations.append(f"I8: a fold differs from a fresh one after an undo at {newest}")


class JudgedEffects(Effects):
    """Effects that are judged: no decision may be announced before it is stored (I11)."""

    def __init__(self, inputs: InputLog, clock: Clock, judge: CommitServer, view: CommitView, name: str) -> None:
        super().__init__(inputs, clock)
        self._judge, self._view, self._name = judge, view, name

    async def send(self, effects: Sequence[tuple[str, Effect]]) -> None:
        if effects and len(self._view.fold.journal):
            self._judge.violations.append(f"I11: {self._name} told what is not stored: {effects[0]}")
        await super().send(effects)


async def keep_often(
    snapshots: Snapshots, chance: Random, folding: Folding, clock: Clock, may_write: Callable[[], bool]
) -> None:
    """Write a snapshot after a few seconds, whether it is time or not."""
    while True:
        await clock.sleep(chance.uniform(*SNAPSHOT_S))
        with suppress(LogUnavailable):
            if may_write() or chance.random() < ANOTHER:
                await snapshots.save_if_due(folding, clock.now() + A_DAY)


class SimulatedRoutedLog(RoutedLog):
    """The log of inputs and the view of decisions, as one process has them."""

    def __init__(self, base: SimulatedLog, view: "ReadView", network: Network, process: Process) -> None:
        super().__init__(base, view)
        self.base: SimulatedLog = base
        self._network = network
        self._process = process

    async def append(self, fact: Message, *, expect: int) -> int:
        self.base.note_claims((fact,))
        return await super().append(fact, expect=expect)

    async def write(self, writes: Sequence[Write]) -> list[Written]:
        claims = [event for write in writes for event in getattr(write, "events", ()) if isinstance(event, Started)]
        self.base.note_claims(claims)
        return await super().write(writes)

    async def follow(
        self, stream: Stream, *filters: str, after: int | None, decode: Decode = subjects.decode
    ) -> AsyncGenerator[Batch, None]:
        async for batch in super().follow(stream, *filters, after=after, decode=decode):
            if stream in DECISION_STREAMS:
                await self._process.wait(0.0 if filters == SEEN_EARLY else self._network.latency(self._process))
                self.base.note_reading(filters, batch)
            yield batch


class ReadView:
    """The view of a process, which reads the log of commits from the first request for the view."""

    def __init__(self, member: "Member") -> None:
        self._member = member
        self._ready: asyncio.Future[CommitView] | None = None

    async def __call__(self) -> CommitView:
        if self._ready is None:
            self._ready = self._member.process.loop.create_future()
            self._member.process.spawn("commits", self._read)
        return await asyncio.shield(self._ready)

    def give(self, view: CommitView) -> None:
        """Use a view that the process folds anyway."""
        self._ready = self._member.process.loop.create_future()
        self._ready.set_result(view)

    async def _read(self) -> None:
        assert self._ready is not None
        async with self._member.running([]) as view:
            self._ready.set_result(view)
            await asyncio.Event().wait()


class Member:
    """One process of the installation on the log of commits."""

    def __init__(
        self, server: CommitServer, network: Network, process: Process, name: str, projections: Projections | None
    ) -> None:
        """`name`: that of no other process. `projections`: where snapshots are; None: there are none."""
        self._server = server
        self._network = network
        self.process = process
        self.clock = ProcessClock(process)
        self._commits = SimulatedCommits(server, network, process)
        self.inputs = SimulatedLog(server.exploded, network, process)
        self.view = ReadView(self)
        self.log = SimulatedRoutedLog(self.inputs, self.view, network, process)
        self.name = name
        self._projections = projections
        self._chance = Random(f"{name}/snapshots")
        self._cuts = Random(f"{name}/cuts")
        self._seconds = 0.0

    def new_view(self) -> JudgedView:
        """Return a view of the log from its beginning."""
        snapshots = Snapshots(self._projections or InMemoryProjections(self._server.clock), b"")
        view = JudgedView(self._commits, PARTITION, seal(), snapshots, early=SEEN_EARLY)
        view.judge = self._server
        return view

    def leading(self, projections: Projections, leader: Leader) -> Leading:
        """Return what the leases of stages need."""
        return Leading(projections, self.inputs, self.clock, leader, finish_within=leader.ttl)

    @asynccontextmanager
    async def running(
        self,
        stages: Sequence[BoundStage],
        leading: Leading | None = None,
        view: JudgedView | None = None,
        *,
        folds: bool = False,
    ) -> AsyncIterator[CommitView]:
        """Decide for stages within the block."""
        view = view or self.new_view()
        commits = CommitProcess(
            self._commits,
            self.inputs,
            self.clock,
            FOLD_KEY,
            installation=INSTALLATION,
            name=self.name,
            turns=SimulatedTurns(self._server, self._network, self.process),
            wake_at=self._wake_at,
            steady=self._steady,
            projections=self._projections,
        )
        if commits.snapshots is not None:
            keep = partial(keep_often, commits.snapshots, self._chance)
            commits.snapshots.keep = keep  # type: ignore[method-assign]
        commits.effects = JudgedEffects(self.inputs, self.clock, self._server, view, self.name)
        async with commits.running(stages, view, leading) if stages or folds else commits.reading(view):
            yield view

    def _steady(self) -> float:
        """Return the seconds of deciding: none pass, or more than a commit may take."""
        if self._cuts.random() < self._network.faults.cut:
            self._seconds += 1.0
        return self._seconds

    def _wake_at(self, instant: datetime, call: Callable[[], None]) -> "_Alarm":
        alarm = _Alarm(call)
        seconds = (instant - self.clock.now()).total_seconds()
        self.process.call_later(min(max(seconds, 0.0), MAX_SLEEP_S), alarm)
        return alarm


class _Alarm:
    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call

    def __call__(self) -> None:
        if self._call is not None:
            self._call()

    def cancel(self) -> None:
        self._call = None


def foreign_body(stored: Sequence[StoredBody], chance: Random) -> bytes:
    """Return what a foreign publisher stores: a copy of a commit, a changed one, a forged one, or anything."""
    kind = chance.choice(("copy", "copy", "changed", "forged", "anything"))
    if kind == "anything" or not stored:
        return bytes(chance.randrange(256) for _ in range(chance.choice((0, 1, 65, 300))))
    body = chance.choice(stored[-6:]).body
    if kind == "copy":
        return body
    if kind == "changed":
        place = chance.randrange(max(1, len(body)))
        return body[:place] + bytes([(body[place] + 1) % 256] if body else b"x") + body[place + 1 :]
    other = Seal(INSTALLATION, PARTITION, {KEY_ID: bytes(32)})
    return other.write(LogHead(KEY_ID), writer="x", at=LogHead(KEY_ID).at, taken={}, events=[]).body[:65] + body[65:]


def untaken(server: CommitServer, stages: Collection[BoundStage]) -> list[str]:
    """Return the stored inputs and events that a stage has not taken."""
    left = []
    for stage in stages:
        for subscription in stage.subscriptions:
            source = EVENTS if subscription.stream in DECISION_STREAMS else subscription.stream.value
            position = server.fold.position(stage.name, source)
            entries = server.exploded.stream(subscription.stream).matching(tuple(subscription.filters), 0)
            left += [
                f"{stage.name} has not taken {entry.subject} {entry.sequence}"
                for entry in entries
                if not position.has(entry.sequence)
            ]
    return left
