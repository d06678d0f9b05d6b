"""The stages of a process on the log of commits, which replaces the log of single messages step by step."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final, Protocol

from .. import telemetry
from ..adapters.memory.durable import InMemoryDurable
from ..domain.commit import LogHead, Seal
from ..engine.causes import Effect, Notice, Proposals
from ..engine.commit_loop import CommitLoop, Watcher
from ..engine.commit_writer import Chain, CommitWriter
from ..engine.delivery_policy import DeliveryPolicy
from ..engine.fold import Fold
from ..engine.report_lists import LISTS, decode, listed
from ..engine.stage import BoundStage, BoundSubscription
from ..engine.step import Send
from ..ports import Clock, EventLog, LogUnavailable, RequestRefused
from ..ports.commit_log import CommitLog
from ..stages.dag_advancer.stage import DAG_ADVANCER
from ..stages.dead_letter_sink import DEAD_LETTER_SINK
from ..stages.lease_keeper import LEASE_KEEPER
from ..stages.lock_keeper import LOCK_KEEPER
from ..stages.matcher.stage import Matcher
from ..stages.planner import PLANNER
from ..stages.retrier import RETRIER
from ..stages.ticker import TICKER, TICKER_OF_COMMITS, Instants
from ..subjects import Stream, covers

PURE: Final = frozenset(
    stage.name for stage in (PLANNER, LOCK_KEEPER, DAG_ADVANCER, LEASE_KEEPER, RETRIER, DEAD_LETTER_SINK)
)
"""The stages whose decisions the loop of commits makes. The others read events by themselves, and propose theirs."""
FOLLOWS_REPORTS: Final = Matcher.follow_reports.__name__
KEY: Final = "k1"
PARTITION: Final = 0
PAUSE_S: Final = 0.5

BATCH: Final = 256
"""The greatest number of messages that are decided together, as over NATS."""

_log = telemetry.get_logger("tocsin")


def split(stages: Sequence[BoundStage]) -> tuple[list[BoundStage], list[BoundStage]]:
    """Return the stages that the loop of commits decides for, and those that run by themselves."""
    pure = [stage for stage in stages if stage.name in PURE]
    others = [stage for stage in stages if stage.name not in {*PURE, TICKER.name}]
    # The lock keeper shows its locks; the timers of the others are deadlines.
    others += [BoundStage(stage.name, loops=stage.loops) for stage in pure if stage.name == LOCK_KEEPER.name]
    # The end of a step frees its slot: it comes with the commit that takes the report.
    others = [
        replace(
            stage,
            loops=tuple(
                loop for loop in stage.loops if getattr(getattr(loop, "func", loop), "__name__", "") != FOLLOWS_REPORTS
            ),
        )
        for stage in others
    ]
    if any(stage.name == TICKER.name for stage in stages):
        pure.append(TICKER_OF_COMMITS.bind(Instants()))
    return pure, others


class View(Watcher, Protocol):
    """Shows the events of commits to parts that read them by themselves."""

    proposals: Proposals
    fold: Fold


def _filters(stages: Sequence[BoundStage], stream: Stream) -> list[str]:
    """Return the filters of stages over a stream of inputs, each once."""
    filters = dict.fromkeys(
        filter_
        for stage in stages
        for subscription in stage.subscriptions
        if subscription.stream is stream
        for filter_ in subscription.filters
    )
    return [one for one in filters if not any(other != one and covers(other, one) for other in filters)]


class CommitProcess:
    """A process of an installation on the log of commits."""

    def __init__(
        self,
        log: CommitLog,
        inputs: EventLog,
        clock: Clock,
        key: bytes,
        *,
        installation: str,
        name: str,
        wake_at: Any = None,
    ) -> None:
        self._log = log
        self._inputs = inputs
        self._clock = clock
        self.seal = Seal(installation, PARTITION, {KEY: key})
        self._name = name
        self._wake_at = wake_at

    @asynccontextmanager
    async def running(self, stages: Sequence[BoundStage], view: View) -> AsyncIterator[CommitLoop]:
        """Decide for stages within the block, which begins when the log is folded."""
        chain, fold = Chain(self.seal, LogHead(KEY)), Fold()
        view.fold = fold
        writer = CommitWriter(self._log, PARTITION, chain, self._clock)
        loop = CommitLoop(
            stages,
            fold,
            writer,
            self._clock,
            name=self._name,
            on_effects=self._send,
            watcher=view,
            wake_at=self._wake_at,
            folds=bool(stages),
        )
        folded = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._follow(loop, folded))]
            await folded.wait()
            view.proposals = loop
            readers = (self._read(loop, _filters(stages, stream), stream) for stream in loop.streams)
            tasks += map(group.create_task, (*readers, loop.run()))
            try:
                yield loop
            finally:
                for task in tasks:
                    task.cancel()

    async def _follow(self, loop: CommitLoop, folded: asyncio.Event) -> None:
        async for batch in self._log.follow(PARTITION, after=0):
            loop.receive(batch.bodies)
            if batch.caught_up and not folded.is_set():
                loop.fold_received()
                folded.set()

    async def _read(self, loop: CommitLoop, filters: Sequence[str], stream: Stream) -> None:
        if stream is Stream.REPORTS:
            filters = [*filters, LISTS]
        async for batch in self._inputs.follow(stream, *filters, after=loop.floor(stream), decode=decode):
            for recorded in batch.messages:
                for one in listed(recorded):
                    loop.offer(stream, one)

    async def _send(self, effects: Sequence[tuple[str, Effect]]) -> None:
        for _, effect in effects:
            match effect:
                case Notice(take, signal):
                    if take is not None:
                        take(signal)
                case Send(subject, message, message_id, ttl):
                    while True:
                        try:
                            await self._inputs.publish(subject, message, message_id=message_id, ttl=ttl)
                        except LogUnavailable as error:
                            _log.info("input waits for JetStream", action="log-unavailable", error=str(error))
                            await self._clock.sleep(PAUSE_S)
                            continue
                        except RequestRefused as error:
                            _log.error("input refused", action="input-refused", subject=subject, error=str(error))
                        break
                case _:
                    raise AssertionError(f"no pure stage has the effect {effect}")


async def read_durable(
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
