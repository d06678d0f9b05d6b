"""The contract by which every stage settles its delivered messages.

    done                  all changes of the decision are stored: the message is acknowledged
    wait                  the message is handed back for the delay of the decision
    refuse                the message becomes a dead letter with the reason of the decision
    OutdatedState         the engine decides again at once (`waves`); after its last conflict the message is handed back
    held                  an earlier message of the same entity was not settled: the message is handed back
    LogUnavailable        the message is handed back for a second; it is not at fault
    before the cursor     the message is acknowledged: it was handled before its effects were archived
    unreadable message    the message becomes a dead letter with its bytes and is never delivered again
    unreadable event      the message is handed back, also if it is the event; a stage of a newer version can read it
    an event set aside    the message is acknowledged: an operator voided the event, because no version reads it
    endless decision      the message is handed back with a growing delay, each time: it is not at fault
    another exception     the message is handed back with a growing delay; after five failures it becomes a dead letter

The messages of a batch are decided together, and messages of one entity in order. A batch is acknowledged by one write, after
everything of it is stored. Its dead letters are stored by one write. A message that was delivered often is decided alone,
because it may kill the process.
"""

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, TypeAlias

import msgspec

from .. import subjects, telemetry
from ..domain.errors import TocsinError
from ..domain.events import Message, PoisonMessage, Recorded, Trigger
from ..ports import (
    Append,
    Delivery,
    LogUnavailable,
    MessageTooLarge,
    OutdatedState,
    RequestRefused,
    SequenceConflict,
    Written,
    acknowledge,
    check_subject,
)
from ..subjects import Stream
from ..telemetry import trace_ids
from ..telemetry.foreign import ForeignMessages
from .items import Item, Outcome, Result
from .stage import BoundSubscription
from .states import StateStore
from .step import EndlessDecision, Step
from .waves import Waves

MAX_FAILURES: Final = 5
"""Failures of the decision after which a message becomes a dead letter."""
MAX_REMEMBERED_FAILURES: Final = 10_000
MAX_CONCURRENT_DELIVERIES: Final = 3
"""A message delivered more often than this is decided alone, because it may kill the process."""
_NO_JOB: Final = "-"
"""The job of a dead letter whose input names none, or a name that no subject of the log can have."""
_RETRY_S: Final = 1.0
_BACKOFF_S: Final = (0.2, 1.0, 5.0, 15.0)

IsDecided: TypeAlias = Callable[[Stream, int, datetime], Awaitable[bool]]

_log = telemetry.get_logger("tocsin.stages")
_redeliveries: Final = telemetry.meter().create_counter(
    "tocsin_redeliveries", description="Messages that were delivered to this process again, by durable."
)


class _Refusal(msgspec.Struct, frozen=True):
    """A message that becomes a dead letter; `job` None: the job in its subject."""

    delivery: Delivery
    reason: str
    code: str | None = None
    job: str | None = None


@dataclass(frozen=True, slots=True)
class _Batch:
    """The messages of a batch that are settled together, at its end."""

    subscription: BoundSubscription
    handled: list[Delivery] = field(default_factory=list)
    refused: list[_Refusal] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Postponed:
    """Unacknowledged messages whose next decisions can wait until a rush is over."""

    subscription: BoundSubscription
    items: tuple[tuple[Delivery, Item], ...]

    @property
    def keys(self) -> frozenset[object]:
        """The ordering keys of the messages."""
        return frozenset(item.key for _, item in self.items)


class DeliveryPolicy:
    """Applies the contract to the messages of one process."""

    def __init__(
        self,
        store: StateStore,
        *,
        is_decided: IsDecided | None = None,
        chance: random.Random | None = None,
        foreign: ForeignMessages | None = None,
        streams: Collection[str] = (),
    ) -> None:
        """Decide over the states of the process.

        `is_decided` returns whether a message lies before the archive's cursor; None: nothing is archived. `foreign`
        records the foreign messages that are delivered. `streams`: the names of the installation's streams on the server.
        """
        self._store = store
        self._log = store.sources.log
        self._waves = Waves(store)
        self._is_decided = is_decided
        self._chance = chance or random.Random()  # noqa: S311 - spreads retries, guards nothing
        self._foreign = foreign or ForeignMessages()
        self._streams = streams
        self._failures: Counter[tuple[str, str, int]] = Counter()
        """Failures by durable, subject and sequence: partitions count their sequences separately."""

    async def apply(
        self, subscription: BoundSubscription, deliveries: Sequence[Delivery], *, is_rush: bool = False
    ) -> "Postponed | None":
        """Decide on a batch, and settle each message after everything of it is stored.

        During a rush, return the messages that are not settled, because their next decisions can wait.
        """
        batch = _Batch(subscription)
        if repeated := sum(delivery.delivered > 1 for delivery in deliveries):
            _redeliveries.add(repeated, {"durable": subscription.durable})
        items: list[tuple[Delivery, Item]] = []
        for delivery in deliveries:
            try:
                if self._is_foreign(delivery) or await self._is_handled(subscription, delivery):
                    batch.handled.append(delivery)
                else:
                    items.append((delivery, self._item(subscription, delivery)))
            except Exception as error:  # noqa: BLE001 - an error here must not stop the other messages
                await self._on_error(batch, delivery, error)
        self._learn(subscription, [item for _, item in items])
        usual = [item for delivery, item in items if delivery.delivered <= MAX_CONCURRENT_DELIVERIES]
        suspects = [item for delivery, item in items if delivery.delivered > MAX_CONCURRENT_DELIVERIES]
        remainder: list[Item] | None = [] if is_rush else None
        await self._waves.run(
            subscription.decide,
            usual,
            on_signal=subscription.on_signal,
            remainder=remainder,
            reads_first=subscription.contended is not None,
        )
        for item in suspects:
            await self._waves.run(subscription.decide, [item], on_signal=subscription.on_signal)
        open_items = {id(item) for item in remainder or ()}
        await self._settle_all(batch, [(delivery, item) for delivery, item in items if id(item) not in open_items])
        if not open_items:
            return None
        return Postponed(subscription, tuple((delivery, item) for delivery, item in items if id(item) in open_items))

    async def finish(self, remainder: "Postponed") -> None:
        """Decide on messages that waited, and settle them."""
        subscription, items = remainder.subscription, [item for _, item in remainder.items]
        await self._waves.run(subscription.decide, items, on_signal=subscription.on_signal)
        await self._settle_all(_Batch(subscription), remainder.items)

    async def _settle_all(self, batch: _Batch, items: Sequence[tuple[Delivery, Item]]) -> None:
        """Settle messages, acknowledging them in one write."""
        for delivery, item in items:
            await self._settle(batch, delivery, item.outcome)
        if batch.handled:
            await _send(acknowledge(batch.handled))
        if batch.refused:
            await self._store_dead_letters(batch.subscription, batch.refused)

    async def _settle(self, batch: _Batch, delivery: Delivery, outcome: Outcome | None) -> None:
        """Hand a message back, or add it to its batch's handled or refused messages."""
        match outcome:
            case Outcome(Result.DONE):
                self._failures.pop((batch.subscription.durable, delivery.subject, delivery.sequence), None)
                batch.handled.append(delivery)
            case Outcome(Result.REFUSED, Step() as step):
                batch.refused.append(_Refusal(delivery, step.reason, step.code, step.job))
            case Outcome(Result.WAIT, Step() as step):
                await _send(delivery.nak(step.delay))
            case Outcome(Result.FAILED, _, Exception() as error):
                await self._on_error(batch, delivery, error)
            case _:
                await _send(delivery.nak(self._short_delay_s()))

    def _is_foreign(self, delivery: Delivery) -> bool:
        """Return whether no stage stored a message: then no stage decides on it."""
        reason = subjects.foreign_reason(delivery.subject, delivery.headers)
        if reason is not None:
            self._foreign.report(delivery.subject, delivery.sequence, delivery.time, reason)
        return reason is not None

    def _item(self, subscription: BoundSubscription, delivery: Delivery) -> Item:
        """Decode a message.

        Raises:
            DecodeError: the message is unreadable, or a copy of an input.
        """
        if subjects.is_copied_input(delivery.subject, delivery.headers, self._streams):
            raise subjects.DecodeError("it is a reply of the server to a read, whose sender addressed it here")
        message = subjects.decode(delivery.subject, delivery.body)
        if type(message) is Trigger:
            message = subjects.continued(message, delivery.headers)
        trace_ids.note(message)
        recorded = Recorded(message, delivery.subject, delivery.sequence, delivery.time, delivery.message_id)
        return Item(recorded, _key(subscription, recorded), is_repeated=delivery.delivered > 1)

    async def _is_handled(self, subscription: BoundSubscription, delivery: Delivery) -> bool:
        """Return whether a message lies before the archive's cursor: it was handled."""
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

    def _learn(self, subscription: BoundSubscription, items: Sequence[Item]) -> None:
        if subscription.learn is None:
            return
        try:
            self._store.learn(report for item in items for report in subscription.learn(item.input))
        except Exception as error:  # noqa: BLE001 - it only saves reads: the decisions read for themselves
            _log.error("events not learned", action="learning-failed", durable=subscription.durable, exc_info=error)

    async def _on_error(self, batch: _Batch, delivery: Delivery, error: Exception) -> None:
        """Hand back a message whose decision raised, or refuse it."""
        if isinstance(error, OutdatedState):
            await _send(delivery.nak(self._short_delay_s()))
        elif isinstance(error, LogUnavailable):
            _log.warning(
                "message handed back; the log is unavailable",
                action="log-unavailable",
                durable=batch.subscription.durable,
                subject=delivery.subject,
                error=str(error),
            )
            await _send(delivery.nak(_RETRY_S))
        elif isinstance(error, subjects.DecodeError) and error.sequence is None and not _may_be_newer(delivery):
            is_proven = batch.subscription.is_proven
            if is_proven is None or is_proven(delivery.subject):
                batch.refused.append(_Refusal(delivery, f"unreadable: {error}", error.code))
            else:
                batch.handled.append(delivery)
        elif isinstance(error, subjects.DecodeError):
            await self._on_unreadable(batch, delivery, error)
        elif isinstance(error, MessageTooLarge):
            batch.refused.append(_Refusal(delivery, str(error), error.code))  # it would be too large each time
        else:
            await self._on_failure(batch, delivery, error)

    async def _on_unreadable(self, batch: _Batch, delivery: Delivery, error: subjects.DecodeError) -> None:
        """Hand back a message whose decision needs an event that is unreadable here.

        The message may be the event itself. A newer version of Tocsin may have written it; a stage of that version can decide on the
        message. If an operator set the event aside, nothing is decided on it, and decisions that need it are made without it.
        """
        unreadable = error.stored or subjects.UnreadableMessage(
            subjects.stream_of(delivery.subject),
            delivery.subject,
            delivery.sequence,
            delivery.time,
            subjects.digest_of(delivery.body),
        )
        if error.stored is None and await self._is_set_aside(delivery):
            batch.handled.append(delivery)
            return
        self._foreign.report_unreadable(unreadable, str(error))
        _log.error(
            "message handed back; an event is unreadable",
            action="fact-unreadable",
            durable=batch.subscription.durable,
            subject=unreadable.subject,
            sequence=unreadable.sequence,
            error=str(error),
        )
        await _send(delivery.nak(_BACKOFF_S[-1]))

    async def _is_set_aside(self, delivery: Delivery) -> bool:
        """Return whether an operator set an unreadable event aside."""
        try:
            stored = await self._log.get(delivery.subject, delivery.sequence)
        except (LogUnavailable, subjects.DecodeError):
            return False
        return stored is not None and stored.subject == delivery.subject and subjects.is_foreign(stored)

    async def _on_failure(self, batch: _Batch, delivery: Delivery, error: Exception) -> None:
        key = (batch.subscription.durable, delivery.subject, delivery.sequence)
        if key not in self._failures and len(self._failures) >= MAX_REMEMBERED_FAILURES:
            del self._failures[next(iter(self._failures))]  # another process settled the oldest message
        self._failures[key] += 1
        _log.error(
            "handler failed",
            action="handler-failed",
            durable=batch.subscription.durable,
            subject=delivery.subject,
            sequence=delivery.sequence,
            times=self._failures[key],
            exc_info=error,
        )
        if self._failures[key] >= MAX_FAILURES and not isinstance(error, EndlessDecision):
            del self._failures[key]
            code = error.code if isinstance(error, TocsinError) else TocsinError.code
            batch.refused.append(_Refusal(delivery, f"{type(error).__name__}: {error}", code))
            return
        await _send(delivery.nak(_BACKOFF_S[min(self._failures[key], len(_BACKOFF_S)) - 1]))

    async def _store_dead_letters(self, subscription: BoundSubscription, refusals: Sequence[_Refusal]) -> None:
        """Store the dead letters of a batch in one write, and settle their messages."""
        limit = self._log.max_message_bytes // 4  # base64 adds a third
        letters = [_dead_letter(subscription, refusal).shortened(limit) for refusal in refusals]
        unique = {letter.id: letter for letter in letters}  # a batch may hold two deliveries of one message
        try:
            answers = await self._log.write([Append((letter,), 0) for letter in unique.values()])
        except Exception as error:  # noqa: BLE001 - the messages must be handed back
            answers = [Written((), error)] * len(unique)
        results = dict(zip(unique, answers, strict=True))
        for id_, letter in unique.items():
            if isinstance(results[id_].error, SequenceConflict):
                results[id_] = await self._store_beside_foreign(letter)
        for refusal, letter in zip(refusals, letters, strict=True):
            await _settle_refused(refusal, letter.id, results[letter.id].error)

    async def _store_beside_foreign(self, letter: PoisonMessage) -> Written:
        """Store a dead letter whose scope is not empty, unless an earlier delivery stored it.

        A foreign message may be in its scope.
        """
        scope = subjects.scope_of(letter)
        try:
            stored = await self._log.load(scope)
            if subjects.has_events(stored):
                return Written(())
            return Written((await self._log.append(letter, expect=stored[-1].sequence if stored else 0),))
        except OutdatedState as error:  # another delivery stores it now
            return Written((), LogUnavailable(str(error)))
        except Exception as error:  # noqa: BLE001 - the message must be handed back
            return Written((), error)

    def _short_delay_s(self) -> float:
        return self._chance.uniform(0.02, 0.2)


def _may_be_newer(delivery: Delivery) -> bool:
    """Return whether a stage of a newer version may have stored an unreadable message.

    Only stages store events with the guard of their scope, and as JSON. A dead letter of an event cannot be run again.
    """
    if subjects.guard_of(delivery.subject) is None:
        return False
    try:
        return isinstance(msgspec.json.decode(delivery.body), dict)
    except msgspec.MsgspecError:
        return False


def _key(subscription: BoundSubscription, recorded: Recorded[Message]) -> object:
    """Return what a message has in common with others that are decided after it."""
    if subscription.ordering_key is not None:
        return subscription.ordering_key(recorded.subject)
    contended = None if subscription.contended is None else subscription.contended(recorded.message)
    return recorded.sequence if contended is None else contended


def _dead_letter(subscription: BoundSubscription, refusal: _Refusal) -> PoisonMessage:
    delivery = refusal.delivery
    return PoisonMessage.of(
        _storable(refusal.job or subjects.job_of(delivery.subject)),
        subscription.durable,
        delivery.subject,
        delivery.sequence,
        delivery.body,
        refusal.reason,
        code=refusal.code,
        partition=subjects.partition(delivery.subject),
    ).identified(delivery.message_id)


def _storable(job: str) -> str:
    """Return the job of a dead letter.

    A server stores messages of others under wildcards and letters that the log itself refuses.
    """
    try:
        check_subject(subjects.token(job))
    except RequestRefused:
        return _NO_JOB
    return job or _NO_JOB


async def _settle_refused(refusal: _Refusal, letter: str, error: Exception | None) -> None:
    """Terminate a message whose dead letter is stored; hand it back otherwise.

    The reason may repeat the message, such as the input of a trigger. The dead letter with the id `letter` has it, and the line has not.
    """
    delivery = refusal.delivery
    if isinstance(error, LogUnavailable):
        await _send(delivery.nak(_RETRY_S))
    elif error is None or isinstance(error, SequenceConflict):  # a conflict: an earlier delivery stored the dead letter
        _log.error(
            "message became a dead letter",
            action="message-refused",
            subject=delivery.subject,
            code=refusal.code or TocsinError.code,
            dead_letter=letter,
        )
        await _send(delivery.term())
    else:
        _log.error("dead letter not stored", action="refusal-failed", subject=delivery.subject, exc_info=error)
        await _send(delivery.nak(_BACKOFF_S[-1]))


async def _send(acknowledgement: Awaitable[None]) -> None:
    try:
        await acknowledgement
    except LogUnavailable as error:
        _log.warning("acknowledgement not sent", action="not-told", error=str(error))  # the log redelivers the message
