"""DAG advancer: dispatches ready steps, and ends an execution after its last step.

It stores one decision for each message, so that a redelivery finishes what a crash interrupted. The matcher takes
the `dispatched` events from the log itself. A request to cancel an execution that does not exist becomes a dead letter. When
a replay completes, the dead letter that it replayed is resolved.
"""

from collections.abc import Iterator, Sequence
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
    ExpiryTimer,
    Failed,
    FannedOut,
    Message,
    Recorded,
    Recovered,
    Released,
    Report,
    Resolved,
    RetryScheduled,
    RetryTimer,
)
from ...domain.execution import Execution, Status
from ...domain.fan_out import execution_ids
from ...engine.kinds import CANNOT_COME, EXECUTION, LOG_TIME, TAIL, execution_state
from ...engine.report_authentication import authentic_report, authentic_subject, claim_of
from ...engine.rerun import resolve_replayed
from ...engine.stage import SHARED_READ_AHEAD, Access, Deadline, DeadlineRule, Stage, Subscription
from ...engine.states import StateStore
from ...engine.step import DONE, Events, Known, Later, Ref, States, Step, again, decided, done, refuse, wait
from ...ports import StaleRead
from ...subjects import Stream
from .retry_timer import Alarm, RetryTimers

CANCELS: Final = "dag-advancer-cancels"
RETRIES: Final = "dag-advancer-retries"
PATIENCE: Final = timedelta(seconds=30)
"""How long a request to cancel waits for its execution: a client knows the id before the planner plans it."""
FIRST_WAIT: Final = timedelta(seconds=2)
"""The time after which such a request is decided again, and the patience with a program outside.

Requests that wait count as unacknowledged, of which a durable has a limited number. So a flood of them must not wait for long.
"""
FAN_OUT_PATIENCE: Final = timedelta(days=1)
"""How long such a request waits for the executions of an occurrence, unless a program outside sent it: that waits for `PATIENCE`.

The planner may never begin them, if the decision on the occurrence became a dead letter. The archiver keeps all that is younger than a
request that waits.
"""

CANCELLED_AT_ONCE: Final = 64
"""Executions on the shards of an occurrence that are cancelled in one write."""


class DagAdvancer:
    """Advances executions step by step."""

    def __init__(self, states: StateStore, key: bytes) -> None:
        self._key = key
        self._states = states
        self._retry_timers = RetryTimers(states, self.on_timer)

    def retries(self, state: Execution) -> Iterator[Deadline]:
        """Return when the steps of an execution are tried again."""
        return (Deadline(until, f"{timer.step}.{timer.attempt}") for timer, until in execution.retry_timers(state))

    def on_retry_due(self, scope: str, deadline: Deadline, states: States, now: datetime) -> Step:
        """Dispatch the retry of a step."""
        asked, (step, _, attempt) = states(EXECUTION(scope)).request, deadline.key.rpartition(".")
        timer = RetryTimer(job=asked.job, execution_id=asked.execution_id, step=step, attempt=int(attempt))
        return self.on_timer(Recorded(timer, scope, 0, deadline.at), states, now)

    async def run_timers(self) -> None:
        """Dispatch retries when they are due."""
        await self._retry_timers.run()

    def on_alarm(self, signal: object) -> None:
        """Remember when a retry is due.

        The log's own timer may fire up to a quarter of a second later.
        """
        if isinstance(signal, Alarm):
            self._retry_timers.at(signal.until, signal.timer)

    def admission(self, recorded: Recorded[Message]) -> Sequence[Known]:
        """Return an execution as it was admitted."""
        fact = recorded.message
        if not isinstance(fact, Admitted) or fact.failed_only:
            return ()  # adopted steps may follow the admission
        return (Known(execution_state(fact.job, fact.execution_id), recorded, after=0),)

    def on_admitted(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:  # noqa: ARG002 - the event's time counts
        """Dispatch the first steps of an execution, or its lost steps.

        In a workflow, steps may follow a failure.
        """
        fact = recorded.message
        if not isinstance(fact, Admitted | Recovered | Released | Exhausted):
            return DONE
        ref = execution_state(fact.job, fact.execution_id)
        if adopted := _adopted(ref, states):
            return again(Events(ref, tuple(adopted)))
        if isinstance(fact, Exhausted):
            return decided(ref, execution.go_on(states(ref), key=self._key))
        # A start time may have passed while the execution waited for its lock.
        tasks = execution.dispatch_missing(states(ref), at=recorded.time, key=self._key)
        if not isinstance(fact, Admitted) or (fact.plan.start_at is None and fact.plan.expires_at is None):
            return decided(ref, tasks)
        return again(Events(ref, tuple(tasks))) if tasks else _schedule(ref, states(ref))

    def claim(self, recorded: Recorded[Message]) -> Sequence[Known]:
        """Return the claim that a report names.

        None is needed if the report ends an execution without its state.
        """
        report = recorded.message
        if not isinstance(report, Report):
            return ()
        is_unread = self._states.is_unread(execution_state(report.job, report.execution_id))
        return () if report.sole is not None and is_unread else claim_of(recorded, self._key)

    def is_proven(self, subject: str) -> bool:
        """Return whether a report is from a worker that received its task."""
        return authentic_subject(subject, self._key) is not None

    def on_success(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:  # noqa: ARG002 - no decision on the time
        """Advance an execution after a step completed."""
        report = authentic_report(recorded, self._key)
        if report is None:
            return DONE
        ref = execution_state(report.job, report.execution_id)
        if report.sole is not None and report.sole.replay_of is None and states.is_unread(ref):
            end = execution.complete_sole(report, key=self._key)
            if end is not None:
                return done(Events(ref, (end,), at=report.claim))
        state = states(ref)
        replay_of = None if state.requested is None else state.requested.replay_of
        if events := execution.succeed(state, report, key=self._key):
            then = done if replay_of is None else again
            return then(Events(ref, tuple(events)))
        if replay_of is not None and state.status is Status.COMPLETED:
            return resolve_replayed(states, report.job, replay_of, report.execution_id)
        return done(rests_on=(ref,))

    def on_retry(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:  # noqa: ARG002 - it is decided later
        """Set an alarm for a retry."""
        fact = recorded.message
        if not isinstance(fact, RetryScheduled):
            return DONE
        timer = RetryTimer(job=fact.job, execution_id=fact.execution_id, step=fact.step, attempt=fact.attempt + 1)
        return done(signals=(Alarm(fact.next_attempt_at, timer),))

    def on_timer(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:  # noqa: ARG002 - the timer is due
        """Dispatch a retry when its timer fires."""
        timer = recorded.message
        if not isinstance(timer, RetryTimer):
            return DONE
        ref = execution_state(timer.job, timer.execution_id)
        return decided(ref, execution.dispatch_retry(states(ref), timer, key=self._key))

    def on_cancel(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:  # noqa: ARG002, PLR0911 - the log's time counts
        """Cancel an execution, or those on the shards of an occurrence.

        An id that no execution can have costs no read. An unknown one costs one read for each of its two or three
        decisions, and takes no place among the cached states.
        """
        request = recorded.message
        if not isinstance(request, CancelRequest):
            return DONE
        job, execution_id = subjects.parse_cancel(recorded.subject)
        is_public = subjects.publisher_of(recorded.subject) is not None
        if not job or subjects.ANY in {job, execution_id} or (is_public and not ids.is_execution_id(execution_id)):
            return refuse("it names no execution: cancel.<job>.<execution>", code="invalid-id")
        ref = execution_state(job, execution_id)
        state = states.guess(ref)
        exists = state.status is not Status.UNKNOWN or states(TAIL(ref.key)) > 0
        if exists and (state := states(ref)).status is not Status.UNKNOWN:
            if state.decided is not None and isinstance(state.decided.message, FannedOut):
                waited = states(LOG_TIME(None)) - recorded.time
                patience = PATIENCE if is_public else FAN_OUT_PATIENCE
                return _cancel_each(state.decided.message, request, states, waited, patience)
            return decided(ref, execution.cancel(state, reason=request.reason, by=request.by))
        if not exists and states(CANNOT_COME((ref.key, recorded.time))):
            return DONE
        waited = states(LOG_TIME(None)) - recorded.time
        if waited < (FIRST_WAIT if is_public else PATIENCE):
            until = FIRST_WAIT if waited < FIRST_WAIT else PATIENCE
            return wait((until - waited).total_seconds())
        missing = f"no execution of {job!r} has the id {execution_id!r}"
        return refuse(missing, code="not-found", job=job, rests_on=(ref,) if exists else ())


def _adopted(ref: Ref[Execution], states: States) -> list[Advanced | Cancelled]:
    """Return the steps that a replay adopts before it dispatches a task."""
    requested = states(ref).requested
    if requested is None or not requested.failed_only or requested.replay_of is None:
        return []
    failed = execution_state(requested.job, requested.replay_of)
    before = states(failed)
    if not before.is_over and states(TAIL(failed.key)) > 0:
        raise StaleRead.of(failed.key)  # the failed execution has ended
    return execution.adopt(states(ref), before)


def _cancel_each(
    fanned: FannedOut, request: CancelRequest, states: States, waited: timedelta, patience: timedelta
) -> Step:
    """Cancel the executions on all shards, and wait for those that have not begun yet.

    The planner begins each shard that `fanned-out` lists; a shard that was left out would run.
    """
    refs = [execution_state(fanned.job, execution_id) for execution_id in execution_ids(fanned).values()]
    states.expect(lambda: refs)
    open_refs = [ref for ref in refs if not states(ref).is_over]
    cancellations = [
        Events(ref, tuple(facts))
        for ref in open_refs
        if (facts := execution.cancel(states(ref), reason=request.reason, by=request.by))
    ]
    if cancellations:
        return again(*cancellations[:CANCELLED_AT_ONCE])
    missing = sum(states(ref).status is Status.UNKNOWN for ref in open_refs)
    if missing and waited < patience:
        return wait((FIRST_WAIT if waited < PATIENCE else PATIENCE).total_seconds())
    if missing:
        reason = f"{missing} of {len(refs)} executions of {fanned.execution_id!r} have not begun, and may run later"
        return refuse(reason, code="not-found", job=fanned.job, rests_on=tuple(open_refs))
    return done(rests_on=tuple(open_refs))


def _schedule(ref: Ref[Execution], state: Execution) -> Step:
    """Set timers in the log for the start and the expiry of an execution."""
    retries = execution.retry_timers(state)
    timers = [Later(timer, until) for timer, until in retries]
    if not state.is_over and (expires_at := state.request.plan.expires_at) is not None:
        expiry = ExpiryTimer(job=state.request.job, execution_id=state.request.execution_id)
        timers.append(Later(expiry, expires_at))
    if not timers:
        return done(rests_on=(ref,))
    return done(*timers, signals=tuple(Alarm(until, timer) for timer, until in retries))


DAG_ADVANCER: Final = Stage(
    name="dag_advancer",
    purpose="dispatches the steps that are ready",
    consumes="`admitted`, reports of success, `exhausted`, timers, requests to cancel",
    decides="`dispatched`, `advanced`, `completed`, `cancelled`",
    access=Access(
        appends=(Dispatched, Advanced, Completed, Failed, Cancelled, Resolved, RetryTimer, ExpiryTimer),
        reads=(Stream.LOG,),
    ),
    start=lambda context: DagAdvancer(context.states, context.report_key),
    subscriptions=(
        Subscription(
            subjects.DAG_ADVANCER,
            Stream.LOG,
            tuple(
                subjects.filter_for(f"execution.{event}")
                for event in ("admitted", "recovered", "released", "exhausted")
            ),
            decide=DagAdvancer.on_admitted,
            learn=DagAdvancer.admission,
            on_signal=DagAdvancer.on_alarm,
        ),
        Subscription(
            subjects.DAG_ADVANCER_REPORTS,
            Stream.REPORTS,
            (subjects.filter_for("report.completed"),),
            low_priority=True,
            takes_turns=True,
            read_ahead=SHARED_READ_AHEAD,
            decide=DagAdvancer.on_success,
            learn=DagAdvancer.claim,
            is_proven=DagAdvancer.is_proven,
        ),
        Subscription(
            subjects.DAG_ADVANCER_TIMERS,
            Stream.TIMERS,
            (subjects.filter_for("timer.retry"),),
            decide=DagAdvancer.on_timer,
        ),
        Subscription(
            RETRIES,
            Stream.LOG,
            (subjects.filter_for("execution.retry-scheduled"),),
            decide=DagAdvancer.on_retry,
            on_signal=DagAdvancer.on_alarm,
        ),
        Subscription(CANCELS, Stream.REQUESTS, (subjects.filter_for("cancel"),), decide=DagAdvancer.on_cancel),
        Subscription(
            subjects.PUBLIC_CANCELS,
            Stream.INPUTS,
            subjects.PUBLIC_CANCEL_FILTERS,
            low_priority=True,
            decide=DagAdvancer.on_cancel,
        ),
    ),
    deadlines=(DeadlineRule(EXECUTION, DagAdvancer.retries, DagAdvancer.on_retry_due),),
    loops=(DagAdvancer.run_timers,),
)
