"""MQ bridge: hands tasks to executors that know only hip-62's subjects, and brings their answers back.

consumes  dispatched of the queues whose transport is `mq`; completions
publishes the hip-62 envelope on `mq.scheduled.<job>`, at least once; reports
"""

from collections.abc import Sequence
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
from ..engine.stage import Access, Stage, Subscription
from ..engine.state_cache import StateCache
from ..ports import EventLog, StaleRead
from ..subjects import DecodeError, Stream

ACCESS: Final = Access(appends=(Envelope, Report), reads=(Stream.LOG,))


def mq_bridge(log: EventLog, executions: StateCache[Execution], key: bytes, queues: Sequence[str]) -> Stage:
    """The bridge for `queues`. It vouches for answers: whoever may publish on the completion subjects is believed."""
    it = MqBridge(log, executions, key, frozenset(queues))
    tasks = tuple(subjects.tasks(queue) for queue in queues)
    completions = (subjects.filter_for("mq.scheduler.complete"),)
    return Stage(
        "mq_bridge",
        (
            Subscription(subjects.MQ_BRIDGE, Stream.LOG, tasks, it.on_task),
            Subscription("mq-bridge-completions", Stream.MQ, completions, it.on_completion),
        ),
        access=ACCESS,
    )


class MqBridge:
    """The bridge's handlers."""

    def __init__(self, log: EventLog, executions: StateCache[Execution], key: bytes, queues: frozenset[str]) -> None:
        self._log = log
        self._executions = executions
        self._key = key
        self._queues = queues

    async def on_task(self, recorded: Recorded[Message]) -> None:
        """A task for an executor outside."""
        task = recorded.message
        if isinstance(task, Dispatched):
            message_id = f"{task.execution_id}:{task.step}:{task.attempt}"
            await self._log.publish(subjects.mq_tasks(task.job), envelope(task, recorded), message_id=message_id)

    async def on_completion(self, recorded: Recorded[Message]) -> None:
        """An answer from outside, which may come again, and too late."""
        answer = recorded.message
        if not isinstance(answer, Completion):
            return
        job, execution_id = subjects.parse_completion(recorded.subject)
        if not job or subjects.ANY in {job, execution_id}:
            raise DecodeError(f"{recorded.subject}: names no execution")
        for step, attempt in await self._meant(answer, subjects.execution(job, execution_id)):
            token = ids.report_token(self._key, execution_id, step, attempt)
            if answer.token not in {None, token}:
                raise DecodeError(f"{recorded.subject}: the token is not that of step {step!r}, attempt {attempt}")
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
            await self._log.publish(subject, report, message_id=subject)

    async def _meant(self, answer: Completion, scope: str) -> list[tuple[str, int]]:
        """The attempt that an answer is about, if that is still wanted."""
        self._executions.forget(scope)
        state, sequence = await self._executions.load(scope)
        fitting = [
            (step, attempt)
            for step, attempt in execution.running_steps(state)
            if answer.step in {None, step} and answer.attempt in {None, attempt} and self._is_outside(state, step)
        ]
        if not fitting and not await self._executions.is_newest(scope, sequence):
            raise StaleRead(f"{scope}: a replica that lags was read")
        if len(fitting) > 1:
            names = ", ".join(step for step, _ in fitting)
            raise DecodeError(f"the completion names no step, and several are in flight: {names}")
        return fitting

    def _is_outside(self, state: Execution, step: str) -> bool:
        """Only tasks that were handed over can be answered for here."""
        return any(planned.name == step and planned.queue in self._queues for planned in state.request.plan.steps)


def envelope(task: Dispatched, recorded: Recorded[Message]) -> Envelope:
    """A task as hip-62 writes it."""
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
    """What the executor of a recovered execution is told (cloacina, recovery context)."""
    if not task.is_recovery:
        return {}
    fields = {"is_recovery", "original_scheduled_time", "recovery_attempt_time"}
    return task.model_dump(mode="json", include=fields, exclude_none=True)
