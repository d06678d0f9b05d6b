"""The state of an execution, and the effect of each event on it."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from functools import reduce
from operator import attrgetter
from typing import Any, Final, Literal, Self, TypeAlias, TypedDict

import msgspec
from typing_extensions import override

from .. import quorum
from ..events import (
    Acknowledged,
    Admitted,
    Advanced,
    Cancelled,
    Completed,
    Death,
    DependenciesSettled,
    Dispatched,
    Exhausted,
    ExhaustedReason,
    Failed,
    FannedOut,
    LeaseExtended,
    Message,
    Plan,
    Planned,
    PlannedStep,
    Proposed,
    QuorumSettled,
    Recorded,
    Recovered,
    Released,
    Requested,
    RetryScheduled,
    Skipped,
    Started,
    TriggerKind,
    Workflow,
    admission_of,
)
from ..quorum import Quorum, Standing
from ..task_fetch import lease_span
from .steps import IN_FLIGHT, PersistentDict, Phase, Step, Steps, StepStates
from .workflow import Outcome, Walk


class WorkflowSteps(StepStates):
    """The steps of a workflow, walked once for each state that a decision needs."""

    __slots__ = ("_walk", "_workflow")

    def __init__(self, workflow: Workflow, planned: Mapping[str, PlannedStep], steps: Mapping[str, Step]) -> None:
        self._workflow = workflow
        self._walk: Walk | None = None
        self.planned = planned
        self._steps = PersistentDict(dict(steps))
        self.in_flight = sum(step.phase in IN_FLIGHT for step in steps.values())

    @property
    def walk(self) -> Walk:
        if self._walk is None:
            self._walk = Walk(self._workflow, self.planned, self._steps)
        return self._walk

    @property
    @override
    def is_completed(self) -> bool:
        return self.walk.outcome is Outcome.COMPLETED

    @override
    def with_step(self, name: str, step: Step) -> Self:
        old, new = self._steps.get(name), object.__new__(type(self))
        new._workflow, new._walk, new.planned = self._workflow, None, self.planned
        new._steps = self._steps.updated({name: step})
        new.in_flight = self.in_flight + (step.phase in IN_FLIGHT) - (old is not None and old.phase in IN_FLIGHT)
        return new

    @override
    def ready_steps(self, last: str | None) -> tuple[PlannedStep, ...]:
        return tuple(self.planned[name] for name in self.walk.ready)


class Status(StrEnum):
    """The status of an execution."""

    UNKNOWN = "unknown"
    PLANNED = "planned"
    ADMITTED = "admitted"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    FANNED_OUT = "fanned-out"
    """It stands for executions on several shards."""

    __hash__ = str.__hash__  # as for `Phase`


TERMINAL_STATUSES: Final = frozenset(
    {Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.SKIPPED, Status.FANNED_OUT}
)


class Execution(msgspec.Struct, frozen=True):
    """An execution, folded from its events.

    `recoveries` counts how often the execution was lost, `recovered_at` is the time of the last recovery. `deaths`
    are the workers that were lost with a task, by step, oldest first. `decided` is the event that admitted, skipped
    or fanned out the execution, as stored. `settled` says how the wait for other jobs ended, and `quorum` which agents acknowledged the
    execution, until it is admitted. `planned_at` is the time (UTC) since which it waits for these, or for its lock.
    """

    status: Status = Status.UNKNOWN
    requested: Requested | None = None
    fence: int | None = None
    steps: dict[str, Step] | StepStates = msgspec.field(default_factory=dict)
    recoveries: int = 0
    recovered_at: datetime | None = None
    deaths: Mapping[str, tuple[Death, ...]] = msgspec.field(default_factory=dict)
    decided: Recorded[Message] | None = None
    settled: DependenciesSettled | None = None
    quorum: Quorum = quorum.initial
    planned_at: datetime | None = None

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

    @property
    def is_fanned_out(self) -> bool:
        return self.status is Status.FANNED_OUT

    @property
    def is_dependent(self) -> bool:
        """Return whether the execution waits for runs of other jobs."""
        return self.status is Status.PLANNED and self.settled is None and bool(self.request.plan.depends_on)

    @property
    def is_proposed(self) -> bool:
        if self.status is not Status.PLANNED or self.is_dependent or self.request.plan.quorum is None:
            return False
        has_failed = self.settled is not None and self.settled.outcome != "met"
        return self.quorum.settled is None and not has_failed

    @property
    def is_held(self) -> bool:
        """Return whether the execution waits for something that comes before its lock."""
        return self.is_dependent or self.is_proposed


initial: Final = Execution()


WaitsFor: TypeAlias = Literal["dependency", "acknowledgements", "lock", "worker", "delay"]
WAITS: Final[Mapping[WaitsFor, str]] = {
    "dependency": "runs of the jobs on which it depends",
    "acknowledgements": "acknowledgements of agents",
    "lock": "the lock of its job",
    "worker": "a worker",
    "delay": "the delay before a retry, or another step",
}
"""What an execution waits for, in words."""


def waits_for(state: Execution) -> WaitsFor | None:
    """Return what an open execution waits for.

    None: a worker has a step, or the execution is over or unknown.
    """
    if state.status is Status.PLANNED:
        return "dependency" if state.is_dependent else "acknowledgements" if state.is_proposed else "lock"
    if state.status is not Status.ADMITTED:
        return None
    phases = {step.phase for step in state.steps.values()}
    if Phase.STARTED in phases:
        return None
    return "worker" if phases & {Phase.DISPATCHED, Phase.LOST} else "delay"


def acknowledgements(state: Execution) -> Standing | None:
    """Return the acknowledgements for which an execution waits; None: it waits for none."""
    rule = state.request.plan.quorum if state.is_proposed else None
    return None if rule is None else quorum.standing(state.quorum, rule)


def waiting_steps(state: Execution) -> tuple[str, ...]:
    """Return the steps of an open execution whose tasks wait for a worker."""
    if state.status is not Status.ADMITTED:
        return ()
    return tuple(name for name, step in state.steps.items() if step.phase in {Phase.DISPATCHED, Phase.LOST})


def with_step(state: Execution, name: str, step: Step) -> Execution:
    # This runs for every event, and `dataclasses.replace` takes three times as long.
    old = state.steps
    steps = {**old, name: step} if isinstance(old, dict) else old.with_step(name, step)
    return Execution(
        state.status,
        state.requested,
        state.fence,
        steps,
        state.recoveries,
        state.recovered_at,
        state.deaths,
        state.decided,
    )


def planned_step(state: Execution, name: str) -> PlannedStep:
    if isinstance(state.steps, dict):
        steps = state.request.plan.steps
        return steps[0] if len(steps) == 1 else next(step for step in steps if step.name == name)
    return state.steps.planned[name]


class Identity(TypedDict):
    """The fields of every event of an execution."""

    job: str
    execution_id: str


class Ending(Identity):
    """The fields of every `Terminal`."""

    scheduled_time: datetime
    trigger: TriggerKind
    fence: int | None
    shard: str | None
    hops: int


def identity_fields(state: Execution) -> Identity:
    return {"job": state.request.job, "execution_id": state.request.execution_id}


def terminal_fields(state: Execution) -> Ending:
    """Return the fields that every `Terminal` repeats."""
    requested = state.request
    return {
        **identity_fields(state),
        "scheduled_time": requested.scheduled_time,
        "trigger": requested.trigger,
        "fence": state.fence,
        "shard": requested.plan.shard,
        "hops": requested.hops,
    }


_request_of: Final = attrgetter(*Requested.__struct_fields__)


def request_fields(requested: Requested) -> dict[str, Any]:
    """Return the fields that `Admitted` repeats from `Planned`."""
    return dict(zip(Requested.__struct_fields__, _request_of(requested), strict=True))


def evolve(state: Execution, recorded: Recorded[Message]) -> Execution:  # noqa: C901, PLR0911, PLR0912 - one case a fact
    """Return the state after an event; an event that does not fit changes nothing."""
    fact = recorded.message
    match fact:
        case Dispatched():
            if (admission := admission_of(recorded)) is not None:
                state = _admitted(state, admission)
            return with_step(state, fact.step, Step(Phase.DISPATCHED, fact.attempt, task=recorded.sequence))
        case Started():
            return with_step(state, fact.step, _started(state.steps.get(fact.step, Step()), fact, recorded))
        case Completed():
            return msgspec.structs.replace(_with_last_step(state, fact), status=Status.COMPLETED)
        case Admitted():
            return _admitted(state, Recorded(fact, recorded.subject, recorded.sequence, recorded.time))
        case Planned():
            return Execution(Status.PLANNED, fact, None, _steps_of(fact.plan), planned_at=recorded.time)
        case DependenciesSettled():
            return msgspec.structs.replace(state, settled=fact)
        case Proposed() | Acknowledged() | QuorumSettled():
            return msgspec.structs.replace(state, quorum=quorum.evolve(state.quorum, recorded))
        case Recovered():
            return _recovered(state, fact)
        case Released():
            return _released(state, fact)
        case LeaseExtended():
            return _extended(state, fact)
        case RetryScheduled():
            step = Step(
                Phase.RETRYING, fact.attempt, next_attempt_at=fact.next_attempt_at, claim=_last_claim(state, fact.step)
            )
            return with_step(_with_deaths(state, fact.step, fact.error.deaths), fact.step, step)
        case Advanced():
            step = Step(Phase.COMPLETED, fact.attempt, result=fact.result, claim=_last_claim(state, fact.step))
            return with_step(state, fact.step, step)
        case Exhausted():
            return with_step(
                state, fact.step, Step(Phase.EXHAUSTED, fact.attempt, error=fact.error, reason=fact.reason)
            )
        case Failed():
            return msgspec.structs.replace(_with_last_step(state, fact), status=Status.FAILED)
        case Cancelled():
            return msgspec.structs.replace(state, status=Status.CANCELLED)
        case Skipped():
            return msgspec.structs.replace(state, status=Status.SKIPPED, decided=recorded)
        case FannedOut():
            return msgspec.structs.replace(state, status=Status.FANNED_OUT, decided=recorded)
        case _:
            return state


def fold(facts: Iterable[Recorded[Message]], state: Execution = initial) -> Execution:
    """Return the state after events, oldest first."""
    return reduce(evolve, facts, state)


def _admitted(state: Execution, admission: Recorded[Admitted]) -> Execution:
    fact = admission.message
    steps = _steps_of(fact.plan)
    return Execution(
        Status.ADMITTED, fact, fact.fence, steps, state.recoveries, fact.recovered_at, state.deaths, admission
    )


def _steps_of(plan: Plan) -> dict[str, Step] | StepStates:
    first = Step()
    if plan.start_at is not None:
        first = Step(Phase.RETRYING, next_attempt_at=plan.start_at)  # the first attempt waits like a retry
    steps = {step.name: Step() if step.depends_on else first for step in plan.steps}
    if plan.workflow is not None:
        return WorkflowSteps(plan.workflow, {step.name: step for step in plan.steps}, steps)
    return Steps(plan.steps, steps) if len(steps) > 1 else steps


def _with_last_step(state: Execution, end: Completed | Failed) -> Execution:
    """Return the state with the step that ended last.

    An execution with a single step does not need it, unless it is a workflow.
    """
    name, attempt = end.step, end.attempt
    if name is None or attempt is None or isinstance(state.steps, dict):
        return state
    if isinstance(end, Completed) or end.step_completed:
        step = Step(Phase.COMPLETED, attempt, result=end.result, claim=_last_claim(state, name))
    else:
        reason: ExhaustedReason = "non_retryable" if end.reason == "non_retryable" else "attempts"
        step = Step(Phase.EXHAUSTED, attempt, error=end.error, reason=reason)
    return with_step(state, name, step)


def _last_claim(state: Execution, name: str) -> int:
    step = state.steps.get(name)
    return 0 if step is None else step.claim


def _started(step: Step, fact: Started, recorded: Recorded[Message]) -> Step:
    claims = step.claims + 1 if step.attempt == fact.attempt else 1
    until = None if fact.lease is None else recorded.time + lease_span(fact.lease)
    begun, claim, at = (fact.attempt, fact.delivery), recorded.sequence, recorded.time
    return Step(Phase.STARTED, *begun, task=step.task, claims=claims, leased_until=until, claim=claim, claimed_at=at)


def _extended(state: Execution, fact: LeaseExtended) -> Execution:
    step = state.steps.get(fact.step)
    if step is None or step.phase is not Phase.STARTED or step.claim != fact.claim:
        return state
    return with_step(state, fact.step, msgspec.structs.replace(step, leased_until=fact.until))


def _recovered(state: Execution, fact: Recovered) -> Execution:
    recoveries = max(state.recoveries, fact.recovery)
    return msgspec.structs.replace(state, recoveries=recoveries, recovered_at=fact.recovered_at)


def _with_deaths(state: Execution, step: str, deaths: tuple[Death, ...]) -> Execution:
    return msgspec.structs.replace(state, deaths={**state.deaths, step: deaths}) if deaths else state


def _released(state: Execution, fact: Released) -> Execution:
    """Mark the released task as lost; it is dispatched again."""
    state = _with_deaths(state, fact.step, fact.deaths)
    step = state.steps.get(fact.step)
    if step is None or step.phase is not Phase.STARTED or (step.attempt, step.task) != (fact.attempt, fact.task):
        return state
    return with_step(state, fact.step, msgspec.structs.replace(step, phase=Phase.LOST))
