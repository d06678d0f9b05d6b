"""Decisions on attempts: their claims, and the reports of workers."""

from datetime import datetime, timedelta
from typing import Final, Literal

import msgspec

from .. import duration, ids, retry
from ..events import (
    Advanced,
    Cancelled,
    Completed,
    Death,
    Dispatched,
    Exhausted,
    ExhaustedReason,
    Failed,
    Failure,
    LeaseExtended,
    Plan,
    PlannedStep,
    Released,
    ReleasedReason,
    Report,
    RetryScheduled,
    Started,
)
from ..task_fetch import lease_span
from .lifecycle import TIMED_OUT, cancel, unstarted_steps
from .state import Execution, Status, WorkflowSteps, identity_fields, planned_step, terminal_fields, with_step
from .steps import IN_FLIGHT, RUNNING, Phase, Step
from .tasks import dispatch, ready_steps
from .workflow import callbacks

WORKER_LOST: Final = "worker_lost"
"""The error type of a step that lost too many workers."""
MAX_ADOPTED_AT_ONCE: Final = 64
"""Steps that are adopted in one write; their results may have 64 KiB each."""


class ClaimDenied(msgspec.Struct, frozen=True):
    """The reason why a claim is denied.

    `over`: the execution is over. `done`: the step is done. `superseded`: a later attempt or task exists. `held`: this
    delivery or a later one holds the attempt; that worker may be busy or dead.
    """

    reason: Literal["over", "done", "superseded", "held"]


def claim(state: Execution, *, step: str, attempt: int, delivery: int, task: int, worker: str) -> Started | ClaimDenied:
    """Give a delivery of a task to a worker.

    A later delivery takes over an attempt; an earlier one never does. `task` is the sequence of the delivered task; a
    task that was lost and turns up later is denied.
    """
    current = state.steps.get(step)
    if state.status is not Status.ADMITTED or state.requested is None or current is None:
        return ClaimDenied("over")
    if current.phase in {Phase.COMPLETED, Phase.EXHAUSTED}:
        return ClaimDenied("done")
    if current.phase not in RUNNING or attempt != current.attempt or task < current.task:
        return ClaimDenied("superseded")
    if delivery <= current.delivery or current.leased_until:
        return ClaimDenied("held")
    return Started(**identity_fields(state), step=step, attempt=attempt, delivery=delivery, worker=worker)


def release(state: Execution, name: str, *, reason: ReleasedReason, deaths: tuple[Death, ...] = ()) -> list[Released]:
    """Release the claim of a step, if it has one that stands."""
    step = state.steps.get(name)
    if state.status is not Status.ADMITTED or step is None or step.phase is not Phase.STARTED:
        return []
    return [
        Released(
            **identity_fields(state),
            step=name,
            attempt=step.attempt,
            delivery=step.delivery,
            task=step.task,
            reason=reason,
            deaths=deaths,
        )
    ]


def extend(state: Execution, report: Report, *, at: datetime) -> list[LeaseExtended]:
    """Extend a lease by a heartbeat of its worker, reported at `at`."""
    step = state.steps.get(report.step)
    if state.status is not Status.ADMITTED or step is None or step.leased_until is None or report.lease is None:
        return []
    if step.phase is not Phase.STARTED or report.claim != step.claim:
        return []
    until = at + lease_span(report.lease)
    identity = identity_fields(state)
    return [LeaseExtended(**identity, step=report.step, attempt=step.attempt, claim=step.claim, until=until)]


def lose(
    state: Execution, report: Report, reason: ReleasedReason, *, at: datetime
) -> list[Released | RetryScheduled | Exhausted | Failed]:
    """End a claim that a stage reported at `at` as lost or handed back.

    The attempt fails if it used up its time, or if its step lost too many workers.
    """
    step, error = state.steps.get(report.step), report.error
    if step is None or error is None or step.phase is not Phase.STARTED or report.claim != step.claim:
        return []
    if reason == "handed_back":
        return [*release(state, report.step, reason=reason)]  # no executor failed
    if step.leased_until is not None and any(death.at < step.leased_until for death in error.deaths):
        return []  # a heartbeat came first
    deaths = (*state.deaths.get(report.step, ()), *error.deaths[-1:])
    limit = planned_step(state, report.step).timeout
    if len(deaths) >= state.request.plan.max_deaths:
        message = f"the workers that had it were lost: {'; '.join(map(str, deaths))}"
        end = Failure(type=WORKER_LOST, message=message, retryable=False, deaths=error.deaths)
    elif step.claimed_at is not None and at >= step.claimed_at + lease_span(limit):
        end = silence(limit).changed(deaths=error.deaths)
    else:
        return [*release(state, report.step, reason=reason, deaths=deaths)]
    return [*fail(state, report.changed(error=end), at=at)]


def silence(limit: float) -> Failure:
    """Return the error of an attempt of which nothing was reported within `limit` seconds."""
    return Failure(type=TIMED_OUT, message=f"its executor reported nothing within {duration.short(limit)}")


def succeed(state: Execution, report: Report, *, key: bytes) -> list[Advanced | Completed | Failed | Dispatched]:
    """Complete a step, and dispatch the steps that are now ready or end the execution.

    The success of any delivery of any dispatched attempt counts, because the work is done.
    """
    step = _reported(state, report)
    if step is None or report.attempt > step.attempt:
        return [*dispatch(state, key=key)]
    done = Step(Phase.COMPLETED, report.attempt, result=report.result)
    after = with_step(state, report.step, done)
    ready = dispatch(after, key=key, last=report.step)
    if ready or _is_in_flight(after):
        advanced = Advanced(**identity_fields(state), step=report.step, attempt=report.attempt, result=report.result)
        return [advanced, *ready]
    if _is_completed(after):
        return [
            Completed(
                **terminal_fields(state),
                step=report.step,
                attempt=report.attempt,
                result=report.result,
                cancelled_steps=unstarted_steps(after),
            )
        ]
    return [_failed(after, report.step)]


def fail(state: Execution, report: Report, *, at: datetime) -> list[RetryScheduled | Exhausted | Failed]:
    """Record a failed attempt, reported at `at`, and retry it or give it up.

    Only the failure of the current delivery of the current attempt counts.
    """
    step, requested = _reported(state, report), state.requested
    if step is None or requested is None or step.phase not in RUNNING:
        return []
    if report.attempt != step.attempt or report.delivery not in {None, step.delivery}:
        return []
    if report.claim not in {None, step.claim}:
        return []  # the claim was released, and deliveries of the next task are counted from 1 again
    name = report.step
    error = report.error or Failure(type="unknown", message="the worker reported no error")
    if error.deaths:  # a worker may report any: a report adds one at most, and takes back none
        error = error.changed(deaths=(*state.deaths.get(name, ()), error.deaths[-1]))
    policy = planned_step(state, name).retry
    if retry.is_retryable(policy, error) and step.attempt < policy.max_attempts:
        draw = ids.draw(requested.execution_id, name, str(step.attempt))
        delay = retry.delay_after(error, policy, step.attempt, draw)
        return [
            RetryScheduled(
                **identity_fields(state),
                step=name,
                attempt=step.attempt,
                error=error,
                delay=delay,
                next_attempt_at=at + timedelta(seconds=delay),
            )
        ]
    reason: ExhaustedReason = "attempts" if retry.is_retryable(policy, error) else "non_retryable"
    after = with_step(state, name, Step(Phase.EXHAUSTED, step.attempt, error=error, reason=reason))
    if _goes_on(after) or _is_completed(after):
        return [Exhausted(**identity_fields(state), step=name, attempt=step.attempt, error=error, reason=reason)]
    return [_failed(after, name)]


def go_on(state: Execution, *, key: bytes) -> list[Dispatched | Completed]:
    """Return what follows in a workflow after a step was exhausted.

    It is the callbacks that are due, or the end. In a graph nothing follows.
    """
    if state.status is not Status.ADMITTED or not isinstance(state.steps, WorkflowSteps):
        return []
    if not _goes_on(state) and _is_completed(state):
        return [Completed(**terminal_fields(state), cancelled_steps=unstarted_steps(state))]
    return [*dispatch(state, key=key)]


def running_steps(state: Execution) -> list[tuple[str, int]]:
    """Return the steps that a worker may hold, with their attempts.

    A report that names no step means one of these.
    """
    if state.status is not Status.ADMITTED:
        return []
    return [(name, step.attempt) for name, step in state.steps.items() if step.phase in RUNNING]


def _reported(state: Execution, report: Report) -> Step | None:
    """Return the step of a report, if the report can still change it."""
    step = state.steps.get(report.step)
    return step if state.status is Status.ADMITTED and step is not None and step.phase in IN_FLIGHT else None


def _goes_on(state: Execution) -> bool:
    return _is_in_flight(state) or bool(ready_steps(state))


def _is_in_flight(state: Execution) -> bool:
    if isinstance(state.steps, dict):
        return any(step.phase in IN_FLIGHT for step in state.steps.values())
    return state.steps.in_flight > 0


def _is_completed(state: Execution) -> bool:
    if isinstance(state.steps, dict):
        return all(step.phase is Phase.COMPLETED for step in state.steps.values())
    return state.steps.is_completed


def _failed(state: Execution, last: str) -> Failed:
    """Return the end of an execution in which a step was exhausted.

    The error comes from the last step, or from the first exhausted step if the last step completed.
    """
    step = state.steps[last]
    culprit = step if step.error else next(s for s in state.steps.values() if s.phase is Phase.EXHAUSTED)
    return Failed(
        **terminal_fields(state),
        step=last,
        attempt=step.attempt,
        step_completed=step.phase is Phase.COMPLETED,
        error=culprit.error,
        cause=None if (cause := _cause(state, last)) == culprit.error else cause,
        reason=culprit.reason,
        result=step.result,
        cancelled_steps=unstarted_steps(state),
        dead_letter=state.requested is not None and state.requested.plan.dead_letter,
    )


def _cause(state: Execution, last: str) -> Failure | None:
    """Return the error that made a callback run last; None: no callback did."""
    workflow = state.request.plan.workflow
    if workflow is None or not workflow.nodes[0].fails_with_members:
        return None
    called = callbacks(workflow.nodes[0]).values()
    if last not in called:
        return None
    failed = (step for name, step in state.steps.items() if step.phase is Phase.EXHAUSTED and name not in called)
    return next((step.error for step in failed), None)


# The replay names the failed execution, whose scope has ended and so never changes. Each adopted step is an event of the replay with
# the result, so that nothing of the replay depends on the earlier scope afterwards.


def adoptable_steps(before: Execution, plan: Plan) -> frozenset[str]:
    """Return the steps of a plan that an earlier execution completed.

    A step counts if its work and input are the same, and if all steps on which it depends count too.
    """
    earlier = {step.name: step for step in before.request.plan.steps}
    steps = {
        step.name
        for step in plan.steps
        if step.name in earlier
        and before.steps[step.name].phase is Phase.COMPLETED
        and _work(step, plan) == _work(earlier[step.name], before.request.plan)
    }
    while unfounded := {
        step.name for step in plan.steps if step.name in steps and not steps.issuperset(step.depends_on)
    }:
        steps -= unfounded
    return frozenset(steps)


def adopt(state: Execution, before: Execution) -> list[Advanced | Cancelled]:
    """Adopt some of the steps that `before` completed; return nothing after the last.

    The execution is cancelled if `before` was archived, or if no step remains.
    """
    requested = state.requested
    if state.status is not Status.ADMITTED or requested is None or not requested.failed_only:
        return []
    if any(step.phase not in {Phase.WAITING, Phase.COMPLETED} for step in state.steps.values()):
        return []  # a step was dispatched, so all are adopted
    if before.status is not Status.FAILED:
        gone = f"the results of execution {requested.replay_of} are not in the log any more; replay all steps"
        return [*cancel(state, reason=gone)]
    names = adoptable_steps(before, requested.plan)
    if len(names) == len(requested.plan.steps):
        return [*cancel(state, reason=f"execution {requested.replay_of} completed every step of the plan")]
    missing = [name for name, step in state.steps.items() if name in names and step.phase is Phase.WAITING]
    return [
        Advanced(
            **identity_fields(state),
            step=name,
            attempt=0,
            result=before.steps[name].result,
            adopted_from=requested.replay_of,
        )
        for name in missing[:MAX_ADOPTED_AT_ONCE]
    ]


def _work(step: PlannedStep, plan: Plan) -> tuple[object, ...]:
    """Return what the result of a step depends on, beside the results of earlier steps."""
    input_ = plan.input if step.input is None else step.input
    args = plan.args if step.args is None else step.args
    return step.function, step.builtin, step.bind, step.depends_on, input_, args
