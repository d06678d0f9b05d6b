"""The announcer: publishes the public events of commits on subjects of their own, in order and each once.

The newest public event holds its place: each message has the number of its event, and is guarded by the newest of them all. Nobody
else publishes there, so that the guards of many events are known before the first is stored; if one is refused, so are all that follow,
and the place is looked up again. So two announcers, or one that answers were lost to, announce nothing twice and leave nothing out.
"""

import base64
import json
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
        self._at_once = AT_ONCE

    async def run(self) -> None:
        """Announce until cancelled."""
        while True:
            try:
                await self._run()
            except _OtherAnnouncer:  # with replicas, the server may also refuse what follows a message in flight
                self._at_once = max(1, self._at_once // 2)
                _log.debug("another announcer is faster", action="announcer-behind")
            except LogUnavailable as error:
                _log.info("events wait for JetStream", action="log-unavailable", error=str(error))
            await self._clock.sleep(PAUSE_S)

    async def _run(self) -> None:
        expect, number = await self._place()
        async for batch in self._view.follow(Stream.LOG, PUBLIC_EVENTS, after=number):
            for first in range(0, len(batch.messages), self._at_once):
                expect = await self._announce(batch.messages[first : first + self._at_once], expect)

    async def _place(self) -> tuple[int, int]:
        """Return the sequence of the newest public event, and its number in the log."""
        request = json.dumps({"last_by_subj": self._names.to_wire(PUBLIC_EVENTS)}).encode()
        verb = f"STREAM.MSG.GET.{self._names.stream(Stream.LOG)}"
        answer = await self._connection.find(verb, request, absent=wire.NO_MESSAGE_FOUND)
        return (0, 0) if answer is None else (answer["message"]["seq"], _number_of(answer["message"]))

    async def _announce(self, events: Sequence[Recorded[Message]], expect: int) -> int:
        """Publish events in one write; return the sequence of the last. `expect`: that of the newest public event."""
        outgoing = [
            Outgoing(
                self._names.to_wire(subjects.subject_of(recorded.message)),
                recorded.message.encode(),
                {
                    NUMBER: str(recorded.sequence),
                    wire.EXPECTED_SEQUENCE: str(expect + place),
                    wire.EXPECTED_SUBJECT: self._names.to_wire(PUBLIC_EVENTS),
                },
            )
            for place, recorded in enumerate(events)
        ]
        for message, reply in zip(outgoing, await self._connection.request_each(outgoing), strict=True):
            if isinstance(reply, LogUnavailable):
                raise reply
            error = from_json(reply.data).get("error")
            if error and error.get("err_code") in wire.WRONG_LAST_SEQUENCE:
                raise _OtherAnnouncer
            expect = wire.stored_sequence(message.subject, reply.data)
        return expect


def _number_of(message: Json) -> int:
    lines = base64.b64decode(message.get("hdrs", "")).decode().splitlines()
    return int(next((line.partition(":")[2] for line in lines if line.startswith(f"{NUMBER}:")), "0"))
