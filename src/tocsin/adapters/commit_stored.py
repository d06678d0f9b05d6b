"""The stored events of the log of commits, as messages of their streams, for archives, audits and other readers of the past."""

from collections.abc import AsyncGenerator, Sequence
from datetime import datetime

from .. import subjects
from ..ports import Extent, StoredLog, StoredMessage
from ..subjects import DECISION_STREAMS, Stream
from .commit_view import CommitView
from .routed_log import View

PORTION = 1_000


class CommitStoredLog:
    """Implement `ports.StoredLog`: events of commits, and the other streams of another log."""

    def __init__(self, base: StoredLog, view: View) -> None:
        self._base = base
        self._view = view

    async def archived(self, stream: Stream) -> int:
        """Return 0 for events: none left the log."""
        return 0 if stream in DECISION_STREAMS else await self._base.archived(stream)

    async def may_be_archived(self, scope: str) -> bool:  # noqa: ARG002 - no event left the log
        """Return False."""
        return False

    async def archived_lines(self, execution_id: str) -> Sequence[StoredMessage]:
        """Return the lines of an execution that the archive keeps."""
        return await self._base.archived_lines(execution_id)

    async def extent(self, stream: Stream) -> Extent:
        """Return the extent of a stream; events share their numbers."""
        if stream not in DECISION_STREAMS:
            return await self._base.extent(stream)
        end = await (await self._view()).end(stream)
        return Extent(1, end, end)

    async def first(self, stream: Stream) -> int:
        """Return the number of the first event."""
        return 1 if stream in DECISION_STREAMS else await self._base.first(stream)

    async def messages(
        self, stream: Stream, *filters: str, after: int | datetime = 0, upto: int
    ) -> AsyncGenerator[Sequence[StoredMessage], None]:
        """Yield all matching messages up to a sequence."""
        if stream not in DECISION_STREAMS:
            async for page in self._base.messages(stream, *filters, after=after, upto=upto):
                yield page
            return
        view: CommitView = await self._view()
        portion: list[StoredMessage] = []
        since = after if isinstance(after, int) else 0
        async for event in view.past(stream, filters, after=since, upto=upto):
            if not isinstance(after, int) and event.time < after:
                continue
            subject = event.event.subject
            scope = subjects.guard_of(subject) or subject
            headers = {subjects.EXPECTED_SEQUENCE: "0", subjects.EXPECTED_SUBJECT: scope}
            portion.append(StoredMessage(stream, event.number, event.time, subject, headers, bytes(event.event.body)))
            if len(portion) >= PORTION:
                yield portion
                portion = []
        if portion:
            yield portion
