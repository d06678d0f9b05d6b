"""The log of commits as readers of the past see it.

It has the messages, archived or not, and the events in them.

An event has the time of its decision, as the states have it, and in a header the time at which the server stored its commit: the clock of a leader
must not decide whether an event was late.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from datetime import datetime
from typing import Final

from .. import subjects
from ..domain.commit import Commit, LogHead, Seal
from ..domain.events import Admitted, DefinitionFact, Dispatched, Message, Recorded, Replayed
from ..domain.log_events import is_log_event
from ..domain.text import utc_text
from ..ports import StoredMessage
from ..ports.commit_log import CommitLog, StoredBody, stored_bodies


class CommitReader:
    """Reads the log of one partition."""

    def __init__(
        self,
        log: CommitLog,
        partition: int,
        seal: Callable[[], Awaitable[Seal]],
        key: str,
        known: Callable[[int], LogHead | None] = lambda _: None,
    ) -> None:
        """`log`: the log of commits with its archive.

        `seal`: returns the seal that recognizes genuine commits. `key`: the id of the key of the first commit. `known`: returns a known head
        at or before the event with a number.
        """
        self._log = log
        self._partition = partition
        self.seal = seal
        self.key = key
        self._known = known

    def bodies(self, *, after: int = 0) -> AsyncGenerator[StoredBody, None]:
        """Yield all messages after a sequence that are stored now, genuine or not."""
        return stored_bodies(self._log, self._partition, after=after)

    async def events(self, *, after: int = 0, upto: int) -> AsyncGenerator[StoredMessage, None]:
        """Yield the events between two numbers as messages of the streams of their subjects.

        The first number is left out.

        Raises:
            UnknownFormat: this version cannot read on.
        """
        seal, head = await self.seal(), self._known(after) or LogHead(self.key)
        async with aclosing(self.bodies(after=head.sequence)) as bodies:
            async for stored in bodies:
                head, commit = seal.read(head, stored.sequence, stored.body)
                if isinstance(commit, Commit):
                    for event in events_of(commit, stored.time):
                        if after < event.sequence <= upto:
                            yield event
                if head.number >= upto:
                    return


STORED: Final = "Tocsin-Stored"
"""The header with the server's time (UTC) of an event's commit."""


def events_of(commit: Commit, stored: datetime) -> Iterator[StoredMessage]:
    """Yield a commit's events, without the log's own; `stored`: the server's time (UTC)."""
    for number, event in enumerate(commit.events, commit.first):
        if not is_log_event(event.subject):
            stream, headers = subjects.stream_of(event.subject), {STORED: utc_text(stored, "microseconds")}
            yield StoredMessage(stream, number, commit.at, event.subject, headers, bytes(event.body))


_COUNTED_FROM: Final = (DefinitionFact, Admitted, Dispatched, Replayed)
"""Events from whose times in the log decisions count: instants, time limits and ids."""


def as_stored(recorded: Recorded[Message], message: StoredMessage) -> Recorded[Message]:
    """Return an event with the server's time, unless later decisions count from its own."""
    stored = message.headers.get(STORED)
    if stored is None or isinstance(recorded.message, _COUNTED_FROM):
        return recorded
    time = datetime.fromisoformat(stored)
    return Recorded(recorded.message, recorded.subject, recorded.sequence, time, recorded.message_id)
