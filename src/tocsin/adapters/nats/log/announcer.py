"""The announcer: publishes the public events of commits on subjects of their own, in order and each once.

The stream of public events holds its place: each message has the number of its event, and is guarded by the newest message of its
subject. So two announcers, or one that answers were lost to, announce nothing twice. Nobody else stores in that stream, so that the
guards of many events are known before the first is stored; a wrong guess is refused, and the place is looked up again.
"""

import base64
import json
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from pydantic_core import from_json

from .... import subjects, telemetry
from ....domain.events import Message, Recorded
from ....ports import Clock, LogUnavailable
from ....subjects import PUBLIC_EVENTS, Stream
from ...commit_view import CommitView
from ..client import wire
from ..client.connection import Connection, Json
from ..client.names import Names
from ..client.transport import Outgoing

NUMBER: Final = "Tocsin-Number"
"""The header with the number of the event in the log."""
PAUSE_S: Final = 0.5
AT_ONCE: Final = 256
"""Events of one write."""
MAX_SUBJECTS: Final = 100_000
"""Subjects whose newest message is remembered."""

_log = telemetry.get_logger("tocsin.announcer")


class _OtherAnnouncer(Exception):
    """Another announcer was faster."""


class Announcer:
    """Publishes the public events of one installation."""

    def __init__(self, connection: Connection, names: Names, view: CommitView, clock: Clock) -> None:
        self._connection = connection
        self._names = names
        self._view = view
        self._clock = clock
        self._newest: OrderedDict[str, int] = OrderedDict()
        """The sequence of the newest message, by subject on the wire."""
        self._at_once = AT_ONCE
        self._end = 0
        """The sequence of the message that was published last; 0: none."""

    async def run(self) -> None:
        """Announce until cancelled."""
        while True:
            self._newest.clear()
            self._end = 0
            try:
                await self._run()
            except _OtherAnnouncer:  # with replicas, the server may also refuse what follows a message in flight
                self._at_once = max(1, self._at_once // 2)
                _log.debug("another announcer is faster", action="announcer-behind")
            except LogUnavailable as error:
                _log.info("events wait for JetStream", action="log-unavailable", error=str(error))
            await self._clock.sleep(PAUSE_S)

    async def _run(self) -> None:
        newest = await self._last(self._names.to_wire(PUBLIC_EVENTS))
        place = 0 if newest is None else _number_of(newest)
        async for batch in self._view.follow(Stream.LOG, PUBLIC_EVENTS, after=place):
            for first in range(0, len(batch.messages), self._at_once):
                await self._announce(batch.messages[first : first + self._at_once])

    async def _last(self, subject: str) -> Json | None:
        """Return the newest message of a subject, or of subjects."""
        request = json.dumps({"last_by_subj": subject}).encode()
        verb = f"STREAM.MSG.GET.{self._names.stream(Stream.LOG)}"
        answer = await self._connection.find(verb, request, absent=wire.NO_MESSAGE_FOUND)
        return None if answer is None else answer["message"]

    async def _announce(self, events: Sequence[Recorded[Message]]) -> None:
        """Publish events in one write, each guarded by the sequence that the one before it will have."""
        outgoing: list[Outgoing] = []
        following = self._end + 1 if self._end else 0
        """The sequence of the next message; 0: unknown."""
        for recorded in events[: None if following else 1]:
            subject = self._names.to_wire(subjects.subject_of(recorded.message))
            if (expect := self._newest.get(subject)) is None:
                newest = await self._last(subject)
                expect = 0 if newest is None else newest["seq"]
            guard = {wire.EXPECTED_SEQUENCE: str(expect), wire.EXPECTED_SUBJECT: subject}
            headers = {NUMBER: str(recorded.sequence), **guard}
            outgoing.append(Outgoing(subject, recorded.message.encode(), headers))
            self._newest[subject] = following
            following += 1
        for message, reply in zip(outgoing, await self._connection.request_each(outgoing), strict=True):
            if isinstance(reply, LogUnavailable):
                raise reply
            error = from_json(reply.data).get("error")
            if error and error.get("err_code") in wire.WRONG_LAST_SEQUENCE:
                raise _OtherAnnouncer
            self._end = self._newest[message.subject] = wire.stored_sequence(message.subject, reply.data)
        while len(self._newest) > MAX_SUBJECTS:
            self._newest.popitem(last=False)
        if len(outgoing) < len(events):
            await self._announce(events[len(outgoing) :])


def _number_of(message: Json) -> int:
    lines = base64.b64decode(message.get("hdrs", "")).decode().splitlines()
    return int(next((line.partition(":")[2] for line in lines if line.startswith(f"{NUMBER}:")), "0"))
