"""The context that a handler receives, and the error that ends all attempts."""

from collections.abc import Awaitable, Coroutine, Generator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from pydantic import JsonValue
from typing_extensions import override

from .. import telemetry
from ..domain.errors import TocsinError
from ..domain.events import Input, TriggerKind
from ..domain.events.triggers import HOPS_HEADER
from .output import AttemptOutput
from .shutdown import Flag
from .task_logger import checked_details, checked_progress, task_logger

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


class NonRetryableError(TocsinError):
    """Raise this in a handler if another attempt would fail too.

    The step is exhausted at once (hip-62, Retry Policy).

        raise NonRetryableError(f"account {account} is closed")

    The text becomes the message of the failure.
    """

    code = "non-retryable"


class _Done(Coroutine[None, None, None]):
    """The answer of a finished call, which may be awaited or made a task.

    Unlike the coroutine of an `async def`, it may also be left alone: Python does not warn of it.
    """

    @override
    def send(self, value: None, /) -> None:
        raise StopIteration

    @override
    def throw(self, *error: Any) -> None:
        raise error[0]

    @override
    def close(self) -> None: ...

    @override
    def __await__(self) -> Generator[None, None, None]:
        yield from ()


@dataclass(frozen=True)
class Context:
    """One attempt of one step of one execution. All times are in UTC.

    The input may contain secrets, so neither the input nor the results of other steps appear in `repr` or in log lines.
    """

    execution_id: str
    """The same for all attempts: use it as an idempotency key."""
    job: str
    step: str
    attempt: int
    """1 for the first attempt."""
    max_attempts: int
    delivery: int
    """How often this attempt was delivered, to any worker. If it is more than 1, another worker may have begun the work."""
    function: str
    queue: str
    """The queue from which the task came."""
    input: Input = field(repr=False)
    """The job's input. Every `${env:NAME}` and `${file:/PATH}` is replaced by what this process has there, if the worker
    allows it (`Worker(secrets=…)`; hip-62, Job Input Sanitization)."""
    args: tuple[JsonValue, ...] = field(repr=False)
    """The job's positional arguments, with the same replacement."""
    upstream: Mapping[str, JsonValue] = field(repr=False)
    """The results of the steps that this step depends on, by step name."""
    meta: Mapping[str, JsonValue] = field(repr=False)
    """The job's metadata; for an occurrence also `cron_name` and `cron_triggered_at` (ojs-cron §6.3)."""
    tags: tuple[str, ...]
    """The labels of the job."""
    scheduled_time: datetime
    """The instant that the schedule named, which may be long ago."""
    trigger: TriggerKind
    """The reason for this execution: cron, manual, api, event, replay, recovery or backfill."""
    deadline: datetime
    """The instant at which this attempt times out."""
    fence: int
    """The fencing token: a number that rises with each claim of a task of the job, also if the job takes no lock.

    A worker that was taken for lost may go on with the same attempt, and has a lower number than its successor. Pass the number to a
    system that refuses numbers below the highest that it has seen. The system compares the numbers of one step. If runs of the job
    overlap, it compares the numbers of one step of one execution.
    """
    worker: str
    """The name of the worker that runs this attempt."""
    cancelled: Flag = field(repr=False)
    """Set when the handler should end: it timed out, its execution was cancelled, or the worker stops.

    Read it as a condition: `if context.cancelled:`. Long sync handlers should read it, or wait with
    `context.cancelled.wait_in_thread(5)` instead of `time.sleep(5)`. A handler that has read it, or waits for it, has
    `worker.cancel_grace` seconds (10) to end after its execution was cancelled. Any other handler is interrupted at once.
    """
    shutting_down: Flag = field(repr=False)
    """Set when the worker begins to stop: `if context.shutting_down:` finish soon, or leave the task to another worker."""
    is_recovery: bool = False
    """Whether the execution was lost before it reached a worker and was then recovered, and so may be late (cloacina)."""
    original_scheduled_time: datetime | None = None
    """The scheduled time of a recovered execution."""
    recovery_attempt_time: datetime | None = None
    """The time at which a recovered execution was last recovered."""
    shard: str | None = None
    """The shard on which the execution runs; None: the job is not divided."""
    shard_epoch: int | None = None
    """The epoch of this worker as the owner of the shard, a number that grows with each new owner; None if the shard has no
    owner. Pass it to every system that must reject an older owner."""
    leader_epoch: int | None = None
    """The epoch of this worker as the executor leader, a number that grows with each new leader; None unless the job is `LEADER_ONLY`.

    Pass it to every system that must reject an older leader.
    """
    last_heartbeat: JsonValue = field(default=None, repr=False)
    """What `heartbeat` sent last in an earlier attempt or delivery of this step; None: nothing, or it is lost."""
    traceparent: str | None = None
    """The trace context of this run of the handler (W3C Trace Context), for requests to other systems; None: no trace is made.

    Spans that the handler makes with OpenTelemetry belong to it already.
    """
    hops: int = 0
    """The executions that events started one after the other, up to this execution; 0: no event started it."""
    _output: AttemptOutput | None = field(default=None, repr=False, compare=False)
    """The buffer of `progress`, `heartbeat` and `logger`; None: the context was made by hand, and they send nothing."""

    @property
    def event_headers(self) -> dict[str, str]:
        """Return the headers for events that the handler publishes.

        They continue the trace, and count the executions that events start one after the other, so that a circle ends (`triggers.max_hops`).

            await client.publish("orders.eu.paid", body, headers=context.event_headers)
        """
        trace = {} if self.traceparent is None else {"traceparent": self.traceparent}
        return {**trace, HOPS_HEADER: str(self.hops)}

    @classmethod
    def for_test(cls, **fields: Any) -> Self:  # noqa: ANN401 - any field
        """Make a context for a unit test of a handler.

        Fields that are not passed have usual values.

            context = Context.for_test(input={"day": "2026-11-26"}, attempt=2)
            assert await nightly(context, limit=1) == {"rows": 1}

        `progress`, `heartbeat` and `logger` send nothing. `context.cancelled.set()` requests the end of the handler.

        Raises:
            TypeError: a context has no such field.
        """
        now = datetime.now(UTC).replace(microsecond=0)
        usual = {
            "execution_id": "00000000-0000-7000-8000-000000000000",
            "job": "test",
            "step": "main",
            "attempt": 1,
            "max_attempts": 3,
            "delivery": 1,
            "function": "test",
            "queue": "default",
            "input": {},
            "args": (),
            "upstream": {},
            "meta": {},
            "tags": (),
            "scheduled_time": now,
            "trigger": "manual",
            "deadline": now + timedelta(minutes=5),
            "fence": 1,
            "worker": "test",
            "cancelled": Flag(),
            "shutting_down": Flag(),
        }
        return cls(**{**usual, **fields})

    @classmethod
    def _of(cls, values: dict[str, Any]) -> Self:
        """Make a context of all its fields.

        The constructor of a frozen dataclass sets each field by `object.__setattr__`, which took a twelfth of a worker's CPU time.
        """
        context = object.__new__(cls)
        object.__setattr__(context, "__dict__", values)
        return context

    def progress(self, fraction: float, message: str = "") -> Awaitable[None]:
        """Show how far the step is.

            await context.progress(0.4, "loading")

        A sync handler calls it without `await`; it is done when the call returns. Pass a number from 0 to 1, and what the step does now. It never waits for NATS. The newest progress counts, and it may be lost.

        Raises:
            InvalidProgressError: the fraction is not a finite number.
        """
        self.progress_in_thread(fraction, message)
        return _Done()

    def progress_in_thread(self, fraction: float, message: str = "") -> None:
        """Do the same as `progress`, and return nothing; from any thread."""
        progress = checked_progress(fraction)
        if self._output is not None:
            self._output.progress(progress, message)

    def heartbeat(self, details: JsonValue) -> Awaitable[None]:
        """Keep the place that the work has reached, for the next attempt of this step.

            start = (context.last_heartbeat or {"row": 0})["row"]
            for row in range(start, len(rows)):
                await context.heartbeat({"row": row})

        A sync handler calls it without `await`; it is done when the call returns. It never waits for NATS. The newest details count, and are sent at most twice a second; they are sent before a
        failure is reported. They may be lost, so the next attempt may repeat some of the work.

        Raises:
            InvalidHeartbeatError: the details are not a JSON value.
            HeartbeatTooLargeError: the details are more than 16 KiB of JSON.
        """
        self.heartbeat_in_thread(details)
        return _Done()

    def heartbeat_in_thread(self, details: JsonValue) -> None:
        """Do the same as `heartbeat`, and return nothing; from any thread."""
        checked = checked_details(details)
        if self._output is not None:
            self._output.heartbeat(checked)

    @property
    def cron_name(self) -> str | None:
        """The job whose schedule named this occurrence; None for any other trigger (ojs-cron §6.3)."""
        name = self.meta.get("cron_name")
        return name if isinstance(name, str) else None

    @property
    def cron_triggered_at(self) -> datetime | None:
        """The instant of this occurrence; None for any other trigger (ojs-cron §6.3)."""
        return self.scheduled_time if self.cron_name is not None else None

    @cached_property
    def logger(self) -> "FilteringBoundLogger":
        """A logger that adds this attempt's identity to every line; created at the first use.

        Lines have no secrets of the task. From level INFO on they are also kept with the execution: the last 200
        (`tocsin executions logs`). Lines that come too fast are dropped and counted.
        """
        logger = telemetry.get_logger("tocsin.task").bind(
            execution_id=self.execution_id,
            job=self.job,
            step=self.step,
            attempt=self.attempt,
            delivery=self.delivery,
            function=self.function,
            worker=self.worker,
        )
        return logger if self._output is None else task_logger(logger, self._output.line, self._output.redact)
