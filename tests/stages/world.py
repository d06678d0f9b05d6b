"""The stages on the in-memory log, for tests in the manner of given, when, then."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Final, TypeAlias, TypeVar

from typing_extensions import override

from tests.domain.given import KEY
from tocsin import subjects
from tocsin.adapters.memory.event_streams import InMemoryEventStreams
from tocsin.domain import ledger
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import CancelRequest, Message, PoisonMessage, Recorded, Timer, Trigger, unfold
from tocsin.domain.trace_context import Sampling
from tocsin.engine.clock_guard import ClockGuard
from tocsin.engine.delivery_policy import DeliveryPolicy
from tocsin.engine.items import Item
from tocsin.engine.leader_election import LeaderElection
from tocsin.engine.ledger_reader import LedgerReader
from tocsin.engine.stage import BoundStage, BoundSubscription, StageContext
from tocsin.engine.states import StateStore
from tocsin.engine.step import Sources
from tocsin.engine.waves import Waves
from tocsin.settings import Queue, Settings
from tocsin.stages import STAGES
from tocsin.subjects import Stream
from tocsin.testing import DurableSpec, InMemoryEventLog, InMemoryProjections, ManualClock

M = TypeVar("M", bound=Message)
Reads: TypeAlias = Counter[str]
"""Requests to the log, by method."""
SETTINGS: Final = Settings(queues={"default": Queue(transport="mq")})  # so that the bridge has a queue


class WatchedLog(InMemoryEventLog):
    """Lets a stage store only what it says that it stores: on a server with users it would be refused the rest."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.undeclared: list[str] = []
        self._acting: ContextVar[BoundStage | None] = ContextVar("acting", default=None)

    @contextmanager
    def played_by(self, stage: BoundStage | None) -> Iterator[None]:
        """Attribute appends inside the block to a stage; None: to the test itself."""
        before = self._acting.set(stage)
        try:
            yield
        finally:
            self._acting.reset(before)

    @override
    async def append(self, fact: Message, *, expect: int) -> int:
        self._check(fact)
        return await super().append(fact, expect=expect)

    @override
    async def publish(self, subject: str, message: Message, *, message_id: str, ttl: float | None = None) -> int:
        self._check(message)
        return await super().publish(subject, message, message_id=message_id, ttl=ttl)

    @override
    async def delay(self, timer: Timer, *, until: datetime) -> None:
        self._check(timer)
        await super().delay(timer, until=until)

    def _check(self, message: Message) -> None:
        stage = self._acting.get()
        if stage is not None and not isinstance(message, (*stage.access.appends, PoisonMessage)):
            self.undeclared.append(
                f"{stage.name} appends {type(message).__name__}, and its `access` does not name that"
            )


async def decide_one(subscription: BoundSubscription, recorded: Recorded[Message], store: StateStore) -> None:
    """Have a subscription decide on a message over the states of a copy; raise what it raises."""
    if subscription.learn is not None:
        store.learn(subscription.learn(recorded))
    item = Item(recorded, "again", is_repeated=True)
    await Waves(store).run(subscription.decide, [item], on_signal=subscription.on_signal)
    assert item.outcome is not None
    if item.outcome.error is not None:
        raise item.outcome.error


class World:
    """A log, and stages that read it on request."""

    def __init__(self, sampling: Sampling | None = None) -> None:
        self.clock = ManualClock()
        self.log = WatchedLog(self.clock)
        self.projections = InMemoryProjections(self.clock)
        store = StateStore(Sources.of(self.log, self.projections, self.clock))
        self.store = store
        self.outcomes = DeliveryPolicy(store)
        context = StageContext(
            settings=SETTINGS,
            log=self.log,
            projections=self.projections,
            clock=self.clock,
            report_key=KEY,
            states=store,
            elect=self.elect,
            sampling=sampling,
            event_streams=InMemoryEventStreams(self.log, {}),
        )
        bound = (stage.run_in(context) for stage in STAGES if stage.subscriptions)
        self.stages: Final = {stage.name: stage for stage in bound if stage is not None}

    def __getattr__(self, name: str) -> BoundStage:
        """Return a stage that reads durables, by its name."""
        stages: dict[str, BoundStage] = self.__dict__.get("stages", {})
        if name not in stages:
            raise AttributeError(name)
        return stages[name]

    def elect(self, lease: str, *, signs: Sequence[str] | None = None, ttl: float | None = None) -> LeaderElection:
        """Return a candidate for a leader lease."""
        del signs, ttl
        return LeaderElection(self.projections, ClockGuard(self.log, self.clock), key=lease, holder="test")

    async def given(self, *facts: Message) -> None:
        """Facts that are in the log already."""
        with self.log.played_by(None):
            for fact in facts:
                scope = await self.log.load(subjects.scope_of(fact))
                await self.log.append(fact, expect=scope[-1].sequence if scope else 0)

    async def define(self, definition: Mapping[str, Any]) -> int:
        """A job; the sequence of its definition."""
        job = JobDefinition.model_validate(definition)
        state, sequence = await LedgerReader(self.log).load(job.name)
        [fact] = ledger.define(state, job)
        return await self.log.append(fact, expect=sequence)

    async def trigger(self, job: str, message_id: str = "m", **fields: object) -> None:
        """Publish a trigger."""
        await self.log.publish(subjects.trigger(job), Trigger.model_validate(fields), message_id=message_id)

    async def ask_to_cancel(self, job: str, execution_id: str, **fields: object) -> None:
        """Publish a request to cancel an execution."""
        request = CancelRequest.model_validate(fields)
        await self.log.publish(subjects.cancel(job, execution_id), request, message_id=f"cancel-{execution_id}")

    async def run(self, *stages: BoundStage) -> None:
        """Let stages handle their backlog until it is empty."""
        subscriptions = [subscription for stage in stages for subscription in stage.subscriptions]
        while any([await self.handle(subscription) for subscription in subscriptions]):
            pass

    async def handle(self, subscription: BoundSubscription, *, store: StateStore | None = None) -> int:
        """Have one durable's messages handled once; how many there were. `store`: the states of another copy."""
        deliveries = await self.durable(subscription).take(256, wait=0)
        with self.log.played_by(
            next((stage for stage in self.stages.values() if subscription in stage.subscriptions), None)
        ):
            outcomes = self.outcomes if store is None else DeliveryPolicy(store)
            await outcomes.apply(subscription, deliveries)
        assert not self.log.undeclared  # raised here, because a stage's own error would only hand its message back
        return len(deliveries)

    async def show_locks(self) -> None:
        """Have the lock keeper show what has changed, as it does once more when it ends."""
        for loop in self.lock_keeper.loops:
            showing = asyncio.create_task(loop())
            await asyncio.sleep(0)
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)

    def durable(self, subscription: BoundSubscription) -> Any:  # noqa: ANN401 - the in-memory durable
        """The durable of a subscription."""
        return self.log.durable(DurableSpec(subscription.durable, subscription.stream, subscription.filters))

    async def redeliver(self, *stages: BoundStage, is_fresh: bool = False) -> None:
        """Have stages handle everything that they ever read once more, as if no acknowledgement had arrived.

        `is_fresh`: with nothing cached, as after a restart.
        """
        for stage in stages:
            for subscription in stage.subscriptions:
                for filter_ in subscription.filters:
                    for recorded in await self.log.read(filter_):
                        await self.deliver(subscription, recorded, log=self.log if is_fresh else None)

    def copy(self, log: InMemoryEventLog | None = None) -> StateStore:
        """Return the states of another copy of the stages, which has nothing cached."""
        return StateStore(Sources.of(log or self.log, self.projections, self.clock))

    async def deliver(
        self,
        subscription: BoundSubscription,
        recorded: Recorded[Message],
        *,
        log: InMemoryEventLog | None = None,
        store: StateStore | None = None,
    ) -> None:
        """Have a subscription handle a message, as a delivery outside its durable does; raise what it raises.

        With `log`, it decides on states that it reads there; with `store`, on those of that copy.
        """
        await decide_one(subscription, recorded, store or (self.store if log is None else self.copy(log)))

    async def stored(self, kind: type[M]) -> list[M]:
        """Every message of a kind, oldest first."""
        return [recorded.message for recorded in await self.recorded(kind)]

    async def recorded(self, kind: type[M]) -> list[Recorded[Any]]:
        """The same, as stored; an admission that is also a task counts as both."""
        ledger = [
            r
            for kind in ("ledger.>", "trigger.>", "cancel.>", "enqueue.>")
            for r in await self.log.read(kind, limit=10_000)
        ]
        everything = [*sorted(ledger, key=lambda recorded: recorded.sequence), *await self._log()]
        return [recorded for recorded in unfold(everything) if isinstance(recorded.message, kind)]

    async def _log(self) -> Iterable[Recorded[Message]]:
        kinds = ("execution.>", "lock.>", "cron.>", "dead-letter.>", "ownership.>", "unique.>", "report.>", "timer.>")
        found = [recorded for kind in kinds for recorded in await self.log.read(kind, limit=10_000)]
        return sorted(found, key=lambda recorded: recorded.sequence)

    async def size(self) -> int:
        """Return the number of messages in the log's streams."""
        return len(list(await self._log())) + len(await self.log.read("ledger.>", limit=10_000))

    @property
    def pending(self) -> int:
        """Return the number of unacknowledged messages."""
        return sum(durable.outstanding for durable in self.log._durables.values())


__all__ = ["Stream", "World", "decide_one"]
