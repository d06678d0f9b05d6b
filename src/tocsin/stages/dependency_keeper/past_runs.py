"""The reader of runs that the fold does not know.

It notes the last run in each window for which an execution waits.

The fold knows the runs of a job from when on another job first named it. The windows of a backfill, or of a job that was registered just now, begin
before.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import aclosing
from operator import attrgetter
from typing import Final

from ... import subjects, telemetry
from ...archive.stream_reader import decoded
from ...domain.dependency import SLACK, JobRuns, Run, Window, learned, order, run_of
from ...domain.execution import Execution
from ...domain.log_events import RunFound
from ...engine.commit_loop import HasLoop
from ...engine.stage import attempted
from ...engine.upstream import runs_scope
from ...ports import Clock, EventLog, StoredLog
from ...subjects import DecodeError, Stream
from .stage import DEPENDENCY_KEEPER, windows_of

TICK_S: Final = 0.5
RETRY_S: Final = 5.0

_log = telemetry.get_logger("tocsin.dependency_keeper")


class PastRuns:
    """The reads of missing runs, in the process that leads the dependency keeper."""

    def __init__(self, view: HasLoop, log: EventLog, stored: StoredLog, clock: Clock) -> None:
        """`stored`: the log and its archive."""
        self._view = view
        self._log = log
        self._stored = stored
        self._clock = clock

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            await self._clock.sleep(TICK_S)
            if not await attempted(self.run_once, _log, "runs of other jobs not read; retrying"):
                await self._clock.sleep(RETRY_S)

    async def run_once(self) -> None:
        """Read the windows that are missing now."""
        name = DEPENDENCY_KEEPER.name
        if not self._view.loop.fold.upstream or not self._view.loop.leads(name):
            return
        missing: defaultdict[str, dict[Window, None]] = defaultdict(dict)
        for job, window in self._missing():
            missing[job][window] = None
        for job, windows in missing.items():
            runs = await self._read(job, windows)
            notes = [RunFound(job, window, last_of(runs, window)) for window in windows]
            for stored in [self._view.loop.note(name, note) for note in notes]:
                await stored

    def _missing(self) -> Iterator[tuple[str, Window]]:
        fold = self._view.loop.fold
        for scope in fold.upstream:
            runs = fold.states[scope]
            for waiting in runs.waiting if isinstance(runs, JobRuns) else ():
                state = fold.states.get(waiting)
                if not isinstance(state, Execution) or not state.is_dependent:
                    continue
                definition = fold.definitions[state.request.job, state.request.plan.definition].message.definition
                for dependency, window in windows_of(state, definition):
                    if runs_scope(dependency.job) == scope and not runs.knows(window):
                        yield dependency.job, window

    async def _read(self, job: str, windows: Collection[Window]) -> list[Run]:
        """Return the runs that were not skipped, ordered by their scheduled times."""
        runs, upto = dict[str, Run](), await self._log.end(Stream.LOG)
        since = min(window.since for window in windows) - SLACK
        messages = self._stored.messages(Stream.LOG, *subjects.runs(job), after=since, upto=upto)
        async with aclosing(messages) as portions:
            async for portion in portions:
                for message in portion:
                    try:
                        run = run_of(decoded(message))
                    except DecodeError as error:
                        place = message.sequence
                        _log.error("event unreadable, skipped", action="unreadable", sequence=place, error=str(error))
                        continue
                    if run is not None and (changed := learned(runs.get(run.execution_id), run)) is not None:
                        runs[run.execution_id] = changed
        return sorted((run for run in runs.values() if run.ended != "skipped"), key=order)


def last_of(ordered: Sequence[Run], window: Window) -> Run | None:
    """Return the last run in a window."""
    before = ordered[: bisect_right(ordered, window.until, key=attrgetter("scheduled_time"))]
    return before[-1] if before and before[-1].scheduled_time > window.since else None
