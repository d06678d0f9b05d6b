"""Archiver: moves old messages into the archive, and expires old rows of the history.

It archives a message after every durable and the history have handled it, and when it is old enough. Each step can be
repeated: write the objects, write the archive's state (which makes them count), write the cursors from which durables
begin, wait until all stages have read these, purge the streams, and note in the state that they are purged. A new leader
finishes what the last leader left, before it begins a new segment.
"""

from datetime import datetime, timedelta
from typing import Final

from ... import subjects, telemetry
from ...archive.archive import Archive, ArchivingFailure, Origin, Segment, State
from ...archive.segment_selection import PurgeFilters
from ...domain import policy
from ...engine.leader_election import LeaderElection, lease_access
from ...engine.stage import Access, Stage, StageContext
from ...ports import (
    ArchiveUnavailable,
    Clock,
    EventLog,
    History,
    LogUnavailable,
    OutdatedState,
    StoredLog,
    StreamPurge,
)
from ...settings import Settings
from ...subjects import ARCHIVE_STATE, ARCHIVER_LEASE, RECORDED, STREAMS, Bucket, Stream, cursor
from .archive_eligibility import ArchiveEligibility
from .finished_output import FinishedHeartbeats, FinishedOutput
from .log_archiver import Keeping, LogArchiver
from .unproven_reports import INTERVAL_S, UnprovenReports

LEAST: Final = timedelta(minutes=2)
"""The least age of an archived message, or the hot window if that is shorter; `max_messages` does not change it."""

MAX_REASON: Final = 500
"""Characters of the reason of a failure that are stored."""

_log = telemetry.get_logger("tocsin.archiver")
_failures: Final = telemetry.meter().create_counter(
    "tocsin_archiving_failures", description="Runs of the archiver that failed; nothing left the streams in them."
)


class PacedPurge:
    """Purges the messages of a segment from the streams at a gentle pace.

    The pauses leave room for other writers (`archive.segment_selection`). After a crash it finds the rest of the segment again;
    nothing is purged twice.
    """

    def __init__(self, streams: StoredLog, purge: StreamPurge, archive: Archive, clock: Clock) -> None:
        """`archive`: each segment is read from it first, so that only readable messages are purged."""
        self._streams = streams
        self._purge = purge
        self._archive = archive
        self._clock = clock

    def obstacle(self) -> str | None:
        """Return why the server cannot purge, for the operator; None: it can."""
        return self._purge.obstacle()

    async def remove(self, segment: Segment) -> None:
        """Purge each subject in turn, and pause after each for as long as it took.

        A purge takes long if durables have a large backlog, and very little time otherwise.

        Raises:
            ArchiveDamaged: the segment cannot be read.
            LogUnavailable: the log did not answer.
        """
        messages = await self._archive.messages(segment)
        for stream, span in segment.streams.items():
            filters = PurgeFilters([message for message in messages if message.stream is stream])
            async for portion in self._streams.messages(stream, after=0, upto=span.last):
                for message in portion:
                    filters.take(message)
            for subject, upto in filters.purges():
                began = self._clock.monotonic()
                await self._purge.purge(subject, upto=upto)
                if took := self._clock.monotonic() - began:
                    await self._clock.sleep(took)


class Archiver:
    """Archives and expires, as long as it leads."""

    def __init__(  # noqa: PLR0913 - the parts of an archiver
        self,
        eligibility: ArchiveEligibility,
        purge: PacedPurge,
        archive: Archive,
        log: EventLog,
        history: History,
        leadership: LeaderElection,
        clock: Clock,
        *,
        origin: Origin,
        keeping: Keeping,
        output: FinishedOutput | None,
        heartbeats: FinishedHeartbeats,
        unproven: UnprovenReports,
        log_archiver: LogArchiver | None = None,
    ) -> None:
        """`output`: None leaves the lines of handlers to their stream.

        `log_archiver`: archives the log of commits; None: decisions are messages.
        """
        self._log_archiver = log_archiver
        self._output = output
        self._unproven = unproven
        self._heartbeats = heartbeats
        self._eligibility = eligibility
        self._purge = purge
        self._archive = archive
        self._log = log
        self._history = history
        self._leadership = leadership
        self._clock = clock
        self._origin = origin
        self._keeping = keeping

    async def lead(self) -> None:
        """Hold the leader lease, or try to."""
        await self._leadership.run()

    async def run(self) -> None:
        """Archive and expire until cancelled. A failure only costs time: the rest is found again."""
        while True:
            try:
                if await self._leadership.time() is not None:
                    await self._heartbeats.run_once()
                while (now := await self._leadership.time()) is not None and await self.run_once(now):
                    pass
            except ArchiveUnavailable as error:
                _log.warning("archiving delayed; waiting for the archive", action="archive-waits", reason=str(error))
                await self._note(error)
            except (LogUnavailable, OutdatedState) as error:
                _log.info("archiving delayed; waiting for JetStream", action="archiver-waits", reason=str(error))
            except Exception as error:  # noqa: BLE001 - a failure of the archive or the database may be over soon
                _log.warning("archiving failed; retrying later", action="archiver-failed", exc_info=error)
                await self._note(error)
            await self._clock.sleep(self._keeping.interval)

    async def _note(self, error: Exception) -> None:
        """Count a failure, and store its reason where `tocsin doctor` reads it."""
        _failures.add(1)
        if self._log_archiver is not None:
            await self._log_archiver.note(error)
            return
        reason = f"{type(error).__name__}: {error}"[:MAX_REASON]
        try:
            state, revision = await self._archive.state()
            if state.failure is None or state.failure.reason != reason:
                since = await self._log.now() if state.failure is None else state.failure.since
                failure = ArchivingFailure(since=since, reason=reason)
                await self._archive.move(state.model_copy(update={"failure": failure}), expect=revision)
        except (LogUnavailable, OutdatedState) as unstored:
            _log.info("the failure is not stored", action="archiver-waits", reason=str(unstored))

    async def sweep(self) -> None:
        """Remove reports that prove nothing until cancelled, as long as it leads."""
        while True:
            number = 0
            try:
                if await self._leadership.time() is not None and (number := await self._unproven.run_once()):
                    _log.warning("reports without proof removed", action="reports-removed", number=number)
            except LogUnavailable as error:
                _log.info("reports not removed; waiting for JetStream", action="archiver-waits", reason=str(error))
            except Exception as error:  # noqa: BLE001 - the flood may go on
                _log.warning("reports not removed; retrying", action="archiver-failed", exc_info=error)
            if not number:
                await self._clock.sleep(INTERVAL_S)

    async def run_once(self, now: datetime) -> bool:
        """Archive one portion and expire some history; return whether there may be more to do.

        Raises:
            SequenceConflict: another archiver was faster.
            LogUnavailable: the log did not answer.
            HistoryUnavailable: the history's database did not answer.
        """
        is_more = False
        if obstacle := self._purge.obstacle():
            _log.warning("archiving is not possible", action="archiver-cannot", reason=obstacle)
        elif self._log_archiver is not None:
            is_more = await self._log_archiver.run_once(now)
        else:
            is_more = await self._archive_portion(now)
        forgotten = await self._history.expire(now, after=await self._retention())
        return is_more or forgotten > 0

    async def _retention(self) -> timedelta:
        """Return how long the history keeps rows.

        The policy precedes the settings.
        """
        days = policy.fold(await self._log.load(subjects.policy())).job_history_retention_days
        return self._keeping.history if days is None else timedelta(days=days)

    async def _archive_portion(self, now: datetime) -> bool:
        state, revision = await self._finish(*await self._archive.state())
        messages, upto, is_more = await self._eligibility.look(state.upto, now)
        if upto != state.upto:
            head: Segment | None = None
            if messages:
                lines = [] if self._output is None else await self._output.keep(messages, state)
                head = await self._archive.write(messages, state, upto, self._origin, lines)
                await self._archive.messages(head)  # a segment that cannot be read back must not count
            changes = {}
            if head is not None:
                digest = await self._archive.digest(head)
                changes = {"head": head.name, "number": head.number, "head_sha256": digest}
            state = state.model_copy(update={"upto": upto, **changes})
            revision = await self._archive.move(state, expect=revision)
            state, revision = await self._finish(state, revision)
        if state.failure is not None:
            await self._archive.move(state.model_copy(update={"failure": None}), expect=revision)
        return is_more

    async def _finish(self, state: State, revision: int) -> tuple[State, int]:
        """Publish where durables begin, then purge the newest segment from the streams."""
        await self._archive.tell(state)
        if state.head is None or state.head == state.purged:
            return state, revision
        if self._keeping.settling:
            await self._clock.sleep(self._keeping.settling)
        segment = await self._archive.segment(state.head, state.head_sha256)
        await self._purge.remove(segment)
        state = state.model_copy(update={"purged": state.head})
        revision = await self._archive.move(state, expect=revision)
        _log.info("archived", action="archived", segment=segment.name, executions=segment.executions)
        return state, revision


def max_lag(settings: Settings) -> timedelta:
    """Return the age from which a message's consequences may be archived.

    It is half of the least age that the streams keep.
    """
    return min(timedelta(seconds=settings.archive.hot_window), LEAST) / 2


def _start(context: StageContext) -> Archiver | None:
    settings, storage = context.settings, context.require_storage()
    if not settings.archive.enabled:
        return None
    hot_window = timedelta(seconds=settings.archive.hot_window)
    keeping = Keeping(
        hot_window=hot_window,
        least=min(hot_window, LEAST),
        max_messages=settings.archive.max_messages,
        max_input_bytes=settings.archive.input_bytes,
        max_outside_messages=settings.archive.outside_messages,
        history=timedelta(days=settings.execution.history_retention_days),
        interval=settings.archive.interval,
        output=settings.archive.output,
    )
    lines = FinishedOutput(storage.streams, storage.archive, storage.origin)
    return Archiver(
        ArchiveEligibility(
            storage.streams, storage.purge, storage.history, log=context.log, keeping=keeping, recorded=RECORDED
        ),
        PacedPurge(storage.streams, storage.purge, storage.archive, context.clock),
        storage.archive,
        context.log,
        storage.history,
        context.elect(ARCHIVER_LEASE),
        context.clock,
        origin=storage.origin,
        keeping=keeping,
        output=lines if settings.archive.output else None,
        heartbeats=FinishedHeartbeats(context.log, storage.streams, storage.purge),
        unproven=UnprovenReports(context.log, storage.streams, context.report_key, limit=settings.archive.input_bytes),
        log_archiver=None
        if storage.commits is None
        else LogArchiver(
            storage.commits, storage.streams, storage.purge, context.clock, origin=storage.origin, keeping=keeping
        ),
    )


ARCHIVER: Final = Stage(
    name="archiver",
    purpose="moves old commits and inputs into the archive",
    consumes="commits that no stage, follower or snapshot needs, and inputs that every stage has taken",
    decides="segments of the archive (with lines of handlers if `archive.output` is set), then purges of the streams; removal of heartbeats, and of reports without proof",
    access=Access(
        reads=(Stream.LOG, Stream.LEDGER),
        follows=(*STREAMS, Stream.OUTPUT, Stream.PROGRESS),
        writes=(
            *lease_access(ARCHIVER_LEASE),
            (Bucket.CURSORS, ARCHIVE_STATE),
            *((Bucket.CURSORS, cursor(stream)) for stream in STREAMS),
        ),
        removes=(Stream.REPORTS,),
        keeps_archive=True,
    ),
    start=_start,
    loops=(Archiver.lead, Archiver.run, Archiver.sweep),
    needs_history=True,
)
