"""Reading a stream without a consumer: its direct gets, which every replica answers.

A follower that lags may answer, so that what is read here is decided upon only under the guard of an append.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Final

from nats.aio.msg import Msg
from pydantic_core import to_json

from ..client import wire
from ..client.connection import Connection, JetStreamError, Json, status_of
from ..client.publish import Headers

_BATCH: Final = 1_000


@dataclass(frozen=True, slots=True)
class Stored:
    """One stored message with the subject that it has on the wire."""

    subject: str
    sequence: int
    time: datetime
    headers: Headers
    body: bytes


class DirectGet:
    """The direct gets of one stream."""

    def __init__(self, connection: Connection, stream: str) -> None:
        """`stream`: its name on the wire."""
        self._connection = connection
        self._api = f"$JS.API.DIRECT.GET.{stream}"

    async def by_sequence(self, sequence: int) -> Stored | None:
        """The message stored under a sequence."""
        return _one(await self._connection.ask(self._api, b'{"seq":%d}' % sequence))

    async def last(self, subject: str) -> Stored | None:
        """The newest message of a subject or filter."""
        if "*" in subject or ">" in subject:
            return _one(await self._connection.ask(self._api, _json({"last_by_subj": subject})))
        return _one(await self._connection.ask(f"{self._api}.{subject}"))

    async def last_of_each(self, filters: Sequence[str]) -> list[Stored]:
        """The newest message of every subject that matches, the oldest first."""
        return (await self.look(filters))[0]

    async def look(self, filters: Sequence[str]) -> tuple[list[Stored], int]:
        """The same, and the last sequence of the stream that the answer accounts for; 0 where that is not told."""
        messages, end = await self._connection.collect(self._api, _json({"multi_last": filters}))
        if status_of(end) == wire.TOO_MANY_SUBJECTS:
            return await self._in_parts(filters)
        _check(end)
        return _newest_of_each(map(_stored, messages)), int((end.headers or {}).get(wire.UP_TO, 0))

    async def newer(self, filter_subject: str, *, after: int) -> list[Stored]:
        """The newest message of every subject that matches and was stored behind `after`, the oldest first.

        The server looks through all that came behind it: cheaper than `last_of_each` near the end of the stream only.
        """
        return _newest_of_each(await self.scan(filter_subject, after=after))

    async def _in_parts(self, filters: Sequence[str]) -> tuple[list[Stored], int]:
        """What the server does not answer at once: it gives up past 1,024 subjects."""
        if len(filters) == 1:  # read all of it, the newer replacing the older
            return await self.newer(filters[0], after=0), 0
        half = len(filters) // 2
        parts = await asyncio.gather(self.look(filters[:half]), self.look(filters[half:]))
        together = _newest_of_each(stored for some, _ in parts for stored in some)
        return together, min(upto for _, upto in parts)

    async def scan(self, filter_subject: str, *, after: int = 0, limit: int | None = None) -> list[Stored]:
        """Every message that matches, behind the sequence `after`, the oldest first, `limit` at most."""
        found: list[Stored] = []
        while limit is None or len(found) < limit:
            batch = _BATCH if limit is None else min(_BATCH, limit - len(found))
            request = {"batch": batch, "seq": after + 1, "next_by_subj": filter_subject}
            messages, end = await self._connection.collect(self._api, _json(request))
            _check(end)
            found.extend(map(_stored, messages))
            if not messages or (end.headers or {}).get(wire.PENDING, "0") == "0":
                break
            after = found[-1].sequence
        return found


def _json(request: Json) -> bytes:
    return to_json(request)


def _newest_of_each(several: Iterable[Stored]) -> list[Stored]:
    return sorted({stored.subject: stored for stored in several}.values(), key=attrgetter("sequence"))


def _one(message: Msg) -> Stored | None:
    if status_of(message) is None:
        return _stored(message)
    _check(message)
    return None


def _check(end: Msg) -> None:
    status = status_of(end)
    if status not in {wire.NO_MESSAGES, wire.END_OF_BATCH}:
        raise JetStreamError("direct get", f"{status} {(end.headers or {}).get(wire.DESCRIPTION, '')}")


def _stored(message: Msg) -> Stored:
    headers = message.headers or {}
    return Stored(
        subject=headers[wire.SUBJECT],
        sequence=int(headers[wire.SEQUENCE]),
        time=datetime.fromisoformat(headers[wire.TIME_STAMP]),
        headers=headers,
        body=message.data,
    )
