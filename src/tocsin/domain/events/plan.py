"""What an execution will do."""

from datetime import datetime
from typing import Literal

from pydantic import JsonValue

from ..definition import RetryPolicy
from .message import Input, Message, Sequence


class PlannedStep(Message):
    """A step with everything resolved: what the executor is asked to do, and how often.

    Without an input, or args, of its own it is given the plan's.
    """

    name: str
    function: str
    depends_on: tuple[str, ...] = ()
    timeout: float
    queue: str = "default"
    input: Input | None = None
    args: tuple[JsonValue, ...] | None = None
    retry: RetryPolicy = RetryPolicy()


class Plan(Message):
    """What an execution will do: taken from the definition in force once, so that a later edit changes no running one."""

    definition: Sequence
    steps: tuple[PlannedStep, ...]
    input: Input = {}
    args: tuple[JsonValue, ...] = ()
    overlap_policy: Literal["skip", "allow", "cancel_previous", "enqueue"] = "skip"
    dead_letter: bool = False
    execution_timeout: float | None = None
    cron_expression: str | None = None
    timezone: str = "UTC"
    tags: tuple[str, ...] = ()
    meta: dict[str, JsonValue] = {}
    start_at: datetime | None = None
    """Nothing is dispatched before."""
    expires_at: datetime | None = None
    """No executor is given anything from then on (ojs-core §5.5)."""
