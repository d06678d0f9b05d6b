"""Dead-letter sink: keeps failed executions with all their attempts (hip-62, Dead Letter Handling)."""

from typing import Final

from .. import subjects
from ..domain import dead_letter
from ..domain.events import DeadLettered, Failed, Message, Recorded
from ..engine.stage import Access, Stage, Subscription
from ..ports import EventLog, SequenceConflict, StaleRead
from ..subjects import Stream


class DeadLetterSink:
    """Stores a dead letter for each failed execution whose job keeps dead letters."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    async def on_failed(self, recorded: Recorded[Message]) -> None:
        """Store the dead letter of an execution."""
        failed = recorded.message
        if not isinstance(failed, Failed) or not failed.dead_letter:
            return
        scope = subjects.scope_of(failed)
        events = await self._log.load(scope)
        if not events or events[-1].sequence < recorded.sequence:
            raise StaleRead.of(scope)
        try:
            await self._log.append(dead_letter.of_failed(failed, events), expect=0)
        except SequenceConflict:
            return  # already stored; only the acknowledgement was lost


DEAD_LETTER_SINK: Final = Stage(
    name="dead_letter_sink",
    purpose="keeps failed executions",
    consumes="`failed`",
    decides="`dead-lettered`, with every attempt",
    access=Access(appends=(DeadLettered,), reads=(Stream.LOG,)),
    start=lambda context: DeadLetterSink(context.log),
    subscriptions=(
        Subscription(
            "dead-letter-sink", Stream.LOG, (subjects.filter_for("execution.failed"),), DeadLetterSink.on_failed
        ),
    ),
)
