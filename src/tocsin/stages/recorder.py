"""Recorder: writes what has happened into the history, the read model that people and the gateway ask.

reads     the facts of executions, the dead letters and the ledgers, from the places that the history itself keeps
projects  the history's rows and its place in each stream, in one transaction

It has no durable: log and history would each remember a place then, and after a crash one of them would be wrong. Any
number of recorders may run; one is the faster with a batch, and whoever keeps losing waits longer before it looks again, so
that in effect one works and the rest stand by.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Final, cast

import structlog

from .. import subjects
from ..archive.stream_reader import decoded
from ..domain.events import Message, Recorded
from ..engine.stage import Access, Stage
from ..ports import Batch, Clock, EventLog, History, OutdatedState, StoredLog
from ..subjects import Bucket, DecodeError, Stream

RECORDED: Final[Mapping[Stream, tuple[str, ...]]] = {
    Stream.LOG: (subjects.filter_for("execution.>"), subjects.filter_for("dead-letter.>")),
    Stream.LEDGER: (subjects.filter_for("ledger.>"),),
}
"""What is recorded of each stream; one loop runs for each."""

ACCESS: Final = Access(follows=tuple(RECORDED), looks_up=(Bucket.CURSORS,), reads_archive=True)

SHORTEST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 5.0
"""Seconds before a recorder starts over; they double with each trouble in a row."""

GATHERING: Final = 0.25
"""Seconds between two transactions; the history is that much behind, and the log is not."""

TRANSACTION: Final = 4_000
"""Facts from which on a transaction begins at once, though there are more to be had."""

_log = structlog.get_logger("tocsin.recorder")


def recorder(log: EventLog, history: History, clock: Clock, *, past: StoredLog | None) -> Stage:
    """Records every stream of `RECORDED` for as long as it runs. `past`: where that is which has left the streams; None: nothing has."""
    loops = tuple(Recorder(log, history, clock, stream, past=past).run for stream in RECORDED)
    return Stage("recorder", loops=loops, access=ACCESS)


class Recorder:
    """Records one stream."""

    def __init__(
        self,
        log: EventLog,
        history: History,
        clock: Clock,
        stream: Stream,
        *,
        past: StoredLog | None,
        gathering: float = GATHERING,
    ) -> None:
        self._log = log
        self._history = history
        self._clock = clock
        self._stream = stream
        self._gathering = gathering
        self._past = past

    async def run(self) -> None:
        """Record for ever. Nothing is lost by trouble: whatever is not stored is read again, from the stored place."""
        pause = SHORTEST_PAUSE
        while True:
            try:
                async for _ in self.recorded():
                    pause = SHORTEST_PAUSE
            except OutdatedState:
                _log.info("another recorder was faster", action="recorder-behind", stream=self._stream, pause=pause)
            except Exception as error:  # noqa: BLE001 - whatever ails the log or the database, it may be over in a moment
                _log.warning("not recorded", action="recorder-failed", stream=self._stream, pause=pause, exc_info=error)
            await self._clock.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def catch_up(self) -> None:
        """Record until there is no more at that moment, beside any other recorder.

        Raises:
            LogUnavailable: the log did not answer; or whatever the history raises when its database does not.
        """
        while True:
            try:
                async with aclosing(self.recorded()) as batches:
                    async for batch in batches:
                        if batch.caught_up:
                            return
            except OutdatedState:
                await self._clock.sleep(SHORTEST_PAUSE)

    async def recorded(self) -> AsyncGenerator[Batch, None]:
        """Record batch by batch; each as it has been recorded.

        Raises:
            SequenceConflict: another recorder was faster.
            LogUnavailable: the log did not answer; or whatever the history raises when its database does not.
        """
        place = await self._history.offset(self._stream)
        async with aclosing(self._gathered(after=place)) as batches:
            async for batch in batches:
                await self._history.record(self._stream, batch.messages, after=place, upto=batch.upto)
                place = batch.upto
                yield batch
                # What comes meanwhile is recorded at once: a transaction for each handful of facts would cost far more.
                if self._gathering and batch.caught_up:
                    await self._clock.sleep(self._gathering)

    async def _gathered(self, *, after: int) -> AsyncGenerator[Batch, None]:
        """Everything behind a place; what can be had at once as one batch, since each writes the rows that it changes anew."""
        messages: list[Recorded[Message]] = []
        due = self._clock.monotonic() + self._gathering
        async with aclosing(self._batches(after=after)) as batches:
            async for batch in batches:
                messages += batch.messages
                now = self._clock.monotonic()
                if batch.caught_up or now >= due or len(messages) >= TRANSACTION:
                    due = now + self._gathering
                    yield Batch(messages, batch.caught_up, batch.upto)
                    messages = []

    async def _batches(self, *, after: int) -> AsyncGenerator[Batch, None]:
        """Everything behind a place: from the archive what is there alone, and then what comes."""
        if self._past is not None and after < (archived := await self._past.archived(self._stream)):
            async for batch in self._remembered(self._past, after=after, upto=archived):
                yield batch
            after = archived
        follower = self._log.follow(self._stream, *RECORDED[self._stream], after=after)
        async with aclosing(cast("AsyncGenerator[Batch, None]", follower)):
            async for batch in follower:
                yield batch

    async def _remembered(self, past: StoredLog, *, after: int, upto: int) -> AsyncIterator[Batch]:
        """What lies so far back that only the archive may have it."""
        async for portion in past.messages(self._stream, *RECORDED[self._stream], after=after, upto=upto):
            messages = []
            for stored in portion:
                try:
                    messages.append(decoded(stored))
                except DecodeError as error:
                    _log.warning(
                        "unreadable, left out", action="unreadable", sequence=stored.sequence, error=str(error)
                    )
            yield Batch(messages, caught_up=False, upto=portion[-1].sequence)
        yield Batch((), caught_up=False, upto=upto)
