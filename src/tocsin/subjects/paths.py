"""The subjects of messages, and the scopes that guards cover."""

from ..domain import events as e
from .names import DEFAULT_QUEUE, NO_DELIVERY, dotted, token


def subject_of(message: e.Message) -> str:  # noqa: C901, PLR0911, PLR0912 - a table with one case per message
    """Return the subject of an event, an input or a public event."""
    match message:
        case e.Dispatched():
            queue = "" if message.queue == DEFAULT_QUEUE else f".{token(message.queue)}"
            decision = "dispatched" if message.admits is None else "admitted"
            return f"{execution_prefix(message)}.{decision}.{message.step}.{message.attempt}{queue}"
        case e.Started():
            return f"{execution_prefix(message)}.started.{message.step}.{message.attempt}.{message.delivery}"
        case e.RetryScheduled():
            return f"{execution_prefix(message)}.retry-scheduled.{message.step}.{message.attempt}"
        case e.Advanced() | e.Exhausted():
            return f"{execution_prefix(message)}.{message.type}.{message.step}"
        case e.Recovered():
            return f"{execution_prefix(message)}.recovered.{message.recovery}"
        case e.Planned() | e.Admitted() | e.Skipped() | e.Completed() | e.Failed() | e.Cancelled():
            return f"{execution_prefix(message)}.{message.type}"
        case e.Defined() | e.Paused() | e.Resumed() | e.Deleted() | e.Due() | e.Passed():
            return f"ledger.{token(message.job)}.{message.type}"
        case e.Acquired() | e.Queued():
            shard = "" if message.shard is None else f".{token(message.shard)}"
            return f"lock.{token(message.job)}{shard}.{message.type}"
        case e.Report():
            attempted = f"{message.step}.{message.attempt}.{message.delivery or NO_DELIVERY}"
            return f"report.{token(message.job)}.{message.execution_id}.{message.outcome}.{attempted}"
        case e.RetryTimer():
            attempted = f"{message.step}.{message.attempt}"
            return f"timer.{token(message.job)}.{message.execution_id}.retry.{attempted}"
        case e.LeaseTimer():
            claimed = f"{message.step}.{message.attempt}.{message.delivery}"
            return f"timer.{token(message.job)}.{message.execution_id}.lease.{claimed}"
        case e.ExpiryTimer():
            return f"timer.{token(message.job)}.{message.execution_id}.expiry"
        case e.Enqueued():
            return f"enqueue.{token(message.definition.name)}.{message.execution_id}"
        case e.Released():
            return f"{execution_prefix(message)}.released.{message.step}.{message.attempt}.{message.task}"
        case e.Replayed():
            return f"dead-letter.{token(message.job)}.{message.id}.replayed.{message.number}"
        case e.DeadLettered() | e.PoisonMessage() | e.Resolved():
            return f"dead-letter.{token(message.job)}.{message.id}.{message.type}"
        case e.LeadershipGained() | e.LeadershipReleased() | e.LeadershipLost():
            return f"leadership.{message.lease}.{message.type}"
        case e.CronTriggered() | e.CronSkipped() | e.CronMissed():
            return f"{message.event}.{token(message.data.cron_name)}"
        case _:
            raise TypeError(f"{type(message).__name__} has no subject of its own")


def execution_prefix(fact: e.ExecutionFact) -> str:
    """Return the common prefix of the subjects of an execution's events."""
    return f"execution.{token(fact.job)}.{fact.execution_id}"


def definition(job: str) -> str:
    """Return the subject of a job's definitions."""
    return f"ledger.{token(job)}.defined"


def ledger_subjects(job: str, *facts: str) -> tuple[str, ...]:
    """Return the subjects of event types of a job's ledger, e.g. `due`."""
    return tuple(f"ledger.{token(job)}.{fact}" for fact in facts)


def acquisitions(job: str) -> str:
    """Return the subject of all acquisitions of a job's lock."""
    return f"lock.{token(job)}.acquired"


def admissions(job: str, execution_id: str) -> tuple[str, ...]:
    """Return filters over the admission or skip of an execution."""
    prefix = f"execution.{token(job)}.{execution_id}"
    return f"{prefix}.admitted", f"{prefix}.admitted.>", f"{prefix}.skipped"


def terminal(job: str, execution_id: str) -> tuple[str, ...]:
    """Return the subjects that can end an execution."""
    prefix = f"execution.{token(job)}.{execution_id}"
    return tuple(f"{prefix}.{end}" for end in ("completed", "failed", "cancelled", "skipped"))


def trigger(job: str) -> str:
    """Return the subject that requests a run of a job."""
    return f"trigger.{token(job)}"


def cancel(job: str, execution_id: str) -> str:
    """Return the subject that requests the cancellation of an execution."""
    return f"cancel.{token(job)}.{execution_id}"


def delay(timer: e.Timer) -> str:
    """Return the subject of the schedule that publishes a timer; each subject has one schedule."""
    return f"delay.{subject_of(timer).removeprefix('timer.')}"


def public_event(event: str, job: str) -> str:
    """Return the subject of a job's public event: `triggered`, `skipped` or `missed`."""
    return f"cron.{event}.{token(job)}"


def mq_tasks(job: str) -> str:
    """Return the subject from which MQ executors take a job's tasks (hip-62)."""
    return f"mq.scheduled.{dotted(job)}"


def ledger(job: str) -> str:
    """Return the scope of a job's ledger."""
    return f"ledger.{token(job)}.>"


def execution(job: str, execution_id: str) -> str:
    """Return the scope of an execution."""
    return f"execution.{token(job)}.{execution_id}.>"


def lock(job: str, shard: str | None = None) -> str:
    """Return the scope of a job's lock, or of one of its shards."""
    return f"lock.{token(job)}.*" if shard is None else f"lock.{token(job)}.{token(shard)}.*"


def is_lock(scope: str) -> bool:
    """Return whether a scope is that of a lock."""
    return scope.startswith("lock.")


def dead_letter(job: str, id: str) -> str:  # noqa: A002 - the field is called so
    """Return the scope of a dead letter."""
    return f"dead-letter.{token(job)}.{id}.>"


def scope_of(message: e.Message) -> str:
    """Return the scope that guards an event.

    A public event is guarded by its own subject.
    """
    match message:
        case e.ExecutionFact():
            return execution(message.job, message.execution_id)
        case e.LedgerFact():
            return ledger(message.job)
        case e.LockFact():
            return lock(message.job, message.shard)
        case e.DeadLetterFact():
            return dead_letter(message.job, message.id)
        case _:
            return subject_of(message)


def execution_scope(subject: str) -> str:
    """Return the scope around the subject of an execution's event."""
    return ".".join((*subject.split(".", 3)[:3], ">"))
