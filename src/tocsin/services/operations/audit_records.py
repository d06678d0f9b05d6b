"""Records of the audit trail, in the terms of scratchbird (§10.3)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from heapq import merge
from operator import attrgetter
from typing import Any, Final, Literal

from ... import subjects
from ...domain.events import (
    Actor,
    AgentDrainStarted,
    AgentGranted,
    AgentSwitched,
    Cancelled,
    Completed,
    Defined,
    Deleted,
    Failed,
    Message,
    NamespacesDefined,
    Paused,
    PolicyDefined,
    QueueFact,
    Recorded,
    Replayed,
    Requested,
    Resolved,
    Resumed,
    ShardsDefined,
    Silence,
    SilencesDefined,
    Started,
    Terminal,
    Trigger,
    Voided,
    admission_of,
)
from ...domain.history import rows_affected
from ...domain.silence import changed_silence
from ...ports import EventLog, pages
from ..jobs.registry import each

# Implements hip-62 (Audit Trail) and scratchbird §10.3.
#
# The log itself is the audit trail: each of these facts names the caller.

AUDITED = (
    *(Defined, Paused, Resumed, Deleted, Trigger, Cancelled, Replayed, Resolved),
    *(AgentSwitched, AgentGranted, AgentDrainStarted, QueueFact, ShardsDefined, PolicyDefined, NamespacesDefined),
    *(SilencesDefined, Voided),
)


async def audit_trail(
    log: EventLog, job: str | None = None, *, since: datetime | None = None, runs: bool = False
) -> list[Recorded[Message]]:
    """Return the requests of callers on a job or on all jobs, the oldest first.

    Cancellations and resolutions by a stage are left out. With `runs`, the ends of all executions are there too.
    """
    filters = subjects.audit_filters(job, runs=runs)
    of_subjects = [[recorded async for page in pages(log, subject) for recorded in page] for subject in filters]
    merged = merge(*of_subjects, key=attrgetter("time"))
    return [
        fact
        for fact in merged
        if (since is None or fact.time >= since)
        and (_is_request(fact.message) or (runs and isinstance(fact.message, Terminal)))
    ]


def asked_by(message: Message) -> Actor | None:
    """Return the caller that a message names, if any."""
    by: Actor | None = getattr(message, "by", None)
    return by


def _is_request(message: Message) -> bool:
    # A decision of a stage names no caller; a definition or a trigger always has an author, named or not.
    return isinstance(message, AUDITED[:5]) or (isinstance(message, AUDITED) and asked_by(message) is not None)


class AuditType(StrEnum):
    """The type of an audit record."""

    CREATED = "JOB_CREATED"
    MODIFIED = "JOB_MODIFIED"
    DELETED = "JOB_DELETED"
    EXECUTED = "JOB_EXECUTED"
    FAILED = "JOB_FAILED"
    CANCELLED = "JOB_CANCELLED"
    POLICY = "POLICY_DEFINED"


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One event of a job or a run; unknown fields are None."""

    recorded: Recorded[Message]
    type: AuditType | None = None
    """None: the event is of another kind, such as a trigger or a decision on an agent."""
    job: str | None = None
    run: str | None = None
    by: Actor | None = None
    """The caller; of a cancelled run the caller that cancelled it, of another end the caller that requested the run. None: no caller."""
    agent: str | None = None
    """The worker that ran the last step that started."""
    state: str | None = None
    """The state of the job or the run after the event."""
    silence: tuple[Silence, Literal["started", "ended"]] | None = None
    """The silence that was started or ended."""
    rows_affected: int | None = None
    """The member `rows_affected` of the result of a run."""

    def as_json(self) -> dict[str, Any]:
        """Return the record without its event."""
        return {
            "type": self.type,
            "job": self.job,
            "run": self.run,
            "user": None if self.by is None else self.by.full_name,
            "agent": self.agent,
            "state": self.state,
            "rows_affected": self.rows_affected,
        }


async def audit_records(
    log: EventLog, job: str | None = None, *, since: datetime | None = None, runs: bool = False
) -> Sequence[AuditRecord]:
    """Return the requests of callers, and with `runs` the ends of runs.

    The log holds the runs that are not archived yet.
    """
    facts = await audit_trail(log, job, since=since, runs=runs)

    async def record(recorded: Recorded[Message]) -> AuditRecord:
        message = recorded.message
        if isinstance(message, Resumed):
            in_force = await log.get(subjects.ledger(message.job), message.definition)
            return audit_record(recorded, in_force=None if in_force is None else in_force.message)
        if isinstance(message, SilencesDefined):
            before = await log.get(subjects.silences(), message.previous) if message.previous else None
            return _of_silence(recorded, message, None if before is None else before.message)
        if not (runs and isinstance(message, Terminal)):
            return audit_record(recorded)
        started = await log.last(subjects.started(message.job, message.execution_id))
        # A cancellation without a caller is a decision of a stage, and not of the caller that requested the run.
        by = await _requester(log, message) if isinstance(message, Completed | Failed) else None
        return audit_record(recorded, started, by)

    records = await each(facts, record)
    if job is None:
        return records
    # The silences of all jobs are in one scope.
    return [found for found in records if found.job == job or not isinstance(found.recorded.message, SilencesDefined)]


def _of_silence(recorded: Recorded[Message], fact: SilencesDefined, before: Message | None) -> AuditRecord:
    changed = changed_silence(before if isinstance(before, SilencesDefined) else None, fact)
    return AuditRecord(recorded, job=None if changed is None else changed[0].job, by=fact.by, silence=changed)


async def _requester(log: EventLog, end: Completed | Failed) -> Actor | None:
    """Return the caller that requested a run; None: the schedule, or the run never started."""
    if end.trigger == "cron":
        return None
    admitted, admitted_with_task, _ = subjects.admissions(end.job, end.execution_id)
    opening = await log.last(admitted) or await log.last(admitted_with_task)
    if opening is None:
        return None
    message = (admission_of(opening) or opening).message
    return message.by if isinstance(message, Requested) else None


def audit_record(
    recorded: Recorded[Message],
    started: Recorded[Message] | None = None,
    by: Actor | None = None,
    *,
    in_force: Message | None = None,
) -> AuditRecord:
    """Return the record of an event.

    `started`: the last start of a step of its run. `by`: the caller that requested the run. `in_force`: the definition of a job that was
    resumed.
    """
    fact = recorded.message
    worker = started.message.worker if started is not None and isinstance(started.message, Started) else None
    kind, state = _kind_of(fact)
    if isinstance(in_force, Defined) and not in_force.definition.enabled:
        state = "DISABLED"  # a pause and its end leave that as it is
    return AuditRecord(
        recorded,
        kind,
        job=subjects.job_of(recorded.subject) if isinstance(fact, Trigger) else getattr(fact, "job", None),
        run=fact.execution_id if isinstance(fact, Terminal) else None,
        by=by or asked_by(fact),
        agent=worker,
        state=state,
        rows_affected=rows_affected(fact.result) if isinstance(fact, Completed | Failed) else None,
    )


def _kind_of(fact: Message) -> tuple[AuditType | None, str | None]:
    match fact:
        case Defined():
            kind = AuditType.CREATED if fact.created_at is None else AuditType.MODIFIED
            return kind, "PAUSED" if fact.paused else "ENABLED" if fact.definition.enabled else "DISABLED"
        case Paused() | Resumed():
            return AuditType.MODIFIED, "PAUSED" if isinstance(fact, Paused) else "ENABLED"
        case Deleted():
            return AuditType.DELETED, "DELETED"
        case PolicyDefined():
            return AuditType.POLICY, None
        case _:
            return _ENDS.get(type(fact), (None, None))


_ENDS: Final[Mapping[type, tuple[AuditType, str]]] = {
    Completed: (AuditType.EXECUTED, "COMPLETED"),
    Failed: (AuditType.FAILED, "FAILED"),
    Cancelled: (AuditType.CANCELLED, "CANCELLED"),
}
