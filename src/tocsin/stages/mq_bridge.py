"""MQ bridge: hands tasks to executors that know only hip-62's subjects, and brings their answers back.

consumes  dispatched of the queues whose transport is `mq`; completions
publishes the hip-62 envelope on `mq.scheduled.<job>`, at least once; reports
"""

from collections.abc import Sequence

from .. import subjects
from ..domain import execution, ids
from ..domain.events import Completion, Dispatched, Envelope, EnvelopeData, Failure, Message, Recorded, Report
from ..domain.execution import Execution
from ..ports import EventLog
from ..stage import Stage, Subscription
from ..subjects import Stream, Unreadable
from .entities import Entities


def mq_bridge(log: EventLog, executions: Entities[Execution], key: bytes, queues: Sequence[str]) -> Stage:
    """The bridge for `queues`. It vouches for answers: whoever may publish on the completion subjects is believed."""

    async def on_task(recorded: Recorded[Message]) -> None:
        task = recorded.message
        if isinstance(task, Dispatched):
            message_id = f"{task.execution_id}:{task.step}:{task.attempt}"
            await log.publish(subjects.handed_over(task.job), envelope(task, recorded), message_id=message_id)

    async def on_completion(recorded: Recorded[Message]) -> None:
        answer = recorded.message
        if not isinstance(answer, Completion):
            return
        job, execution_id = subjects.completed(recorded.subject)
        if subjects.ANY in {job, execution_id}:
            raise Unreadable(f"{recorded.subject}: names no execution")
        scope = subjects.execution(job, execution_id)
        executions.forget(scope)
        state, _ = await executions.load(scope)
        for step, attempt in meant(answer, execution.in_flight(state)):
            token = ids.report_token(key, execution_id, step, attempt)
            if answer.token not in {None, token}:
                raise Unreadable(f"{recorded.subject}: the token is not that of step {step!r}, attempt {attempt}")
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
            await log.publish(subject, report, message_id=subject)

    def meant(answer: Completion, in_flight: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        """The attempt that an answer is about; none where it comes again, or too late."""
        fitting = [
            (step, attempt)
            for step, attempt in in_flight
            if answer.step in {None, step} and answer.attempt in {None, attempt}
        ]
        if len(fitting) > 1:
            names = ", ".join(step for step, _ in fitting)
            raise Unreadable(f"the completion names no step, and several are in flight: {names}")
        return fitting

    tasks = tuple(subjects.tasks(queue) for queue in queues)
    return Stage(
        "mq_bridge",
        (
            Subscription("mq-bridge", Stream.LOG, tasks, on_task),
            Subscription("mq-bridge-completions", Stream.MQ, (subjects.every("mq.scheduler.complete"),), on_completion),
        ),
    )


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
            metadata=task.meta,
        ),
    )
