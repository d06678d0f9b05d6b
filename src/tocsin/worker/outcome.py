"""Outcomes of handlers."""

from enum import StrEnum
from typing import Final, TypeAlias

import msgspec
from pydantic import JsonValue

from ..domain.events import Failure

WRONG_INPUT: Final = "wrong_input"
SECRET_UNRESOLVED: Final = "secret_unresolved"  # noqa: S105 - the name of an error
FIRST_RETRY_DELAY_S: Final = 0.1
LONGEST_RETRY_DELAY_S: Final = 5.0
_DOUBLINGS_TO_LONGEST: Final = 6


def retry_delay(failures: int) -> float:
    """Return the seconds before another try: 0.1, 0.2, 0.4 … and never more than 5."""
    return min(FIRST_RETRY_DELAY_S * 2.0 ** min(failures - 1, _DOUBLINGS_TO_LONGEST), LONGEST_RETRY_DELAY_S)


class StopReason(StrEnum):
    """The reason for which the worker stopped a handler."""

    SHUTDOWN = "shutdown"
    """The worker stops; another worker may run the task."""
    CANCELLED = "cancelled"
    """The execution was cancelled; no worker may run the task."""


class Succeeded(msgspec.Struct, frozen=True):
    """The handler returned plain JSON."""

    result: JsonValue


class Failed(msgspec.Struct, frozen=True):
    """The attempt failed, in the handler or around it."""

    failure: Failure


class Stopped(msgspec.Struct, frozen=True):
    """The worker stopped the handler, so there is nothing to report."""

    reason: StopReason


Outcome: TypeAlias = Succeeded | Failed | Stopped
