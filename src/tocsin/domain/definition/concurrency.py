"""The concurrency limit of a job, and the value by which its tasks are counted."""

import json
import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Annotated, Final, TypeAlias

from pydantic import Field, JsonValue

from .fields import StoredModel, matching

MAX_KEY_LENGTH: Final = 255
MAX_VALUE_LENGTH: Final = 64
"""Characters of a value; a longer value, or one that cannot be printed, is replaced by its digest."""
MAX_CONCURRENCY: Final = 100_000
_KEY: Final = re.compile(r"(input|meta)(\.[A-Za-z0-9_\-]+)+")
_DIGEST: Final = "blake2b:"


Key: TypeAlias = Annotated[
    str,
    matching(
        _KEY,
        "must be a path to one value of the input or of `meta`, such as `input.customer` or `meta.team`: names of letters, "
        f"digits, underscores and hyphens, joined by dots, at most {MAX_KEY_LENGTH} characters",
        MAX_KEY_LENGTH,
    ),
]


class Concurrency(StoredModel):
    """The number of a job's tasks that workers may have at a time.

    Claims count from the moment at which a worker gets the task until its report is stored, or until the worker is lost.
    """

    limit: int = Field(ge=1, le=MAX_CONCURRENCY, strict=True)
    """The greatest number of tasks at a time: of the job, or with `key` of each value."""
    key: Key | None = None
    """The path to the value by which tasks are counted, in the task's input or in `meta`: `input.customer`.

    Tasks without the value, or with null, are counted together. Texts are compared as they are, other values as JSON. None: all tasks
    of the job are counted together.
    """


def value_of(key: str, data: Mapping[str, Mapping[str, JsonValue]]) -> str | None:
    """Return the text of the value at a path; None: the value is absent.

    `data` has the task's `input` and its `meta`.
    """
    value: object = data
    for name in key.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return None
        value = value[name]
    if value is None:
        return None
    text = (
        value
        if isinstance(value, str)
        else json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    )
    if len(text) <= MAX_VALUE_LENGTH and text.isprintable() and not text.startswith(_DIGEST):
        return text
    return _DIGEST + blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()
