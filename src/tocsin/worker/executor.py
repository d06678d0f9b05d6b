"""The decision about each delivery of a task.

Run, hand back, acknowledge or leave it (docs/internals: decisions.md, ADR 2 and 3; crashes.md).
"""

import random
from typing import Final

from .. import subjects, telemetry
from ..domain.events import Dispatched
from ..domain.execution import ClaimDenied
from ..ports import Clock, Delivery, EventLog, LogUnavailable, RequestRefused
from . import results
from .assigned_task import AssignedTask
from .claim import Claimed, Claims, answered, denied, report_of, store_report
from .handler_runner import HandlerRunner
from .handlers import Handlers
from .held_tasks import HeldTask
from .outcome import (
    ACK,
    LEAVE,
    LONGEST_RETRY_DELAY_S,
    Disposal,
    Failed,
    HandBack,
    Stopped,
    StopReason,
    Succeeded,
    retry_delay,
    settle,
)

DELIVERIES_PER_LOOK: Final = 8
"""Deliveries of a task without a handler after which the worker reads whether the task is still needed."""
UNREADABLE_DELAY_S: Final = 30.0
UNAVAILABLE_DELAY_S: Final = 1.0

_chance = random.Random()  # noqa: S311 - spreads the retries of workers over time
_log = telemetry.get_logger("tocsin.worker")


class Executor:
    """Execution of deliveries, each from its arrival to its settlement."""

    def __init__(self, log: EventLog, handlers: Handlers, runner: HandlerRunner, clock: Clock, *, worker: str) -> None:
        """Claim and report in `log` under the name `worker`."""
        self._log = log
        self._handlers = handlers
        self._runner = runner
        self._clock = clock
        self._worker = worker
        self._claims = Claims(log, worker)

    async def run(self, held: HeldTask) -> None:
        """Execute one delivery and settle it. Raises nothing."""
        try:
            disposal = await self._execute(held)
        except subjects.DecodeError as error:
            # A worker of a newer version may be able to read it, so it is neither reported nor terminated.
            _log.error("task unreadable", action="task-unreadable", error=str(error))
            disposal = HandBack(UNREADABLE_DELAY_S)
        except LogUnavailable as error:
            _log.warning("log unavailable", action="log-unavailable", error=str(error))
            disposal = HandBack(UNAVAILABLE_DELAY_S)
        except Exception as error:  # noqa: BLE001 - a bug of ours must neither stop the worker nor lose the task
            subject = held.delivery.subject
            _log.error("task could not be run", action="task-handed-back", subject=subject, exc_info=error)
            disposal = HandBack(LONGEST_RETRY_DELAY_S)
        await settle(held.delivery, disposal)

    async def _execute(self, held: HeldTask) -> Disposal:
        delivery = held.delivery
        task = _decode(delivery)
        handler = self._handlers.get(task.function)
        if handler is None:
            return await self._pass_on(task, delivery)
        if isinstance(delivery, AssignedTask):
            claimed: Claimed | ClaimDenied | None = delivery.claimed
        elif delivery.delivered > 1 and await answered(self._log, task):
            return ACK
        else:
            claimed = await self._claims.claim(task, delivery)
        if isinstance(claimed, ClaimDenied):
            return _disposal_of_denied(task, delivery, claimed)
        if claimed is None:
            return HandBack(_conflict_delay(delivery))
        outcome = await self._runner.run(handler, task, held)
        if isinstance(outcome, Stopped):
            return _disposal_of_stopped(task, outcome)
        await self._report(task, outcome, claimed, delivery)
        return ACK

    async def _pass_on(self, task: Dispatched, delivery: Delivery) -> Disposal:
        """Hand a task back for a worker with its handler, unless its execution ended.

        Nothing limits the deliveries: that worker may be busy, or not started yet. No attempt is spent.
        """
        number = delivery.delivered
        if number % DELIVERIES_PER_LOOK == 0:
            denial = await denied(self._log, task, delivery, worker=self._worker)
            if denial is not None:
                return _disposal_of_denied(task, delivery, denial)
        if number & (number - 1) == 0:  # 1, 2, 4, 8: a task may wait for hours
            fields = {"function": task.function, "queue": task.queue, "delivery": number, **_ids(task)}
            nearest = self._handlers.nearest(task.function)
            _log.info("no handler for task, handed back", action="task-passed-on", nearest=nearest, **fields)
        return HandBack(_spread(retry_delay(number)))

    async def _report(
        self, task: Dispatched, outcome: Succeeded | Failed, claimed: Claimed, delivery: Delivery
    ) -> None:
        if isinstance(outcome, Failed):
            fields = {"error": outcome.failure.type, "message": outcome.failure.message, **_ids(task)}
            _log.warning("attempt failed", action="attempt-failed", **fields)
        try:
            await self._store(task, outcome, claimed, delivery)
        except RequestRefused as error:
            # A retry would be refused again, and another run of the handler would end in the same way.
            _log.error("report refused", action="report-refused", error=str(error), **_ids(task))
            await self._store(task, Failed(results.unstorable(error)), claimed, delivery)

    async def _store(self, task: Dispatched, outcome: Succeeded | Failed, claimed: Claimed, delivery: Delivery) -> None:
        report = report_of(task, outcome, claimed, delivery=delivery.delivered, worker=self._worker)
        await store_report(self._log, self._clock, report)


def _decode(delivery: Delivery) -> Dispatched:
    task = subjects.decode(delivery.subject, delivery.body)
    if not isinstance(task, Dispatched):
        raise subjects.DecodeError(f"{delivery.subject}: a {type(task).__name__} is not a task")
    return task.task


def _disposal_of_denied(task: Dispatched, delivery: Delivery, denial: ClaimDenied) -> Disposal:
    fields = {"reason": denial.reason, "delivery": delivery.delivered, **_ids(task)}
    _log.info("claim denied", action="claim-refused", **fields)
    return LEAVE if denial.reason == "held" else ACK


def _disposal_of_stopped(task: Dispatched, outcome: Stopped) -> Disposal:
    _log.info("handler stopped", action="handler-stopped", reason=outcome.reason, **_ids(task))
    return ACK if outcome.reason is StopReason.CANCELLED else HandBack()


def _conflict_delay(delivery: Delivery) -> float:
    """Return the seconds in which other writers finish.

    20 to 200 ms, doubled with each redelivery, at most 5 s.
    """
    return min(_chance.uniform(0.02, 0.2) * 2.0 ** min(delivery.delivered - 1, 10), LONGEST_RETRY_DELAY_S)


def _spread(delay: float) -> float:
    """Return a half to all of a delay.

    So tasks that were handed back together do not return together.
    """
    return delay * _chance.uniform(0.5, 1.0)


def _ids(task: Dispatched) -> dict[str, object]:
    return {"job": task.job, "execution_id": task.execution_id, "step": task.step, "attempt": task.attempt}
