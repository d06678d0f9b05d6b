"""Checks of what a handler passes to `context.progress` and `context.heartbeat`."""

from collections.abc import Callable
from math import isfinite
from typing import Final

from pydantic import JsonValue
from pydantic_core import from_json, to_json

from ..domain.definition.fields import json_problem
from ..domain.errors import TocsinError

MAX_DETAILS_BYTES: Final = 16_384
"""The limit of a heartbeat's details as JSON."""


class InvalidProgressError(TocsinError, ValueError):
    """The fraction of a progress is no finite number."""

    code = "progress-invalid"


class InvalidHeartbeatError(TocsinError, ValueError):
    """The details of a heartbeat are not a JSON value."""

    code = "heartbeat-invalid"


class HeartbeatTooLargeError(TocsinError, ValueError):
    """The details of a heartbeat are too large."""

    code = "heartbeat-too-large"


def checked_progress(fraction: object) -> float:
    """Return a fraction from 0 to 1.

    A number outside, for example from rounding, becomes the nearer end.

    Raises:
        InvalidProgressError: it is not a finite number.
    """
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not isfinite(fraction):
        raise InvalidProgressError(f"progress: fraction is {fraction!r}; pass a number from 0 to 1")
    return min(max(float(fraction), 0.0), 1.0)


def checked_details(details: object) -> JsonValue:
    """Return a copy of the details, which the handler may change afterwards.

    Raises:
        InvalidHeartbeatError: they are not a JSON value.
        HeartbeatTooLargeError: they are more than 16 KiB of JSON.
    """
    if problem := json_problem(details):
        raise InvalidHeartbeatError(f"heartbeat: details are not JSON: {problem}")
    encoded = to_json(details)
    if len(encoded) > MAX_DETAILS_BYTES:
        raise HeartbeatTooLargeError(
            f"heartbeat: details are {len(encoded):,} bytes of JSON, more than {MAX_DETAILS_BYTES:,}: "
            "keep them in a store and refer to it"
        )
    copy: JsonValue = from_json(encoded)
    return copy


def redacted(value: JsonValue, redact: Callable[[str], str]) -> JsonValue:
    """Return a JSON value with `redact` applied to each text in it."""
    match value:
        case str():
            return redact(value)
        case list():
            return [redacted(inner, redact) for inner in value]
        case dict():
            return {redact(key): redacted(inner, redact) for key, inner in value.items()}
        case _:
            return value
