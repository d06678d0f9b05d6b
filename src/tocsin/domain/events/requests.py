"""Inputs: what is asked for, and not yet decided."""

from datetime import datetime
from typing import Literal, Self

from pydantic import AwareDatetime, Field, JsonValue, model_validator

from ..definition import JobDefinition
from .actor import Actor
from .message import Input, Message
from .trigger import TriggerSource


class Trigger(Message):
    """Run this job now (on `cron.trigger.<job>`, or by the command line). Everything may be left out."""

    v: Literal[1] = 1
    type: Literal["trigger"] = "trigger"
    trigger: TriggerSource = "event"
    input: Input | None = None
    args: tuple[JsonValue, ...] | None = None
    by: Actor | None = None
    reason: str | None = None
    backfill: str | None = Field(default=None, min_length=1, max_length=255)
    """The name of the backfill that it is part of: together with `scheduled_time`, one execution."""
    scheduled_time: AwareDatetime | None = None
    """The instant of the past that it makes up for."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if (self.backfill is None) != (self.scheduled_time is None):
            raise ValueError("`backfill` and `scheduled_time` go together: the name of the backfill, and which instant")
        return self


class Enqueued(Message):
    """Run this once: a job that is registered nowhere, with the id that its execution is to have (ojs-core, PUSH)."""

    v: Literal[1] = 1
    type: Literal["enqueued"] = "enqueued"
    execution_id: str
    definition: JobDefinition
    start_at: datetime | None = None
    expires_at: datetime | None = None
    by: Actor | None = None

    @model_validator(mode="after")
    def _asks_for_no_lock(self) -> Self:
        if self.definition.overlap_policy != "allow":
            raise ValueError("`definition.overlap_policy` must be `allow`: what is registered nowhere has no lock")
        return self


class CancelRequest(Message):
    """End this execution (on `cron.cancel.<job>.<execution>`). Everything may be left out; the subject says which one."""

    v: Literal[1] = 1
    type: Literal["cancel"] = "cancel"
    by: Actor | None = None
    reason: str | None = None
