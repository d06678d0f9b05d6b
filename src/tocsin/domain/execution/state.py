"""The state of an execution."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, TypedDict

from pydantic import JsonValue

from ..events import Actor, ExhaustedReason, Failure, Plan, Requested, TriggerKind


class Status(StrEnum):
    """Where an execution is."""

    UNKNOWN = "unknown"
    PLANNED = "planned"
    ADMITTED = "admitted"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


TERMINAL_STATUSES: Final = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.SKIPPED})


class Phase(StrEnum):
    """Where a step is."""

    WAITING = "waiting"
    DISPATCHED = "dispatched"
    LOST = "lost"
    STARTED = "started"
    RETRYING = "retrying"
    COMPLETED = "completed"
    EXHAUSTED = "exhausted"


RUNNING: Final = frozenset({Phase.DISPATCHED, Phase.STARTED})
"""An executor may have it."""
IN_FLIGHT: Final = RUNNING | {Phase.RETRYING, Phase.LOST}
"""It was dispatched, and has not come to an end."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `delivery` is the current claim's, 0 where nobody claimed the attempt yet.

    `task` is the sequence of its newest `dispatched` fact (0: none): an older one was lost, and is not run any more.
    `claims` is how often the attempt was claimed. A claim that is `leased` stands until its lease is over, whatever its
    queue delivers. `claim` is the sequence of the current one (0: none).
    """

    phase: Phase = Phase.WAITING
    attempt: int = 0
    delivery: int = 0
    next_attempt_at: datetime | None = None
    result: JsonValue = None
    error: Failure | None = None
    reason: ExhaustedReason | None = None
    task: int = 0
    claims: int = 0
    leased: bool = False
    claim: int = 0


@dataclass(frozen=True, slots=True)
class Execution:
    """An execution as its facts tell it; `recoveries` is how often it was found lost, `recovered_at` when the last time.

    `lapsed` are the leases that ended without an answer: (step, attempt, task).
    """

    status: Status = Status.UNKNOWN
    requested: Requested | None = None
    fence: int | None = None
    steps: Mapping[str, Step] = field(default_factory=dict)
    recoveries: int = 0
    recovered_at: datetime | None = None
    lapsed: frozenset[tuple[str, int, int]] = frozenset()

    @property
    def request(self) -> Requested:
        """What was planned or admitted.

        Raises:
            LookupError: nothing was.
        """
        if self.requested is None:
            raise LookupError("the execution was never planned")
        return self.requested

    @property
    def is_over(self) -> bool:
        """Nothing can follow any more."""
        return self.status in TERMINAL_STATUSES


initial: Final = Execution()


def with_step(state: Execution, name: str, step: Step) -> Execution:
    """The same with one step as it is now."""
    # Spelled out, since `replace` costs three times as much and this runs for every fact.
    steps = {**state.steps, name: step}
    return Execution(
        state.status, state.requested, state.fence, steps, state.recoveries, state.recovered_at, state.lapsed
    )


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
