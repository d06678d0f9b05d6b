"""The runs of a job for which executions of other jobs wait, or may wait."""

from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from .dependency import Run, Window, run_of
from .events import Message, Recorded

KEPT: Final = 64
"""The most runs that are kept, with the latest scheduled times."""
MAX_FOUND: Final = 256
"""Windows for which a run is noted, the newest."""
SLACK: Final = timedelta(minutes=1)
"""How much earlier than its scheduled time a run may have been stored, as the clocks of two machines differ."""
_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)


class Found(msgspec.Struct, frozen=True):
    """The last run in a window, as read; None: the window has no run."""

    window: Window
    run: Run | None


class JobRuns(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The runs of a job.

    Attributes:
        since: from when on (UTC) its runs are known.
        named_by: the jobs that name it in a definition, in the order of these definitions.
        runs: ordered by their scheduled times, and the numbers of their first known events.
        kept_from: before this scheduled time (UTC) some runs were dropped.
        planned: the scheduled time (UTC) of the latest of its occurrences that has a run, or was skipped.
        waiting: the scopes of the executions that wait for it, the oldest first.
        found: the runs that were read of the time before.
        changed: the number of the newest event that may end a wait.
    """

    since: datetime
    named_by: tuple[str, ...] = ()
    runs: tuple[Run, ...] = ()
    kept_from: datetime = _EARLIEST
    planned: datetime | None = None
    waiting: tuple[str, ...] = ()
    found: tuple[Found, ...] = ()
    changed: int = 0

    @property
    def is_needed(self) -> bool:
        return bool(self.named_by or self.waiting)

    def last(self, window: Window, /) -> Run | None:
        """Return the last run in a window; None: none is known."""
        noted = [found.run for found in self.found if found.window == window and found.run is not None]
        known = [*self._of(window), *noted]
        return max(known, key=_order, default=None)

    def knows(self, window: Window) -> bool:
        """Return whether the last run in a window is known.

        No other run that began by now can be the last.
        """
        since = max(self.since + SLACK, self.kept_from)
        return (
            window.since >= since
            or any(run.scheduled_time >= since for run in self._of(window))
            or any(found.window == window for found in self.found)
        )

    def awaits_plan(self, window: Window, fired: datetime | None) -> bool:
        """Return whether an instant in a window may have fired without a run yet.

        The instants of a job are planned in order.

        `fired`: the latest that fired (UTC).
        """
        if fired is None or fired <= window.since:
            return False
        return self.planned is None or self.planned < min(fired, window.until)

    def _of(self, window: Window) -> Iterator[Run]:
        for run in reversed(self.runs):
            if run.scheduled_time <= window.since:
                break
            if run.scheduled_time <= window.until and run.ended != "skipped":
                yield run

    def learn(self, recorded: Recorded[Message]) -> "JobRuns":
        """Return the runs after an event that opens or ends an execution of the job."""
        run = run_of(recorded)
        if run is None:
            return self
        known = next((one for one in self.runs if one.execution_id == run.execution_id), None)
        if known is not None and (run.ended is None or known.ended is not None):
            return self
        if known is not None:
            ended = msgspec.structs.replace(known, ended=run.ended)
            runs = tuple(ended if one is known else one for one in self.runs)
        else:
            index = bisect_right(self.runs, _order(run), key=_order)
            runs = (*self.runs[:index], run, *self.runs[index:])
        found = tuple(_updated(one, run) for one in self.found)
        planned = max(self.planned or _EARLIEST, run.scheduled_time) if run.is_occurrence else self.planned
        kept_from = self.kept_from
        if len(runs) > KEPT:
            oldest, *_ = runs
            runs, found = runs[1:], tuple(_with(one, oldest) for one in found)
            kept_from = max(kept_from, runs[0].scheduled_time)
        return msgspec.structs.replace(
            self, runs=runs, kept_from=kept_from, found=found, planned=planned, changed=recorded.sequence
        )

    def note(self, found: Found, number: int) -> "JobRuns":
        """Return the runs after the read part of a window."""
        others = tuple(one for one in self.found if one.window != found.window)
        return msgspec.structs.replace(self, found=(*others, found)[-MAX_FOUND:], changed=number)


def _order(run: Run) -> tuple[datetime, int]:
    return run.scheduled_time, run.sequence


def _updated(found: Found, run: Run) -> Found:
    if found.run is None or found.run.execution_id != run.execution_id or run.ended is None:
        return found
    return Found(found.window, None if run.ended == "skipped" else msgspec.structs.replace(found.run, ended=run.ended))


def _with(found: Found, run: Run) -> Found:
    """Return the found run with a run that is not kept any longer."""
    is_in = found.window.since < run.scheduled_time <= found.window.until and run.ended != "skipped"
    is_later = found.run is None or _order(run) > _order(found.run)
    return Found(found.window, run) if is_in and is_later else found
