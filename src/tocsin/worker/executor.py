"""What becomes of one delivery of a task, as one sentence (DESIGN §2.2, §2.3, §7)."""

import random
from typing import Final

from .. import subjects
from ..domain.events import Dispatched
from ..domain.execution import ClaimDenied
from ..ports import Clock, Delivery, EventLog, LogUnavailable
from . import backoff, failures
from .ack import ACK, LEAVE, Disposal, HandBack, settle
from .claim import Claimed, answered, claim
from .handler_runner import HandlerRunner
from .handlers import Handler, Handlers
from .held_tasks import HeldTask
from .logger import log as worker_log
from .outcome import Failed, Outcome, Stopped, StopReason, Succeeded
from .report import report_of, store

DELIVERIES_TO_FIND_A_HANDLER: Final = 7
"""From this delivery on, a task without a handler fails; until then another worker may have one."""
UNREADABLE_DELAY: Final = 30.0
UNAVAILABLE_DELAY: Final = 1.0

_chance = random.Random()  # noqa: S311 - spreads workers over time, guards nothing


class Executor:
    """Runs deliveries, each from being taken to being settled. Keeping and stopping them is for others."""

    def __init__(
        self, log: EventLog, handlers: Handlers, invocations: HandlerRunner, clock: Clock, *, worker: str
    ) -> None:
        """Claim and report in `log`, in the name of `worker`."""
        self._log = log
        self._handlers = handlers
        self._invocations = invocations
        self._clock = clock
        self._worker = worker

    async def run(self, holding: HeldTask) -> None:
        """Do what one delivery asks for, then acknowledge it or hand it back. Raises nothing."""
        try:
            disposal = await self._work(holding)
        except subjects.DecodeError as error:
            # Perhaps of a newer version, which another worker can read: nothing is published, nothing terminated.
            worker_log.error("a task is unreadable", action="task-unreadable", error=str(error))
            disposal = HandBack(UNREADABLE_DELAY)
        except LogUnavailable as error:
            worker_log.warning("the log does not answer", action="log-unavailable", error=str(error))
            disposal = HandBack(UNAVAILABLE_DELAY)
        except Exception as error:  # noqa: BLE001 - a defect of ours must neither stop the worker nor lose the task
            subject = holding.delivery.subject
            worker_log.error("a task could not be run", action="task-handed-back", subject=subject, exc_info=error)
            disposal = HandBack(backoff.LONGEST)
        await settle(holding.delivery, disposal)

    async def _work(self, holding: HeldTask) -> Disposal:
        delivery = holding.delivery
        task = _read(delivery)
        handler = self._handlers.get(task.function)
        if handler is None and delivery.delivered < DELIVERIES_TO_FIND_A_HANDLER:
            return _pass_on(task, delivery)
        if delivery.delivered > 1 and await answered(self._log, task):
            return ACK
        claimed = await claim(self._log, task, delivery, self._worker)
        if isinstance(claimed, ClaimDenied):
            return _refused(task, delivery, claimed)
        if claimed is None:
            return HandBack(_moment(delivery))
        outcome = await self._perform(handler, task, holding)
        if isinstance(outcome, Stopped):
            return _stopped(task, outcome)
        await self._report(task, outcome, claimed, delivery)
        return ACK

    async def _perform(self, handler: Handler | None, task: Dispatched, holding: HeldTask) -> Outcome:
        if handler is None:
            return Failed(failures.handler_not_found(task, self._handlers))
        return await self._invocations.run(handler, task, holding)

    async def _report(
        self, task: Dispatched, outcome: Succeeded | Failed, claimed: Claimed, delivery: Delivery
    ) -> None:
        if isinstance(outcome, Failed):
            named = {"error": outcome.failure.type, "message": outcome.failure.message, **_ids(task)}
            worker_log.warning("an attempt failed", action="attempt-failed", **named)
        report = report_of(task, outcome, claimed, delivery=delivery.delivered, worker=self._worker)
        await store(self._log, self._clock, report)


def _read(delivery: Delivery) -> Dispatched:
    task = subjects.decode(delivery.subject, delivery.body)
    if not isinstance(task, Dispatched):
        raise subjects.DecodeError(f"{delivery.subject}: a {type(task).__name__} is no task")
    return task


def _pass_on(task: Dispatched, delivery: Delivery) -> HandBack:
    named = {"function": task.function, "delivery": delivery.delivered, **_ids(task)}
    worker_log.info("no handler here, passed on", action="task-passed-on", **named)
    return HandBack(backoff.delay(delivery.delivered))


def _refused(task: Dispatched, delivery: Delivery, refusal: ClaimDenied) -> Disposal:
    named = {"reason": refusal.reason, "delivery": delivery.delivered, **_ids(task)}
    worker_log.info("the claim was refused", action="claim-refused", **named)
    return LEAVE if refusal.reason == "held" else ACK


def _stopped(task: Dispatched, outcome: Stopped) -> Disposal:
    worker_log.info("a handler was stopped", action="handler-stopped", reason=outcome.reason, **_ids(task))
    return ACK if outcome.reason is StopReason.CANCELLED else HandBack()


def _moment(delivery: Delivery) -> float:
    """Seconds to let others finish what they write: 20 to 200 ms, growing for what keeps coming back."""
    return min(_chance.uniform(0.02, 0.2) * 2.0 ** min(delivery.delivered - 1, 10), backoff.LONGEST)


def _ids(task: Dispatched) -> dict[str, object]:
    return {"job": task.job, "execution_id": task.execution_id, "step": task.step, "attempt": task.attempt}
