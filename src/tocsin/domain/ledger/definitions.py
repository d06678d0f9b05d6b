"""Decisions on the definition of a job.

A pause, a resumption and a deletion raise JobNotFound if the job does not exist.
"""

from datetime import datetime

from ..definition import DefinitionError, DefinitionProblem, JobDefinition, show
from ..errors import TocsinError
from ..events import Actor, Defined, Deleted, Paused, Resumed
from ..schedule import ScheduleError, check_fires
from ..text import utc_text
from .instants import drop_time, schedule_of
from .state import Ledger, Regime, Timetable


class JobNotFound(TocsinError, LookupError):
    """The job does not exist, or was deleted."""

    code = "job-not-found"

    def __init__(self, job: str) -> None:
        super().__init__(f"no job is called {job!r}")
        self.job = job


def define(
    state: Ledger,
    definition: JobDefinition,
    *,
    by: Actor | None = None,
    reason: str | None = None,
    now: datetime | None = None,
) -> list[Defined]:
    """Register or update a job (ojs-cron §8.1, CRON-26).

    Return nothing if the definition in force is the same. `now` (UTC) refuses a single instant that is past.

    Raises:
        DefinitionError: the schedule names no instant later than `now`, and was not the schedule before.
    """
    if state.definition == definition:
        return []
    if now is not None:
        refuse_past(state, definition, now)
    return [
        Defined(
            job=definition.name,
            definition=definition,
            paused=state.is_paused,
            previous=state.newest,
            by=by,
            reason=reason,
            created_at=state.created_at,
            created_by=state.created_by,
            anchor=_kept_anchor(state, definition),
        )
    ]


def refuse_past(state: Ledger, definition: JobDefinition, now: datetime) -> None:
    """Raise DefinitionError for a new schedule that names no instant after `now`."""
    after, before = Timetable.of(definition), state.timetable
    if after.schedule is None or (before is not None and before.has_same_instants_as(after)):
        return
    schedule = schedule_of(after)
    last = schedule.only_instant or schedule.ends_at
    if last is not None and last <= now and schedule.next_after(now, anchor=now) is None:
        reason = f"it is past (now is {utc_text(now, 'seconds')}), so the job would never run: give a later time"
        raise DefinitionError(_schedule_problem(definition, reason, "in-the-past"))
    try:
        check_fires(schedule, now)
    except ScheduleError as error:
        reason = f"{error.problem.partition(': ')[2]} (try: {error.suggestion})"
        raise DefinitionError(_schedule_problem(definition, reason, error.code)) from None


def _schedule_problem(definition: JobDefinition, reason: str, code: str) -> DefinitionProblem:
    value, place = show(definition.schedule), f"job `{definition.name}`"
    return DefinitionProblem(reason, field="schedule", value=value, job=place, code=code)


def complete(state: Ledger) -> list[Deleted]:
    """Delete a job whose last instant has fired, and that is not to be preserved."""
    current, timetable = state.current, state.timetable
    if current is None or timetable is None or drop_time(timetable, state.last_fired) is None:
        return []
    return [
        Deleted(job=state.job, previous=current.fact, by=Actor(identity="ticker"), reason="its last instant has fired")
    ]


def was_dropped(state: Ledger, definition: JobDefinition) -> bool:
    """Return whether the job was deleted after the last instant of this definition.

    To register it again would make a job that never runs: a job file keeps its jobs after they are done.
    """
    is_absent = state.current is not None and not state.current.definition
    return is_absent and drop_time(Timetable.of(definition), state.last_fired) is not None


def _kept_anchor(state: Ledger, definition: JobDefinition) -> datetime | None:
    """Return the anchor of the interval in force if a definition keeps this interval."""
    known = state.definitions.get(state.current.definition) if state.current else None
    if known is None or known.timetable.schedule is None or definition.schedule is None:
        return None
    interval = schedule_of(Timetable.of(definition)).interval
    is_same = interval is not None and interval == schedule_of(known.timetable).interval
    return (known.anchor or known.since) if is_same else None


def pause(state: Ledger, job: str, *, by: Actor | None = None, reason: str | None = None) -> list[Paused]:
    """Pause a job: its instants pass without firing."""
    current = _existing(state, job)
    if current.paused:
        return []
    return [Paused(job=job, definition=current.definition, previous=current.fact, by=by, reason=reason)]


def resume(state: Ledger, job: str, *, by: Actor | None = None, reason: str | None = None) -> list[Resumed]:
    """Resume a job: its instants fire again."""
    current = _existing(state, job)
    if not current.paused:
        return []
    return [Resumed(job=job, definition=current.definition, previous=current.fact, by=by, reason=reason)]


def delete(state: Ledger, job: str, *, by: Actor | None = None, reason: str | None = None) -> list[Deleted]:
    """Delete a job; running executions continue (ojs-cron §8.4)."""
    return [Deleted(job=job, previous=_existing(state, job).fact, by=by, reason=reason)]


def _existing(state: Ledger, job: str) -> Regime:
    if state.current is None or not state.current.definition:
        raise JobNotFound(job)
    return state.current
