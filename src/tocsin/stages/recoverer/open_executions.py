"""Which executions are open, and when to look at each: followed by headings alone, two for one that runs as it should.

The place from which all of that can be learned again, the first fact of the oldest open execution, is kept as a cursor in KV
`cursors`. One that is lost costs a reading of headings from the log's beginning, and nothing else.
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
    """The scopes of all executions that have begun and have not ended."""

    def __init__(self, log: EventLog, projections: Projections, *, first_look: timedelta) -> None:
        """Each is looked at for the first time `first_look` after it began."""
        self._log = log
        self._projections = projections
        self._first_look = first_look
        self._since: dict[str, int] = {}  # in the order of the log, so that the first is the oldest
        self._agenda = DueQueue()
        self._upto = 0
        self._saved: bytes | None = None
        self.is_complete = False

    async def follow(self) -> None:
        """Keep the picture, for ever."""
        filters = (*subjects.OPENINGS, *subjects.ENDINGS)
        async for batch in self._log.watch(Stream.LOG, *filters, after=await self._cursor()):
            for heading in batch.headings:
                self.learn(heading)
            self._upto = batch.upto
            self.is_complete = self.is_complete or batch.caught_up

    def learn(self, heading: Heading) -> None:
        """Take in that one began, or ended."""
        scope = subjects.execution_scope(heading.subject)
        if subjects.is_ending(heading.subject):
            self.forget(scope)
        elif scope not in self._since:
            self._since[scope] = heading.sequence
            self._agenda.put(scope, heading.time + self._first_look)

    def take(self, now: datetime) -> Iterator[str]:
        """The scopes that are to be looked at now."""
        yield from self._agenda.take(now)

    def look_again(self, scope: str, at: datetime) -> None:
        """Look at one at `at`, unless it has ended."""
        if scope in self._since:
            self._agenda.put(scope, at)

    def forget(self, scope: str) -> None:
        """It is over."""
        self._since.pop(scope, None)
        self._agenda.put(scope, None)

    def __contains__(self, scope: object) -> bool:
        """Whether an execution is open."""
        return scope in self._since

    def __len__(self) -> int:
        """How many are."""
        return len(self._since)

    async def save(self) -> None:
        """Keep the place from which to begin after a restart."""
        oldest = next(iter(self._since.values()), self._upto + 1)
        cursor = str(oldest - 1).encode()
        if cursor == self._saved:
            return
        try:
            await self._projections.put(Bucket.CURSORS, CURSOR, cursor)
        except (LogUnavailable, SequenceConflict) as error:
            _log.info("the place is not kept", action="cursor-not-kept", error=str(error))
        else:
            self._saved = cursor

    async def _cursor(self) -> int:
        try:
            # Not behind the cursor of the stream: what is decided up to there may be open still.
            if (found := await self._projections.get(Bucket.CURSORS, CURSOR)) is not None:
                return int(found[0])
        except LogUnavailable as error:
            _log.warning("all is read, from the beginning", action="cursor-not-known", error=str(error))
        return 0
