"""Audit trail of requests: who, when, from where, why.

Implements hip-62 (Audit Trail) and scratchbird §10.3.

The log itself is the audit trail. Every registration, update, deletion, pause, resume, trigger, cancellation, replay and
resolution, every drain, switch and grant of an agent, and every pause, resume and purge of a queue is a fact that names the caller. So are
shard maps, policies, namespaces, silences and voided messages.
"""

from datetime import datetime
from heapq import merge
from operator import attrgetter

from ... import subjects
from ...domain.events import (
    Actor,
    AgentDrainStarted,
    AgentGranted,
    AgentSwitched,
    Cancelled,
    Defined,
    Deleted,
    Message,
    NamespacesDefined,
    Paused,
    PolicyDefined,
    QueueFact,
    Recorded,
    Replayed,
    Resolved,
    Resumed,
    ShardsDefined,
    SilencesDefined,
    Terminal,
    Trigger,
    Voided,
)
from ...ports import EventLog, pages

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
    of_subjects = [
        [recorded async for page in pages(log, subject, confirm=True) for recorded in page] for subject in filters
    ]
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
