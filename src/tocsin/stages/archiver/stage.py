"""Archiver: takes what is over out of the log, into the archive, and out of the history what nobody wants to see any more.

reads     both streams, up to where every durable and the history have dealt with everything, and it is old enough
writes    segments of the archive, the cursors behind which durables begin, and then purges

In this order, and each step can be repeated: objects, the archive's own state (with it they count), cursors, and a moment later,
when everybody has heard of these, purges, and that they are done. Whoever leads next finishes what the one before it left undone, before it begins anything of its own.
"""

from datetime import datetime
from typing import Final

import structlog

from ...archive.archive import Archive, Origin, Segment, State
from ...engine.leader_election import LeaderElection
from ...engine.stage import Access, Stage
from ...ports import Clock, History, LogUnavailable, OutdatedState
from ...subjects import ARCHIVE_STATE, ARCHIVER_LEASE, Bucket, cursor
from .archive_eligibility import STREAMS, ArchiveEligibility, Keeping
from .purge import PacedPurge

ACCESS: Final = Access(
    follows=STREAMS,
    writes=(
        (Bucket.LEADER, ARCHIVER_LEASE),
        (Bucket.CURSORS, ARCHIVE_STATE),
        *((Bucket.CURSORS, cursor(stream)) for stream in STREAMS),
    ),
    keeps_archive=True,
)

_log = structlog.get_logger("tocsin.archiver")


class Archiver:
    """Works for as long as it leads."""

    def __init__(
        self,
        ripeness: ArchiveEligibility,
        removing: PacedPurge,
        archive: Archive,
        history: History,
        leadership: LeaderElection,
        clock: Clock,
        *,
        origin: Origin,
        keeping: Keeping,
    ) -> None:
        self._ripeness = ripeness
        self._removing = removing
        self._archive = archive
        self._history = history
        self._leadership = leadership
        self._clock = clock
        self._origin = origin
        self._keeping = keeping

    async def run(self) -> None:
        """Archive and forget, for ever. Trouble costs time only: all that is not done is found again."""
        while True:
            try:
                while self._leadership.is_leading and await self.run_once(self._clock.now()):
                    pass
            except (LogUnavailable, OutdatedState) as error:
                _log.info("not archived", action="archiver-waits", reason=str(error))
            except Exception as error:  # noqa: BLE001 - whatever ails the archive or a database may be over in a moment
                _log.warning("not archived", action="archiver-failed", exc_info=error)
            await self._clock.sleep(self._keeping.interval)

    async def run_once(self, now: datetime) -> bool:
        """Finish what was begun, archive one portion, forget some of the history; whether there may be more to do.

        Raises:
            SequenceConflict: another archiver was faster.
            LogUnavailable: the log did not answer; or whatever the archive's store and the history raise.
        """
        is_more = False
        if obstacle := self._removing.obstacle():
            _log.warning("nothing is archived", action="archiver-cannot", reason=obstacle)
        else:
            is_more = await self._archive_portion(now)
        forgotten = await self._history.expire(now, after=self._keeping.history)
        return is_more or forgotten > 0

    async def _archive_portion(self, now: datetime) -> bool:
        state, revision = await self._finish(*await self._archive.state())
        found, upto, is_more = await self._ripeness.look(state.upto, now)
        if upto != state.upto:
            head: Segment | None = await self._archive.write(found, state, upto, self._origin) if found else None
            changes = {} if head is None else {"head": head.name, "number": head.number}
            state = state.model_copy(update={"upto": upto, **changes})
            revision = await self._archive.move(state, expect=revision)
            await self._finish(state, revision)
        return is_more

    async def _finish(self, state: State, revision: int) -> tuple[State, int]:
        """Tell where durables begin, if they do not know it, and take out of the streams what the newest segment holds."""
        await self._archive.tell(state)
        if state.head is None or state.head == state.purged:
            return state, revision
        if self._keeping.settling:
            await self._clock.sleep(self._keeping.settling)
        segment = await self._archive.segment(state.head)
        await self._removing.remove(segment)
        state = state.model_copy(update={"purged": state.head})
        revision = await self._archive.move(state, expect=revision)
        _log.info("archived", action="archived", segment=segment.name, executions=segment.executions)
        return state, revision


def archiver(it: Archiver, leadership: LeaderElection) -> Stage:
    """One archiver and its candidature."""
    return Stage("archiver", loops=(leadership.run, it.run), access=ACCESS)
