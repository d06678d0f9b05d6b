"""Recorder: writes the events of jobs and executions into the history, the read model.

It stores the history's rows and its place in each stream in one transaction. It has no durable: log and history would then
each remember a place, and after a crash they could differ.

Any number of recorders may run. The first to commit a batch wins; a recorder that loses waits longer before its next try,
so that in effect a single recorder works and the others stand by.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Final

from ... import subjects, telemetry
from ...archive.stream_reader import decoded
from ...domain import policy
from ...domain.events import Message, Recorded
from ...engine.stage import Access, Stage, StageContext
from ...ports import Batch, Clock, Encoded, EventLog, History, SequenceConflict, StoredLog, TraceExport
from ...subjects import RECORDED, Bucket, DecodeError, Stream

SHORTEST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 5.0
"""How long a recorder waits before it starts over; the pause doubles with each failure in a row."""

GATHER_INTERVAL_S: Final = 0.25
"""The time between two transactions, and so the lag of the history."""

MAX_TRANSACTION: Final = 4_000
"""The number of events after which a batch is written, although more are available."""

_log = telemetry.get_logger("tocsin.recorder")


@dataclass(frozen=True)
class Recorder:
    """Records one stream.

    `past`: the stored log; None: `catch_up` is not called. `gathering`: seconds between two transactions.
    `traces`: takes the recorded events; None: no trace is exported.
    """

    log: EventLog
    history: History
    clock: Clock
    stream: Stream
    _: KW_ONLY
    past: StoredLog | None
    gathering: float = GATHER_INTERVAL_S
    traces: TraceExport | None = None

    async def run(self) -> None:
        """Record until cancelled.

        A failure loses nothing: events that are not stored are read again, from the stored place.
        """
        pause = SHORTEST_PAUSE_S
        while True:
            try:
                async for _ in self.recorded():
                    pause = SHORTEST_PAUSE_S
            except SequenceConflict:
                _log.info("another recorder was faster", action="recorder-behind", stream=self.stream, pause=pause)
            except Exception as error:  # noqa: BLE001 - a failure of the log or the database may be over soon
                _log.warning(
                    "recording failed; retrying",
                    action="recorder-failed",
                    stream=self.stream,
                    pause=pause,
                    exc_info=error,
                )
            await self.clock.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def catch_up(self) -> None:
        """Record every event that is stored now, beside any other recorder.

        Raises:
            ValueError: the recorder was created without the stored log.
            TocsinError: see `recorded`.
        """
        if self.past is None:
            raise ValueError("catch_up needs the stored log")
        upto = (await self.past.extent(self.stream)).last
        while True:
            try:
                async with aclosing(self.recorded(upto=upto)) as batches:
                    async for _ in batches:
                        pass
            except SequenceConflict:
                await self.clock.sleep(SHORTEST_PAUSE_S)
            else:
                return

    async def recorded(self, *, upto: int | None = None) -> AsyncGenerator[Batch, None]:
        """Record batch by batch, and yield each batch after it was recorded.

        `upto`: the sequence at which it ends; None: it follows the stream.

        Raises:
            SequenceConflict: another recorder was faster.
            StaleRead: the replicas that were read lag.
            LogUnavailable: the log did not answer.
            HistoryUnavailable: the history's database did not answer.
        """
        place = await self.history.offset(self.stream)
        async with aclosing(self._gathered(after=place, upto=upto)) as batches:
            async for batch in batches:
                # The policy may keep executions out of the history.
                opens = (
                    self.stream is not Stream.LOG
                    or not batch.messages
                    or policy.fold(await self.log.load(subjects.policy())).enable_job_history is not False
                )
                await self.history.record(
                    self.stream, batch.messages, after=place, upto=batch.upto, opens=opens, encoded=batch.encoded
                )
                place = batch.upto
                if self.traces is not None:
                    self.traces.take(batch.messages, {one.sequence: one.cause for one in batch.encoded})
                yield batch
                # Gather events meanwhile: a transaction for every few events would cost far more.
                if self.gathering and batch.caught_up:
                    await self.clock.sleep(self.gathering)

    async def _gathered(self, *, after: int, upto: int | None) -> AsyncGenerator[Batch, None]:
        """Yield the events after a place, gathered into large batches.

        Each batch writes every row that it changes, so that fewer batches write less.
        """
        messages, encoded = list[Recorded[Message]](), list[Encoded]()
        due = self.clock.monotonic() + self.gathering
        async with aclosing(self._batches(after=after, upto=upto)) as batches:
            async for batch in batches:
                messages += batch.messages
                encoded += batch.encoded
                now = self.clock.monotonic()
                if batch.caught_up or now >= due or len(messages) >= MAX_TRANSACTION:
                    due = now + self.gathering
                    yield Batch(messages, batch.caught_up, batch.upto, encoded=encoded)
                    messages, encoded = [], []

    async def _batches(self, *, after: int, upto: int | None) -> AsyncGenerator[Batch, None]:
        """Yield the events after a place.

        Up to a number, they come from the stored log.
        """
        if upto is not None and self.past is not None:
            if after < upto:
                async for batch in self._stored(self.past, after=after, upto=upto):
                    yield batch
            return
        following = self.log.follow(self.stream, *RECORDED[self.stream], after=after)
        async with aclosing(following) as follower:
            async for batch in follower:
                yield batch

    async def _stored(self, past: StoredLog, *, after: int, upto: int) -> AsyncIterator[Batch]:
        """Yield the events up to a sequence."""
        async for portion in past.messages(self.stream, *RECORDED[self.stream], after=after, upto=upto):
            messages = []
            for stored in portion:
                try:
                    recorded = decoded(stored)
                except DecodeError as error:
                    _log.warning(
                        "unreadable event skipped", action="unreadable", sequence=stored.sequence, error=str(error)
                    )
                else:
                    messages.append(recorded)
            yield Batch(messages, caught_up=False, upto=portion[-1].sequence, encoded=portion)
        yield Batch((), caught_up=True, upto=upto)


@dataclass(frozen=True)
class Recorders:
    """One recorder for each recorded stream, and the export of traces."""

    log: Recorder
    """Of executions and dead letters."""
    ledger: Recorder
    traces: TraceExport | None

    async def export_traces(self) -> None:
        """Export the traces of recorded executions; wait until cancelled if nothing takes them."""
        if self.traces is None:
            await asyncio.Event().wait()
        else:
            await self.traces.run()


async def catch_up(log: EventLog, history: History, clock: Clock, *, past: StoredLog) -> None:
    """Record every event of all streams that is stored now (see `Recorder.catch_up`)."""
    for stream in RECORDED:
        await Recorder(log, history, clock, stream, past=past, gathering=0).catch_up()


def _start(context: StageContext) -> Recorders:
    storage = context.require_storage()
    recorder = partial(
        Recorder,
        context.log,
        storage.history,
        context.clock,
        past=storage.stored,
    )
    return Recorders(recorder(Stream.LOG, traces=context.traces), recorder(Stream.LEDGER), context.traces)


RECORDER: Final = Stage(
    name="recorder",
    purpose="keeps the history",
    consumes="all events of executions, dead letters and ledgers; the policy",
    decides="rows of the history, with its place in the log; traces of executions that are over",
    access=Access(
        reads=(Stream.REPORTS,),
        looks_up=(Bucket.CURSORS,),
        reads_archive=True,
    ),
    start=_start,
    loops=(lambda all_: all_.log.run(), lambda all_: all_.ledger.run(), Recorders.export_traces),
    needs_history=True,
)
