"""The removal of heartbeats of executions that are over."""

from collections.abc import Callable
from typing import Final

from ... import subjects
from ...domain.execution import Execution
from ...engine.fold import Fold
from ...ports import StoredLog, StreamPurge
from ...subjects import Stream

HEARTBEATS: Final = "heartbeat.>"
MAX_REMOVED: Final = 5_000
"""Executions whose heartbeats are removed in one round."""


class FinishedHeartbeats:
    """Removes the heartbeats of executions that are over: no attempt will read them.

    Nothing depends on it. A heartbeat that stays, because the archiver does not run, ends with `output.max_age`.
    """

    def __init__(self, fold: Callable[[], Fold], streams: StoredLog, purge: StreamPurge) -> None:
        """`fold` returns the states of this process. `purge` removes messages of `streams`."""
        self._fold = fold
        self._streams = streams
        self._purge = purge
        self._upto = 0
        """The end of the stream at the run before: the fold may lack the executions of later heartbeats."""

    async def run_once(self) -> int:
        """Remove heartbeats that were there at the run before; return the number of executions.

        Raises:
            LogUnavailable: the log did not answer.
        """
        upto, self._upto = self._upto, (await self._streams.extent(Stream.PROGRESS)).last
        newest: dict[tuple[str, str], int] = {}
        async for portion in self._streams.messages(Stream.PROGRESS, HEARTBEATS, after=0, upto=upto):
            for message in portion:
                _, job, execution_id, *_ = message.subject.split(".")
                newest[job, execution_id] = message.sequence
        over = [one for one in newest if self._is_over(*one)][:MAX_REMOVED]
        for job, execution_id in over:
            await self._purge.purge(f"heartbeat.{job}.{execution_id}.>", upto=newest[job, execution_id])
        return len(over)

    def _is_over(self, job: str, execution_id: str) -> bool:
        """Return whether an execution is over; an execution that is over leaves the fold."""
        scope = subjects.execution(subjects.name(job), execution_id)
        state = self._fold().states.get(scope)
        return state.is_over if isinstance(state, Execution) else scope not in self._fold().numbers
