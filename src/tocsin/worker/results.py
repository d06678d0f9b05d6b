"""What a handler may return: plain JSON that the log, the history and every executor can hold."""

import re
from math import isfinite
from typing import Final

from pydantic import JsonValue
from pydantic_core import to_json

from ..domain.definition import MAX_DEPTH
from ..domain.events import Failure
from .failures import MAX_MESSAGE
from .outcome import Failed, Succeeded

MAX_RESULT_BYTES: Final = 65_536
"""As JSON; the limit of inputs (hip-62, Job Input Sanitization), since a result is the next step's."""
INVALID_RESULT: Final = "invalid_result"

_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")
_MAX_INTEGER_BITS: Final = 64


class _NotPlain(ValueError):
    pass


def judge(returned: object) -> Succeeded | Failed:
    """A handler's return value as an outcome. What is no plain JSON, or too large, would be so again: not retryable."""
    if returned is None:
        return Succeeded(None)
    try:
        result = _plain(returned, "result", 0)
    except _NotPlain as problem:
        return _refused(str(problem))
    size = len(to_json(result))
    if size > MAX_RESULT_BYTES:
        return _refused(
            f"the result is {size:,} bytes of JSON, more than {MAX_RESULT_BYTES:,}: keep it in a store and refer to it"
        )
    return Succeeded(result)


def _refused(message: str) -> Failed:
    return Failed(Failure(type=INVALID_RESULT, message=message[:MAX_MESSAGE], retryable=False))


def _plain(value: object, path: str, depth: int) -> JsonValue:
    """The value, tuples turned into lists; the depth bounds loops too."""
    if depth > MAX_DEPTH:
        raise _NotPlain(f"the result is nested more than {MAX_DEPTH} levels deep")
    match value:
        case None | bool():
            return value
        case str():
            return _text(value, path)
        case int():
            if value.bit_length() > _MAX_INTEGER_BITS:
                raise _NotPlain(f"{path} is an integer of more than {_MAX_INTEGER_BITS} bits: return it as text")
            return value
        case float():
            if not isfinite(value):
                raise _NotPlain(f"{path} is {value}, which JSON does not have")
            return value
        case list() | tuple():
            return [_plain(inner, f"{path}[{i}]", depth + 1) for i, inner in enumerate(value)]
        case dict():
            return {_key(key, path): _plain(inner, f"{path}.{key}", depth + 1) for key, inner in value.items()}
        case _:
            raise _NotPlain(f"{path} is a {_type(value)}, which is no JSON value")


def _key(key: object, path: str) -> str:
    if not isinstance(key, str):
        raise _NotPlain(f"a key of {path} is a {_type(key)}, where JSON has only text")
    return _text(key, path)


def _text(text: str, path: str) -> str:
    if _UNSTORABLE.search(text):
        raise _NotPlain(f"{path} holds a character that cannot be stored (U+0000 or half a surrogate pair)")
    return text


def _type(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
