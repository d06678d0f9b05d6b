"""The run of one handler: from a claimed task to an outcome."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Final, cast

from pydantic import JsonValue

from ..domain.events import Dispatched, Input
from ..domain.secret_reference import SecretReferenceError
from ..ports import Clock
from . import failures, results, signatures
from .context import Context
from .flag import Flag
from .handlers import Handler
from .held_tasks import HeldTask
from .outcome import Failed, Outcome, Stopped, StopReason
from .secret_values import SecretValues
from .signatures import WrongInputError
from .threads import Threads

_LONGEST_TIMEOUT: Final = 100 * 365 * 86_400.0
"""Seconds; what is longer would not fit into a datetime."""


class HandlerRunner:
    """Runs handlers in one worker's name."""

    def __init__(self, worker: str, clock: Clock, threads: Threads, shutting_down: Flag) -> None:
        """Sync handlers run in `threads`; every context carries `shutting_down`."""
        self._worker = worker
        self._clock = clock
        self._threads = threads
        self._shutting_down = shutting_down

    async def run(self, handler: Handler, task: Dispatched, holding: HeldTask) -> Outcome:
        """Run a handler under its step's timeout.

        An async handler that runs out of time, or is stopped, is cancelled; what it still returns counts. A sync one
        cannot be: its thread is abandoned (`holding.abandoned`), and whatever it returns later is lost.
        """
        secrets = SecretValues()
        try:
            call = self._prepare(handler, task, holding, secrets)
        except (WrongInputError, SecretReferenceError) as error:
            return Failed(failures.unusable_input(error))
        if holding.stopped is not None:
            return Stopped(holding.stopped)
        return await self._within(task.timeout, call, handler, holding, secrets)

    async def _within(
        self,
        timeout: float,  # noqa: ASYNC109 - the step's, and part of what is reported
        call: Callable[[], object],
        handler: Handler,
        holding: HeldTask,
        secrets: SecretValues,
    ) -> Outcome:
        limit = asyncio.timeout(min(timeout, _LONGEST_TIMEOUT))
        holding.begin()
        try:
            async with limit:
                returned = await (
                    cast("Awaitable[object]", call()) if handler.is_async else self._in_thread(call, holding)
                )
        except asyncio.CancelledError as error:
            return _interrupted(error, holding)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a handler may raise whatever it likes
            if holding.stopped is not None:
                return Stopped(holding.stopped)
            if limit.expired():
                holding.cancelled.set()
                return Failed(failures.timed_out(timeout))
            return Failed(failures.raised(error, secrets.redact))
        finally:
            holding.end()
        if holding.stopped is StopReason.CANCELLED:
            return Stopped(holding.stopped)  # nobody waits for what it returned
        return results.judge(returned)

    def _prepare(
        self, handler: Handler, task: Dispatched, holding: HeldTask, secrets: SecretValues
    ) -> Callable[[], object]:
        """The call of a handler. Nothing but this, and what it calls, sees the secrets."""
        given, args = secrets.resolve(task)
        context = self._context(task, holding, given, args)
        if handler.parameters is None:
            return partial(handler.function, context)
        positional, by_name = signatures.bind(handler.parameters, args, given)
        return partial(handler.function, context, *positional, **by_name)

    def _context(self, task: Dispatched, holding: HeldTask, given: Input, args: tuple[JsonValue, ...]) -> Context:
        return Context(
            execution_id=task.execution_id,
            job=task.job,
            step=task.step,
            attempt=task.attempt,
            max_attempts=task.max_attempts,
            delivery=holding.delivery.delivered,
            function=task.function,
            input=given,
            args=args,
            upstream=task.upstream,
            scheduled_time=task.scheduled_time,
            trigger=task.trigger,
            deadline=self._clock.now() + timedelta(seconds=min(task.timeout, _LONGEST_TIMEOUT)),
            fence=task.fence,
            worker=self._worker,
            cancelled=holding.cancelled,
            shutting_down=self._shutting_down,
            is_recovery=task.is_recovery,
            original_scheduled_time=task.original_scheduled_time,
            recovery_attempt_time=task.recovery_attempt_time,
        )

    async def _in_thread(self, call: Callable[[], object], holding: HeldTask) -> object:
        work = self._threads.submit(call)
        try:
            return await asyncio.wrap_future(work)
        except asyncio.CancelledError:
            if not work.done():
                holding.abandoned = work
            raise


def _interrupted(error: asyncio.CancelledError, holding: HeldTask) -> Outcome:
    """We stopped it, or something that it awaited was cancelled; else the loop itself is being taken down."""
    task = asyncio.current_task()
    if holding.stopped is not None:
        if task is not None:
            task.uncancel()
        return Stopped(holding.stopped)
    if task is not None and task.cancelling():
        raise error
    return Failed(failures.cancelled_itself())
