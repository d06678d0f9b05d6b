"""Details of heartbeats, and checkpoints of the Open Job Spec, for the next attempt."""

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias

from pydantic import JsonValue

from ... import subjects, telemetry
from ...domain.events import Dispatched, HeartbeatDetails
from ...ports import EventLog

READ_TIMEOUT_S: Final = 2.0
EARLIER_ATTEMPTS: Final = 10
"""The number of attempts, the newest first, in which a heartbeat is looked for."""

_log = telemetry.get_logger("tocsin.operations")


TokenOf: TypeAlias = Callable[[int], str | None]
"""Return the token of an attempt of a step; None: it is unknown, so the attempt sent nothing that can be read."""


async def last_heartbeat(log: EventLog, task: Dispatched, deliveries: int, token_of: TokenOf) -> JsonValue:
    """Return what an earlier attempt or delivery of a step sent last.

    None if there is nothing, or if it cannot be read: then the handler begins from the start, as it must be able to.
    """
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            return await read_last_heartbeat(
                log,
                task.job,
                task.execution_id,
                task.step,
                before=first_unread(task.attempt, deliveries),
                token_of=token_of,
            )
    except Exception as error:  # noqa: BLE001 - it must not keep the task from running
        _log.warning("cannot read the last heartbeat", action="heartbeat-unread", error=repr(error))
        return None


def first_unread(attempt: int, deliveries: int) -> int:
    """Return the first attempt whose heartbeats a delivery does not receive.

    An earlier delivery of the same attempt may have sent some.
    """
    return attempt + 1 if deliveries > 1 else attempt


async def read_last_heartbeat(
    log: EventLog, job: str, execution_id: str, step: str, *, before: int, token_of: TokenOf
) -> JsonValue:
    """Return what an attempt of a step before another sent last; None: nothing.

    Raises:
        DecodeError: the message is unreadable.
    """
    attempts = range(before - 1, max(before - 1 - EARLIER_ATTEMPTS, 0), -1)
    names = [
        subjects.heartbeat(job, execution_id, step, attempt, of_token=token)
        for attempt in attempts
        if (token := token_of(attempt)) is not None
    ]
    last_messages = await asyncio.gather(*map(log.last, names))
    heartbeats = (recorded.message for recorded in last_messages if recorded is not None)
    return next((message.details for message in heartbeats if isinstance(message, HeartbeatDetails)), None)
