"""The stages on the log of commits in memory, for tests in the manner of given, when, then."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import msgspec

from tests.domain.given import KEY
from tests.stages.process import BEGIN, PARTITION, SEAL, Process, WatchedInputs, WorldLog
from tocsin import subjects, telemetry
from tocsin.adapters.commit_stored import CommitStoredLog
from tocsin.adapters.commit_view import CommitView
from tocsin.adapters.memory.archive import InMemoryArchiveStore, InMemoryStoredLog
from tocsin.adapters.memory.commit_log import InMemoryCommitLog
from tocsin.adapters.memory.event_streams import InMemoryEventStreams
from tocsin.archive.commit_reader import CommitReader
from tocsin.archive.log_archive import LogArchive
from tocsin.bootstrap.commits import LED, at_edge, of_loop
from tocsin.domain import ledger
from tocsin.domain.commit import CommitEvent, Seal
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import CancelRequest, Message, Recorded, Trigger, unfold
from tocsin.domain.log_events import LogEvent, encode, is_log_event
from tocsin.domain.trace_context import Sampling
from tocsin.engine.clock_guard import ClockGuard
from tocsin.engine.commit_writer import Chain
from tocsin.engine.edge import EdgeDecisions
from tocsin.engine.leader_election import LeaderElection
from tocsin.engine.ledger_reader import LedgerReader
from tocsin.engine.snapshots import Snapshots
from tocsin.engine.stage import BoundStage, BoundSubscription, StageContext
from tocsin.engine.step import Sources
from tocsin.settings import Queue, Settings
from tocsin.stages import STAGES
from tocsin.subjects import DECISION_STREAMS, Stream
from tocsin.testing import DurableSpec, InMemoryProjections, ManualClock

M = TypeVar("M", bound=Message)
SETTINGS: Final = Settings(queues={"default": Queue(transport="mq")})  # so that the bridge has a queue
INPUTS: Final = (Stream.REQUESTS, Stream.REPORTS)


async def seal() -> Seal:
    return SEAL


class World:
    """A log, and stages that read it on request."""

    def __init__(self, sampling: Sampling | None = None) -> None:
        self.clock = ManualClock()
        self.commits = InMemoryCommitLog(self.clock)
        self.inputs = WatchedInputs(self.clock)
        self.projections = InMemoryProjections(self.clock)
        self.turn = asyncio.Lock()
        """Held by the process that decides, so that no process is refused."""
        self.view = CommitView(self.commits, PARTITION, SEAL, Snapshots(self.projections, KEY))
        self.parts = Process(self, (), self.view)
        self.view.fold, self.view.is_folding, self.view.loop = self.parts.fold, True, self.parts.loop
        self.view.begin(self.parts.chain, 0)
        self.log = WorldLog(self.inputs, self.view)
        commits, archive = (
            CommitReader(self.commits, PARTITION, seal, "k1"),
            LogArchive(InMemoryArchiveStore(), self.projections),
        )
        self.past = CommitStoredLog(InMemoryStoredLog(self.inputs), commits, archive, self._newest)
        """Every message ever stored, as readers of the past see it."""
        self.sources = Sources(self.log, self.projections, self.clock)
        self.decisions = EdgeDecisions(self.view, self.sources)
        self._processes: dict[tuple[str, ...], Process] = {}
        self._places: dict[str, int] = defaultdict(int)
        self._later: dict[str, list[tuple[datetime, Recorded[Message]]]] = defaultdict(list)
        """Events of followers that wait, and until when, by durable."""
        self._chain, self._events = Chain(SEAL, BEGIN), list[Recorded[Message]]()
        """The place up to which the decisions were read, and the decisions."""
        context = StageContext(
            settings=SETTINGS,
            log=self.log,
            projections=self.projections,
            clock=self.clock,
            stored=self.past,
            report_key=KEY,
            elect=self.elect,
            fold=lambda: self.parts.fold,
            sampling=sampling,
            event_streams=InMemoryEventStreams(self.inputs, {}),
        )
        bound = (stage.run_in(context) for stage in STAGES if stage.subscriptions or stage.deadlines)
        self.stages: Final = {stage.name: stage for stage in bound if stage is not None}

    def __getattr__(self, name: str) -> BoundStage:
        """Return a stage by its name."""
        stages: dict[str, BoundStage] = self.__dict__.get("stages", {})
        if name not in stages:
            raise AttributeError(name)
        return stages[name]

    def elect(self, lease: str, *, ttl: float | None = None) -> LeaderElection:
        """Return a candidate for a leader lease."""
        del ttl
        return LeaderElection(self.projections, ClockGuard(self.log, self.clock), key=lease, holder="test")

    async def _newest(self) -> int:
        return self.view.number

    async def given(self, *facts: Message) -> None:
        """Facts that are in the log already."""
        decided, others = list[Message](), list[Message]()
        for fact in facts:
            is_decided = subjects.stream_of(subjects.subject_of(fact)) in DECISION_STREAMS
            (decided if is_decided else others).append(fact)
        for first in range(0, len(decided), 1_000):
            await self._store((subjects.subject_of(fact), fact.encode()) for fact in decided[first : first + 1_000])
        for fact in others:
            await self.log.append(fact, expect=await self.log.tail(subjects.scope_of(fact)))

    async def decide(self, subject: str, body: bytes) -> None:
        """Have an event in the log that another version of a stage decided."""
        await self._store([(subject, body)])

    async def note(self, event: LogEvent) -> None:
        """Have an event of the log itself in the log."""
        await self._store_events([encode(event, by="test", cause="@")])

    async def _store(self, facts: Iterable[tuple[str, bytes]]) -> None:
        await self._store_events([CommitEvent(subject, "test", "@", msgspec.Raw(body)) for subject, body in facts])

    async def _store_events(self, events: Sequence[CommitEvent]) -> None:
        async with self.turn:
            await self.parts.read_on()
            head = self.parts.chain.head
            draft = SEAL.write(head, writer="test", at=max(self.clock.now(), head.at), taken={}, events=events)
            await self.commits.append(PARTITION, draft.body, expect=head.sequence)
            await self.parts.read_on()

    async def define(self, definition: Mapping[str, Any]) -> int:
        """A job; the number of its definition."""
        job = JobDefinition.model_validate(definition)
        state, number = await LedgerReader(self.log).load(job.name)
        [fact] = ledger.define(state, job)
        return await self.log.append(fact, expect=number)

    async def trigger(self, job: str, message_id: str = "m", **fields: object) -> None:
        """Publish a trigger."""
        await self.log.publish(subjects.trigger(job), Trigger.model_validate(fields), message_id=message_id)

    async def ask_to_cancel(self, job: str, execution_id: str, **fields: object) -> None:
        """Publish a request to cancel an execution."""
        request = CancelRequest.model_validate(fields)
        await self.log.publish(subjects.cancel(job, execution_id), request, message_id=f"cancel-{execution_id}")

    async def run(self, *stages: BoundStage) -> None:
        """Let stages decide until nothing is left to decide."""
        led = [of_loop(stage) for stage in stages if stage.name in LED]
        deciding = [stage for stage in led if stage.subscriptions or stage.deadlines]
        is_busy = True
        while is_busy:
            is_busy = bool(deciding) and await self._process_of(deciding).run()
            await self.parts.run()
            for stage in stages:
                for subscription in stage.subscriptions if stage.name not in LED else at_edge(stage):
                    is_busy |= await self._handle(stage, subscription)
        await self._decided()

    def _process_of(self, stages: Sequence[BoundStage]) -> Process:
        names = tuple(stage.name for stage in stages)
        if names not in self._processes:
            self._processes[names] = Process(self, stages)
        return self._processes[names]

    async def _handle(self, stage: BoundStage, subscription: BoundSubscription) -> bool:
        """Let a stage at the edge handle what has come by a subscription; return whether anything had."""
        with self.inputs.played_by(stage), telemetry.bound(stage=stage.name):
            if subscription.stream in DECISION_STREAMS:
                return await self._follow(subscription)
            deliveries = await self.durable(subscription).take(256, wait=0)
            await self.decisions.apply(subscription, deliveries)
            return bool(deliveries)

    async def _follow(self, subscription: BoundSubscription) -> bool:
        now, later = self.clock.now(), self._later[subscription.durable]
        due = [recorded for until, recorded in later if until <= now]
        later[:] = [(until, recorded) for until, recorded in later if until > now]
        decided, takes = await self._decided(), subjects.any_of(subscription.filters)
        events = [one for one in decided[self._places[subscription.durable] :] if takes(one.subject)]
        self._places[subscription.durable] = len(decided)
        for recorded in [*due, *events]:
            delay = await self.decisions.attempt(subscription, recorded)
            if delay is not None:
                later.append((now + timedelta(seconds=delay), recorded))
        return bool(due or events)

    def durable(self, subscription: BoundSubscription) -> Any:  # noqa: ANN401 - the in-memory durable
        """Return the durable of a subscription at the edge."""
        return self.inputs.durable(DurableSpec(subscription.durable, subscription.stream, subscription.filters))

    async def deliver(self, subscription: BoundSubscription, recorded: Recorded[Message]) -> None:
        """Have a stage at the edge handle a message, as a process does that reads it again; raise what it raises."""
        await self.decisions.decide("edge", subscription, recorded)

    async def redeliver(self, *stages: BoundStage) -> None:
        """Have stages handle everything that they ever read once more, after a restart.

        Publishers send their inputs again after the duplicate window. A follower has lost its place, and a durable its acknowledgements.
        """
        self._processes.clear()
        for stage in stages:
            for subscription in stage.subscriptions:
                self._send_again(stage, subscription)
        await self.run(*stages)

    def _send_again(self, stage: BoundStage, subscription: BoundSubscription) -> None:
        stream = self.inputs.stream(subscription.stream)
        if subscription.stream in DECISION_STREAMS:
            self._places.pop(subscription.durable, None)
            return
        for entry in stream.matching(subscription.filters, 0):
            if stage.name in LED:
                stream._known_ids.clear()
                stream.store(entry.subject, entry.body, message_id=entry.message_id, headers=entry.headers)
            else:
                self.durable(subscription).again(entry.sequence)

    async def stored(self, kind: type[M]) -> list[M]:
        """Every message of a kind, oldest first."""
        return [recorded.message for recorded in await self.recorded(kind)]

    async def recorded(self, kind: type[M]) -> list[Recorded[Any]]:
        """The same, as stored; an admission that is also a task counts as both."""
        everything = [*self._inputs(), *await self._decided()]
        return [recorded for recorded in unfold(everything) if isinstance(recorded.message, kind)]

    def _inputs(self) -> Iterator[Recorded[Message]]:
        for stream in INPUTS:
            for entry in self.inputs.stream(stream).entries_after(0):
                with suppress(subjects.DecodeError):
                    yield entry.recorded()

    async def _decided(self) -> list[Recorded[Message]]:
        """Return the readable decisions; fail if a stage stored what it does not declare."""
        while (stored := await self.commits.next(PARTITION, after=self._chain.head.sequence)) is not None:
            if (commit := self._chain.take(stored)) is None:
                continue
            for number, event in enumerate(commit.events, commit.first):
                if is_log_event(event.subject):
                    continue
                with suppress(subjects.DecodeError):
                    message = subjects.decode(event.subject, bytes(event.body))
                    self._events.append(Recorded(message, event.subject, number, commit.at))
                    self.inputs.check(self.stages.get(event.by), message)
        assert not self.inputs.undeclared
        return self._events

    async def size(self) -> int:
        """Return the number of decisions."""
        return len(await self._decided())

    @property
    def pending(self) -> int:
        """Return the number of messages that wait to be decided on."""
        unsettled = sum(durable.outstanding for durable in self.inputs._durables.values())
        return len([*self.parts.fold.waiting]) + sum(map(len, self._later.values())) + unsettled


__all__ = ["Stream", "World"]
