"""What a dead letter's execution was made of, where no ledger tells."""

from .. import subjects
from ..domain.events import DeadLettered, Requested
from ..ports import EventLog, StaleRead


async def registered_nowhere(log: EventLog, letter: DeadLettered) -> Requested | None:
    """What asked for an execution that no registered job was behind; None: one was, or nobody knows any more.

    Raises:
        StaleRead: a replica that lags was read.
    """
    if letter.definition:
        return None
    scope = subjects.execution(letter.job, letter.execution_id)
    facts = await log.load(scope)
    if not facts and await log.tail(scope):
        raise StaleRead.of(scope)
    asked = next((fact.message for fact in facts if isinstance(fact.message, Requested)), None)
    return asked if asked is not None and not asked.plan.definition else None
