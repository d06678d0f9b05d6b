"""Details of heartbeats, and checkpoints of the Open Job Spec, for the next attempt."""

import asyncio
from typing import Final

from pydantic import JsonValue

from ... import subjects, telemetry
from ...domain.events import Dispatched, HeartbeatDetails
from ...ports import EventLog

READ_TIMEOUT_S: Final = 2.0
EARLIER_ATTEMPTS: Final = 10
"""The number of attempts, the newest first, in which a heartbeat is looked for."""

_log = telemetry.get_logger("tocsin.operations")


async def last_heartbeat(log: EventLog, task: Dispatched, deliveries: int) -> JsonValue:
    """Return what an earlier attempt or delivery of a step sent last.

    None if there is nothing, or if it cannot be read: then the handler begins from the start, as it must be able to.
    """
    newest = task.attempt if deliveries > 1 else task.attempt - 1
    if not newest:
        return None
    attempts = range(newest, max(newest - EARLIER_ATTEMPTS, 0), -1)
    names = [subjects.heartbeat(task.job, task.execution_id, task.step, attempt) for attempt in attempts]
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            last_messages = await asyncio.gather(*map(log.last, names))
    except Exception as error:  # noqa: BLE001 - it must not keep the task from running
        _log.warning("cannot read the last heartbeat", action="heartbeat-unread", error=repr(error))
        return None
    heartbeats = (recorded.message for recorded in last_messages if recorded is not None)
    return next((message.details for message in heartbeats if isinstance(message, HeartbeatDetails)), None)
