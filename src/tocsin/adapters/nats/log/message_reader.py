"""Stored messages, decoded, and the events that foreign messages hide.

A read of the last message of a subject finds a foreign message instead of the event before it. That event is looked for once; a
process remembers it, because neither changes. Without foreign messages nothing is read in addition.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from .... import subjects
from ....domain.events import Message, Recorded
from ....ports import StaleRead
from ....telemetry.foreign import ForeignMessages
from ..client import wire
from ..client.names import Names
from .direct_get import DirectGet, Stored

REMEMBERED: Final = 10_000
"""Filters of which a process remembers the newest foreign message, and the event before it."""
_WINDOW: Final = 64
"""Messages of the stream before a foreign message that are searched first."""
_GROWTH: Final = 8
"""The factor by which the search is widened."""


class MessageReader:
    """Decodes the messages of direct gets."""

    def __init__(self, names: Names, noted: ForeignMessages) -> None:
        self._names = names
        self.noted = noted
        self._hidden: OrderedDict[tuple[DirectGet, str], tuple[int, Recorded[Message] | None]] = OrderedDict()

    def recorded(self, stored: Stored) -> Recorded[Message]:
        """Return a message; a foreign message is a `Foreign`.

        Raises:
            DecodeError: it does not decode.
        """
        # The server adds this header to its reply, so that a stored reply has it twice.
        is_reply = wire.is_repeated(stored.headers, subjects.ORIGIN)
        subject = self._names.from_wire(stored.subject)
        return self.noted.note(
            subjects.recorded(subject, stored.body, stored.headers, stored.sequence, stored.time, is_reply=is_reply)
        )

    async def read(self, stream: DirectGet, messages: Sequence[Stored]) -> list[Recorded[Message]]:
        """Return messages and the events that foreign messages among them hide, oldest first.

        Raises:
            DecodeError: a message does not decode.
            StaleRead: a lagging replica answered.
        """
        read = [self.recorded(stored) for stored in messages]
        foreign = [m for m, recorded in zip(messages, read, strict=True) if _hides(recorded)]
        if not foreign:
            return read
        hidden = await asyncio.gather(*(self.before(stream, m.subject, m.sequence) for m in foreign))
        by_sequence = {recorded.sequence: recorded for recorded in (*read, *hidden) if recorded is not None}
        return sorted(by_sequence.values(), key=attrgetter("sequence"))

    async def before(self, stream: DirectGet, wire_filter: str, sequence: int) -> Recorded[Message] | None:
        """Return the newest matching event before a foreign message, which is the newest matching message.

        A replica that has the foreign message has all before it, and no other may answer.

        Raises:
            StaleRead: a lagging replica answered.
        """
        key = stream, wire_filter
        known, event = self._hidden.get(key, (0, None))
        if known == sequence:
            return event
        floor, window = known if known < sequence else 0, _WINDOW
        event = event if floor else None
        while True:
            after = max(floor, sequence - 1 - window)
            messages = await stream.scan(wire_filter, after=after)
            if all(stored.sequence != sequence for stored in messages):
                raise StaleRead.of(self._names.from_wire(wire_filter))
            earlier = (self.recorded(stored) for stored in reversed(messages) if stored.sequence < sequence)
            newest = next((recorded for recorded in earlier if not subjects.is_foreign(recorded)), None)
            if newest is not None or after == floor:
                break
            window *= _GROWTH
        self._remember(key, sequence, newest or event)
        return newest or event

    def _remember(self, key: tuple[DirectGet, str], sequence: int, event: Recorded[Message] | None) -> None:
        self._hidden[key] = sequence, event
        self._hidden.move_to_end(key)
        if len(self._hidden) > REMEMBERED:
            self._hidden.popitem(last=False)


def _hides(recorded: Recorded[Message]) -> bool:
    """Return whether a message may hide an event.

    A message that is stored under a wildcard hides none.
    """
    return subjects.is_foreign(recorded) and subjects.WILDCARDS.isdisjoint(recorded.subject.split("."))
