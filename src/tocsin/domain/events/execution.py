"""An execution as a whole: wanted, admitted or skipped, lost and found again. How it ends is in `ending`."""

from datetime import datetime
from typing import Literal, TypeAlias

from .actor import Actor
from .message import Message, Sequence
from .plan import Plan
from .trigger import TriggerKind


class ExecutionFact(Message):
    """A fact about one execution."""

    v: Literal[1] = 1
    job: str
    execution_id: str


class Requested(ExecutionFact):
    """What `planned` and `admitted` both say, so that each can be understood alone."""

    scheduled_time: datetime
    trigger: TriggerKind
    plan: Plan
    by: Actor | None = None
    catch_up: bool = False
    replay_of: str | None = None
    """The dead letter that is replayed; its id is that of the execution that failed, if it was one."""
    backfill: str | None = None
    """The name of the backfill that it is part of."""


class Planned(Requested):
    """The execution is wanted; whether it may run is for the lock keeper to say."""

    type: Literal["planned"] = "planned"


class Admitted(Requested):
    """The execution may run. `fence` is the fencing token of its lock, absent where no lock was asked.

    `recovered_at`: when it was last found lost before that, if ever.
    """

    type: Literal["admitted"] = "admitted"
    fence: Sequence | None = None
    recovered_at: datetime | None = None


SkipReason: TypeAlias = Literal["overlap_skip", "disabled", "dst_skip"]


class Skipped(ExecutionFact):
    """The execution does not run (terminal): another one is active, or its instant passed without firing."""

    type: Literal["skipped"] = "skipped"
    reason: SkipReason
    scheduled_time: datetime
    trigger: TriggerKind
    definition: Sequence
    cron_expression: str | None = None
    timezone: str = "UTC"
    active_execution_id: str | None = None


class Lost(Message):
    """What was the last to happen, and since when nothing follows it: for the execution as a whole, or for one step."""

    what: Literal["planned", "admitted", "dispatched", "retry-scheduled"]
    since: datetime
    step: str | None = None
    attempt: int | None = None


class Recovered(ExecutionFact):
    """The recoverer found that the execution was lost on its way to an executor, with proof; it is handed on anew.

    `recovery` counts, from 1. A task that is `lost` will not run any more, should it turn up again: another follows.
    """

    type: Literal["recovered"] = "recovered"
    recovery: int
    lost: tuple[Lost, ...]
    recovered_at: datetime
