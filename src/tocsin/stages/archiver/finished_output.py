"""The output of handlers beside their executions' segment, and the removal of heartbeats (`archive.output`)."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from ... import subjects, telemetry
from ...archive.archive import Archive, LinesObject, Origin, State
from ...archive.stream_reader import decoded
from ...domain import execution
from ...domain.events import Dispatched
from ...ports import EventLog, StoredLog, StoredMessage, StreamPurge
from ...subjects import DecodeError, Stream
from .archive_eligibility import CLOCK_SKEW

MAX_BYTES: Final = 8_388_608
"""The approximate size of an object; its lines are held in memory meanwhile, and by who reads one of them."""
HEARTBEATS: Final = "heartbeat.>"
AT_ONCE: Final = 200
"""Executions whose events are read together."""
MAX_REMOVED: Final = 5_000
"""Executions whose heartbeats are removed in one round."""

_log = telemetry.get_logger("tocsin.archiver")


class FinishedOutput:
    """Copies lines from their stream into the archive.

    Only the lines of known attempts are kept. The server bounds them to 200 each, so what strangers write takes no room here.
    """

    def __init__(self, streams: StoredLog, archive: Archive, origin: Origin) -> None:
        self._streams = streams
        self._archive = archive
        self._origin = origin

    async def keep(self, messages: Sequence[StoredMessage], state: State) -> list[LinesObject]:
        """Store the lines of the executions in a segment, the segment that follows `state`.

        A crash before the segment is stored leaves objects that nothing names.

        Raises:
            LogUnavailable: the log did not answer.
        """
        wanted, since = _attempts(messages)
        if since is None:
            return []
        upto = (await self._streams.extent(Stream.OUTPUT)).last
        kept: list[LinesObject] = []
        lines: list[StoredMessage] = []
        size = 0
        async for portion in self._streams.messages(Stream.OUTPUT, after=since - CLOCK_SKEW, upto=upto):
            for line in portion:
                if line.subject not in wanted:
                    continue
                lines.append(line)
                size += len(line.subject) + len(line.body)
                if size >= MAX_BYTES:
                    kept.append(await self._archive.write_lines(lines, state, self._origin))
                    lines, size = [], 0
        if lines:
            kept.append(await self._archive.write_lines(lines, state, self._origin))
        return kept


def _attempts(messages: Iterable[StoredMessage]) -> tuple[set[str], datetime | None]:
    """Return the subjects of all attempts' lines, and the time of the first dispatch."""
    wanted: set[str] = set()
    since: datetime | None = None
    for message in messages:
        if not message.subject.startswith("execution."):
            continue
        try:
            task = decoded(message).message
        except DecodeError as error:
            _log.warning("lines not archived", action="lines-not-archived", error=str(error))
            continue
        if isinstance(task, Dispatched):
            wanted.add(subjects.lines(task.job, task.execution_id, task.step, task.attempt, of_token=task.token))
            since = message.time if since is None else min(since, message.time)
    return wanted, since


class FinishedHeartbeats:
    """Removes the heartbeats of executions that are over: no attempt will read them.

    Nothing depends on it. A heartbeat that stays, because the archiver does not run, ends with `output.max_age`.
    """

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
