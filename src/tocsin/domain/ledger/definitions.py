"""Decisions on the definition of a job."""

from ..definition import JobDefinition
from ..errors import TocsinError
from ..events import Actor, Defined, Deleted, Paused, Resumed
from .state import Ledger, Regime


class JobNotFound(TocsinError, LookupError):
    """The job does not exist, or was deleted."""

    code = "job-not-found"

    def __init__(self, job: str) -> None:
        super().__init__(f"no job is called {job!r}")
        self.job = job


def define(
    state: Ledger, definition: JobDefinition, *, by: Actor | None = None, reason: str | None = None
) -> list[Defined]:
    """Register or update a job (ojs-cron §8.1, CRON-26).

    Return nothing if the definition in force is the same.
    """
    if state.definition == definition:
        return []
    return [
        Defined(
            job=definition.name,
            definition=definition,
            paused=state.is_paused,
            previous=_previous(state),
            by=by,
            reason=reason,
            created_at=state.created_at,
            created_by=state.created_by,
        )
    ]


def pause(state: Ledger, job: str, *, by: Actor | None = None, reason: str | None = None) -> list[Paused]:
    """Pause a job: its instants pass without firing.

    Raises:
        JobNotFound: the job does not exist.
    """
    current = _existing(state, job)
    if current.paused:
        return []
    return [Paused(job=job, definition=current.definition, previous=current.fact, by=by, reason=reason)]


def resume(state: Ledger, job: str, *, by: Actor | None = None, reason: str | None = None) -> list[Resumed]:
    """Resume a job: its instants fire again.

    Raises:
        JobNotFound: the job does not exist.
    """
    current = _existing(state, job)
    if not current.paused:
        return []
    return [Resumed(job=job, definition=current.definition, previous=current.fact, by=by, reason=reason)]


def delete(state: Ledger, job: str, *, by: Actor | None = None, reason: str | None = None) -> list[Deleted]:
    """Delete a job; running executions continue (ojs-cron §8.4).

    Raises:
        JobNotFound: the job does not exist.
    """
    return [Deleted(job=job, previous=_existing(state, job).fact, by=by, reason=reason)]


def _existing(state: Ledger, job: str) -> Regime:
    if state.current is None or not state.current.definition:
        raise JobNotFound(job)
    return state.current


def _previous(state: Ledger) -> int:
    return state.current.fact if state.current else 0
