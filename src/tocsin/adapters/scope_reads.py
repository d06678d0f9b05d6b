"""Reads of events that are in no fold."""

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing
from datetime import datetime
from typing import Final, Protocol

import msgspec

from .. import subjects
from ..domain.events import Message, Recorded
from ..engine.fold import Fold
from ..ports import Append, Decode, KeptEvent, KeptPart, Written
from ..subjects import DecodeError, UnreadableMessage
from .kept_scopes import Kept, KeptScopes

FIRST_DISTANCE: Final = 1_024
"""Events from the end of the log that are searched first for the newest of some subjects."""


class SharedEvent(msgspec.Struct, gc=False):
    """An event of a commit, which is decoded once for all of its followers."""

    sequence: int
    """The number."""
    subject: str
    time: datetime
    body: msgspec.Raw
    cause: str = ""
    recorded: Recorded[Message] | None = None

    def read(self, decode: Decode = subjects.decode) -> Recorded[Message]:
        """Return the event as `decode` reads it, or raise its error."""
        subject = self.subject
        if decode is subjects.decode and self.recorded is not None:
            return self.recorded
        try:
            recorded = Recorded(decode(subject, bytes(self.body)), subject, self.sequence, self.time)
        except DecodeError as error:
            digest = subjects.digest_of(bytes(self.body))
            error.stored = UnreadableMessage(subjects.stream_of(subject), subject, self.sequence, self.time, digest)
            raise
        if decode is subjects.decode:
            self.recorded = recorded
        return recorded

    def read_or_error(self) -> Recorded[Message] | DecodeError:
        try:
            return self.read()
        except DecodeError as error:
            return error


class ReadsLog(Protocol):
    """Reads the log while a part of a process without stages needs it."""

    async def begin(self) -> None: ...

    async def catch_up(self) -> None:
        """Wait until everything is read that is stored at this moment."""

    async def store(self, writes: Sequence[Append]) -> list[Written]: ...


class Reader(Protocol):
    """The part of `CommitView` that reads need."""

    is_folding: bool
    forgotten: int

    @property
    def fold(self) -> Fold: ...

    @property
    def number(self) -> int: ...

    def newest_known(self, scope: str) -> int | None:
        """Return the number of a scope's newest event; None: it is not in memory."""

    def past(self, takes: Callable[[str], object], *, after: int, upto: int) -> AsyncGenerator[SharedEvent, None]:
        """Read events after a number, up to a number, from the log."""

    def fed(self, subject: str, events: list[SharedEvent]) -> AbstractContextManager[None]:
        """Add the events that come within the block to a list."""


class ScopeReads:
    """Reads events for one process."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.kept: KeptScopes | None = None
        """The events that the history keeps; None: the log is read."""

    async def state(self, scope: str, *, reads_log: bool = True) -> list[SharedEvent] | None:
        """Return the events that are enough to fold a scope, oldest first.

        Events that are stored meanwhile are among them. Without `reads_log`, None: the history cannot answer.
        """
        upto, newer = self._reader.number, list[SharedEvent]()
        with self._reader.fed(scope, newer):
            kept = None if self.kept is None else await self.kept.newest(scope)
            if kept is None and not reads_log:
                return None
            found = await self._with_newer(scope, kept, 0, upto)
        return [*found, *(event for event in newer if event.sequence > upto)]

    async def readable(self, subject: str, *, after: int, limit: int) -> list[Recorded[Message]]:
        """Return up to `limit` readable events of subjects after a number, oldest first."""
        upto = self._reader.number
        while True:
            kept = None if self.kept is None else await self.kept.events(subject, after=after, limit=limit)
            found = await self._with_newer(subject, kept, after, upto, limit)
            readable = [*_readable(found)]
            if readable or len(found) < limit:
                return readable[:limit]
            after = found[-1].sequence

    async def get(self, subject: str, number: int) -> Recorded[Message] | None:
        """Return the event with a number, if it is of some subjects."""
        kept = None if self.kept is None or number < 1 else await self.kept.events(subject, after=number - 1, limit=1)
        found = await self._with_newer(subject, kept, number - 1, number, 1)
        return next((event.read() for event in found if event.sequence == number), None)

    async def last(self, subject: str) -> Recorded[Message] | None:
        upto, kept = self._reader.number, None if self.kept is None else await self.kept.newest(subject)
        if kept is not None:
            found = await self._with_newer(subject, kept, 0, upto)
            readable = [*_readable(found)]
            if readable or not found:
                return max(readable, key=_sequence, default=None)
        return await self._search_back(subject)

    async def _search_back(self, subject: str) -> Recorded[Message] | None:
        """Return the newest readable event, from more and more of the log."""
        upto, distance, takes = self._reader.number, FIRST_DISTANCE, subjects.any_of((subject,))
        while upto > 0:
            after, found = max(upto - distance, 0), None
            async for event in self._reader.past(takes, after=after, upto=upto):
                found = next(_readable([event]), found)
            if found is not None:
                return found
            upto, distance = after, 8 * distance
        return None

    async def past(
        self, filters: Sequence[str], *, after: int | datetime, upto: int
    ) -> AsyncGenerator[SharedEvent, None]:
        """Yield events after a number, or from an instant (UTC) on, up to a number."""
        place = after if isinstance(after, int) else 0
        if self.kept is not None:
            async for page in self.kept.pages(*filters, after=after):
                if page is None:
                    break
                for one in page.events:
                    place = one.sequence
                    if place > upto:
                        return
                    yield _kept_event(one)
                if not page.is_page:
                    place = max(place, page.upto)
        async for event in self._reader.past(subjects.any_of(filters), after=place, upto=upto):
            if isinstance(after, int) or event.time >= after:
                yield event

    async def _with_newer(
        self, subject: str, kept: Kept | None, after: int, upto: int, limit: int | None = None
    ) -> list[SharedEvent]:
        """Return the history's events up to a number, and events that were stored since."""
        found = [] if kept is None else [_kept_event(one) for one in kept.events if one.sequence <= upto]
        if kept is not None and (kept.is_page or self._has_none_after(subject, kept)):
            return found
        after = max(after, 0 if kept is None else kept.upto)
        async with aclosing(self._reader.past(subjects.any_of((subject,)), after=after, upto=upto)) as events:
            async for event in events:
                found.append(event)
                if limit is not None and len(found) >= limit:
                    break
        return found

    def _has_none_after(self, subject: str, kept: Kept) -> bool:
        part, scopes = KeptPart.of(subject), {scope_of(subject)}
        if part is not None and part.id is not None and kept.events:
            scopes = {scope_of(one.subject) for one in kept.events}
        return all(self._is_unchanged(scope, kept.upto) for scope in scopes)

    def _is_unchanged(self, scope: str, since: int) -> bool:
        if (number := self._reader.newest_known(scope)) is not None:
            return number <= since
        if "*" in scope or ">" in scope.removesuffix(".>"):
            return False  # it covers several scopes
        is_known = self._reader.is_folding and self._reader.forgotten <= since
        return is_known and scope.startswith("execution.")


def scope_of(subject: str) -> str:
    """Return the scope of a subject, or of a filter over subjects."""
    return subjects.guard_of(subject) or subject


def _kept_event(kept: KeptEvent) -> SharedEvent:
    return SharedEvent(kept.sequence, kept.subject, kept.time, kept.body)


def _readable(events: Sequence[SharedEvent]) -> Iterator[Recorded[Message]]:
    for event in events:
        if not isinstance(read := event.read_or_error(), DecodeError):
            yield read


def _sequence(recorded: Recorded[Message]) -> int:
    return recorded.sequence
