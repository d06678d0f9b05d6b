"""The reset of an installation between two tests of a conformance suite."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Final

from ..domain.execution_record import Status
from ..ports import EventLog, History
from ..ports.queries import MAX_LIMIT, DeadLetterQuery, ExecutionQuery
from ..subjects import RECORDED, Stream
from .jobs import Registry
from .operations.dead_letters import resolve
from .operations.errors import OperationError
from .operations.execution_requests import cancel
from .queue_decisions import PausedNames, QueueDecisions

PAUSE_S: Final = 0.05
"""How often the history is compared with the log."""
PATIENCE_S: Final = 30.0
"""How long a reset may take."""
LATEST: Final = datetime.max.replace(tzinfo=UTC) - timedelta(days=1)
_UNRESOLVED: Final = DeadLetterQuery(unresolved=True, limit=MAX_LIMIT)
_OPEN: Final[tuple[Status, ...]] = ("pending", "running")


class ResetTimeout(OperationError):
    """An execution did not end, or the recorder is too slow."""

    code = "reset-timeout"

    def __init__(self) -> None:
        super().__init__(f"the reset took longer than {PATIENCE_S:.0f} s. Check that the recorder runs, and try again.")


async def reset(log: EventLog, history: History, registry: Registry, paused: PausedNames) -> None:
    """Delete all jobs, resume all queues, cancel all executions, and remove these from the history.

    Raises:
        ResetTimeout: it took too long.
        HistoryUnavailable: the database did not answer.
    """
    try:
        async with asyncio.timeout(PATIENCE_S):
            for job in await registry.jobs():
                await registry.delete(job.name)
            queues = QueueDecisions(log)
            for name in await paused.paused():
                await queues.switch(name, paused=False)
            while open_ := await _open(log, history):
                await asyncio.gather(*(cancel(log, execution_id, job=job) for job, execution_id in open_))
            while letters := (await history.dead_letters(_UNRESOLVED)).rows:
                for letter in letters:
                    await resolve(log, letter.id, job=letter.job_name)
                await _recorded(log, history)
            while await history.expire(LATEST, after=timedelta(0)):
                pass
    except TimeoutError:
        raise ResetTimeout from None


async def _open(log: EventLog, history: History) -> list[tuple[str, str]]:
    await _recorded(log, history)
    pages = [await history.executions(ExecutionQuery(status=status, limit=MAX_LIMIT)) for status in _OPEN]
    return [(row.job_name, row.execution_id) for page in pages for row in page.rows]


async def _recorded(log: EventLog, history: History) -> None:
    """Wait until the history has all that the log has."""
    newest = [await log.last(subject) for subject in RECORDED[Stream.LOG]]
    end = max((one.sequence for one in newest if one is not None), default=0)
    while True:
        if max([await history.offset(stream) for stream in RECORDED]) >= end:
            return
        await asyncio.sleep(PAUSE_S)
