"""Output of a running attempt: lines, progress and heartbeats.

It decides nothing, and may be lost: no stage reads it, and neither the archive nor the audit covers it.
"""

from datetime import datetime
from typing import Literal, TypeAlias

from .message import Json, VersionedMessage, constant


class OutputLine(VersionedMessage, frozen=True, kw_only=True):
    """A line that a handler logged."""

    type: Literal["output-line"] = constant("output-line")
    """The type of the message."""
    job: str
    execution_id: str
    step: str
    attempt: int
    time: datetime
    """When the handler logged the line, by the worker's clock."""
    level: Literal["debug", "info", "warning", "error", "critical"] = "info"
    """The level of the line."""
    text: str
    """The line, without control characters."""


class StepProgress(VersionedMessage, frozen=True, kw_only=True):
    """The progress of an attempt, as its handler reports it."""

    type: Literal["step-progress"] = constant("step-progress")
    """The type of the message."""
    job: str
    execution_id: str
    step: str
    attempt: int
    time: datetime
    """When the handler reported it, by the worker's clock."""
    fraction: float
    """The part of the work that is done, from 0 to 1."""
    message: str = ""
    """What the attempt does now, without control characters."""
    data: dict[str, Json] = {}
    """Details of a worker over HTTP."""


class HeartbeatDetails(VersionedMessage, frozen=True, kw_only=True):
    """The place that a handler has reached, for the next attempt of its step."""

    type: Literal["heartbeat-details"] = constant("heartbeat-details")
    """The type of the message."""
    job: str
    execution_id: str
    step: str
    attempt: int
    time: datetime
    """When the handler sent it, by the worker's clock."""
    details: Json = None
    """The handler's own data."""


OutputMessage: TypeAlias = OutputLine | StepProgress | HeartbeatDetails
"""What an attempt says."""
