"""The tasks of the ticker beside its decisions, on the log of commits.

They are new time-zone data, signs of life, and missed instants.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from .. import telemetry
from ..domain.events import MISSED_REASONS, Passed
from ..domain.ledger import Ledger
from ..domain.schedule import timezone_database
from ..ports import Clock, EventLog, Projections
from ..subjects import Stream, filter_for
from . import timezone_refresh
from .commit_loop import HasLoop
from .displays import news
from .stage import attempted

TICKER: Final = "ticker"
"""The stage."""
LOOK_INTERVAL_S: Final = 0.2

_log = telemetry.get_logger("tocsin.ticker")
_missed_instants: Final = telemetry.meter().create_counter(
    "tocsin_instants_missed", unit="{instant}", description="Scheduled instants that passed without firing, unforeseen."
)


def report_missed(fact: Passed) -> None:
    """Log and count instants that passed without firing although no operator wished it."""
    if fact.reason not in MISSED_REASONS:
        return
    _missed_instants.add(fact.count, {"job": fact.job, "reason": fact.reason})
    _log.warning(
        "instants missed",
        action=fact.reason,
        job=fact.job,
        count=fact.count,
        start=fact.start.isoformat(),
        until=fact.until.isoformat(),
    )


MAX_SILENCE_S: Final = 10.0
"""How long ago the last clean pass of the ticker may be."""

Ping: TypeAlias = Callable[[], Awaitable[None]]
"""Sends one sign of life; raises any exception if the monitor did not accept it."""

_monitor_log: Final = telemetry.get_logger("tocsin.heartbeat")


class Heartbeat:
    """Sends signs of life as long as the ticker reports clean passes."""

    def __init__(self, ping: Ping, clock: Clock, *, every: float) -> None:
        """`every`: seconds between two signs."""
        self._ping = ping
        self._clock = clock
        self._every = every
        self._well_at = float("-inf")
        self._sent_at = float("-inf")
        self._is_heard = True

    def pass_ended(self, *, is_clean: bool) -> None:
        """Note a pass of the ticker over all due jobs.

        `is_clean`: the log stored every decision.
        """
        if is_clean:
            self._well_at = self._clock.monotonic()

    async def run_once(self, *, is_leading: bool) -> None:
        """Send a sign of life if it is time, and everything is well."""
        now = self._clock.monotonic()
        if not is_leading or now - self._well_at > MAX_SILENCE_S or now - self._sent_at < self._every:
            return
        self._sent_at = now
        try:
            await self._ping()
        except Exception as error:  # noqa: BLE001 - jobs go on without a monitor
            if self._is_heard:
                _monitor_log.warning("heartbeat not accepted", action="heartbeat-failed", error=type(error).__name__)
            self._is_heard = False
        else:
            if not self._is_heard:
                _monitor_log.info("heartbeat accepted again", action="heartbeat-accepted")
            self._is_heard = True


class TickerWatch:
    """The loops of the ticker in one process.

    The process that leads the ticker reports for it.
    """

    def __init__(
        self, view: HasLoop, log: EventLog, projections: Projections, clock: Clock, heartbeat: Heartbeat | None
    ) -> None:
        self._view = view
        self._log = log
        self._projections = projections
        self._clock = clock
        self._heartbeat = heartbeat
        self._database = timezone_database()
        self._number = 0
        """The number up to which the log was stored at the last look."""

    @property
    def _leads(self) -> bool:
        return self._view.loop.leads(TICKER)

    async def keep_timezones(self) -> None:
        """Notice new time-zone data of this process until cancelled."""
        while True:
            await self._clock.sleep(LOOK_INTERVAL_S)
            await attempted(self.take_over_timezones, _log, "report of moved instants failed", "timezones-not-reported")

    async def take_over_timezones(self) -> None:
        """Find the next instant of every job by new time-zone data, and report moved instants."""
        before, self._database = self._database, timezone_database()
        if before is self._database:
            return
        self._view.loop.look()
        if self._leads:
            ledgers = [state for state in self._view.loop.fold.states.values() if isinstance(state, Ledger)]
            jobs = ((state.job, timetable) for state in ledgers if (timetable := state.timetable) is not None)
            report = await timezone_refresh.report_of(jobs, before, self._database, self._clock.now())
            await timezone_refresh.publish(report, self._projections)

    async def keep_heartbeat(self) -> None:
        """Send signs of life to a monitor outside.

        The process sends them as long as it leads, and stores every decision.
        """
        if self._heartbeat is None:
            await asyncio.Event().wait()  # a loop of a stage ends only when it is cancelled
            return
        while True:
            before, self._number = self._number, self._view.loop.head.number
            is_stored = self._number > before or not len(self._view.loop.fold.journal)
            self._heartbeat.pass_ended(is_clean=is_stored and not self._view.loop.is_late(TICKER))
            await self._heartbeat.run_once(is_leading=self._leads)
            await self._clock.sleep(LOOK_INTERVAL_S)

    async def report_missed(self) -> None:
        """Log and count the instants that pass without firing from now on."""
        async for recorded in news(self._log, Stream.LEDGER, (filter_for("ledger.passed"),), self._clock):
            if isinstance(recorded.message, Passed) and self._leads:
                report_missed(recorded.message)
