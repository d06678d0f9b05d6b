"""The size of a request that the log stores."""

from typing import Final

from ..ports import EventLog
from ..subjects import MAX_INPUT_SIZE

_HEADERS_BYTES: Final = 1_024
"""Room for the headers of a request, and for the fields that are stored beside it."""


def max_request_bytes(log: EventLog) -> int:
    """Return the bytes of the largest request that the log accepts, without headers."""
    return min(MAX_INPUT_SIZE, log.max_message_bytes) - _HEADERS_BYTES
