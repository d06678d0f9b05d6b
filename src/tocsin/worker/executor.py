"""The run of each assigned task: decode it, call its handler, report."""

from typing import Final

from pydantic import JsonValue

from .. import subjects, telemetry
from ..domain import execution, ids
from ..domain.events import Dispatched, Failure, Report
from ..domain.trace_context import parse
from ..ports import Clock, LogUnavailable, Publisher, RequestRefused
from ..telemetry import trace_ids
from . import results
from .assigned_task import AssignedTask
from .handler_runner import HandlerRunner
from .handlers import Handlers
from .held_tasks import HeldTask
from .outcome import Failed, Stopped, StopReason, Succeeded, retry_delay

MAX_TEXT: Final = 300
"""Characters that a line shows of a text of a handler."""


def report_of(task: Dispatched, outcome: Succeeded | Failed, assigned: AssignedTask, *, worker: str) -> Report:
    """Return the report of an attempt, for the DAG advancer or the retrier."""
    result: JsonValue = None
    error: Failure | None = None
    match outcome:
        case Succeeded():
            result = outcome.result
        case Failed():
            error = outcome.failure
    # Without validation: the task was validated, and `outcome_of` made the result plain JSON.
    return Report.trusted(
        job=task.job,
        execution_id=task.execution_id,
        outcome="completed" if error is None else "failed",
        step=task.step,
        attempt=task.attempt,
        delivery=assigned.delivery,
        result=result,
        error=error,
        token=task.token,
        worker=worker,
        claim=assigned.claim,
        claimed_after=assigned.after,
        proof=assigned.proof,
        place_proof=assigned.place_proof,
        sole=execution.sole_step(task) if error is None else None,
        traceparent=task.traceparent,
    )


async def store_report(log: Publisher, clock: Clock, report: Report) -> None:
    """Store a report, retrying until the log answers.

    The message id lets the log store it once.

    Raises:
        RequestRefused: the log does not accept the report; for example, it is too large.
    """
    subject = subjects.subject_of(report)
    message_id = ids.report_id(report.proof or "", subject)
    failures = 0
    while True:
        try:
            await log.publish(subject, report, message_id=message_id)
        except LogUnavailable as error:
            failures += 1
            _log.warning(
                "report waits for the log",
                action="report-waits",
                job=report.job,
                execution_id=report.execution_id,
                step=report.step,
                tries=failures,
                error=str(error),
            )
            await clock.sleep(retry_delay(failures))
        else:
            return


_log: Final = telemetry.get_logger("tocsin.worker")


class Executor:
    """Runs tasks, each from its arrival to its report."""

    def __init__(self, log: Publisher, handlers: Handlers, runner: HandlerRunner, clock: Clock, *, worker: str) -> None:
        """Report in `log` under the name `worker`."""
        self._log = log
        self._handlers = handlers
        self._runner = runner
        self._clock = clock
        self._worker = worker

    async def run(self, held: HeldTask) -> None:
        """Run a task and report it, or hand it back. Raises nothing.

        Call it in an asyncio task of its own: the log lines after it have the ids of this task.
        """
        subject = held.assigned.subject
        try:
            is_settled = await self._execute(held)
        except subjects.DecodeError as error:
            # A worker of a newer version may be able to read it.
            _log.error("task unreadable", action="task-unreadable", subject=subject, error=str(error))
            is_settled = False
        except LogUnavailable as error:
            _log.warning("log unavailable", action="log-unavailable", subject=subject, error=str(error))
            is_settled = False
        except Exception as error:  # noqa: BLE001 - a bug of ours must neither stop the worker nor lose the task
            _log.error("task could not be run", action="task-handed-back", subject=subject, exc_info=error)
            is_settled = False
        if not is_settled:
            held.assigned.hand_back()

    async def _execute(self, held: HeldTask) -> bool:
        """Return whether the task is settled.

        False: another worker must run it.
        """
        task = _decode(held.assigned)
        handler = self._handlers.get(task.function)
        if handler is None:  # the matcher knows the functions of this worker by an older hold list
            _log.info("no handler for task", action="task-without-handler", function=task.function, **_ids(task))
            return False
        telemetry.bind(**_ids(task))
        trace_ids.note(task)  # the lines of its handler are sent by another task of asyncio
        outcome = await self._runner.run(handler, task, held)
        if held.is_left:  # a report could never be stored: the connection is closed
            _log.warning("handler ended after its worker; its result is discarded", action="late-end")
            return False
        if held.abandoned is not None:
            _log.warning("sync handler runs on in its thread; its result is discarded", action="thread-left")
        if isinstance(outcome, Stopped):
            _log.info("handler stopped", action="handler-stopped", reason=outcome.reason)
            return outcome.reason is StopReason.CANCELLED
        await self._report(task, outcome, held.assigned)
        return True

    async def _report(self, task: Dispatched, outcome: Succeeded | Failed, assigned: AssignedTask) -> None:
        if isinstance(outcome, Failed):
            fields = {"error": outcome.failure.type[:MAX_TEXT], "message": outcome.failure.message[:MAX_TEXT]}
            _log.warning("attempt failed", action="attempt-failed", **fields)
        try:
            await self._store(task, outcome, assigned)
        except RequestRefused as error:
            # A retry would be refused again, and another run of the handler would end in the same way.
            _log.error("report refused", action="report-refused", error=str(error))
            await self._store(task, Failed(results.unstorable(error)), assigned)

    async def _store(self, task: Dispatched, outcome: Succeeded | Failed, assigned: AssignedTask) -> None:
        await store_report(self._log, self._clock, report_of(task, outcome, assigned, worker=self._worker))


def _decode(assigned: AssignedTask) -> Dispatched:
    task = subjects.decode(assigned.subject, assigned.body)
    if not isinstance(task, Dispatched):
        raise subjects.DecodeError(f"{assigned.subject}: a {type(task).__name__} is not a task")
    return task.task


def _ids(task: Dispatched) -> dict[str, object]:
    ids = {"job": task.job, "execution_id": task.execution_id, "step": task.step, "attempt": task.attempt}
    trace = parse(task.traceparent)
    return ids if trace is None else {**ids, "trace_id": trace.trace_id}
