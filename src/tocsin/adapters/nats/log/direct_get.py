"""Reads of stored messages by direct get. A lagging replica may answer."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from operator import attrgetter
from typing import Final

from pydantic_core import to_json

from ....ports import LaggingReplica
from ..client import wire
from ..client.connection import Connection, Json
from ..client.wire import JetStreamError, Reply, status_of

FILTERS_PER_REQUEST: Final = 192
"""The number of filters in one request: the server answers up to 1,024 subjects, and few scopes have more than five."""
PAGE_BYTES: Final = 1_048_576
"""After this size, the server ends a reply, and the rest is requested."""
LAG_PAUSES_S: Final = (0.05, 0.2, 0.8)
"""Pauses before a long reply is read again of which a replica that is behind answered a part."""
_BATCH: Final = 1_000


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored message with its subject on the wire."""

    subject: str
    sequence: int
    time: datetime
    headers: Mapping[str, str]
    body: bytes


class DirectGet:
    """The direct gets of one stream."""

    def __init__(self, connection: Connection, stream: str) -> None:
        """Read the stream that has this name on the wire."""
        self._connection = connection
        self._api = f"$JS.API.DIRECT.GET.{stream}"

    async def by_sequence(self, sequence: int) -> Stored | None:
        """Return the message of a sequence."""
        return _message_of(await self._connection.request(self._api, b'{"seq":%d}' % sequence))

    async def last(self, subject: str) -> Stored | None:
        """Return the newest message of a subject or filter."""
        if not all(subject.split(".")):
            return None  # the subject would be part of the request's own, and the server takes no empty token
        if "*" in subject or ">" in subject:
            return _message_of(await self._connection.request(self._api, to_json({"last_by_subj": subject})))
        return _message_of(await self._connection.request(f"{self._api}.{subject}"))

    async def last_of_each(self, filters: Sequence[str]) -> list[Stored]:
        """Return the newest message of each matching subject, oldest first.

        A long reply comes in pages. A subject that gets a newer message between two of them is in a later page, so that none is missing.
        A later page may come from a replica that is behind the first. It may lack a subject whose newest message the first page left to it,
        so the reply is read again, and at last `LaggingReplica` raised.
        """
        portions = (
            filters[first : first + FILTERS_PER_REQUEST] for first in range(0, len(filters), FILTERS_PER_REQUEST)
        )
        replies = await asyncio.gather(*map(self._last_of_each, portions))
        return replies[0] if len(replies) == 1 else _newest_of_each(chain.from_iterable(replies))

    async def _last_of_each(self, filters: Sequence[str]) -> list[Stored]:
        for pause in (*LAG_PAUSES_S, None):
            reply = await self._pages(filters)
            if reply is not None:
                return reply
            if pause is not None:
                await asyncio.sleep(pause)
        raise LaggingReplica("a replica that is behind others answered a part of a long read")

    async def _pages(self, filters: Sequence[str]) -> list[Stored] | None:
        """Read all pages; None: a later page comes from a replica that is behind."""
        request: Json = {"multi_last": filters, "max_bytes": PAGE_BYTES}
        stored: list[Stored] = []
        covered: int | None = None
        while True:
            messages, end = await self._connection.request_many(self._api, to_json(request))
            if status_of(end) == wire.TOO_MANY_SUBJECTS:
                return await self._in_parts(filters)
            _check(end)
            stored.extend(map(_stored, messages))
            upto = int((end.headers or {}).get(wire.UP_TO, 0))
            covered = upto if covered is None else covered
            if upto < covered:
                return None
            if not messages or not _has_more(end):
                return _newest_of_each(stored)
            request["seq"] = stored[-1].sequence + 1

    async def _in_parts(self, filters: Sequence[str]) -> list[Stored]:
        """Split a request that matches more subjects than the server's limit of 1,024."""
        if len(filters) == 1:  # scan all messages; later messages replace earlier messages of the same subject
            return _newest_of_each(await self.scan(filters[0]))
        half = len(filters) // 2
        parts = await asyncio.gather(*map(self._last_of_each, (filters[:half], filters[half:])))
        return _newest_of_each(chain.from_iterable(parts))

    async def scan(
        self, filter_subject: str, *, after: int = 0, limit: int | None = None, max_bytes: int | None = None
    ) -> list[Stored]:
        """Return all matching messages after a sequence, oldest first, at most `limit`.

        With `max_bytes`, it ends soon after the messages have this size together.
        """
        matches: list[Stored] = []
        size = 0
        while limit is None or len(matches) < limit:
            batch = _BATCH if limit is None else min(_BATCH, limit - len(matches))
            request = {"batch": batch, "max_bytes": PAGE_BYTES, "seq": after + 1, "next_by_subj": filter_subject}
            messages, end = await self._connection.request_many(self._api, to_json(request))
            _check(end)
            matches.extend(map(_stored, messages))
            size += sum(len(message.data) for message in messages)
            if not messages or not _has_more(end) or (max_bytes is not None and size >= max_bytes):
                break
            after = matches[-1].sequence
        return matches


def _has_more(end: Reply) -> bool:
    return (end.headers or {}).get(wire.PENDING, "0") != "0"


def _newest_of_each(messages: Iterable[Stored]) -> list[Stored]:
    return sorted({stored.subject: stored for stored in messages}.values(), key=attrgetter("sequence"))


def _message_of(message: Reply) -> Stored | None:
    if status_of(message) is None:
        return _stored(message)
    _check(message)
    return None


def _check(end: Reply) -> None:
    status = status_of(end)
    if status not in {wire.NO_MESSAGES, wire.END_OF_BATCH}:
        raise JetStreamError("direct get", f"{status} {(end.headers or {}).get(wire.DESCRIPTION, '')}")


def _stored(message: Reply) -> Stored:
    headers = message.headers or {}
    return Stored(
        subject=headers[wire.SUBJECT],
        sequence=int(headers[wire.SEQUENCE]),
        time=datetime.fromisoformat(headers[wire.TIME_STAMP]),
        headers=headers,
        body=message.data,
    )
