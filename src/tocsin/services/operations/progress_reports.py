"""Progress of workers over HTTP (ojs-progress)."""

from contextlib import suppress
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, Final

from ... import subjects
from ...domain.events import HeartbeatDetails, StepProgress
from ...domain.progress import message_of
from ...domain.task_fetch import lease_span
from ...ports import Clock, EventLog, OutdatedState
from ...subjects import DecodeError
from . import worker_answers
from .lookup import ExecutionMatch
from .task_leases import Held


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """Progress of a step as a worker reports it; None: not reported."""

    fraction: float | None = None
    """From 0 to 1; a lower number than before does not count (PRG-003)."""
    message: str | None = None
    """What the attempt does now; None: the `message` in `data`, if that is a text."""
    data: dict[str, Any] | None = None
    checkpoint: dict[str, Any] | None = None
    """The place that the work has reached, for the next attempt."""


EXTENDED_BELOW: Final = 0.9
"""The part of a lease from which on progress extends it again: each extension is an event."""


async def store(log: EventLog, clock: Clock, held: Held, report: ProgressReport, *, key: bytes) -> StepProgress:
    """Store progress and checkpoint of a held step; return the progress that counts.

    It extends the lease, unless the last extension is more recent than a tenth of it. `key`: as in `worker_answers.complete`.
    """
    claim = held.claim.message
    before = await newest(log, held.found, claim.step)
    is_same = before is not None and before.attempt == claim.attempt
    fraction = max(report.fraction or 0.0, before.fraction if before is not None and is_same else 0.0)
    text = (report.data or {}).get("message") if report.message is None else report.message
    identity: dict[str, Any] = {
        "job": claim.job,
        "execution_id": claim.execution_id,
        "step": claim.step,
        "attempt": claim.attempt,
    }
    progress = StepProgress(
        **identity,
        time=clock.now(),
        fraction=fraction,
        message=message_of(text) if isinstance(text, str) else "",
        data=report.data or {},
    )
    token = held.task.message.token
    await log.publish(subjects.output_of(progress, token), progress, message_id=token_hex(8))
    if report.checkpoint is not None:
        heartbeat = HeartbeatDetails(**identity, time=clock.now(), details=report.checkpoint)
        await log.publish(subjects.output_of(heartbeat, token), heartbeat, message_id=token_hex(8))
    until, lease = held.state.steps[claim.step].leased_until, lease_span(claim.lease or held.task.message.timeout)
    if until is not None and until - clock.now() <= lease * EXTENDED_BELOW:
        with suppress(OutdatedState):  # the lease ended; the next report or heartbeat says so
            await worker_answers.extend(log, held, key=key)
    return progress


async def newest(log: EventLog, match: ExecutionMatch, step: str) -> StepProgress | None:
    """Return the progress of a step's newest attempt; None: it is missing or unreadable."""
    tokens = match.tokens
    attempt = max((attempt for name, attempt in tokens if name == step), default=None)
    if attempt is None:
        return None
    subject = subjects.progress(match.job, match.execution_id, step, attempt, of_token=tokens[step, attempt])
    try:
        recorded = await log.last(subject)
    except DecodeError:
        return None
    return recorded.message if recorded is not None and isinstance(recorded.message, StepProgress) else None
