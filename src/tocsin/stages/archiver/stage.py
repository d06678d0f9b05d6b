"""Archiver: moves old messages into the archive, and expires old rows of the history."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from ... import subjects, telemetry
from ...domain import policy
from ...domain.execution import Execution
from ...engine.fold import Fold
from ...engine.leader_election import LeaderElection, lease_access
from ...engine.stage import Access, Stage, StageContext
from ...ports import ArchiveUnavailable, Clock, EventLog, History, LogUnavailable, OutdatedState, StoredLog, StreamPurge
from ...subjects import ARCHIVER_LEASE, LOG_ARCHIVE, STREAMS, Bucket, Stream
from .log_archiver import Keeping, LogArchiver
from .unproven_reports import INTERVAL_S, UnprovenReports

LEAST: Final = timedelta(minutes=2)
"""The least age of an archived message, or the hot window if that is shorter; `max_messages` does not change it."""

_log = telemetry.get_logger("tocsin.archiver")
_failures: Final = telemetry.meter().create_counter(
    "tocsin_archiving_failures", description="Runs of the archiver that failed; nothing left the streams in them."
)

HEARTBEATS: Final = "heartbeat.>"
MAX_REMOVED: Final = 5_000
"""Executions whose heartbeats are removed in one round."""


class FinishedHeartbeats:
    """Removes the heartbeats of executions that are over: no attempt will read them.

    Nothing depends on it. A heartbeat that stays, because the archiver does not run, ends with `output.max_age`.
    """

    def __init__(self, fold: Callable[[], Fold], streams: StoredLog, purge: StreamPurge) -> None:
        """`fold` returns the states of this process. `purge` removes messages of `streams`."""
        self._fold = fold
        self._streams = streams
        self._purge = purge
        self._upto = 0
        """The end of the stream at the run before: the fold may lack the executions of later heartbeats."""

    async def run_once(self) -> int:
        """Remove heartbeats that were there at the run before; return the number of executions.

        Raises:
            LogUnavailable: the log did not answer.
        """
        upto, self._upto = self._upto, (await self._streams.extent(Stream.PROGRESS)).last
        newest: dict[tuple[str, str], int] = {}
        async for portion in self._streams.messages(Stream.PROGRESS, HEARTBEATS, after=0, upto=upto):
            for message in portion:
                _, job, execution_id, *_ = message.subject.split(".")
                newest[job, execution_id] = message.sequence
        over = [one for one in newest if self._is_over(*one)][:MAX_REMOVED]
        for job, execution_id in over:
            await self._purge.purge(f"heartbeat.{job}.{execution_id}.>", upto=newest[job, execution_id])
        return len(over)

    def _is_over(self, job: str, execution_id: str) -> bool:
        """Return whether an execution is over; an execution that is over leaves the fold."""
        scope = subjects.execution(subjects.name(job), execution_id)
        state = self._fold().states.get(scope)
        return state.is_over if isinstance(state, Execution) else scope not in self._fold().numbers


class Archiver:
    """Archives and expires, as long as it leads."""

    def __init__(  # noqa: PLR0913 - the parts of an archiver
        self,
        log_archiver: LogArchiver,
        purge: StreamPurge,
        log: EventLog,
        history: History,
        leadership: LeaderElection,
        clock: Clock,
        *,
        retention: timedelta,
        interval: float,
        heartbeats: FinishedHeartbeats,
        unproven: UnprovenReports,
    ) -> None:
        """`retention`: how long the history keeps executions that ended. `interval`: seconds between two runs."""
        self._log_archiver = log_archiver
        self._unproven = unproven
        self._heartbeats = heartbeats
        self._purge = purge
        self._log = log
        self._history = history
        self.leadership = leadership
        self._clock = clock
        self._retention = retention
        self._interval = interval

    async def run(self) -> None:
        """Archive and expire until cancelled. A failure only costs time: the rest is found again."""
        while True:
            try:
                if await self.leadership.time() is not None:
                    await self._heartbeats.run_once()
                while (now := await self.leadership.time()) is not None and await self.run_once(now):
                    pass
            except ArchiveUnavailable as error:
                _log.warning("archiving delayed; waiting for the archive", action="archive-waits", reason=str(error))
                await self._note(error)
            except (LogUnavailable, OutdatedState) as error:
                _log.info("archiving delayed; waiting for JetStream", action="archiver-waits", reason=str(error))
            except Exception as error:  # noqa: BLE001 - a failure of the archive or the database may be over soon
                _log.warning("archiving failed; retrying later", action="archiver-failed", exc_info=error)
                await self._note(error)
            await self._clock.sleep(self._interval)

    async def _note(self, error: Exception) -> None:
        """Count a failure, and store its reason where `tocsin doctor` reads it."""
        _failures.add(1)
        await self._log_archiver.note(error)

    async def sweep(self) -> None:
        """Remove reports that prove nothing until cancelled, as long as it leads."""
        while True:
            number = 0
            try:
                if await self.leadership.time() is not None and (number := await self._unproven.run_once()):
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
        else:
            is_more = await self._log_archiver.run_once(now)
        days = policy.fold(await self._log.load(subjects.policy())).job_history_retention_days
        retention = self._retention if days is None else timedelta(days=days)  # the policy precedes the settings
        return await self._history.expire(now, after=retention) > 0 or is_more


def _start(context: StageContext) -> Archiver | None:
    settings, storage, fold = context.settings, context.require_storage(), context.fold
    if not settings.archive.enabled or storage.commits is None or fold is None:
        return None
    hot_window = timedelta(seconds=settings.archive.hot_window)
    keeping = Keeping(
        hot_window=hot_window,
        least=min(hot_window, LEAST),
        max_messages=settings.archive.max_messages,
        max_input_bytes=settings.archive.input_bytes,
        max_outside_messages=settings.archive.outside_messages,
        output=settings.archive.output,
    )
    return Archiver(
        LogArchiver(
            storage.commits, storage.streams, storage.purge, context.clock, origin=storage.origin, keeping=keeping
        ),
        storage.purge,
        context.log,
        storage.history,
        context.elect(ARCHIVER_LEASE),
        context.clock,
        retention=timedelta(days=settings.execution.history_retention_days),
        interval=settings.archive.interval,
        heartbeats=FinishedHeartbeats(fold, storage.streams, storage.purge),
        unproven=UnprovenReports(context.log, storage.streams, context.report_key, limit=settings.archive.input_bytes),
    )


ARCHIVER: Final = Stage(
    name="archiver",
    purpose="moves old commits and inputs into the archive",
    consumes="commits that no stage, follower or snapshot needs, and inputs that every stage has taken",
    decides="segments of the archive (with lines of handlers if `archive.output` is set), then purges of the streams; removal of heartbeats, and of reports without proof",
    access=Access(
        follows=(*STREAMS, Stream.OUTPUT, Stream.PROGRESS),
        writes=(*lease_access(ARCHIVER_LEASE), (Bucket.CURSORS, LOG_ARCHIVE)),
        removes=(Stream.REPORTS,),
        keeps_archive=True,
    ),
    start=_start,
    loops=(lambda archiver: archiver.leadership.run(), Archiver.run, Archiver.sweep),
    needs_history=True,
)
