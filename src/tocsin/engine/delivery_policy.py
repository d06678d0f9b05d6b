"""The contract by which every stage settles its delivered messages.

    the handler returned     everything that it appended is stored: the message is acknowledged
    OutdatedState            another writer was faster: the message is handled again at once, after five retries handed back
    LogUnavailable           the message is handed back for a second; it is not at fault
    NotReady                 the message is handed back for a second, until the handler itself gives up
    before the cursor        the message is acknowledged: it was handled before its effects were archived
    unreadable               the message becomes a dead letter with its bytes and is never delivered again
    another exception        the message is handed back with a growing delay; after five failures it becomes a dead letter

Messages of different entities are handled concurrently, and messages of one entity in order: when one of them is handed
back, so are the later messages. If the subscription has a `prepare` function, it first reads at once what the handlers would
read one by one. That only saves requests; if it fails, each handler reads for itself.
"""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final, TypeAlias

from .. import subjects, telemetry
from ..domain.events import Message, PoisonMessage, Recorded
from ..ports import (
    Delivery,
    EventLog,
    LogUnavailable,
    OutdatedState,
    RequestRefused,
    SequenceConflict,
    check_subject,
)
from ..subjects import Stream
from .stage import BoundSubscription, NotReady, Preparation
from .states import StateStore
from .step import Decide, Step
from .waves import Item, Outcome, Result, Waves

CONFLICT_RETRIES: Final = 5
"""How often a message is handled again at once after a conflict."""
MAX_FAILURES: Final = 5
"""Failures of the handler after which a message becomes a dead letter."""
MAX_CONCURRENT_DELIVERIES: Final = 3
"""A message delivered more often than this is handled alone, because it may kill the process."""
_NO_JOB: Final = "-"
"""The job of a dead letter whose input names none, or a name that no subject of the log can have."""
_RETRY_S: Final = 1.0
_BACKOFF_S: Final = (0.2, 1.0, 5.0, 15.0)

IsDecided: TypeAlias = Callable[[Stream, int, datetime], Awaitable[bool]]

_log = telemetry.get_logger("tocsin.stages")


class DeliveryPolicy:
    """Applies the contract to the messages of one stage."""

    def __init__(
        self,
        log: EventLog,
        store: StateStore | None = None,
        *,
        is_decided: IsDecided | None = None,
        chance: random.Random | None = None,
    ) -> None:
        """`store`: the states of the process, for subscriptions that decide. `is_decided` returns whether a message lies before the archive's cursor; None: nothing is archived."""
        self._log = log
        self._waves = None if store is None else Waves(store)
        self._store = store
        self._is_decided = is_decided
        self._chance = chance or random.Random()  # noqa: S311 - spreads retries, guards nothing
        self._failures: Counter[tuple[str, str, int]] = Counter()
        """Failures by durable, subject and sequence: partitions count their sequences separately."""

    async def apply(self, subscription: BoundSubscription, deliveries: Sequence[Delivery]) -> None:
        """Handle and settle a batch of deliveries."""
        if subscription.decide is not None:
            await self._decide(subscription, subscription.decide, deliveries)
            return
        suspects = [delivery for delivery in deliveries if delivery.delivered > MAX_CONCURRENT_DELIVERIES]
        queues: dict[str, list[_Incoming]] = defaultdict(list)
        for delivery in deliveries:
            if delivery.delivered <= MAX_CONCURRENT_DELIVERIES:
                order = subscription.ordering_key
                queues[order(delivery.subject) if order else str(delivery.sequence)].append(_Incoming(delivery))
        if subscription.prepare is not None:
            await _prepare(
                subscription, subscription.prepare, [incoming for queue in queues.values() for incoming in queue]
            )
        await asyncio.gather(*(self._in_order(subscription, queue) for queue in queues.values()))
        for delivery in suspects:
            await self._settle(subscription, _Incoming(delivery))

    async def _decide(self, subscription: BoundSubscription, decide: Decide, deliveries: Sequence[Delivery]) -> None:
        """Decide on a batch, and settle each message after everything of it is stored."""
        if self._waves is None or self._store is None:
            raise AssertionError("a subscription that decides needs the states of the process")
        handled: list[Delivery] = []
        items: list[tuple[Delivery, Item]] = []
        for delivery in deliveries:
            try:
                if await self._is_handled(subscription, delivery):
                    handled.append(delivery)
                else:
                    items.append((delivery, _item(subscription, delivery)))
            except Exception as error:  # noqa: BLE001 - as for a handler
                await self._on_error(subscription, delivery, error)
        if subscription.learn is not None:
            self._store.learn(known for _, item in items for known in subscription.learn(item.input))
        usual = [item for delivery, item in items if delivery.delivered <= MAX_CONCURRENT_DELIVERIES]
        suspects = [item for delivery, item in items if delivery.delivered > MAX_CONCURRENT_DELIVERIES]
        for batch in (usual, *([item] for item in suspects)):
            await self._waves.run(decide, batch, on_signal=subscription.on_signal)
        handled += [
            delivery for delivery, item in items if await self._is_settled(subscription, delivery, item.outcome)
        ]
        for delivery in handled:
            await _send(delivery.ack())

    async def _is_settled(self, subscription: BoundSubscription, delivery: Delivery, outcome: Outcome | None) -> bool:
        """Return whether a message is to be acknowledged; settle it otherwise."""
        match outcome:
            case Outcome(Result.DONE):
                self._failures.pop((subscription.durable, delivery.subject, delivery.sequence), None)
                return True
            case Outcome(Result.REFUSED, Step() as step):
                await self._dead_letter(subscription, delivery, step.reason, job=step.job)
            case Outcome(Result.WAIT, Step() as step):
                await self._hand_back(delivery, step.delay)
            case Outcome(Result.FAILED, _, Exception() as error):
                await self._on_error(subscription, delivery, error)
            case _:
                await self._hand_back(delivery, self._short_delay_s())
        return False

    async def _on_error(self, subscription: BoundSubscription, delivery: Delivery, error: Exception) -> bool:
        """Settle a message whose handling raised; return whether the next of its entity may be handled."""
        if isinstance(error, OutdatedState | NotReady):
            return await self._hand_back(delivery, _RETRY_S if isinstance(error, NotReady) else self._short_delay_s())
        if isinstance(error, LogUnavailable):
            _log.warning(
                "message handed back; the log is unavailable",
                action="log-unavailable",
                durable=subscription.durable,
                error=str(error),
            )
            return await self._hand_back(delivery, _RETRY_S)
        if isinstance(error, subjects.DecodeError) and error.sequence is None:
            return await self._dead_letter(subscription, delivery, f"unreadable: {error}")
        if isinstance(error, subjects.DecodeError):
            # The message is readable, but an event that its handler read is not. A newer version of Tocsin may have
            # written that event; a stage of that version can handle the message.
            _log.error(
                "message handed back; an event is unreadable",
                action="fact-unreadable",
                durable=subscription.durable,
                error=str(error),
            )
            return await self._hand_back(delivery, _BACKOFF_S[-1])
        return await self._on_failure(subscription, delivery, error)

    async def _in_order(self, subscription: BoundSubscription, queue: "list[_Incoming]") -> None:
        for i, incoming in enumerate(queue):
            if not await self._settle(subscription, incoming):
                for rest in queue[i + 1 :]:
                    await _send(rest.delivery.nak(self._short_delay_s()))
                return

    async def _settle(self, subscription: BoundSubscription, incoming: "_Incoming") -> bool:
        """Handle a message; return whether the next message of its entity may be handled."""
        delivery = incoming.delivery
        try:
            await self._handle(subscription, incoming)
        except Exception as error:  # noqa: BLE001 - a handler's bug must not stop the stage
            return await self._on_error(subscription, delivery, error)
        self._failures.pop((subscription.durable, delivery.subject, delivery.sequence), None)
        await _send(delivery.ack())
        return True

    async def _hand_back(self, delivery: Delivery, delay: float) -> bool:
        await _send(delivery.nak(delay))
        return False

    async def _handle(self, subscription: BoundSubscription, incoming: "_Incoming") -> None:
        if await self._is_handled(subscription, incoming.delivery):
            return
        recorded = incoming.decode()
        for retries_left in range(CONFLICT_RETRIES, -1, -1):
            try:
                await subscription.handle(recorded)
            except OutdatedState:
                if not retries_left:
                    raise
            else:
                return

    async def _is_handled(self, subscription: BoundSubscription, delivery: Delivery) -> bool:
        """Return whether a message lies before the archive's cursor, so that it was handled long ago."""
        if self._is_decided is None or not await self._is_decided(
            subscription.stream, delivery.sequence, delivery.time
        ):
            return False
        _log.info(
            "message already handled; it lies before the cursor",
            action="behind-cursor",
            subject=delivery.subject,
            sequence=delivery.sequence,
        )
        return True

    async def _on_failure(self, subscription: BoundSubscription, delivery: Delivery, error: Exception) -> bool:
        key = (subscription.durable, delivery.subject, delivery.sequence)
        self._failures[key] += 1
        _log.error(
            "handler failed",
            action="handler-failed",
            durable=subscription.durable,
            subject=delivery.subject,
            sequence=delivery.sequence,
            times=self._failures[key],
            exc_info=error,
        )
        if self._failures[key] >= MAX_FAILURES:
            del self._failures[key]
            return await self._dead_letter(subscription, delivery, f"{type(error).__name__}: {error}")
        return await self._hand_back(delivery, _BACKOFF_S[min(self._failures[key], len(_BACKOFF_S)) - 1])

    async def _dead_letter(
        self, subscription: BoundSubscription, delivery: Delivery, reason: str, *, job: str | None = None
    ) -> bool:
        job, durable = _storable(job or subjects.job_of(delivery.subject)), subscription.durable
        partition = subjects.partition(delivery.subject)
        fact = PoisonMessage.of(
            job, durable, delivery.subject, delivery.sequence, delivery.body, reason, partition=partition
        )
        try:
            await self._log.append(fact, expect=0)
        except SequenceConflict:
            pass  # the dead letter is stored already; only the acknowledgement was lost
        except LogUnavailable:
            return await self._hand_back(delivery, _RETRY_S)
        except Exception as error:  # noqa: BLE001 - an error here must not stop the other messages
            _log.error("dead letter not stored", action="refusal-failed", subject=delivery.subject, exc_info=error)
            return await self._hand_back(delivery, _BACKOFF_S[-1])
        _log.error("message became a dead letter", action="message-refused", subject=delivery.subject, reason=reason)
        await _send(delivery.term())
        return True

    def _short_delay_s(self) -> float:
        return self._chance.uniform(0.02, 0.2)


class _Incoming:
    """A delivered message, decoded at most once."""

    __slots__ = ("_recorded", "delivery")

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self._recorded: Recorded[Message] | None = None

    def decode(self) -> Recorded[Message]:
        """Return the decoded message.

        Raises:
            DecodeError: the message is unreadable.
        """
        if self._recorded is None:
            delivery = self.delivery
            message = subjects.decode(delivery.subject, delivery.body)
            self._recorded = Recorded(message, delivery.subject, delivery.sequence, delivery.time, delivery.message_id)
        return self._recorded


def _storable(job: str) -> str:
    """Return the job of a dead letter.

    A server stores messages of others under wildcards and letters that the log itself refuses.
    """
    try:
        check_subject(subjects.token(job))
    except RequestRefused:
        return _NO_JOB
    return job or _NO_JOB


def _item(subscription: BoundSubscription, delivery: Delivery) -> Item:
    order = subscription.ordering_key
    return Item(_Incoming(delivery).decode(), order(delivery.subject) if order else delivery.sequence)


async def _prepare(subscription: BoundSubscription, prepare: Preparation, batch: "list[_Incoming]") -> None:
    messages: list[Recorded[Message]] = []
    try:
        for incoming in batch:
            with suppress(subjects.DecodeError):  # handling the message reports it
                messages.append(incoming.decode())
        await prepare(messages)
    except (OutdatedState, LogUnavailable, subjects.DecodeError):
        return  # each handler reads for itself
    except Exception as error:  # noqa: BLE001 - a defect in `prepare` must not stop the handlers
        _log.error("batch not prepared", action="preparation-failed", durable=subscription.durable, exc_info=error)


async def _send(acknowledgement: Awaitable[None]) -> None:
    try:
        await acknowledgement
    except LogUnavailable as error:
        _log.warning("acknowledgement not sent", action="not-told", error=str(error))  # the log redelivers the message
