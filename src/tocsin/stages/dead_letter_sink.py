"""Dead-letter sink: keeps what failed for good, with the whole history of its attempts (hip-62, Dead Letter Handling).

consumes  failed
reads     the execution
appends   dead-lettered
"""

from typing import Final

from .. import subjects
from ..domain import dead_letter
from ..domain.events import DeadLettered, Failed, Message, Recorded
from ..engine.stage import Access, Stage, Subscription
from ..ports import EventLog, SequenceConflict, StaleRead
from ..subjects import Stream

ACCESS: Final = Access(appends=(DeadLettered,), reads=(Stream.LOG,))


def dead_letter_sink(log: EventLog) -> Stage:
    """One dead letter for each execution that failed and whose job asks for it."""

    async def on_failed(recorded: Recorded[Message]) -> None:
        failed = recorded.message
        if not isinstance(failed, Failed) or not failed.dead_letter:
            return
        facts = await log.load(subjects.scope_of(failed))
        if not facts or facts[-1].sequence < recorded.sequence:
            raise StaleRead("the log's replica that answered has not seen the end yet")
        try:
            await log.append(dead_letter.of_failed(failed, facts), expect=0)
        except SequenceConflict:
            return  # kept before; only the acknowledgement was lost

    failures = (subjects.filter_for("execution.failed"),)
    return Stage(
        "dead_letter_sink", (Subscription("dead-letter-sink", Stream.LOG, failures, on_failed),), access=ACCESS
    )
