"""Server-sent events, read from the pieces of an answer."""

from collections.abc import AsyncIterator, Mapping
from typing import Final

COMMENT: Final = ""
"""The name under which a comment stands among the fields of an event."""
MAX_LINE_BYTES: Final = 16_000_000
"""Bytes of a line. The log stores no message of this size."""
_FIELDS: Final = frozenset({COMMENT, "id", "event", "data", "retry"})


class EndlessLine(Exception):
    """A line is longer than `MAX_LINE_BYTES`."""


async def events(pieces: AsyncIterator[bytes]) -> AsyncIterator[Mapping[str, str]]:
    """Yield the fields of each event. The API writes each field in one line.

    Raises:
        EndlessLine: the answer is no event stream of the API.
    """
    fields: dict[str, str] = {}
    async for line in _lines(pieces):
        name, _, value = line.partition(": ")
        if not line:
            if fields:
                yield fields
            fields = {}
        elif name in _FIELDS:
            fields[name] = value


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Yield the lines of an answer without their ends."""
    rest = bytearray()
    async for piece in pieces:
        rest += piece
        if len(rest) > MAX_LINE_BYTES:
            raise EndlessLine(f"a line has more than {MAX_LINE_BYTES:,} bytes")
        *lines, rest = rest.split(b"\n")
        for line in lines:
            yield line.decode()
