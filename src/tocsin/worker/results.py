"""The result or the failure of an attempt, as its report stores it."""

import re
import traceback
from collections.abc import Callable
from math import isfinite
from types import TracebackType
from typing import Final

from pydantic import JsonValue
from pydantic_core import to_json

from ..domain.definition import MAX_DEPTH
from ..domain.definition.fields import storable
from ..domain.events import Failure
from ..domain.secret_reference import SecretReferenceError
from ..ports import RequestRefused
from .builtin_call import BuiltinFailure
from .context import NonRetryableError
from .handlers import InvalidResultError, WrongInputError
from .outcome import SECRET_UNRESOLVED, WRONG_INPUT, Failed, Succeeded

MAX_RESULT_BYTES: Final = 65_536
"""The limit of a result as JSON. Inputs have the same limit (hip-62, Job Input Sanitization): a result is the next input."""
MAX_MESSAGE: Final = 4_096
"""The number of characters of a message that are stored, from its beginning."""
MAX_TRACEBACK: Final = 8_192
"""The number of characters of a traceback that are stored, up to its end."""

TIMED_OUT: Final = "timed_out"
CANCELLED_ITSELF: Final = "cancelled_itself"
INVALID_RESULT: Final = "invalid_result"

_MAX_INTEGER_BITS: Final = 64
_OWN_PACKAGES: Final = ("tocsin.app.", "tocsin.worker.")
"""Packages whose frames begin a traceback that is of interest only after them."""
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")


class _NotPlain(ValueError):
    pass


def outcome_of(returned: object, redact: Callable[[str], str] = str) -> Succeeded | Failed:
    """Convert a return value into an outcome; an unstorable value fails without a retry."""
    if returned is None:
        return Succeeded(None)
    try:
        result = _plain(returned, "result", 0, redact)
    except _NotPlain as problem:
        return _invalid(redact(str(problem)))  # a key may be a secret
    size = len(to_json(result))
    if size > MAX_RESULT_BYTES:
        return _invalid(
            f"the result is {size:,} bytes of JSON, more than {MAX_RESULT_BYTES:,}: keep it in a store and refer to it"
        )
    return Succeeded(result)


def unstorable(error: RequestRefused) -> Failed:
    """Return the outcome of an attempt whose report the log refuses, usually for its size."""
    return _invalid(
        f"the report on this attempt cannot be stored: {error.description}; return less, and refer to a store"
    )


def _invalid(message: str) -> Failed:
    return Failed(Failure(type=INVALID_RESULT, message=message[:MAX_MESSAGE], retryable=False))


def _plain(value: object, path: str, depth: int, redact: Callable[[str], str]) -> JsonValue:
    """Return the value as plain JSON, with tuples as lists.

    A value of a derived type (`numpy.float64`) becomes one of its JSON type. The limit of the depth also ends cycles.
    """
    if depth > MAX_DEPTH:
        raise _NotPlain(f"the result is nested more than {MAX_DEPTH} levels deep")
    match value:
        case None | bool():
            return value
        case str():
            return redact(_text(value, path))
        case int():
            if value.bit_length() > _MAX_INTEGER_BITS:
                raise _NotPlain(f"{path} is an integer of more than {_MAX_INTEGER_BITS} bits: return it as text")
            return int(value)
        case float():
            if not isfinite(value):
                raise _NotPlain(f"{path} is {value}, which JSON does not have")
            return float(value)
        case list() | tuple():
            return [_plain(inner, f"{path}[{i}]", depth + 1, redact) for i, inner in enumerate(value)]
        case dict():
            return {
                redact(_key(key, path)): _plain(inner, f"{path}.{key}", depth + 1, redact)
                for key, inner in value.items()
            }
        case _:
            raise _NotPlain(f"{path} is a {_type(value)}, which is not a JSON value")


def _key(key: object, path: str) -> str:
    if not isinstance(key, str):
        raise _NotPlain(f"a key of {path} is a {_type(key)}, but JSON keys are text")
    return _text(key, path)


def _text(text: str, path: str) -> str:
    if _UNSTORABLE.search(text):
        raise _NotPlain(f"{path} contains a character that cannot be stored (U+0000 or half a surrogate pair)")
    return str.__str__(text)  # `str(text)` of an enumeration may be its name


def _type(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def raised(error: BaseException, redact: Callable[[str], str]) -> Failure:
    """Return the failure of a handler that raised an exception."""
    if isinstance(error, BuiltinFailure):
        failure = error.failure(redact)
        return failure.changed(message=storable(failure.message)[:MAX_MESSAGE])
    if isinstance(error, InvalidResultError):
        return _invalid(storable(redact(str(error)))).failure
    if isinstance(error, WrongInputError):
        return unusable_input(error, redact)
    trace = "".join(traceback.format_exception(type(error), error, _without_own_frames(error)))
    return Failure(
        type=qualified_name(type(error)),
        message=storable(redact(_message_of(error)))[:MAX_MESSAGE],
        traceback=storable(redact(trace))[-MAX_TRACEBACK:],
        retryable=not isinstance(error, NonRetryableError),
    )


def unusable_input(error: WrongInputError | SecretReferenceError, redact: Callable[[str], str] = str) -> Failure:
    """Return the failure of a task whose input cannot be used.

    It is retried if another worker may have what is missing: a secret, or the version of the code that fits.
    """
    message = storable(redact(str(error)))[:MAX_MESSAGE]
    if isinstance(error, WrongInputError):
        return Failure(type=WRONG_INPUT, message=message, retryable=error.retryable)
    return Failure(type=SECRET_UNRESOLVED, message=message)


_STORED_NAMES: Final = {
    NonRetryableError: "tocsin.worker.errors.NonRetryableError",
    WrongInputError: "tocsin.worker.signatures.WrongInputError",
}
"""Names of our own errors in stored reports. They stay when a class moves, because retry policies match them."""


def qualified_name(kind: type[BaseException]) -> str:
    """Return an error's name as retry policies write it: `ValueError`, `billing.errors.CardDeclined`."""
    if kind in _STORED_NAMES:
        return _STORED_NAMES[kind]
    name, module = kind.__qualname__, kind.__module__
    return name if module in {"builtins", "__main__"} else f"{module}.{name}"


def _message_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an exception whose __str__ fails must still be reported
        return f"<{type(error).__name__} without readable text>"


def _without_own_frames(error: BaseException) -> TracebackType | None:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        if not str(trace.tb_frame.f_globals.get("__name__")).startswith(_OWN_PACKAGES):
            break
        trace = trace.tb_next
    return trace
