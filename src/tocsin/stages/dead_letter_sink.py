"""Dead-letter sink: keeps failed executions with all their attempts (hip-62, Dead Letter Handling)."""

from datetime import datetime
from typing import Final

from .. import subjects
from ..domain import dead_letter
from ..domain.events import DeadLettered, Failed, Message, Recorded
from ..engine.kinds import FACTS, dead_letter_state
from ..engine.stage import Access, Stage, Subscription
from ..engine.step import DONE, Events, States, Step, done
from ..subjects import Stream


class DeadLetterSink:
    """Stores a dead letter for each failed execution whose job keeps dead letters."""

    def on_failed(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:  # noqa: ARG002 - no decision on the time
        """Store the dead letter of an execution."""
        failed = recorded.message
        if not isinstance(failed, Failed) or not failed.dead_letter:
            return DONE
        events = states(FACTS(subjects.scope_of(failed)))
        letter = dead_letter.of_failed(failed, events)
        ref = dead_letter_state(letter.job, letter.id)
        return done(Events(ref, (letter,))) if states(ref) == dead_letter.initial else DONE


DEAD_LETTER_SINK: Final = Stage(
    name="dead_letter_sink",
    purpose="keeps failed executions",
    consumes="`failed`",
    decides="`dead-lettered`, with every attempt",
    access=Access(appends=(DeadLettered,)),
    start=lambda _: DeadLetterSink(),
    subscriptions=(
        Subscription(
            "dead-letter-sink", Stream.LOG, (subjects.filter_for("execution.failed"),), decide=DeadLetterSink.on_failed
        ),
    ),
)
