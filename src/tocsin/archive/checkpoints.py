"""Signed checkpoints, which prove that the ledger and the log are unchanged.

A checkpoint holds the digest of a range of messages. Its range begins after that of the checkpoint before, whose digest it
holds too, so that the checkpoints of a stream are a chain: none can be changed, removed or added without the notary's key. The digest of a range
does not depend on other ranges, so that a change is found in the range where it is.

The digest of a range is BLAKE2b (32 bytes) over its messages in their order. Each message is two netstrings
(`<length>:<bytes>,`): its head, which is a JSON array of the sequence, time, subject and headers, and its body.

The checkpoints of a stream are in pages, one key of KV `checkpoints` each, because the server keeps each key in memory.
"""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel, ValidationError

from ..domain.errors import TocsinError
from ..domain.text import utc_text
from ..ports import Projections, StoredMessage
from ..subjects import Bucket, Stream, checkpoint_page

if TYPE_CHECKING:
    from .signing_keys import SigningKey  # its library is needed to sign only

SIGNED_STREAMS: Final = (Stream.LEDGER, Stream.LOG)
"""The streams of decisions. Inputs are in neither, because a decision holds what it rests on."""
PAGE: Final = 100
"""Checkpoints in a page: about 40 KB."""
_DIGEST_SIZE: Final = 32


class CheckpointDamaged(TocsinError):
    """A checkpoint cannot be read."""

    code = "checkpoint-damaged"


class Checkpoint(BaseModel, frozen=True, extra="forbid"):
    """A range of a stream, from `first` to `last`, as the notary saw it."""

    installation: str
    stream: Stream
    number: int
    """From 1, in each stream."""
    first: int
    last: int
    messages: int
    """The number of messages in the range. It is smaller than the range if messages were missing already."""
    digest: str
    previous: str
    """Digest of the text of the checkpoint before; empty for the first."""
    signed: datetime
    """The notary's clock; no check relies on it."""


@dataclass(frozen=True, slots=True)
class SignedCheckpoint:
    """The text of a checkpoint as it was signed, and the signature in base64."""

    text: str
    signature: str

    @property
    def digest(self) -> str:
        return blake2b(self.text.encode(), digest_size=_DIGEST_SIZE).hexdigest()

    def content(self) -> Checkpoint:
        """Return the checkpoint.

        Raises:
            CheckpointDamaged: the text is no checkpoint.
        """
        try:
            return Checkpoint.model_validate_json(self.text)
        except ValidationError as error:
            raise CheckpointDamaged(f"a checkpoint cannot be read: {error.error_count()} errors in it") from None

    @classmethod
    def sign(cls, checkpoint: Checkpoint, key: "SigningKey") -> "SignedCheckpoint":
        text = checkpoint.model_dump_json()
        return cls(text, key.sign(text))

    def encode(self) -> dict[str, str]:
        return {"checkpoint": self.text, "signature": self.signature}

    @classmethod
    def decode(cls, fields: object) -> "SignedCheckpoint":
        """Return the checkpoint of `encode`.

        Raises:
            CheckpointDamaged: it has another form.
        """
        match fields:
            case {"checkpoint": str(text), "signature": str(signature)}:
                return cls(text, signature)
        raise CheckpointDamaged("a checkpoint cannot be read: it needs the texts `checkpoint` and `signature`")


def encoded(message: StoredMessage) -> bytes:
    """Return what the digest of a range takes of a message."""
    head = json.dumps(
        [message.sequence, utc_text(message.time), message.subject, dict(message.headers)],
        separators=(",", ":"),
        sort_keys=True,
    ).encode()
    return b"%d:%b,%d:%b," % (len(head), head, len(message.body), message.body)


class RangeDigest:
    """The running digest of a range of messages."""

    def __init__(self) -> None:
        self._digest = blake2b(digest_size=_DIGEST_SIZE)
        self.messages = 0
        self.last = 0

    def take(self, message: StoredMessage) -> None:
        self._digest.update(encoded(message))
        self.messages += 1
        self.last = message.sequence

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Page:
    """The newest page of a stream. An empty page was never stored."""

    number: int
    checkpoints: tuple[SignedCheckpoint, ...]
    revision: int


class CheckpointStore:
    """The stored checkpoints of an installation. A page that cannot be read raises `CheckpointDamaged`."""

    def __init__(self, projections: Projections) -> None:
        self._projections = projections

    async def newest(self, stream: Stream) -> Page:
        """Return the newest page of a stream."""
        low, page = 0, Page(1, (), 0)
        high = 1
        while (found := await self._page(stream, high)) is not None:
            low, page, high = high, found, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            if (found := await self._page(stream, middle)) is None:
                high = middle
            else:
                low, page = middle, found
        return page

    async def append(self, stream: Stream, page: Page, signed: SignedCheckpoint) -> Page:
        """Store a checkpoint after those of the newest page; return the new page.

        Raises:
            SequenceConflict: another notary stored a checkpoint first.
        """
        if len(page.checkpoints) >= PAGE:
            page = Page(page.number + 1, (), 0)
        checkpoints = (*page.checkpoints, signed)
        body = json.dumps([checkpoint.encode() for checkpoint in checkpoints], separators=(",", ":")).encode()
        key = checkpoint_page(stream, page.number)
        revision = await self._projections.put(Bucket.CHECKPOINTS, key, body, expect=page.revision)
        return Page(page.number, checkpoints, revision)

    async def read(self, stream: Stream) -> AsyncIterator[SignedCheckpoint]:
        """Yield the checkpoints of a stream, the oldest first."""
        number = 1
        while (page := await self._page(stream, number)) is not None:
            for checkpoint in page.checkpoints:
                yield checkpoint
            number += 1

    async def _page(self, stream: Stream, number: int) -> Page | None:
        key = checkpoint_page(stream, number)
        stored = await self._projections.get(Bucket.CHECKPOINTS, key)
        if stored is None:
            return None
        body, revision = stored
        try:
            checkpoints = tuple(map(SignedCheckpoint.decode, json.loads(body)))
        except (ValueError, TypeError, RecursionError, CheckpointDamaged):
            raise CheckpointDamaged(f"page {key} of the checkpoints is not a list of checkpoints") from None
        return Page(number, checkpoints, revision)


async def stored_checkpoints(projections: Projections) -> list[SignedCheckpoint]:
    """Return the checkpoints of all signed streams.

    Read them before the streams, so that the streams hold all that they cover.
    """
    store = CheckpointStore(projections)
    return [checkpoint for stream in SIGNED_STREAMS async for checkpoint in store.read(stream)]
