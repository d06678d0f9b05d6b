"""Dead letters as rows of the history (hip-62, Dead Letter Handling)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pydantic import JsonValue

from .events import (
    Attempt,
    DeadLettered,
    Message,
    PoisonMessage,
    Recorded,
    Resolved,
)
from .history import failure_summary


@dataclass(frozen=True, slots=True)
class DeadLetterRecord:
    """One dead letter: a failed execution or a poison message (hip-62, Dead Letter Handling).

    A poison message has no execution and no attempts; its `input` holds the message and its position in the log.
    """

    id: str
    job: str
    execution_id: str | None
    attempts: tuple[Attempt, ...]
    last_error: str | None
    input: Mapping[str, JsonValue]
    first_attempt: datetime
    last_attempt: datetime


def dead_letters(messages: Iterable[Recorded[Message]]) -> dict[str, DeadLetterRecord]:
    """Return the dead letters among messages, by id."""
    letters = (_dead_letter(recorded) for recorded in messages if type(recorded.message) in _LETTERS)
    return {letter.id: letter for letter in letters if letter is not None}


def resolved(messages: Iterable[Recorded[Message]]) -> set[str]:
    """Return the ids of the dead letters that messages resolve."""
    return {recorded.message.id for recorded in messages if type(recorded.message) is Resolved}


_LETTERS: Final[frozenset[type[Message]]] = frozenset({DeadLettered, PoisonMessage})


def _dead_letter(recorded: Recorded[Message]) -> DeadLetterRecord | None:
    match recorded.message:
        case DeadLettered() as fact:
            return DeadLetterRecord(
                id=fact.id,
                job=fact.job,
                execution_id=fact.execution_id,
                attempts=fact.attempts,
                last_error=failure_summary(fact.last_error) if fact.last_error else None,
                input=fact.input,
                first_attempt=fact.first_attempt,
                last_attempt=fact.last_attempt,
            )
        case PoisonMessage() as fact:
            return DeadLetterRecord(
                id=fact.id,
                job=fact.job,
                execution_id=None,
                attempts=(),
                last_error=fact.reason,
                input=fact.model_dump(include={"durable", "subject", "sequence", "body"}),
                first_attempt=recorded.time,
                last_attempt=recorded.time,
            )
        case _:
            return None
