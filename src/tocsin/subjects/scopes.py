"""Scopes: what one guard covers."""

from ..domain import events as e
from .paths import subject_of
from .tokens import token


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
