"""The subject that something is stored under."""

from ..domain import events as e
from .names import DEFAULT_QUEUE, NO_DELIVERY, dotted, token


def subject_of(message: e.Message) -> str:  # noqa: C901, PLR0911, PLR0912 - one line a name is what this table is for
    """The subject that a fact, an input or an announcement is stored under."""
    match message:
        case e.Dispatched():
            queue = "" if message.queue == DEFAULT_QUEUE else f".{token(message.queue)}"
            return f"{execution_prefix(message)}.dispatched.{message.step}.{message.attempt}{queue}"
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
    """What the subject of a fact about an execution begins with."""
    return f"execution.{token(fact.job)}.{fact.execution_id}"


def definition(job: str) -> str:
    """The subject of a job's definitions."""
    return f"ledger.{token(job)}.defined"


def ledger_subjects(job: str, *facts: str) -> tuple[str, ...]:
    """The subjects of some facts of a job's ledger, e.g. `due` and `passed`."""
    return tuple(f"ledger.{token(job)}.{fact}" for fact in facts)


def acquisitions(job: str) -> str:
    """The subject of all that ever acquired a job's lock."""
    return f"lock.{token(job)}.acquired"


def admissions(job: str, execution_id: str) -> tuple[str, ...]:
    """The subjects that say whether an execution may run."""
    prefix = f"execution.{token(job)}.{execution_id}"
    return f"{prefix}.admitted", f"{prefix}.skipped"


def terminal(job: str, execution_id: str) -> tuple[str, ...]:
    """The subjects that can end an execution."""
    prefix = f"execution.{token(job)}.{execution_id}"
    return tuple(f"{prefix}.{end}" for end in ("completed", "failed", "cancelled", "skipped"))


def trigger(job: str) -> str:
    """The subject that asks for a run of a job."""
    return f"trigger.{token(job)}"


def cancel(job: str, execution_id: str) -> str:
    """The subject that asks for the end of an execution."""
    return f"cancel.{token(job)}.{execution_id}"


def delay(timer: e.Timer) -> str:
    """The subject of the schedule that will publish a timer; there is one schedule per subject."""
    return f"delay.{subject_of(timer).removeprefix('timer.')}"


def public_event(event: str, job: str) -> str:
    """The subject of a public event of a job: `triggered`, `skipped` or `missed`."""
    return f"cron.{event}.{token(job)}"


def mq_tasks(job: str) -> str:
    """The subject that executors outside take a job's tasks from (hip-62, Integration with MQ)."""
    return f"mq.scheduled.{dotted(job)}"


def ledger(job: str) -> str:
    """The scope of a job's ledger."""
    return f"ledger.{token(job)}.>"


def execution(job: str, execution_id: str) -> str:
    """The scope of an execution."""
    return f"execution.{token(job)}.{execution_id}.>"


def lock(job: str, shard: str | None = None) -> str:
    """The scope of a job's lock, or of one of its shards'."""
    return f"lock.{token(job)}.*" if shard is None else f"lock.{token(job)}.{token(shard)}.*"


def dead_letter(job: str, id: str) -> str:  # noqa: A002 - the field is called so
    """The scope of a dead letter."""
    return f"dead-letter.{token(job)}.{id}.>"


def scope_of(message: e.Message) -> str:
    """The scope that guards a fact; an announcement is guarded by its own subject."""
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
    """The scope of the execution that a subject of `OPENINGS` or `ENDINGS` belongs to."""
    return f"{subject.rpartition('.')[0]}.>"
