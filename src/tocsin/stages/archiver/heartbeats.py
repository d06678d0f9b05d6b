"""Removal of the heartbeats of executions that are over: no attempt will read them.

Nothing depends on it. A heartbeat that stays, because the archiver does not run, ends with `output.max_age`.
"""

from typing import Final

from ... import subjects, telemetry
from ...domain import execution
from ...ports import EventLog, StoredLog, StreamPurge
from ...subjects import DecodeError, Stream

HEARTBEATS: Final = "heartbeat.>"
AT_ONCE: Final = 200
"""Executions whose events are read together."""
MAX_REMOVED: Final = 5_000
"""Executions whose heartbeats are removed in one round."""

_log = telemetry.get_logger("tocsin.archiver")


class FinishedHeartbeats:
    """Removes the heartbeats of executions that are over."""

    def __init__(self, log: EventLog, streams: StoredLog, purge: StreamPurge) -> None:
        """`purge` removes messages of `streams`."""
        self._log = log
        self._streams = streams
        self._purge = purge

    async def run_once(self) -> int:
        """Remove heartbeats; return the number of executions.

        Raises:
            LogUnavailable: the log did not answer.
        """
        upto = (await self._streams.extent(Stream.PROGRESS)).last
        scopes: dict[tuple[str, str], None] = {}
        async for portion in self._streams.messages(Stream.PROGRESS, HEARTBEATS, after=0, upto=upto):
            for message in portion:
                _, job, execution_id, *_ = message.subject.split(".")
                scopes[job, execution_id] = None
        candidates, removed = list(scopes), 0
        for first in range(0, len(candidates), AT_ONCE):
            if removed >= MAX_REMOVED:
                break
            for job, execution_id in await self._over(candidates[first : first + AT_ONCE]):
                await self._purge.purge(f"heartbeat.{job}.{execution_id}.>", upto=upto)
                removed += 1
        return removed

    async def _over(self, candidates: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return the executions that are over; those without events were archived."""
        names = [subjects.execution(subjects.name(job), execution_id) for job, execution_id in candidates]
        try:
            reads = await self._log.load_each(*names)
        except DecodeError as error:
            _log.warning("heartbeats not removed", action="heartbeats-not-removed", error=str(error))
            return []
        states = [execution.fold(facts) for facts in reads.facts]
        return [
            candidate
            for candidate, facts, state in zip(candidates, reads.facts, states, strict=True)
            if not facts or state.is_over
        ]
