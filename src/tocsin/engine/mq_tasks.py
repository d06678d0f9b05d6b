"""Tasks for MQ executors: their envelope, and the removal of tasks whose executions are over.

A task in the stream of the MQ bridge also has a lifetime, so a removal that fails or is forgotten costs no more than one
needless delivery, whose answer changes nothing.
"""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from math import ceil
from typing import Final, cast

from pydantic import JsonValue

from .. import subjects, telemetry
from ..domain import ids
from ..domain.definition.builtin_work import is_builtin
from ..domain.events import Dispatched, Envelope, EnvelopeData, Failure, Input, Message, Recorded, Report
from ..domain.secret_reference import refers_to_secrets, resolve_references
from ..domain.trace_context import context_in
from ..ports import Clock, EventLog, LogUnavailable, pages
from ..subjects import DecodeError

INTERVAL_S: Final = 1.0
PAGE: Final = 500
MAX_PAGES: Final = 20
"""Pages of a job's tasks that are searched; tasks beyond them end by their lifetime."""
MAX_EXECUTIONS: Final = 10_000
"""Executions that are remembered between two rounds."""

_log = telemetry.get_logger("tocsin.stages")


@dataclass(frozen=True, slots=True)
class Unneeded:
    """Signal: an execution is over, and its tasks need no executor."""

    job: str
    execution_id: str


class UnneededTasks:
    """Removes tasks of executions that are over from the stream of the MQ bridge."""

    def __init__(self, log: EventLog, clock: Clock, teams: Collection[str] = ()) -> None:
        """`teams`: the namespaces with executors of their own."""
        self._log = log
        self._teams = frozenset(teams)
        self._clock = clock
        self._over: dict[str, set[str]] = defaultdict(set)
        self._count = 0

    def take(self, signal: object) -> None:
        """Remember the execution of a signal until the next round."""
        if isinstance(signal, Unneeded) and self._count < MAX_EXECUTIONS:
            self._over[signal.job].add(signal.execution_id)
            self._count += 1

    async def run(self) -> None:
        """Remove tasks in a loop."""
        while True:
            await self._clock.sleep(INTERVAL_S)
            await self.run_once()

    async def run_once(self) -> None:
        """Remove the tasks of the executions that ended since the last call."""
        over, self._over, self._count = self._over, defaultdict(set), 0
        for job, executions in over.items():
            try:
                await self._remove(subjects.mq_tasks(job, self._teams), executions)
            except (LogUnavailable, DecodeError) as error:
                _log.warning("tasks not removed", action="tasks-not-removed", job=job, error=str(error))

    async def _remove(self, subject: str, executions: set[str]) -> None:
        searched = 0
        async for page in pages(self._log, subject, limit=PAGE):
            for task in page:
                if (task.message_id or "").partition(":")[0] in executions:
                    await self._log.remove(subject, task.sequence)
            searched += 1
            if searched == MAX_PAGES:
                return


def unsupported(task: Dispatched, key: bytes) -> Report | None:
    """Return the failure of a task that executors outside cannot run; None: they can.

    Its queue got its transport after the job was registered.
    """
    outside = f"the executors of queue {task.queue!r} (`transport: mq`)"
    if is_builtin(task.function):
        kind, reason = "builtin_not_supported", f"{outside} run no built-in functions, and this is {task.function!r}"
    elif refers_to_secrets(task.input, task.args):
        kind, reason = "secret_unresolved", f"{outside} get no secrets, and the input or args refer to one"
    else:
        return None
    error = Failure(type=kind, message=reason, retryable=False)
    return Report(
        job=task.job,
        execution_id=task.execution_id,
        outcome="failed",
        step=task.step,
        attempt=task.attempt,
        token=task.token,
        proof=ids.claim_proof(key, task.execution_id, task.step, task.attempt, None),
        error=error,
        worker=subjects.MQ_BRIDGE,
    )


def envelope(task: Dispatched, recorded: Recorded[Message]) -> Envelope:
    """Return a task as a hip-62 envelope."""
    task = task.task
    context = context_in(task.execution_id, task.traceparent, "attempt", task.step, task.attempt)
    return Envelope(
        id=f"task_{task.execution_id}_{task.step}_{task.attempt}",
        timestamp=recorded.time,
        data=EnvelopeData(
            job_name=task.job,
            execution_id=task.execution_id,
            function=task.function,
            input=cast("Input", _literal(task.input)),
            args=tuple(cast("list[JsonValue]", _literal([*task.args]))),
            attempt=task.attempt,
            timeout=ceil(task.timeout),
            step=task.step,
            token=task.token,
            scheduled_time=task.scheduled_time,
            trigger=task.trigger,
            fence=recorded.sequence,
            queue=task.queue,
            tags=task.tags,
            upstream=task.upstream,
            upstream_left_out=task.upstream_left_out,
            metadata={**task.meta, **task.recovery_context},
            traceparent=None if context is None else context.traceparent,
        ),
    )


def _literal(value: JsonValue) -> JsonValue:
    """Return a value that refers to no secret, with `${` for each `$${`."""
    return resolve_references(value, lambda _: None)
