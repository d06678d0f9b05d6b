"""Reading a stream without a consumer: its direct gets, which every replica answers.

A follower that lags may answer, so that what is read here is decided upon only under the guard of an append.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from nats.aio.msg import Msg
from pydantic_core import to_json

from . import wire
from .connection import Connection, Headers, Json, RefusedError, status_of

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
        messages, end = await self._connection.collect(self._api, _json({"multi_last": filters}))
        if status_of(end) == wire.TOO_MANY_SUBJECTS:
            # The server gives up past 1,024 subjects: read them all, the newer replacing the older.
            found = {stored.subject: stored for name in filters for stored in await self.scan(name)}
        else:
            _check(end)
            found = {stored.subject: stored for stored in map(_stored, messages)}
        return sorted(found.values(), key=_by_sequence)

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


def _by_sequence(stored: Stored) -> int:
    return stored.sequence


def _one(message: Msg) -> Stored | None:
    if status_of(message) is None:
        return _stored(message)
    _check(message)
    return None


def _check(end: Msg) -> None:
    status = status_of(end)
    if status not in {wire.NO_MESSAGES, wire.END_OF_BATCH}:
        raise RefusedError("direct get", f"{status} {(end.headers or {}).get(wire.DESCRIPTION, '')}")


def _stored(message: Msg) -> Stored:
    headers = message.headers or {}
    return Stored(
        subject=headers[wire.SUBJECT],
        sequence=int(headers[wire.SEQUENCE]),
        time=datetime.fromisoformat(headers[wire.TIME_STAMP]),
        headers=headers,
        body=message.data,
    )
