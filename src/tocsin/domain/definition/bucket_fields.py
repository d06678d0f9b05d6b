"""The fields of a trigger whose events are changes in a bucket."""

import re
from collections.abc import Iterator
from typing import Final

from .errors import DefinitionProblem, show

_BUCKET: Final = re.compile("[A-Za-z0-9_-]{1,240}")
_PART: Final = r"(?:\*|[A-Za-z0-9_=/-]+)"
_KEYS: Final = re.compile(rf">|{_PART}(?:\.{_PART})*(?:\.>)?")
_MAX_KEYS: Final = 255
_MAX_PREFIX: Final = 1_000


def is_bucket(name: str) -> bool:
    """Return whether a text is the name of a bucket."""
    return _BUCKET.fullmatch(name) is not None


def is_key_filter(text: str) -> bool:
    """Return whether a text is a filter over keys of a KV bucket."""
    return len(text) <= _MAX_KEYS and _KEYS.fullmatch(text) is not None


def split(place: str) -> tuple[str, str]:
    """Return the bucket, and the rest: a filter over keys, or a prefix of names."""
    bucket, _, rest = place.partition("/")
    return bucket, rest


def kv_problems(place: str) -> Iterator[DefinitionProblem]:
    """Yield the problem of the entries of a KV bucket."""
    bucket, keys = split(place)
    if not is_bucket(bucket) or not is_key_filter(keys):
        reason = "must be a bucket and a filter over its keys, such as `flags/checkout.>` or `flags/>`"
        yield DefinitionProblem(reason, field="kv", value=show(place), code="invalid-value")


def object_problems(place: str) -> Iterator[DefinitionProblem]:
    """Yield the problem of the objects of a bucket."""
    bucket, prefix = split(place)
    if not is_bucket(bucket) or len(prefix) > _MAX_PREFIX:
        reason = "must be a bucket, or a bucket and the beginning of names, such as `uploads` or `uploads/invoices/`"
        yield DefinitionProblem(reason, field="object", value=show(place), code="invalid-value")
