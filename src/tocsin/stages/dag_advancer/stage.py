"""DAG advancer: dispatches ready steps, and ends an execution after its last step.

A request to cancel an execution that does not exist becomes a dead letter. A replay that completes resolves its dead letter.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from ... import subjects
from ...domain import execution, ids
from ...domain.events import (
    Admitted,
    Advanced,
    Cancelled,
    CancelRequest,
    Completed,
    Dispatched,
    Exhausted,
    Failed,
    FannedOut,
    Message,
    Recorded,
    Recovered,
    Released,
    Resolved,
)
from ...domain.execution import Execution, Status
from ...domain.fan_out import execution_ids
from ...engine.kinds import CANNOT_COME, EXECUTION, LOG_TIME, execution_state
from ...engine.report_lists import authentic_report, authentic_subject
from ...engine.rerun import resolve_replayed
from ...engine.stage import Access, Deadline, DeadlineRule, Stage, Subscription
from ...engine.step import DONE, Events, Ref, States, Step, again, decided, refuse, wait
from ...subjects import Stream

CANCELS: Final = "dag-advancer-cancels"
PATIENCE: Final = timedelta(seconds=30)
"""How long a request to cancel waits for its execution: a client knows the id before the planner plans it."""
FIRST_WAIT: Final = timedelta(seconds=2)
"""The time after which such a request is decided again, and the patience with a program outside.

A flood of them must not wait for long.
"""
AT_ONCE: Final = 128
"""Events of an execution in one part of a decision; a wide graph has more."""
BYTES_AT_ONCE: Final = 262_144
CANCELLED_AT_ONCE: Final = 64
"""Executions on the shards of an occurrence that are cancelled in one write."""
MAX_REASON_LENGTH: Final = 1_000
"""Letters of the reason that each of these executions keeps."""


class DagAdvancer:
    """Advances executions step by step."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def retries(self, state: Execution) -> Sequence[Deadline]:
        """Return when the steps of an execution are tried again."""
        return [Deadline(at, f"{step}.{attempt}") for step, attempt, at in execution.retry_times(state)]

    def on_retry_due(self, scope: str, deadline: Deadline, states: States, now: datetime) -> Step:  # noqa: ARG002 - the retry is due
        """Dispatch the retry of a step."""
        state, (step, _, attempt) = states(EXECUTION(scope)), deadline.key.rpartition(".")
        return decided(EXECUTION(scope), execution.dispatch_retry(state, step, int(attempt), key=self._key))

    def on_admitted(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:  # noqa: ARG002 - the event's time counts
        """Dispatch the first steps of an execution, or its lost steps.

        In a workflow, steps may follow a failure.
        """
        fact = recorded.message
        if not isinstance(fact, Admitted | Recovered | Released | Exhausted):
            return DONE
        ref = execution_state(fact.job, fact.execution_id)
        if adopted := _adopted(ref, states):
            return _in_parts(ref, adopted, is_last=False)
        if isinstance(fact, Exhausted):
            return _in_parts(ref, execution.go_on(states(ref), key=self._key))
        # A start time may have passed while the execution waited for its lock.
        return _in_parts(ref, execution.dispatch_missing(states(ref), at=recorded.time, key=self._key))

    def is_proven(self, subject: str) -> bool:
        """Return whether a report is from a worker that received its task."""
        return authentic_subject(subject, self._key) is not None

    def on_success(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:  # noqa: ARG002 - no decision on the time
        """Advance an execution after a step completed."""
        report = authentic_report(recorded, self._key)
        if report is None:
            return DONE
        ref = execution_state(report.job, report.execution_id)
        state = states(ref)
        replay_of = None if state.requested is None else state.requested.replay_of
        # What does not fit into the first part of the decision is dispatched in the next.
        if events := [*execution.succeed(state, report, key=self._key)] or [*execution.dispatch(state, key=self._key)]:
            return _in_parts(ref, events, is_last=replay_of is None)
        if replay_of is not None and state.status is Status.COMPLETED:
            return resolve_replayed(states, report.job, replay_of, report.execution_id)
        return DONE

    def on_failure(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:  # noqa: ARG002 - only its place counts
        """Take the place of a failure, for which the retrier waits.

        So no success before the failure is lost.
        """
        return DONE

    def on_cancel(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:  # noqa: ARG002, PLR0911 - the log's time counts
        """Cancel an execution, or those on the shards of an occurrence."""
        request = recorded.message
        if not isinstance(request, CancelRequest):
            return DONE
        job, execution_id = subjects.parse_cancel(recorded.subject)
        is_public = subjects.publisher_of(recorded.subject) is not None
        if not job or subjects.ANY in {job, execution_id} or (is_public and not ids.is_execution_id(execution_id)):
            return refuse("it names no execution: cancel.<job>.<execution>", code="invalid-id")
        ref = execution_state(job, execution_id)
        state, waited = states(ref), states(LOG_TIME(None)) - recorded.time
        if state.status is not Status.UNKNOWN:
            if state.decided is not None and isinstance(state.decided.message, FannedOut):
                return _cancel_each(state.decided.message, request, states, waited)
            return decided(ref, execution.cancel(state, reason=request.reason, by=request.by))
        if states(CANNOT_COME((ref.key, recorded.time))):
            return DONE
        if waited < (FIRST_WAIT if is_public else PATIENCE):
            until = FIRST_WAIT if waited < FIRST_WAIT else PATIENCE
            return wait((until - waited).total_seconds())
        missing = f"no execution of {job!r} has the id {execution_id!r}"
        return refuse(missing, code="not-found", job=job)


def _in_parts(ref: Ref[Execution], events: Sequence[Message], *, is_last: bool = True) -> Step:
    """Append the events that fit into a part of a decision.

    If there are more, or it is not the last part, decide again.
    """
    part, size = len(events), 0
    for number, event in enumerate(events if len(events) > 1 else ()):
        size += len(event.encode())
        if number and (number == AT_ONCE or size > BYTES_AT_ONCE):
            part = number
            break
    if is_last and part == len(events):
        return decided(ref, events)
    return again(Events(ref, tuple(events[:part])))


def _adopted(ref: Ref[Execution], states: States) -> list[Advanced | Cancelled]:
    """Return the steps that a replay adopts before it dispatches a task."""
    requested = states(ref).requested
    if requested is None or not requested.failed_only or requested.replay_of is None:
        return []
    return execution.adopt(states(ref), states(execution_state(requested.job, requested.replay_of)))


def _cancel_each(fanned: FannedOut, request: CancelRequest, states: States, waited: timedelta) -> Step:
    """Cancel the executions on all shards, and wait for those that have not begun yet.

    The planner begins each shard that `fanned-out` lists; a shard that was left out would run.
    """
    refs = [execution_state(fanned.job, execution_id) for execution_id in execution_ids(fanned).values()]
    reason = None if request.reason is None else request.reason[:MAX_REASON_LENGTH]
    open_refs = [ref for ref in refs if not states(ref).is_over]
    cancellations = [
        Events(ref, tuple(facts))
        for ref in open_refs
        if (facts := execution.cancel(states(ref), reason=reason, by=request.by))
    ]
    if cancellations:
        return again(*cancellations[:CANCELLED_AT_ONCE])
    missing = sum(states(ref).status is Status.UNKNOWN for ref in open_refs)
    if missing and waited < PATIENCE:
        return wait(FIRST_WAIT.total_seconds())
    if missing:
        problem = f"{missing} of {len(refs)} executions of {fanned.execution_id!r} have not begun, and may run later"
        return refuse(problem, code="not-found", job=fanned.job)
    return DONE


DAG_ADVANCER: Final = Stage(
    name="dag_advancer",
    purpose="dispatches the steps that are ready",
    consumes="`admitted`, reports of success, `exhausted`, times of retries, requests to cancel",
    decides="`dispatched`, `advanced`, `completed`, `cancelled`",
    access=Access(
        appends=(Dispatched, Advanced, Completed, Failed, Cancelled, Resolved),
    ),
    start=lambda context: DagAdvancer(context.report_key),
    subscriptions=(
        Subscription(
            subjects.DAG_ADVANCER,
            Stream.LOG,
            tuple(
                subjects.filter_for(f"execution.{event}")
                for event in ("admitted", "recovered", "released", "exhausted")
            ),
            decide=DagAdvancer.on_admitted,
        ),
        Subscription(
            subjects.DAG_ADVANCER_REPORTS,
            Stream.REPORTS,
            (subjects.filter_for("report.completed"),),
            decide=DagAdvancer.on_success,
            is_proven=DagAdvancer.is_proven,
        ),
        Subscription(
            subjects.DAG_ADVANCER_FAILURES,
            Stream.REPORTS,
            (subjects.filter_for("report.failed"),),
            decide=DagAdvancer.on_failure,
            is_proven=lambda _, __: False,
        ),
        Subscription(CANCELS, Stream.REQUESTS, (subjects.filter_for("cancel"),), decide=DagAdvancer.on_cancel),
        Subscription(
            subjects.PUBLIC_CANCELS,
            Stream.INPUTS,
            subjects.PUBLIC_CANCEL_FILTERS,
            decide=DagAdvancer.on_cancel,
        ),
    ),
    deadlines=(DeadlineRule(EXECUTION, DagAdvancer.retries, DagAdvancer.on_retry_due),),
)
