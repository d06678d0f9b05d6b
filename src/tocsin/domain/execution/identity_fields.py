"""What facts repeat of the execution that they are about."""

from datetime import datetime
from typing import TypedDict

from ..events import Actor, Plan, Requested, TriggerKind
from .state import Execution


class Identity(TypedDict):
    """The fields of every fact."""

    job: str
    execution_id: str


class Ending(Identity):
    """The fields of every `Terminal`."""

    scheduled_time: datetime
    trigger: TriggerKind
    fence: int | None


class Request(Identity):
    """The fields of every `Requested`."""

    scheduled_time: datetime
    trigger: TriggerKind
    plan: Plan
    by: Actor | None
    catch_up: bool
    replay_of: str | None
    backfill: str | None


def identity_fields(state: Execution) -> Identity:
    """What every fact repeats."""
    return {"job": state.request.job, "execution_id": state.request.execution_id}


def terminal_fields(state: Execution) -> Ending:
    """What every `Terminal` repeats."""
    requested = state.request
    return {
        **identity_fields(state),
        "scheduled_time": requested.scheduled_time,
        "trigger": requested.trigger,
        "fence": state.fence,
    }


def request_fields(requested: Requested) -> Request:
    """What `Admitted` repeats of `Planned`."""
    return {
        "job": requested.job,
        "execution_id": requested.execution_id,
        "scheduled_time": requested.scheduled_time,
        "trigger": requested.trigger,
        "plan": requested.plan,
        "by": requested.by,
        "catch_up": requested.catch_up,
        "replay_of": requested.replay_of,
        "backfill": requested.backfill,
    }
