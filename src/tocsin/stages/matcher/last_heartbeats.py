"""The last heartbeats of earlier attempts, for the agents that get the tasks."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from pydantic import JsonValue

from ... import telemetry
from ...domain.ids import report_token
from ...domain.open_task import StepKey
from ...domain.task_board import AgentClaim
from ...ports import Clock, EventLog
from ...services.operations.checkpoints import first_unread, read_last_heartbeat
from ...subjects import DecodeError

TIMEOUT_S: Final = 1.0
"""The longest time that heartbeats delay tasks."""
PAUSE_S: Final = 10.0
"""The time without reads after one that failed."""

_log = telemetry.get_logger("tocsin.matcher")


class LastHeartbeats:
    """Reads heartbeats. No decision rests on them, so tasks do not wait long for them."""

    def __init__(self, log: EventLog, clock: Clock, key: bytes) -> None:
        self._log = log
        self._clock = clock
        self._key = key
        self._paused_until = float("-inf")

    async def of(self, claims: Sequence[AgentClaim]) -> Mapping[StepKey, JsonValue]:
        """Return the last heartbeat before each claim that has one, by its step."""
        repeated = [claim for claim in claims if first_unread(claim.task.attempt, claim.delivery) > 1]
        if not repeated or self._clock.monotonic() < self._paused_until:
            return {}
        try:
            async with asyncio.timeout(TIMEOUT_S):
                details = await asyncio.gather(*map(self._before, repeated))
        except Exception as error:  # noqa: BLE001 - it must not keep tasks from running
            self._paused_until = self._clock.monotonic() + PAUSE_S
            _log.warning("cannot read heartbeats", action="heartbeat-unread", error=repr(error))
            return {}
        return {claim.task.key: sent for claim, sent in zip(repeated, details, strict=True) if sent is not None}

    async def _before(self, claim: AgentClaim) -> JsonValue:
        task = claim.task
        before = first_unread(task.attempt, claim.delivery)
        try:
            return await read_last_heartbeat(
                self._log,
                task.job,
                task.execution_id,
                task.step,
                before=before,
                token_of=lambda attempt: report_token(self._key, task.execution_id, task.step, attempt),
            )
        except DecodeError as error:  # an earlier worker may have stored it
            _log.warning("heartbeat unreadable", action="heartbeat-unreadable", error=str(error))
            return None
