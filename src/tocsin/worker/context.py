"""What a handler is told about the attempt that it runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

import structlog
from pydantic import JsonValue

from ..domain.events import Input, TriggerKind
from .flag import Flag


@dataclass(frozen=True)
class Context:
    """One attempt of one step of one execution.

    The input may hold secrets, so neither it nor what comes from other steps appears in `repr` or in log lines.
    """

    execution_id: str
    job: str
    step: str
    attempt: int
    """1 the first time."""
    max_attempts: int
    delivery: int
    """How often this attempt was handed out, to whomever; 1 the first time. More than 1: somebody may have begun."""
    function: str
    input: Input = field(repr=False)
    """With every `${env:NAME}` replaced by what this process' environment holds (hip-62, Job Input Sanitization)."""
    args: tuple[JsonValue, ...] = field(repr=False)
    upstream: Mapping[str, JsonValue] = field(repr=False)
    """The results of the steps that this one depends on, by step."""
    scheduled_time: datetime
    """The instant that the schedule named (UTC), whatever time it is now."""
    trigger: TriggerKind
    deadline: datetime
    """When this attempt times out (UTC)."""
    fence: int | None
    """The fencing token of the job's lock: give it to whatever must refuse an older holder. None: no lock was asked."""
    worker: str
    cancelled: Flag = field(repr=False)
    """Up when the handler should end: timed out, called off, or handed back. Sync ones should look at it.

    Who has looked at it, or waits for it, is trusted: when the execution is called off, such a handler has
    `worker.cancel_grace` (10 s) to end by itself before it is interrupted. Any other is interrupted at once.
    """
    shutting_down: Flag = field(repr=False)
    """Up when the worker is about to stop: finish soon, or leave it to another worker."""
    is_recovery: bool = False
    """The execution was found lost before it reached an executor, and recovered: it may be late (cloacina)."""
    original_scheduled_time: datetime | None = None
    """Of a recovered execution: the instant that it was scheduled for (UTC)."""
    recovery_attempt_time: datetime | None = None
    """Of a recovered execution: when it was recovered the last time (UTC)."""

    @cached_property
    def logger(self) -> structlog.typing.FilteringBoundLogger:
        """A logger whose lines carry this attempt's identity; made when first used."""
        logger: structlog.typing.FilteringBoundLogger = structlog.get_logger("tocsin.task").bind(
            execution_id=self.execution_id,
            job=self.job,
            step=self.step,
            attempt=self.attempt,
            delivery=self.delivery,
            function=self.function,
            worker=self.worker,
        )
        return logger
