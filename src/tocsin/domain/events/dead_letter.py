"""Dead letters: what failed for good, or could not be read, and what became of it."""

from base64 import b64encode
from datetime import datetime
from typing import Annotated, Final, Literal

from pydantic import Field, JsonValue

from .actor import Actor
from .failure import Failure
from .message import Input, Message, Sequence
from .trigger import TriggerKind

MAX_BODY_BYTES: Final = 262_144
"""Bytes of a message that its dead letter keeps: anybody may send up to what the server takes, and base64 adds a third."""
MAX_REASON_LENGTH: Final = 4_096
"""Characters of the reason that it keeps: one input can be wrong in thousands of ways."""


class Attempt(Message):
    """One attempt as an operator wants to see it."""

    step: str
    attempt: int
    dispatched_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    worker: str | None = None
    error: Failure | None = None


class DeadLetterFact(Message):
    """A fact about one dead letter; its id is the execution's, or names the message that nobody could read."""

    v: Literal[1] = 1
    job: str
    id: str


class DeadLettered(DeadLetterFact):
    """An execution failed for good, with its whole history of attempts (hip-62, Dead Letter Handling)."""

    type: Literal["dead-lettered"] = "dead-lettered"
    execution_id: str
    scheduled_time: datetime
    trigger: TriggerKind
    input: dict[str, JsonValue] = {}
    attempts: tuple[Attempt, ...]
    last_error: Failure | None = None
    first_attempt: datetime
    last_attempt: datetime
    definition: Sequence = 0
    """The definition that it was planned by, with the input and the args of its plan (0: of an earlier version of us)."""
    plan_input: Input = {}
    plan_args: tuple[JsonValue, ...] = ()
    replay_of: str | None = None
    """The dead letter that the execution was a replay of."""


class PoisonMessage(DeadLetterFact):
    """A message that could not be used: kept with its bytes (base64) and the reason.

    Both are cut off where they would make this too large to be stored; the message itself stays in the log.
    """

    type: Literal["refused"] = "refused"
    reason: str
    durable: str
    subject: str
    sequence: Sequence
    body: str

    @staticmethod
    def id_of(durable: str, sequence: int) -> str:
        """The id of the dead letter of a message that a durable brought."""
        return f"{durable}-{sequence}"

    @classmethod
    def of(cls, job: str, durable: str, subject: str, sequence: int, body: bytes, reason: str) -> "PoisonMessage":
        """The dead letter of a message; its id is the same wherever that is made."""
        return cls(
            job=job,
            id=cls.id_of(durable, sequence),
            reason=reason[:MAX_REASON_LENGTH],
            durable=durable,
            subject=subject,
            sequence=sequence,
            body=b64encode(body[:MAX_BODY_BYTES]).decode(),
        )


class Replayed(DeadLetterFact):
    """Somebody wants it to be done after all: the `number`th time that this dead letter is replayed.

    `input` goes over the input that there was. `request`: what whoever asked calls it, so that asking again asks for nothing.
    """

    type: Literal["replayed"] = "replayed"
    number: Annotated[int, Field(ge=1)]
    input: Input | None = None
    by: Actor | None = None
    reason: str | None = None
    request: str | None = None
    ledger: Sequence | None = None
    """The last sequence of the job's ledger then. What was in force there decides, whenever and however often it is handled.

    None: no registered job is behind it, or an earlier version of us asked.
    """


class Resolved(DeadLetterFact):
    """Nothing is left to be done about it: a replay completed (`execution_id`), or somebody says so."""

    type: Literal["resolved"] = "resolved"
    execution_id: str | None = None
    by: Actor | None = None
    reason: str | None = None
