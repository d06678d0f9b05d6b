"""Dead letters of unregistered jobs."""

from .. import subjects
from ..domain.events import DeadLettered, Requested
from ..ports import EventLog, StaleRead


async def unregistered_request(log: EventLog, letter: DeadLettered) -> Requested | None:
    """Return the first event of a failed execution of an unregistered job.

    None: the job was registered, or the execution is not in the log any more.

    Raises:
        StaleRead: a lagging replica was read.
    """
    if letter.definition:
        return None
    scope = subjects.execution(letter.job, letter.execution_id)
    events = await log.load(scope)
    if not events and await log.tail(scope):
        raise StaleRead.of(scope)
    request = next((event.message for event in events if isinstance(event.message, Requested)), None)
    return request if request is not None and not request.plan.definition else None
