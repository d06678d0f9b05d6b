"""A durable in memory: its delivered messages and their redelivery."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from ... import subjects
from ...ports import DurableSpec, Progress, acknowledge_each
from ...subjects import Stream
from .clock import Alarm, AlarmClock
from .stored_stream import Entry, Signal, StoredStream


@dataclass(slots=True)
class _Out:
    """A delivered message that is not settled; `alarm` redelivers it."""

    entry: Entry
    delivered: int = 0
    alarm: Alarm | None = None


class InMemoryDurable:
    """A consumer with explicit acknowledgement, which redelivers each message until it is settled."""

    def __init__(self, stream: StoredStream, spec: DurableSpec, clock: AlarmClock, *, after: int = 0) -> None:
        """Start with the first message of the stream after a sequence."""
        self.spec = spec
        self._stream = stream
        self._clock = clock
        self._upto = after
        self._out: dict[int, _Out] = {}
        self._again: deque[int] = deque()
        self._changed = Signal()
        stream.on_store(self._look_at)

    async def take(self, limit: int, *, wait: float | None) -> "Sequence[InMemoryDelivery]":
        """Return up to `limit` messages: redeliveries first, then new messages in order.

        Waits for the first message up to `wait` seconds of the clock; None: without a limit.
        """
        if (deliveries := self._hand_out(limit)) or (wait is not None and wait <= 0):
            return deliveries
        until = inf if wait is None else self._clock.monotonic() + wait
        alarm = None if wait is None else self._clock.after(wait, self._changed.notify)
        try:
            while not deliveries and self._clock.monotonic() < until:
                await self._changed.wait()
                deliveries = self._hand_out(limit)
        finally:
            if alarm is not None:
                alarm.cancel()
        return deliveries

    def again(self, sequence: int) -> None:
        """Redeliver a settled message, as a server does that lost the acknowledgement."""
        entry = self._stream.get(sequence)
        if entry is not None and sequence not in self._out and self._wants(entry.subject):
            self._out[sequence] = _Out(entry)
            self._requeue(sequence)

    @property
    def outstanding(self) -> int:
        """The number of messages that are delivered or wait for redelivery."""
        return len(self._out)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to deliver or to settle."""
        for entry in self._stream.entries_after(self._upto):
            if self._wants(entry.subject):
                return False
            self._upto = entry.sequence
        return not self._out

    @property
    def progress(self) -> Progress:
        """Return the progress; undelivered messages count only if they match."""
        ahead = next((e.sequence for e in self._stream.entries_after(self._upto) if self._wants(e.subject)), None)
        first = min(self._out, default=ahead)
        return Progress(self._upto if first is None else first - 1, is_idle=first is None)

    def _look_at(self, subject: str) -> None:
        if self._wants(subject):
            self._changed.notify()

    def _wants(self, subject: str) -> bool:
        return any(subjects.matches(name, subject) for name in self.spec.filters)

    def _hand_out(self, limit: int) -> "list[InMemoryDelivery]":
        deliveries: list[InMemoryDelivery] = []
        while self._again and len(deliveries) < limit:
            out = self._out.get(self._again.popleft())
            if out is None:
                continue
            if self._stream.get(out.entry.sequence) is None:  # purged meanwhile: a server has forgotten it
                del self._out[out.entry.sequence]
            else:
                deliveries.append(self._deliver(out))
        for entry in self._stream.entries_after(self._upto):
            if len(deliveries) >= limit or len(self._out) >= self.spec.max_ack_pending:
                break
            self._upto = entry.sequence
            if self._wants(entry.subject):
                out = self._out[entry.sequence] = _Out(entry)
                deliveries.append(self._deliver(out))
        return deliveries

    def _deliver(self, out: _Out) -> "InMemoryDelivery":
        out.delivered += 1
        self._come_again(out, self.spec.ack_wait)
        return InMemoryDelivery(self, out.entry, out.delivered)

    def _come_again(self, out: _Out, seconds: float) -> None:
        if out.alarm is not None:
            out.alarm.cancel()
        out.alarm = self._clock.after(seconds, lambda: self._requeue(out.entry.sequence))

    def _requeue(self, sequence: int) -> None:
        if sequence in self._out and sequence not in self._again:
            self._again.append(sequence)
            self._changed.notify()

    def done(self, sequence: int) -> None:
        """Settle a message for good. A work queue then removes it."""
        out = self._out.pop(sequence, None)
        if out is None:
            return
        if out.alarm is not None:
            out.alarm.cancel()
        if self.spec.stream is Stream.MQ:
            self._stream.remove(sequence)
        self._changed.notify()  # there may be room for another message

    def back(self, sequence: int, delay: float) -> None:
        out = self._out.get(sequence)
        if out is None or sequence in self._again:
            return
        if delay > 0:
            self._come_again(out, delay)
        elif out.alarm is not None:
            out.alarm.cancel()
            self._requeue(sequence)

    def keep(self, sequence: int) -> None:
        """Restart the acknowledgement wait of a message."""
        out = self._out.get(sequence)
        if out is not None and sequence not in self._again:
            self._come_again(out, self.spec.ack_wait)


class InMemoryDelivery:
    """Implement `ports.Delivery`."""

    def __init__(self, durable: InMemoryDurable, entry: Entry, delivered: int) -> None:
        self._durable = durable
        self._is_settled = False
        self.subject = entry.subject
        self.body = entry.body
        self.sequence = entry.sequence
        self.time = entry.time
        self.headers = entry.headers
        self.message_id = entry.message_id
        self.delivered = delivered

    async def ack(self) -> None:
        self._settle()
        self._durable.done(self.sequence)

    async def nak(self, delay: float) -> None:
        self._settle()
        self._durable.back(self.sequence, delay)

    async def in_progress(self) -> None:
        self._durable.keep(self.sequence)

    @staticmethod
    async def ack_many(deliveries: Sequence["InMemoryDelivery"]) -> None:
        await acknowledge_each(deliveries)

    def _settle(self) -> None:
        if self._is_settled:
            raise RuntimeError(f"{self.subject}, delivery {self.delivered}: already settled")
        self._is_settled = True
