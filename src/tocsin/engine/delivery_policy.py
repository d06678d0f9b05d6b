"""The one place that decides what becomes of a delivered message (the contract of every stage).

    returned                 all that it appended is stored: acknowledged
    SequenceConflict         another writer was faster: handled again at once; after five times handed back for a moment
    LogUnavailable           handed back; no fault of the message
    NotYet                   handed back for a second, until the handler itself gives it up
    behind the cursor        acknowledged: it was dealt with before what it led to was archived
    unreadable, or failing   after some tries recorded as a dead letter with its bytes, then never delivered again

Different entities are handled concurrently, one entity in order: when one of its messages is handed back, those behind it
are too. What their handlers would all read is read for them at once where the subscription says how; that is no more than
help, and its failure is nobody's.
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
from ..ports import Delivery, EventLog, LogUnavailable, OutdatedState, SequenceConflict
from ..subjects import Stream
from .stage import BoundSubscription, NotReady, Preparation

CONFLICTS_AT_ONCE: Final = 5
FAILURES: Final = 5
"""Errors of the handler on one message after which it is a dead letter."""
ALONE: Final = 3
"""A message delivered more often than this is handled alone: it may be what kills the process."""
_BACKOFF: Final = (0.2, 1.0, 5.0, 15.0)

IsBehind: TypeAlias = Callable[[Stream, int, datetime], Awaitable[bool]]

_log = telemetry.get_logger("tocsin.stages")


class DeliveryPolicy:
    """Applies the contract to the messages of one stage."""

    def __init__(
        self, log: EventLog, *, is_behind: IsBehind | None = None, chance: random.Random | None = None
    ) -> None:
        """`is_behind`: whether a message of a stream was decided on before what it led to was archived; None: none was."""
        self._log = log
        self._is_behind = is_behind
        self._chance = chance or random.Random()  # noqa: S311 - spreads retries, guards nothing
        self._failures: Counter[tuple[str, int]] = Counter()

    async def apply(self, subscription: BoundSubscription, deliveries: Sequence[Delivery]) -> None:
        """Handle whatever came at once."""
        suspects = [d for d in deliveries if d.delivered > ALONE]
        queues: dict[str, list[_Taken]] = defaultdict(list)
        for delivery in deliveries:
            if delivery.delivered <= ALONE:
                order = subscription.ordering_key
                queues[order(delivery.subject) if order else str(delivery.sequence)].append(_Taken(delivery))
        if subscription.prepare is not None:
            await _prepare(subscription, subscription.prepare, [taken for queue in queues.values() for taken in queue])
        await asyncio.gather(*(self._in_order(subscription, queue) for queue in queues.values()))
        for delivery in suspects:
            await self._one(subscription, _Taken(delivery))

    async def _in_order(self, subscription: BoundSubscription, queue: "list[_Taken]") -> None:
        for i, taken in enumerate(queue):
            if not await self._one(subscription, taken):
                for rest in queue[i + 1 :]:
                    await _tell(rest.delivery.nak(self._moment()))
                return

    async def _one(self, subscription: BoundSubscription, taken: "_Taken") -> bool:
        """Whether the message is dealt with: those of the same entity behind it may be handled."""
        delivery = taken.delivery
        try:
            await self._handle(subscription, taken)
        except (OutdatedState, NotReady) as error:
            return await self._later(delivery, 1.0 if isinstance(error, NotReady) else self._moment())
        except LogUnavailable as error:
            _log.warning("handed back", action="log-unavailable", durable=subscription.durable, error=str(error))
            return await self._later(delivery, 1.0)
        except subjects.DecodeError as error:
            if error.sequence is None:
                return await self._refuse(subscription, delivery, f"unreadable: {error}")
            # Not this message but a fact that it is about, perhaps of a newer version: a newer copy of us will manage.
            _log.error("handed back", action="fact-unreadable", durable=subscription.durable, error=str(error))
            return await self._later(delivery, _BACKOFF[-1])
        except Exception as error:  # noqa: BLE001 - a handler's bug must not stop the stage
            return await self._failed(subscription, delivery, error)
        self._failures.pop((subscription.durable, delivery.sequence), None)
        await _tell(delivery.ack())
        return True

    async def _later(self, delivery: Delivery, delay: float) -> bool:
        await _tell(delivery.nak(delay))
        return False

    async def _handle(self, subscription: BoundSubscription, taken: "_Taken") -> None:
        delivery = taken.delivery
        if self._is_behind is not None and await self._is_behind(subscription.stream, delivery.sequence, delivery.time):
            _log.info("decided long ago", action="behind-cursor", subject=delivery.subject, sequence=delivery.sequence)
            return
        recorded = taken.read()
        for again in range(CONFLICTS_AT_ONCE, -1, -1):
            try:
                await subscription.handle(recorded)
            except OutdatedState:
                if not again:
                    raise
            else:
                return

    async def _failed(self, subscription: BoundSubscription, delivery: Delivery, error: Exception) -> bool:
        key = (subscription.durable, delivery.sequence)
        self._failures[key] += 1
        _log.error(
            "a handler failed",
            action="handler-failed",
            durable=subscription.durable,
            subject=delivery.subject,
            sequence=delivery.sequence,
            times=self._failures[key],
            exc_info=error,
        )
        if self._failures[key] >= FAILURES:
            del self._failures[key]
            return await self._refuse(subscription, delivery, f"{type(error).__name__}: {error}")
        return await self._later(delivery, _BACKOFF[min(self._failures[key], len(_BACKOFF)) - 1])

    async def _refuse(self, subscription: BoundSubscription, delivery: Delivery, reason: str) -> bool:
        job, durable = subjects.job_of(delivery.subject), subscription.durable
        fact = PoisonMessage.of(job, durable, delivery.subject, delivery.sequence, delivery.body, reason)
        try:
            await self._log.append(fact, expect=0)
        except SequenceConflict:
            pass  # recorded before; only the acknowledgement was lost
        except LogUnavailable:
            return await self._later(delivery, 1.0)
        except Exception as error:  # noqa: BLE001 - what cannot even be refused must not keep others from being handled
            _log.error("no dead letter", action="refusal-failed", subject=delivery.subject, exc_info=error)
            return await self._later(delivery, _BACKOFF[-1])
        _log.error("dead letter", action="message-refused", subject=delivery.subject, reason=reason)
        await _tell(delivery.term())
        return True

    def _moment(self) -> float:
        return self._chance.uniform(0.02, 0.2)


class _Taken:
    """A message that was delivered; what it says is decoded once."""

    __slots__ = ("_recorded", "delivery")

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self._recorded: Recorded[Message] | None = None

    def read(self) -> Recorded[Message]:
        """What it says.

        Raises:
            Unreadable: nobody can tell.
        """
        if self._recorded is None:
            it = self.delivery
            message = subjects.decode(it.subject, it.body)
            self._recorded = Recorded(message, it.subject, it.sequence, it.time, it.message_id)
        return self._recorded


async def _prepare(subscription: BoundSubscription, prepare: Preparation, several: "list[_Taken]") -> None:
    messages: list[Recorded[Message]] = []
    try:
        for taken in several:
            with suppress(subjects.DecodeError):  # its own handling says so
                messages.append(taken.read())
        await prepare(messages)
    except (OutdatedState, LogUnavailable, subjects.DecodeError):
        return  # each handler finds out for itself
    except Exception as error:  # noqa: BLE001 - nor does a defect here keep anything from being handled
        _log.error("not prepared", action="preparation-failed", durable=subscription.durable, exc_info=error)


async def _tell(answer: Awaitable[None]) -> None:
    try:
        await answer
    except LogUnavailable as error:
        _log.warning("not told", action="not-told", error=str(error))  # it comes again by itself
