"""MQ bridge: connects executors that know only hip-62's subjects.

It publishes each task of a queue whose transport is `mq` as a hip-62 envelope on `mq.scheduled.<job>`, at least once,
and turns each completion into a report. It vouches for completions: every publisher on their subjects is believed.
"""

from collections.abc import Collection
from datetime import datetime
from typing import Final

from pydantic import JsonValue

from .. import subjects
from ..domain import execution, ids
from ..domain.events import (
    Completion,
    Dispatched,
    Envelope,
    EnvelopeData,
    Failure,
    Message,
    Recorded,
    Report,
)
from ..domain.execution import Execution
from ..engine.kinds import execution_state
from ..engine.stage import Access, Stage, Subscription
from ..engine.step import DONE, Send, States, Step, done, refuse
from ..settings import Settings
from ..subjects import Stream


class MqBridge:
    """Hands tasks to executors outside, and turns their completions into reports."""

    def __init__(self, key: bytes, queues: Collection[str]) -> None:
        """`queues`: the queues whose tasks are handed over."""
        self._key = key
        self._queues = frozenset(queues)

    def on_task(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:  # noqa: ARG002 - the event says all
        """Hand a task to the executors outside."""
        task = recorded.message
        if not isinstance(task, Dispatched):
            return DONE
        message_id = f"{task.execution_id}:{task.step}:{task.attempt}"
        return done(Send(subjects.mq_tasks(task.job), envelope(task, recorded), message_id))

    def on_completion(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:  # noqa: ARG002 - no decision on the time
        """Publish a report for a completion, which may arrive repeatedly or too late."""
        answer = recorded.message
        if not isinstance(answer, Completion):
            return DONE
        job, execution_id = subjects.parse_completion(recorded.subject)
        if not job or subjects.ANY in {job, execution_id}:
            return refuse(f"unreadable: {recorded.subject}: names no execution")
        ref = execution_state(job, execution_id)
        candidates = self._meant(answer, states(ref))
        if not candidates:
            return done(rests_on=(ref,))
        if len(candidates) > 1:
            names = ", ".join(step for step, _ in candidates)
            reason = f"unreadable: the completion names no step, and several are in flight: {names}"
            return refuse(reason, rests_on=(ref,))
        [(step, attempt)] = candidates
        token = ids.report_token(self._key, execution_id, step, attempt)
        if answer.token not in {None, token}:
            reason = f"unreadable: {recorded.subject}: the token is not that of step {step!r}, attempt {attempt}"
            return refuse(reason, rests_on=(ref,))
        report = Report(
            job=job,
            execution_id=execution_id,
            outcome="failed" if answer.has_failed else "completed",
            step=step,
            attempt=attempt,
            token=token,
            result=answer.result,
            error=Failure(type="error", message=answer.error) if isinstance(answer.error, str) else answer.error,
        )
        subject = subjects.subject_of(report)
        return done(Send(subject, report, message_id=subject), rests_on=(ref,))

    def _meant(self, answer: Completion, state: Execution) -> list[tuple[str, int]]:
        """Return the attempts in flight to which a completion may refer."""
        return [
            (step, attempt)
            for step, attempt in execution.running_steps(state)
            if answer.step in {None, step} and answer.attempt in {None, attempt} and self._is_outside(state, step)
        ]

    def _is_outside(self, state: Execution, step: str) -> bool:
        """Return whether the task of a step was handed over."""
        return any(planned.name == step and planned.queue in self._queues for planned in state.request.plan.steps)


def envelope(task: Dispatched, recorded: Recorded[Message]) -> Envelope:
    """Return a task as a hip-62 envelope."""
    task = task.task
    return Envelope(
        id=f"task_{task.execution_id}_{task.step}_{task.attempt}",
        timestamp=recorded.time,
        data=EnvelopeData(
            job_name=task.job,
            execution_id=task.execution_id,
            function=task.function,
            input=task.input,
            args=task.args,
            attempt=task.attempt,
            timeout=task.timeout,
            step=task.step,
            token=task.token,
            scheduled_time=task.scheduled_time,
            trigger=task.trigger,
            fence=task.fence,
            upstream=task.upstream,
            upstream_left_out=task.upstream_left_out,
            metadata={**task.meta, **_recovery(task)},
        ),
    )


def _recovery(task: Dispatched) -> dict[str, JsonValue]:
    """Return the metadata of a recovered execution (cloacina, recovery context)."""
    if not task.is_recovery:
        return {}
    fields = {"is_recovery", "original_scheduled_time", "recovery_attempt_time"}
    return task.model_dump(mode="json", include=fields, exclude_none=True)


def _tasks(settings: Settings) -> tuple[str, ...]:
    return tuple(tasks for queue in settings.bridged_queues for tasks in subjects.tasks(queue))


MQ_BRIDGE: Final = Stage(
    name="mq_bridge",
    purpose="connects executors that speak hip-62's MQ subjects",
    consumes="`dispatched` of `mq` queues, completions",
    decides="hip-62 envelopes; reports",
    access=Access(appends=(Envelope, Report), reads=(Stream.LOG,)),
    start=lambda context: MqBridge(context.report_key, context.settings.bridged_queues),
    subscriptions=(
        Subscription(subjects.MQ_BRIDGE, Stream.LOG, _tasks, decide=MqBridge.on_task),
        Subscription(
            "mq-bridge-completions",
            Stream.MQ,
            (subjects.filter_for("mq.scheduler.complete"),),
            decide=MqBridge.on_completion,
        ),
    ),
    is_installed=lambda settings: bool(settings.bridged_queues),
)
