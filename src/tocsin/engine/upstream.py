"""The runs of jobs that executions of other jobs await, as states of the fold.

A job has such a state (`runs.<job>.>`) as long as a definition in force names it in `depends_on`, or an execution waits for it. It follows from the
events of definitions and executions, so it has no events of its own but `log.run-found`.
"""

from typing import TYPE_CHECKING, Final

import msgspec

from .. import subjects
from ..domain.definition import upstream_jobs
from ..domain.dependency import Found, JobRuns
from ..domain.events import COMPENSATING_TRIGGERS, Message, Recorded, Requested
from ..domain.execution import Execution, Status
from ..domain.ledger import Ledger
from ..domain.log_events import RunFound
from .step import Reading, Scope

if TYPE_CHECKING:
    from .fold import Fold

RUNS: Final[Scope[JobRuns | None]] = Scope("runs", None, lambda state, _: state)
"""The runs of a job that others need; None: no other needs them."""


HELD: Final[Reading[tuple[str, bool], tuple[str, ...]]] = Reading("executions that wait before their lock")
"""The scopes of the executions of a kind (`kind_of`) that wait for other jobs or for agents, the oldest first."""


def runs_scope(job: str) -> str:
    """Return the scope of the runs of a job."""
    return f"runs.{subjects.token(job)}.>"


def kind_of(request: Requested) -> tuple[str, bool]:
    """Return the job of an execution, and whether it is a replay or a backfill.

    Replays and backfills are counted apart.
    """
    return request.job, request.trigger in COMPENSATING_TRIGGERS


def on_ledger(fold: "Fold", recorded: Recorded[Message], before: Ledger, after: Ledger) -> None:
    """Apply a change of a job's ledger."""
    job = after.job or before.job
    if fold.upstream and (runs := fold.states.get(runs_scope(job))) is not None:
        _put(fold, runs_scope(job), msgspec.structs.replace(runs, changed=recorded.sequence))
    if before.definition is after.definition:
        return
    old, new = _upstream(before), _upstream(after)
    for name in sorted(old - new):
        if (runs := fold.states.get(runs_scope(name))) is not None:
            others = tuple(other for other in runs.named_by if other != job)
            _put(fold, runs_scope(name), msgspec.structs.replace(runs, named_by=others))
    for name in sorted(new - old):
        runs = _needed(fold, name, recorded)
        _put(fold, runs_scope(name), msgspec.structs.replace(runs, named_by=(*runs.named_by, job)))


def on_execution(fold: "Fold", recorded: Recorded[Message], scope: str, before: Execution, after: Execution) -> None:
    """Apply an event of an execution."""
    if fold.upstream:
        own = f"runs.{scope.split('.', 2)[1]}.>"
        if (runs := fold.states.get(own)) is not None and (learnt := runs.learn(recorded)) is not runs:
            _put(fold, own, learnt)
    if Status.PLANNED in {before.status, after.status}:
        _follow_wait(fold, recorded, scope, before, after)


def on_found(fold: "Fold", event: RunFound, number: int) -> None:
    """Apply the runs of a job that were read."""
    scope = runs_scope(event.job)
    if (runs := fold.states.get(scope)) is not None:
        _put(fold, scope, runs.note(Found(event.window, event.run), number))


def restore(fold: "Fold") -> None:
    """Derive the data again that follows from the states of a loaded fold."""
    fold.upstream = {scope: None for scope, state in fold.states.items() if isinstance(state, JobRuns)}
    waiting = [scope for scope, state in fold.states.items() if isinstance(state, Execution) and state.is_held]
    for scope in sorted(waiting, key=lambda scope: fold.events[scope][0].sequence):
        kind = kind_of(fold.states[scope].request)
        fold.held[kind] = (*fold.held.get(kind, ()), scope)
    fold.proposed = {scope: None for scope in waiting if fold.states[scope].is_proposed}


def _upstream(state: Ledger) -> set[str]:
    return set() if state.definition is None else set(upstream_jobs(state.definition.depends_on))


def _needed(fold: "Fold", job: str, recorded: Recorded[Message]) -> JobRuns:
    """Return the known runs of a job, from now on if none were needed."""
    known = fold.states.get(runs_scope(job))
    if isinstance(known, JobRuns):
        return known
    ledger = fold.states.get(subjects.ledger(job))
    planned = ledger.last_fired if isinstance(ledger, Ledger) else None
    return JobRuns(since=recorded.time, planned=planned, changed=recorded.sequence)


def _put(fold: "Fold", scope: str, runs: JobRuns) -> None:
    if runs.is_needed:
        fold.journal.put(fold.states, scope, runs)
        if scope not in fold.upstream:
            fold.journal.put(fold.upstream, scope, None)
    elif scope in fold.upstream:
        fold.journal.remove(fold.states, scope)
        fold.journal.remove(fold.upstream, scope)
    fold.on_change(scope)


def _follow_wait(fold: "Fold", recorded: Recorded[Message], scope: str, before: Execution, after: Execution) -> None:
    """Note that a wait before the lock of an execution began or ended."""
    request, journal = (after if after.requested is not None else before).request, fold.journal
    if after.is_held is not before.is_held:
        kind = kind_of(request)
        held = tuple(other for other in fold.held.get(kind, ()) if other != scope)
        if after.is_held or held:
            journal.put(fold.held, kind, (*held, scope) if after.is_held else held)
        else:
            journal.remove(fold.held, kind)
    if after.is_proposed and not before.is_proposed:
        journal.put(fold.proposed, scope, None)
    elif before.is_proposed and not after.is_proposed:
        journal.remove(fold.proposed, scope)
    if after.is_dependent is before.is_dependent:
        return
    for job in dict.fromkeys(dependency.job for dependency in request.plan.depends_on):
        runs = _needed(fold, job, recorded) if after.is_dependent else fold.states.get(runs_scope(job))
        if runs is not None:
            others = tuple(other for other in runs.waiting if other != scope)
            waiting = (*others, scope) if after.is_dependent else others
            _put(fold, runs_scope(job), msgspec.structs.replace(runs, waiting=waiting))
