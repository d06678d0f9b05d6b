"""The state of an execution, and the fields that its events repeat."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, Literal, TypeAlias, TypedDict

from ..events import Actor, Message, Plan, PlannedStep, Recorded, Requested, TriggerKind
from .steps import Phase, Step, Steps


class Status(StrEnum):
    """The status of an execution."""

    UNKNOWN = "unknown"
    PLANNED = "planned"
    ADMITTED = "admitted"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


TERMINAL_STATUSES: Final = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.SKIPPED})


@dataclass(frozen=True, slots=True)
class Execution:
    """An execution, folded from its events.

    `recoveries` counts how often the execution was lost, `recovered_at` is the time of the last recovery. `lapsed`
    holds the leases that expired without a report: (step, attempt, task). `decided` is the event that admitted or skipped
    the execution, as stored.
    """

    status: Status = Status.UNKNOWN
    requested: Requested | None = None
    fence: int | None = None
    steps: Mapping[str, Step] = field(default_factory=dict)
    recoveries: int = 0
    recovered_at: datetime | None = None
    lapsed: frozenset[tuple[str, int, int]] = frozenset()
    decided: Recorded[Message] | None = None

    @property
    def request(self) -> Requested:
        """Return the event by which the execution was planned or admitted.

        Raises:
            LookupError: the execution was never planned.
        """
        if self.requested is None:
            raise LookupError("the execution was never planned")
        return self.requested

    @property
    def is_over(self) -> bool:
        """Return whether the execution has ended; no event follows."""
        return self.status in TERMINAL_STATUSES


initial: Final = Execution()


WaitsFor: TypeAlias = Literal["lock", "worker", "delay"]


def waits_for(state: Execution) -> WaitsFor | None:
    """Return what an open execution waits for.

    None: a worker has a step, or the execution is over or unknown.
    """
    if state.status is Status.PLANNED:
        return "lock"
    if state.status is not Status.ADMITTED:
        return None
    phases = {step.phase for step in state.steps.values()}
    if Phase.STARTED in phases:
        return None
    return "worker" if phases & {Phase.DISPATCHED, Phase.LOST} else "delay"


def with_step(state: Execution, name: str, step: Step) -> Execution:
    """Return the state with a step replaced."""
    # This runs for every event, and `dataclasses.replace` takes three times as long.
    old = state.steps
    steps = old.with_step(name, step) if isinstance(old, Steps) else {**old, name: step}
    return Execution(
        state.status,
        state.requested,
        state.fence,
        steps,
        state.recoveries,
        state.recovered_at,
        state.lapsed,
        state.decided,
    )


def planned_step(state: Execution, name: str) -> PlannedStep:
    """Return a step of the plan by its name."""
    if isinstance(state.steps, Steps):
        return state.steps.planned[name]
    return next(step for step in state.request.plan.steps if step.name == name)


class Identity(TypedDict):
    """The fields of every event of an execution."""

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
    """Return the fields that every event repeats."""
    return {"job": state.request.job, "execution_id": state.request.execution_id}


def terminal_fields(state: Execution) -> Ending:
    """Return the fields that every `Terminal` repeats."""
    requested = state.request
    return {
        **identity_fields(state),
        "scheduled_time": requested.scheduled_time,
        "trigger": requested.trigger,
        "fence": state.fence,
    }


def request_fields(requested: Requested) -> Request:
    """Return the fields that `Admitted` repeats from `Planned`."""
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
