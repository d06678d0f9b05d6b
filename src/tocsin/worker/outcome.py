"""How the run of a handler can end."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from pydantic import JsonValue

from ..domain.events import Failure


class StopReason(StrEnum):
    """Why the worker stopped a handler."""

    SHUTDOWN = "shutdown"
    """The worker is leaving: the task is for another one."""
    CANCELLED = "cancelled"
    """The execution was called off: the task is for nobody."""


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The handler returned plain JSON."""

    result: JsonValue


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt failed, in the handler or around it."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Stopped:
    """The handler was not allowed to finish, so there is nothing to report."""

    reason: StopReason


Outcome: TypeAlias = Succeeded | Failed | Stopped
