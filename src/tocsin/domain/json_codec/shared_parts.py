"""Parts that many messages repeat, each encoded and decoded once.

Such a part declares `IS_SHARED`. Only small parts are kept, which bounds the memory.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Final, TypeVar

import msgspec
from pydantic import BaseModel

T = TypeVar("T")

MAX_PARTS: Final = 4_096
"""The number of parts of a class that are kept."""
MAX_PART_BYTES: Final = 4_096
"""The size of the largest part that is kept."""


def is_shared(model: type[BaseModel]) -> bool:
    """Return whether many messages repeat parts of this class."""
    return bool(getattr(model, "IS_SHARED", False))


class EncodedParts:
    """The encoded form of parts, by identity.

    A part is immutable, so its encoded form is always the same. At most `MAX_PARTS` parts are kept twice: when the
    newer half is full, it becomes the older half.
    """

    def __init__(self, encode: Callable[[BaseModel], bytes]) -> None:
        """`encode`: encodes a part that is not kept."""
        self._encode = encode
        self._newer: dict[int, tuple[BaseModel, msgspec.Raw]] = {}
        self._older: dict[int, tuple[BaseModel, msgspec.Raw]] = {}

    def __call__(self, part: BaseModel) -> msgspec.Raw:
        """Return the encoded part."""
        key = id(part)
        entry = self._newer.get(key)
        if entry is not None and entry[0] is part:
            return entry[1]
        entry = self._older.get(key)
        if entry is None or entry[0] is not part:
            entry = (part, msgspec.Raw(self._encode(part)))
            if len(entry[1]) > MAX_PART_BYTES:
                return entry[1]
        if len(self._newer) >= MAX_PARTS:
            self._newer, self._older = {}, self._newer
        self._newer[key] = entry
        return entry[1]


def decoding_once(decode: Callable[[bytes], T]) -> Callable[[msgspec.Raw], T]:
    """Return a decoder that decodes equal bytes once."""
    kept = lru_cache(MAX_PARTS)(decode)

    def decoded(raw: msgspec.Raw) -> T:
        body = bytes(raw)
        return kept(body) if len(body) <= MAX_PART_BYTES else decode(body)

    return decoded
