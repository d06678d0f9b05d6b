"""The end of an execution."""

from datetime import datetime
from typing import Literal, TypeAlias

from pydantic import JsonValue

from .actor import Actor
from .execution import ExecutionFact
from .failure import Failure
from .message import Sequence
from .steps import ExhaustedReason
from .trigger import TriggerKind


class Terminal(ExecutionFact):
    """The end of an execution: nothing follows. It repeats what those who react to the end need."""

    scheduled_time: datetime
    trigger: TriggerKind
    fence: Sequence | None = None
    step: str | None = None
    attempt: int | None = None


class Completed(Terminal):
    """Every step completed; `step` was the last."""

    type: Literal["completed"] = "completed"
    result: JsonValue = None


FailedReason: TypeAlias = ExhaustedReason | Literal["timed_out", "abandoned", "expired"]


class Failed(Terminal):
    """A step was exhausted; the steps behind it, `cancelled_steps`, never ran (hip-62, Job Dependency Graphs).

    `step` was the last to end; where it completed, `error` is of the step that was exhausted before. Without a step the
    execution as a whole was ended: it took longer than it may (`timed_out`), or was lost and not to be recovered
    (`abandoned`), or its time was over while no executor had it (`expired`).
    """

    type: Literal["failed"] = "failed"
    step_completed: bool = False
    error: Failure | None = None
    reason: FailedReason | None = None
    result: JsonValue = None
    cancelled_steps: tuple[str, ...] = ()
    dead_letter: bool = False


class Cancelled(Terminal):
    """Somebody ended it."""

    type: Literal["cancelled"] = "cancelled"
    by: Actor | None = None
    reason: str | None = None
