"""Public events, and the first event of an execution, each written exactly once (ojs-cron §9).

`required_event` is the only place that decides which public event a decision requires. `plan` announces an admission in the same step. After any
other decision a stage calls `announce` in its next step, which looks for the event among those that came after the decision. So the same
request again announces nothing twice.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Final, cast

import msgspec

from .. import subjects
from ..domain.definition import JobDefinition
from ..domain.errors import TocsinError
from ..domain.events import (
    MISSED_REASONS,
    Admitted,
    AnnouncedSkipReason,
    CronAnswer,
    CronAnswerData,
    CronMissed,
    CronMissedData,
    CronSkipped,
    CronSkippedData,
    CronTriggered,
    CronTriggeredData,
    Dispatched,
    FannedOut,
    Message,
    MissedReason,
    Passed,
    Planned,
    PoisonMessage,
    PublicEvent,
    Recorded,
    Requested,
    Skipped,
)
from ..domain.execution import Status, admit_and_dispatch
from ..domain.ids import answer_id
from ..domain.trace_context import context_in
from ..subjects import public_event
from .kinds import PUBLIC_EVENT, RANGE, REGISTERED, execution_state
from .step import DONE, Events, States, Step, again, done, refuse

ANNOUNCED: Final = (CronTriggered, CronSkipped, CronAnswer)
"""The public events that follow the decisions on an execution."""
ANSWERED_FOR: Final = timedelta(days=1)
"""The age up to which a refused trigger is answered. The first stage that answers finds all dead letters of earlier versions."""


class RequiredEvent(msgspec.Struct, frozen=True):
    """A public event that must exist after a decision."""

    subject: str
    after: int
    """Sequence of the decision in the log; an event of this decision can only come later."""
    make: Callable[[int], PublicEvent]
    """Makes the event with the number of runs of the job."""
    matches: Callable[[Message], bool]
    """Returns whether a message is this event."""
    definition: int = 0
    """The sequence of the definition of the run that is counted; 0: the event counts none."""


def required_event(
    decision: Message, *, sequence: int, now: datetime, definition: JobDefinition | None = None
) -> RequiredEvent | None:
    """Return the public event that a stored decision requires; None: it requires none.

    An admitted execution of a registered job requires `cron.triggered` (CRON-29), a skipped execution `cron.skipped` (CRON-30), and instants that passed `cron.missed` if nothing in the definition wanted them to pass.
    """
    if isinstance(decision, Dispatched):
        decision = decision.admitted or decision
    match decision:
        case Admitted() if decision.plan.definition:
            return _triggered(decision, sequence, now)
        case Skipped() if decision.is_announced:
            return _skipped(decision, sequence, now)
        case Passed() if decision.reason in MISSED_REASONS:
            if definition is None:
                raise AssertionError("announcing a `passed` event requires the definition that it names")
            return _missed(decision, definition, now)
    return None


def _triggered(decision: Admitted, sequence: int, now: datetime) -> RequiredEvent:
    def make(run_count: int) -> CronTriggered:
        return CronTriggered(
            timestamp=now,
            data=CronTriggeredData(
                cron_name=decision.job,
                cron_expression=decision.plan.cron_expression or "",
                timezone=decision.plan.timezone,
                job_id=decision.execution_id,
                job_type=decision.plan.steps[0].function,
                run_count=run_count,
                trigger=decision.trigger,
                scheduled_time=decision.scheduled_time,
                actual_time=now,
                traceparent=_root(decision),
                shard=decision.plan.shard,
            ),
        )

    def matches(message: Message) -> bool:
        return isinstance(message, CronTriggered) and message.data.job_id == decision.execution_id

    subject = public_event("triggered", decision.job)
    return RequiredEvent(subject, sequence, make, matches, decision.plan.definition)


def _skipped(decision: Skipped, sequence: int, now: datetime) -> RequiredEvent:
    def make(_: int) -> CronSkipped:
        return CronSkipped(
            timestamp=now,
            data=CronSkippedData(
                cron_name=decision.job,
                cron_expression=decision.cron_expression or "",
                timezone=decision.timezone,
                reason=cast("AnnouncedSkipReason", decision.reason),
                active_job_id=decision.active_execution_id,
                scheduled_time=decision.scheduled_time,
                traceparent=_root(decision),
                shard=decision.shard,
            ),
        )

    def matches(message: Message) -> bool:
        return isinstance(message, CronSkipped) and _identity(message.data) == _identity(decision)

    return RequiredEvent(public_event("skipped", decision.job), sequence, make, matches)


def _identity(skip: Skipped | CronSkippedData) -> tuple[object, ...]:
    """Return what distinguishes a skip from others of its job.

    A local time that does not exist may fall on an instant that is skipped for another reason.
    """
    return skip.scheduled_time, skip.reason, skip.shard


def _root(decision: Requested | Skipped) -> str | None:
    """Return the trace context of an execution's own span, if a trace is made."""
    context = context_in(decision.execution_id, decision.traceparent, "execution")
    return None if context is None else context.traceparent


def _missed(decision: Passed, definition: JobDefinition, now: datetime) -> RequiredEvent:
    def make(_: int) -> CronMissed:
        return CronMissed(
            timestamp=now,
            data=CronMissedData(
                cron_name=decision.job,
                cron_expression=definition.schedule or "",
                timezone=definition.timezone,
                reason=cast("MissedReason", decision.reason),
                count=decision.count,
                start=decision.start,
                until=decision.until,
            ),
        )

    def matches(message: Message) -> bool:
        return isinstance(message, CronMissed) and message.data.until == decision.until

    return RequiredEvent(public_event("missed", decision.job), 0, make, matches)


def announce(
    decision: Recorded[Message], states: States, now: datetime, *, definition: JobDefinition | None = None
) -> Step:
    """Write the public event that a stored decision requires, unless it is written already.

    `definition` is the definition that a `Passed` names.
    """
    required = required_event(decision.message, sequence=decision.sequence, now=now, definition=definition)
    if required is None:
        return DONE
    if isinstance(decision.message, Skipped) and (
        answer := answer_to_skipped(decision.message, decision.sequence, states, now)
    ):
        return again(answer)
    ref = PUBLIC_EVENT(required.subject)
    newest, last = states(ref), states.at(ref)
    if last > required.after:
        if newest is not None and required.matches(newest):
            return DONE
        if any(required.matches(recorded.message) for recorded in states(RANGE((required.subject, required.after)))):
            return DONE
    return done(_announcement(required, states))


def _announcement(required: RequiredEvent, states: States) -> Events:
    """Return the public event with the next number of runs."""
    ref = PUBLIC_EVENT(required.subject)
    return Events(ref, (required.make(runs_before(states(ref), required.definition, states) + 1),))


SKIPPED_AT_ONCE: Final = 250
"""Instants that are skipped or announced in one step."""


def skip_instants(skips: Sequence[Skipped], states: States, now: datetime) -> Step:
    """Store that instants of one job are skipped, and announce them, each once."""
    refs = [execution_state(skip.job, skip.execution_id) for skip in skips]
    skipped = [states(ref) for ref in refs]
    if new := [
        Events(ref, (skip,))
        for ref, skip, state in zip(refs, skips, skipped, strict=True)
        if state.status is Status.UNKNOWN
    ]:
        return again(*new[:SKIPPED_AT_ONCE])
    decided = [state.decided for state in skipped if state.decided is not None]
    required = {
        _identity(recorded.message): event
        for recorded in decided
        if isinstance(recorded.message, Skipped)
        and (event := required_event(recorded.message, sequence=recorded.sequence, now=now)) is not None
    }
    if not required:
        return DONE
    ref, after = PUBLIC_EVENT(public_event("skipped", skips[0].job)), min(event.after for event in required.values())
    if states.at(ref) > after:
        for recorded in states(RANGE((ref.key, after))):
            if isinstance(recorded.message, CronSkipped):
                required.pop(_identity(recorded.message.data), None)
    events = Events(ref, tuple(event.make(0) for event in islice(required.values(), SKIPPED_AT_ONCE)))
    return done(events) if len(required) <= SKIPPED_AT_ONCE else again(events)


def runs_before(newest: Message | None, definition: int, states: States) -> int:
    """Return the number of announced runs of a job since its registration.

    `definition`: the sequence of the definition of the next run. A job that was deleted and registered again counts from 1
    (ojs-cron §2.2).
    """
    if not isinstance(newest, CronTriggered) or not definition:
        return 0
    data = newest.data
    return data.run_count if data.ran_since(*states(REGISTERED((data.cron_name, definition)))) else 0


def answer_to_skipped(skipped: Skipped, sequence: int, states: States, now: datetime) -> Events | None:
    """Answer the trigger of an execution that was skipped by the event of a sequence.

    None: it has an answer, or no trigger requested the execution.
    """
    if skipped.trigger_id is None:
        return None
    answer = CronAnswerData(
        cron_name=skipped.job,
        trigger_id=skipped.trigger_id,
        answer="refused" if skipped.reason in {"queue_full", "namespace_quota"} else "skipped",
        code=skipped.reason,
        job_id=skipped.execution_id,
        active_job_id=skipped.active_execution_id,
        traceparent=_root(skipped),
    )
    return _answer(answer, sequence, states, now)


def answer_to_queued(requested: Requested, active: str | None, states: States, now: datetime) -> Events | None:
    """Answer the trigger of an execution that waits for the lock of `active`.

    `active` is None if it waits for runs of other jobs, or for acknowledgements; if these do not come, a second answer says that it is
    skipped.
    None: as in `answer_to_skipped`.
    """
    if not isinstance(requested, Planned) or requested.trigger_id is None:
        return None
    answer = CronAnswerData(
        cron_name=requested.job,
        trigger_id=requested.trigger_id,
        answer="queued",
        code=_held_by(requested) if active is None else "lock_held",
        job_id=requested.execution_id,
        active_job_id=active,
        traceparent=_root(requested),
    )
    return _answer(answer, 0, states, now)


def _held_by(requested: Planned) -> str:
    return "dependencies_not_met" if requested.plan.depends_on else "quorum_not_reached"


def answer_to_refused(letter: PoisonMessage, stored: Recorded[Message], states: States, now: datetime) -> Events | None:
    """Answer a request that became a dead letter, as `stored`.

    It is a trigger, or a cancellation of a program outside.
    None: as in `answer_to_skipped`, or it is too old for an answer to help.
    """
    publisher = subjects.publisher_of(letter.subject)
    is_answered = publisher is not None or subjects.is_trigger(letter.subject)
    if not is_answered or now - stored.time > ANSWERED_FOR:
        return None
    answer = CronAnswerData(
        cron_name=letter.job,
        trigger_id=answer_id(publisher, letter.message_id, letter.sequence),
        answer="refused",
        code=letter.code or TocsinError.code,
        dead_letter=letter.id,
    )
    return _answer(answer, stored.sequence, states, now)


def _answer(answer: CronAnswerData, after: int, states: States, now: datetime) -> Events | None:
    """Write an answer unless it is written already.

    It can only come after the event of the sequence `after`. A message id may be used again after its window, so that the subject has the answers of earlier triggers.
    """
    subject = subjects.answer(answer.cron_name, answer.trigger_id)
    ref = PUBLIC_EVENT(subject)
    if any(_is_answer_to(recorded.message, answer) for recorded in states(RANGE((subject, after)))):
        return None
    return Events(ref, (CronAnswer(timestamp=now, data=answer),))


def _is_answer_to(event: Message, answer: CronAnswerData) -> bool:
    """Return whether an event answers the same trigger."""
    if not isinstance(event, CronAnswer):
        return False
    told = event.data
    return (told.answer, told.job_id, told.dead_letter) == (answer.answer, answer.job_id, answer.dead_letter)


BEGINNINGS: Final = (Planned, Admitted, Dispatched, Skipped, FannedOut, PoisonMessage)
"""The messages that planning an execution stores."""


def plan(first: Planned | Admitted | Skipped, states: States, now: datetime, *, key: bytes) -> Step:
    """Store the first event of an execution and announce it; the first decision stands.

    `key` is the installation's, for the task of an execution that is admitted and may start at once.
    """
    ref = execution_state(first.job, first.execution_id)
    state = states(ref)
    if state.status is not Status.UNKNOWN:
        return announce_decision(state.decided, states, now)  # skipped by the step before, or requested again
    if not isinstance(first, Admitted):
        event = Events(ref, (first,))
        return again(event) if isinstance(first, Skipped) and first.is_announced else done(event)
    admission = Events(ref, (admit_and_dispatch(first, key=key),))
    # The executions on several shards are announced together, because each counts as a run.
    required = None if first.plan.occurrence is not None else required_event(first, sequence=0, now=now)
    return done(admission) if required is None else done(admission, _announcement(required, states))


def announce_decision(decided: Recorded[Message] | None, states: States, now: datetime) -> Step:
    """Announce the event that admitted or skipped an execution; None: neither is decided yet.

    A trigger that was refused becomes a dead letter, which is answered.
    """
    if decided is None:
        return DONE
    event = decided.message
    if isinstance(event, Skipped) and event.refusal is not None:
        return refuse(event.refusal.message, code=event.refusal.code, job=event.job)
    return announce(decided, states, now)


def skip_trigger(refused: Skipped, states: States, now: datetime) -> Step:
    """Store that a trigger is refused, then turn it into a dead letter.

    An execution that exists is only announced.
    """
    ref = execution_state(refused.job, refused.execution_id)
    state = states(ref)
    if state.status is Status.UNKNOWN:
        return again(Events(ref, (refused,)))
    return announce_decision(state.decided, states, now)


def refuse_request(error: TocsinError, states: States, now: datetime, *, job: str, execution_id: str) -> Step:
    """Turn a request into a dead letter, or announce its execution if it began earlier."""
    ref = execution_state(job, execution_id)
    if states.at(ref):
        return announce_decision(states(ref).decided, states, now)
    return refuse(str(error), code=error.code, job=job)
