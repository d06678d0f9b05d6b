"""The KV buckets, and the keys in them."""

from enum import StrEnum
from typing import Final

from .streams import Stream
from .tokens import dotted


class Bucket(StrEnum):
    """The KV buckets: projections and leases only."""

    DEFINITIONS = "definitions"
    LOCKS = "locks"
    LEADER = "leader"
    CURSORS = "cursors"
    INSTALLATION = "installation"
    TOKENS = "tokens"
    ANSWERS = "answers"


TICKER_LEASE: Final = "ticker"
RECOVERER_LEASE: Final = "recoverer"
ARCHIVER_LEASE: Final = "archiver"
ARCHIVE_STATE: Final = "archive"
"""The key in `cursors` that says how far the archive goes."""
INSTALLATION_KEY: Final = "report-key"


def cursor(stream: Stream, durable: str | None = None) -> str:
    """The key in `cursors` of the sequence up to which all is decided: for one durable, else for a whole stream."""
    return stream.value if durable is None else f"{stream.value}.{durable}"


def lock_key(job: str) -> str:
    """The key that shows a job's lock (hip-62, Distributed Locking)."""
    return f"scheduler.lock.{dotted(job)}"
