"""The open executions, and when to examine each.

They are followed by headings only; an ordinary execution costs two headings. A cursor in the KV bucket `cursors` holds the
place of the first event of the oldest open execution, so that a restart reads from there. If the cursor is lost, a restart
reads all headings from the beginning of the log.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from ... import subjects, telemetry
from ...engine.due_queue import DueQueue
from ...ports import EventLog, Heading, LogUnavailable, Projections, SequenceConflict
from ...subjects import Bucket, Stream

CURSOR: Final = subjects.cursor(Stream.LOG, subjects.RECOVERER)
_log = telemetry.get_logger("tocsin.recoverer")


class OpenExecutions:
    """The scopes of all executions that began and have not ended."""

    def __init__(self, log: EventLog, projections: Projections, *, first_look: timedelta) -> None:
        """`first_look`: how long after its beginning an execution is examined first."""
        self._log = log
        self._projections = projections
        self._first_look = first_look
        self._since: dict[str, int] = {}  # in log order: the first entry is the oldest
        self._agenda = DueQueue()
        self._upto = 0
        self._saved: bytes | None = None
        self.is_complete = False

    async def follow(self) -> None:
        """Follow beginnings and ends until cancelled."""
        filters = (*subjects.OPENINGS, *subjects.ENDINGS)
        async for batch in self._log.watch(Stream.LOG, *filters, after=await self._cursor()):
            for heading in batch.headings:
                self.learn(heading)
            self._upto = batch.upto
            self.is_complete = self.is_complete or batch.caught_up

    def learn(self, heading: Heading) -> None:
        """Note that an execution began or ended."""
        scope = subjects.execution_scope(heading.subject)
        if subjects.is_ending(heading.subject):
            self.forget(scope)
        elif scope not in self._since:
            self._since[scope] = heading.sequence
            self._agenda.put(scope, heading.time + self._first_look)

    def take(self, now: datetime) -> Iterator[str]:
        """Yield the scopes that are due for an examination."""
        yield from self._agenda.take(now)

    def look_again(self, scope: str, at: datetime) -> None:
        """Examine an execution again at `at`, unless it ended."""
        if scope in self._since:
            self._agenda.put(scope, at)

    def forget(self, scope: str) -> None:
        """Remove an execution that ended."""
        self._since.pop(scope, None)
        self._agenda.put(scope, None)

    def __contains__(self, scope: object) -> bool:
        """Return whether an execution is open."""
        return scope in self._since

    def __len__(self) -> int:
        """Return the number of open executions."""
        return len(self._since)

    async def save(self) -> None:
        """Store the place from which a restart reads."""
        oldest = next(iter(self._since.values()), self._upto + 1)
        cursor = str(oldest - 1).encode()
        if cursor == self._saved:
            return
        try:
            await self._projections.put(Bucket.CURSORS, CURSOR, cursor)
        except (LogUnavailable, SequenceConflict) as error:
            _log.info("cursor not stored; retrying later", action="cursor-not-kept", error=str(error))
        else:
            self._saved = cursor

    async def _cursor(self) -> int:
        try:
            # Do not start at the stream's cursor: executions that are decided up to there may still be open.
            if (entry := await self._projections.get(Bucket.CURSORS, CURSOR)) is not None:
                return int(entry[0])
        except LogUnavailable as error:
            _log.warning(
                "cursor not readable; reading the log from its beginning", action="cursor-not-known", error=str(error)
            )
        return 0
