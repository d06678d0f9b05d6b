"""The announcer: publishes the public events of commits, in order and each once.

Its place is the number of the newest event, which that event has in a header, and which stands in a bucket too: an operator may purge the
stream, and its limits may remove all of it. Each message is guarded by the last sequence of the stream, which no removal lowers. No other part
publishes there, so that the guards of many events are known before the first is stored; if one is refused, so are all that follow, and the place is
looked up again. So two announcers, or an announcer that lost answers, announce nothing twice and leave nothing out. Only if an announcer dies between
a write and its entry, and the stream is purged before another goes on, the events of that write come twice.
"""

import base64
import json
from collections.abc import Callable, Sequence
from typing import Final, cast

from .... import telemetry
from ....domain import json_codec
from ....domain.events import Message, PublicEvent, Recorded
from ....domain.formats import cloud_events
from ....ports import Clock, EventLog, LogUnavailable, Projections, SequenceConflict
from ....subjects import ANNOUNCED, PUBLIC_EVENTS, Bucket, Stream
from ..client import wire
from ..client.connection import Connection, Json
from ..client.names import Names
from ..client.transport import Outgoing

NUMBER: Final = "Tocsin-Number"
"""The header with the number of the event in the log."""
PAUSE_S: Final = 0.5
LOOK_S: Final = 0.1
"""The time after which a standby looks again whether it announces."""
AT_ONCE: Final = 256
"""Events of one write."""

_log = telemetry.get_logger("tocsin.announcer")


class Announcer:
    """Publishes the public events of one installation."""

    def __init__(
        self,
        connection: Connection,
        names: Names,
        log: EventLog,
        clock: Clock,
        projections: Projections,
        leads: Callable[[], bool],
    ) -> None:
        """`leads`: whether this process announces; if several do, the guards refuse all but one."""
        self._leads = leads
        self._projections = projections
        self._revision = 0
        self._connection = connection
        self._names = names
        self._log = log
        self._clock = clock
        self._at_once = AT_ONCE

    async def run(self) -> None:
        """Announce until cancelled."""
        while True:
            while not self._leads():
                await self._clock.sleep(LOOK_S)
            try:
                await self._run()
            except SequenceConflict:  # with replicas, the server may also refuse what follows a message in flight
                self._at_once = max(1, self._at_once // 2)
                _log.debug("another announcer is faster", action="announcer-behind")
            except LogUnavailable as error:
                _log.info("events wait for JetStream", action="log-unavailable", error=str(error))
            await self._clock.sleep(PAUSE_S)

    async def _run(self) -> None:
        expect, number = await self._place()
        async for batch in self._log.follow(Stream.LOG, PUBLIC_EVENTS, after=number):
            for first in range(0, len(batch.messages), self._at_once):
                events = batch.messages[first : first + self._at_once]
                expect = await self._announce(events, expect)
                await self._note(events[-1].sequence)
            if not self._leads():
                return

    async def _place(self) -> tuple[int, int]:
        """Return the last sequence of the stream, and the number of the newest public event.

        The sequence is read first: the server refuses a write if another announcer announced an event since.
        """
        stream = self._names.stream(Stream.LOG)
        expect: int = (await self._connection.manage(f"STREAM.INFO.{stream}"))["state"]["last_seq"]
        request = json.dumps({"last_by_subj": self._names.to_wire(PUBLIC_EVENTS)}).encode()
        answer = await self._connection.find(f"STREAM.MSG.GET.{stream}", request, absent=wire.NO_MESSAGE_FOUND)
        newest = 0 if answer is None else _number_of(answer["message"])
        entry, self._revision = await self._projections.get(Bucket.CURSORS, ANNOUNCED) or (b"0", 0)
        noted = int(entry)
        if noted < newest:
            await self._note(newest)
        return expect, max(newest, noted)

    async def _note(self, number: int) -> None:
        """Note that events up to a number are announced, unless another announcer noted more."""
        value = str(number).encode()
        self._revision = await self._projections.put(Bucket.CURSORS, ANNOUNCED, value, expect=self._revision)

    async def _announce(self, events: Sequence[Recorded[Message]], expect: int) -> int:
        """Publish events in one write, and return the sequence of the last.

        `expect`: the last sequence of the stream.
        """
        outgoing = [
            Outgoing(
                self._names.to_wire(recorded.subject),
                json_codec.written(recorded.message),
                {
                    NUMBER: str(recorded.sequence),
                    wire.EXPECTED_LAST: str(expect + place),
                    **cloud_events.headers_of(cast("PublicEvent", recorded.message), f"/{self._names.root}"),
                },
            )
            for place, recorded in enumerate(events)
        ]
        for message, reply in zip(outgoing, await self._connection.request_each(outgoing), strict=True):
            result = wire.result_of(message.subject, reply)
            if isinstance(result, Exception):
                raise result
            expect = result
        return expect


def _number_of(message: Json) -> int:
    lines = base64.b64decode(message.get("hdrs", "")).decode().splitlines()
    return int(next((line.partition(":")[2] for line in lines if line.startswith(f"{NUMBER}:")), "0"))
