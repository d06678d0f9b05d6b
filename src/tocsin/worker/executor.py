"""The run of each assigned task: decode it, call its handler, report."""

from typing import Final

from .. import subjects, telemetry
from ..domain import ids
from ..domain.events import Dispatched, Report
from ..domain.trace_context import parse
from ..ports import Clock, LogUnavailable, Publisher, RequestRefused
from ..telemetry import trace_ids
from . import results
from .handler_runner import HandlerRunner
from .handlers import Handlers
from .held_tasks import AssignedTask, HeldTask
from .outcome import Failed, Stopped, StopReason, Succeeded, retry_delay

MAX_TEXT: Final = 300
"""Characters that a line shows of a text of a handler."""


_log: Final = telemetry.get_logger("tocsin.worker")


def report_of(task: Dispatched, outcome: Succeeded | Failed, assigned: AssignedTask, *, worker: str) -> Report:
    """Return the report of an attempt, for the DAG advancer or the retrier."""
    claim, error = assigned.assignment, outcome.failure if isinstance(outcome, Failed) else None
    return Report(
        job=task.job,
        execution_id=task.execution_id,
        outcome="completed" if error is None else "failed",
        step=task.step,
        attempt=task.attempt,
        delivery=claim.delivery,
        result=outcome.result if isinstance(outcome, Succeeded) else None,
        error=error,
        token=task.token,
        worker=worker,
        claim=claim.claim,
        proof=claim.proof,
        traceparent=task.traceparent,
    )


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
        subject = held.assigned.assignment.subject
        is_settled = False
        try:
            is_settled = await self._execute(held)
        except subjects.DecodeError as error:
            # A worker of a newer version may be able to read it.
            _log.error("task unreadable", action="task-unreadable", subject=subject, error=str(error))
        except Exception as error:  # noqa: BLE001 - a bug of ours must neither stop the worker nor lose the task
            _log.error("task could not be run", action="task-handed-back", subject=subject, exc_info=error)
        if not is_settled:
            held.assigned.hand_back()

    async def _execute(self, held: HeldTask) -> bool:
        """Return whether the task is settled. False: another worker must run it."""
        task = subjects.decode_as(Dispatched, held.assigned.assignment.subject, held.assigned.body).task
        handler = self._handlers.get(task.function)
        names = _names(task)
        if handler is None:  # the matcher knows the functions of this worker by an older hold list
            _log.info("no handler for task", action="task-without-handler", function=task.function, **names)
            return False
        telemetry.bind(**names)
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
        """Store a report once, retrying until the log answers."""
        if isinstance(outcome, Failed):
            fields = {"error": outcome.failure.type[:MAX_TEXT], "message": outcome.failure.message[:MAX_TEXT]}
            _log.warning("attempt failed", action="attempt-failed", **fields)
        report = report_of(task, outcome, assigned, worker=self._worker)
        failures, is_refused = 0, False
        while True:
            subject = subjects.subject_of(report)
            try:
                await self._log.publish(subject, report, message_id=ids.report_id(assigned.assignment.proof, subject))
            except RequestRefused as error:  # for example, it is too large
                if is_refused:
                    raise
                # A retry would be refused again, and another run of the handler would end in the same way.
                _log.error("report refused", action="report-refused", error=str(error))
                report, is_refused = report_of(task, results.unstorable(error), assigned, worker=self._worker), True
            except LogUnavailable as error:
                failures += 1
                names = {"job": report.job, "execution_id": report.execution_id, "step": report.step}
                waits = {"action": "report-waits", "tries": failures, "error": str(error)}
                _log.warning("report waits for the log", **names, **waits)
                await self._clock.sleep(retry_delay(failures))
            else:
                return


def _names(task: Dispatched) -> dict[str, object]:
    names = {"job": task.job, "execution_id": task.execution_id, "step": task.step, "attempt": task.attempt}
    if (trace := None if task.traceparent is None else parse(task.traceparent)) is None:
        return names
    trace_ids.note(task)  # another task of asyncio sends the lines of the handler
    return {**names, "trace_id": trace.trace_id}
