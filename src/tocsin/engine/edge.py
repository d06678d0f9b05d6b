"""Stages at the edge of the log.

They show, hand over or take messages that leave or enter the log, after each message is decided on the fold.

A durable over a stream of others acknowledges a message, and a follower of decisions moves its place, after everything that follows from the message
is done. So nothing is lost, and a repeated action of a stage makes no difference.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial, reduce
from typing import Any, Final, TypeVar

from .. import subjects, telemetry
from ..domain.events import Message, Recorded
from ..ports import Append, Clock, Delivery, LogUnavailable, OutdatedState, SequenceConflict, acknowledge
from ..subjects import Stream
from .asked import Asked, is_in_log
from .commit_loop import HasLoop
from .leader_election import LeaderElection
from .report_lists import decode, refuse_copy
from .saved_place import SavedPlace
from .stage import BoundSubscription, attempted
from .step import (
    MAX_STEPS,
    Change,
    EndlessDecision,
    Events,
    Missing,
    Put,
    Reading,
    Ref,
    Send,
    Sources,
    Step,
    Then,
    refuse,
)

BACKOFF_S: Final = (1.0, 5.0, 15.0, 30.0)
"""Seconds after which a decision that failed is made again."""
SOON_S: Final = 1.0
MAX_OPEN: Final = 10_000
"""Events of a follower that wait to be decided on again."""
TICK_S: Final = 0.5

M = TypeVar("M", Delivery, Recorded[Message])

_log = telemetry.get_logger("tocsin.edge")


class EdgeDecisions:
    """The maker of decisions on messages, with their effects."""

    def __init__(self, view: HasLoop, sources: Sources, *, streams: Collection[str] = ()) -> None:
        """`sources`: the reads of data that the fold does not have.

        `streams`: the names of the installation's streams on the server.
        """
        self._view = view
        self._sources = sources
        self._streams = streams
        self._failures: Counter[tuple[str, int]] = Counter()

    async def decide(self, by: str, subscription: BoundSubscription, recorded: Recorded[Message]) -> Step:
        """Decide on a message to its end; return the last step.

        Raises:
            LogUnavailable: the log did not answer, or a KV entry was changed at each try.
            EndlessDecision: it has no end.
        """
        loop = self._view.loop
        read = dict[Ref[Any], Any]()
        changed, sent, newest = set[Ref[Any]](), set[str](), dict[str, int]()
        for _ in range(MAX_STEPS):
            try:
                step = await loop.ask(
                    Asked(by, subscription, recorded, subscription.stream.value, read=read, changed=changed, sent=sent)
                )
            except Missing as missing:
                read |= await self._read(missing.ref, newest)
                continue
            try:
                for change in step.changes:
                    await self._make(change, read, newest)
            except SequenceConflict:
                read.clear()  # another process changed the entry
                continue
            for signal in step.signals:
                if subscription.on_signal is not None:
                    subscription.on_signal(signal)
            if step.then is not Then.AGAIN:
                return step
            read.clear()
            changed |= {change.ref for change in step.changes if not isinstance(change, Send)}
            sent |= {change.message_id for change in step.changes if isinstance(change, Send)}
        raise EndlessDecision(f"the decision on {recorded.subject} has {MAX_STEPS} steps")

    async def _read(self, ref: Ref[Any], newest: dict[str, int]) -> Mapping[Ref[Any], Any]:
        """Read data that the fold lacks, and note the newest sequence of a scope."""
        if not isinstance(ref.kind, Reading):
            events = await self._sources.log.load(ref.key)
            newest[ref.key] = events[-1].sequence if events else 0
            return {ref: reduce(ref.kind.evolve, events, ref.kind.initial)}
        assert ref.kind.read is not None  # noqa: S101 - for the type checker: else it is not missing
        answers = await ref.kind.read(self._sources, [ref.key])
        await self._view.loop.writer.catch_up()  # the writer of the data may know more than this fold
        return {ref: answers[ref.key]}

    async def _make(self, change: Change, read: Mapping[Ref[Any], Any], newest: Mapping[str, int]) -> None:
        """Carry out the effects of a decision beside events of the log.

        Raises:
            SequenceConflict: the entry, or the scope in another stream, was changed since it was read.
        """
        log, projections = self._sources.log, self._sources.projections
        match change:
            case Send(subject, message, message_id, ttl):
                await log.publish(subject, message, message_id=message_id, ttl=ttl)
            case Events(ref, events) if events and not is_in_log(ref):
                [written] = await log.write([Append(events, newest.get(ref.key, 0))])
                if written.error is not None:
                    raise written.error
            case Put(ref, value):
                bucket, key = ref.key
                expect = read[ref][1] if read.get(ref) is not None else 0
                if value is None:
                    await projections.remove(bucket, key, expect=expect)
                else:
                    await projections.put(bucket, key, value, expect=expect)

    async def apply(self, subscription: BoundSubscription, deliveries: Sequence[Delivery]) -> None:
        """Decide on messages of a durable over a stream of others, and settle each.

        Messages of a key keep their order. A decision without events has no guard, so the fold first catches up with
        everything that led to the messages.
        """
        try:
            await self._view.loop.writer.catch_up()
        except LogUnavailable as error:
            _log.info("messages wait for JetStream", action="log-unavailable", error=str(error))
            await asyncio.gather(*(_sent(delivery.nak(SOON_S)) for delivery in deliveries))
            return
        await asyncio.gather(*(self._settle_lane(subscription, lane) for lane in _lanes(subscription, deliveries)))

    async def _settle_lane(self, subscription: BoundSubscription, lane: Sequence[Delivery]) -> None:
        for delivery in lane:
            delay = await self.attempt(subscription, self._recorded(delivery))
            await _sent(acknowledge([delivery]) if delay is None else delivery.nak(delay))

    def _recorded(self, delivery: Delivery) -> Recorded[Message]:
        is_copied = subjects.is_copied_input(delivery.subject, delivery.headers, self._streams)
        message = (refuse_copy if is_copied else decode)(delivery.subject, delivery.body)
        return Recorded(message, delivery.subject, delivery.sequence, delivery.time, delivery.message_id)

    async def attempt(self, subscription: BoundSubscription, recorded: Recorded[Message]) -> float | None:
        """Decide on a message.

        Return the seconds after which it is decided again; None: it is handled, or a dead letter.
        """
        by = telemetry.bound_value("stage") or "edge"
        place = subscription.durable, recorded.sequence
        try:
            step = await self.decide(by, subscription, recorded)
        except (LogUnavailable, OutdatedState) as error:
            _log.info("a message waits for JetStream", action="log-unavailable", error=str(error))
            return SOON_S
        except Exception as error:  # noqa: BLE001 - the other messages go on
            self._failures[place] += 1
            times = self._failures[place]
            what = {"durable": subscription.durable, "subject": recorded.subject, "sequence": recorded.sequence}
            _log.error("handler failed", action="handler-failed", times=times, exc_info=error, **what)
            if times <= len(BACKOFF_S):
                return BACKOFF_S[times - 1]
            step = await self._refuse(by, subscription, recorded, error)
        self._failures.pop(place, None)
        return step.delay if step.then is Then.WAIT else None

    async def _refuse(
        self, by: str, subscription: BoundSubscription, recorded: Recorded[Message], error: Exception
    ) -> Step:
        """Make a message a dead letter if its decision fails each time."""
        reason, code = f"{type(error).__name__}: {error}", getattr(error, "code", "error")
        refused = replace(subscription, decide=lambda *_: refuse(reason, code=code))
        return await self.decide(by, refused, recorded)


def _lanes(subscription: BoundSubscription, messages: Sequence[M]) -> Collection[Sequence[M]]:
    """Divide messages into lanes, each in order, that are independent of each other."""
    lanes, order = defaultdict[object, list[M]](list), subscription.ordering_key
    for message in messages:
        lanes[message.sequence if order is None else order(message.subject)].append(message)
    return lanes.values()


async def _sent(acknowledgement: Awaitable[None]) -> None:
    try:
        await acknowledgement
    except LogUnavailable as error:
        _log.warning("acknowledgement not sent", action="not-told", error=str(error))  # the log redelivers the message


class EdgeFollower:
    """The follower of other stages' decisions, while its process leads the stage.

    It has the decisions decided on, from a place that it keeps.
    """

    def __init__(
        self, by: str, subscription: BoundSubscription, decisions: EdgeDecisions, sources: Sources, lead: LeaderElection
    ) -> None:
        """`by`: the stage. `lead`: its candidate, which another loop runs."""
        self._by = by
        self._subscription = subscription
        self._decisions = decisions
        self._sources = sources
        self._lead = lead
        self._clock: Clock = sources.clock
        self._upto = 0
        """The number up to which the events are taken."""
        self._open = set[int]()
        """The numbers of events that are not handled yet."""
        self._later = set[asyncio.Task[None]]()
        """The retry of events that wait."""

    async def run(self) -> None:
        """Follow until cancelled."""
        with telemetry.bound(stage=self._by):
            while True:
                if self._lead.is_leading:
                    await attempted(self._lead_on, _log, "decisions not followed; retrying", "not-followed")
                await self._clock.sleep(TICK_S)

    async def _lead_on(self) -> None:
        """Follow while this process leads; save the place also while no event comes."""
        cursor = subjects.cursor(Stream.LOG, self._subscription.durable)
        place = SavedPlace(self._sources.projections, self._clock, cursor)
        self._upto = await place.load()

        async def save(*, is_last: bool = False) -> None:
            waiting = len(self._open if is_last else self._later)
            await place.save(partial(min, self._open, default=None), self._upto, waiting, is_last=is_last)

        following = asyncio.create_task(self._follow())
        try:
            while self._lead.is_leading and not following.done():
                await self._clock.sleep(TICK_S)
                await attempted(save, _log, "place not saved; retrying", "place-not-saved", cursor=cursor)
        finally:
            following.cancel()
            await asyncio.wait([following])
            await attempted(partial(save, is_last=True), _log, "place not saved", "place-not-saved", cursor=cursor)
            self._open.clear()
        if not following.cancelled():
            following.result()

    async def _follow(self) -> None:
        stream, filters = self._subscription.stream, self._subscription.filters
        try:
            async with aclosing(self._sources.log.follow(stream, *filters, after=self._upto)) as batches:
                async for batch in batches:
                    await self._take(batch.messages)
                    self._upto = max(self._upto, batch.upto)
        finally:
            for task in self._later:
                task.cancel()

    async def _take(self, messages: Sequence[Recorded[Message]]) -> None:
        """Handle events; events of a key stay in order, unless an event must wait."""
        self._open.update(recorded.sequence for recorded in messages)
        await asyncio.gather(*map(self._handle_lane, _lanes(self._subscription, messages)))
        while len(self._later) > MAX_OPEN:
            await asyncio.wait(self._later, return_when=asyncio.FIRST_COMPLETED)

    async def _handle_lane(self, lane: Sequence[Recorded[Message]]) -> None:
        for recorded in lane:
            delay = await self._decisions.attempt(self._subscription, recorded)
            if delay is None:
                self._open.discard(recorded.sequence)
            else:
                self._later.add(task := asyncio.create_task(self._handle_later(recorded, delay)))
                task.add_done_callback(self._later.discard)

    async def _handle_later(self, recorded: Recorded[Message], delay: float | None) -> None:
        while delay is not None:
            await self._clock.sleep(delay)
            delay = await self._decisions.attempt(self._subscription, recorded)
        self._open.discard(recorded.sequence)
