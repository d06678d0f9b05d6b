"""The announcer: publishes the public events of commits on subjects of their own, in order and each once.

The stream of public events holds its place: each message has the number of its event, and is guarded by the newest message of its
subject. So two announcers, or one that answers were lost to, announce nothing twice.
"""

import base64
import json
from collections import OrderedDict
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

NUMBER: Final = "Tocsin-Number"
"""The header with the number of the event in the log."""
PAUSE_S: Final = 0.5
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

    async def run(self) -> None:
        """Announce until cancelled."""
        while True:
            self._newest.clear()
            try:
                await self._run()
            except _OtherAnnouncer:
                _log.debug("another announcer is faster", action="announcer-behind")
            except LogUnavailable as error:
                _log.info("events wait for JetStream", action="log-unavailable", error=str(error))
            await self._clock.sleep(PAUSE_S)

    async def _run(self) -> None:
        newest = await self._last(self._names.to_wire(PUBLIC_EVENTS))
        place = 0 if newest is None else _number_of(newest)
        async for batch in self._view.follow(Stream.LOG, PUBLIC_EVENTS, after=place):
            for recorded in batch.messages:
                await self._announce(recorded)

    async def _last(self, subject: str) -> Json | None:
        """Return the newest message of a subject, or of subjects."""
        request = json.dumps({"last_by_subj": subject}).encode()
        verb = f"STREAM.MSG.GET.{self._names.stream(Stream.LOG)}"
        answer = await self._connection.find(verb, request, absent=wire.NO_MESSAGE_FOUND)
        return None if answer is None else answer["message"]

    async def _announce(self, recorded: Recorded[Message]) -> None:
        subject = self._names.to_wire(subjects.subject_of(recorded.message))
        if (expect := self._newest.get(subject)) is None:
            newest = await self._last(subject)
            expect = 0 if newest is None else newest["seq"]
        headers = {NUMBER: str(recorded.sequence), wire.EXPECTED_SEQUENCE: str(expect), wire.EXPECTED_SUBJECT: subject}
        reply = await self._connection.request(subject, recorded.message.encode(), headers)
        error = from_json(reply.data).get("error")
        if error and error.get("err_code") in wire.WRONG_LAST_SEQUENCE:
            raise _OtherAnnouncer
        self._newest[subject] = wire.stored_sequence(subject, reply.data)
        while len(self._newest) > MAX_SUBJECTS:
            self._newest.popitem(last=False)


def _number_of(message: Json) -> int:
    lines = base64.b64decode(message.get("hdrs", "")).decode().splitlines()
    return int(next((line.partition(":")[2] for line in lines if line.startswith(f"{NUMBER}:")), "0"))
