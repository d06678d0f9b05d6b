"""Events of dead letters: failed executions, poison messages, and their replays."""

from base64 import b64encode
from datetime import datetime
from typing import Annotated, Final, Literal

import msgspec
from pydantic import Field

from .message import Actor, Failure, Json, OwnMessage, Sequence, TriggerKind, VersionedMessage, constant
from .steps import PastHoldUp

MAX_BODY_BYTES: Final = 262_144
"""Bytes of a poison message that its dead letter keeps; base64 adds a third."""
MAX_REASON_LENGTH: Final = 4_096
"""Characters of the reason that a dead letter keeps."""
MAX_MESSAGE_ID_LENGTH: Final = 256
"""Characters of the message's id that a dead letter keeps."""


class Attempt(OwnMessage, frozen=True, kw_only=True):
    """One attempt of a step, as shown to operators."""

    step: str
    attempt: int
    dispatched_at: datetime | None = None
    """The time (UTC) at which the task was stored."""
    started_at: datetime | None = None
    """The time (UTC) at which a worker claimed the attempt."""
    ended_at: datetime | None = None
    """The time (UTC) at which the outcome was stored."""
    worker: str | None = None
    """The worker that claimed the attempt last."""
    error: Failure | None = None
    """The error, if the attempt failed."""
    held_up: tuple[PastHoldUp, ...] = ()
    """What held back its task before the last claim: limits, rates and pauses."""


class DeadLetterFact(VersionedMessage, frozen=True, kw_only=True):
    """An event about one dead letter."""

    job: str
    id: str
    """The id of the failed execution, or `<durable>-<partition>-<sequence>` for a poison message."""


class DeadLettered(DeadLetterFact, frozen=True, kw_only=True):
    """An execution failed for good (hip-62, Dead Letter Handling).

    The dead letter sink stores this with every attempt.
    """

    type: Literal["dead-lettered"] = constant("dead-lettered")
    execution_id: str
    """The id of the failed execution."""
    scheduled_time: datetime
    trigger: TriggerKind
    input: dict[str, Json] = {}
    """The input of the execution.

    A step's own input is stored under the step's name.
    """
    input_left_out: bool = False
    """True: this event had no room for `input`; `plan_input` and the definition have it."""
    attempts: tuple[Attempt, ...]
    """Every attempt of every step, in the order of dispatch; the newest, if they are too many for one message."""
    attempts_left_out: int = 0
    """The number of earlier attempts that this event had no room for."""
    last_error: Failure | None = None
    """The error that ended the execution."""
    first_attempt: datetime
    """The time (UTC) at which the first attempt was dispatched; without attempts, of the first event."""
    last_attempt: datetime
    """The time (UTC) at which the last attempt ended; without attempts, of the last event."""
    definition: Sequence = 0
    """The sequence of the definition that the execution was planned by; 0: the job is not registered."""
    plan_input: dict[str, Json] = {}
    """The input of the plan."""
    plan_args: tuple[Json, ...] = ()
    """The positional arguments of the plan."""
    replay_of: str | None = None
    """The dead letter that the failed execution was a replay of."""
    shard: str | None = None
    """The shard of the failed execution, on which a replay runs."""


class PoisonMessage(DeadLetterFact, frozen=True, kw_only=True):
    """A stage could not use a message.

    The stage stores this with the message's body and the reason. Both are cut off if this event would otherwise be too
    large. The message itself stays in the log.
    """

    type: Literal["refused"] = constant("refused")
    reason: str
    """The reason why the message cannot be used."""
    code: str | None = None
    """The stable code of the reason (docs/reference/errors.md); absent: the reason has none."""
    durable: str
    """The subscription that took the message."""
    subject: str
    """The subject of the message."""
    sequence: Sequence
    """The sequence of the message in its stream."""
    partition: int = 0
    """The partition of that stream: each counts its sequences separately."""
    message_id: str | None = None
    """The `Nats-Msg-Id` of the message, if it had one."""
    body: str
    """The body of the message (base64)."""
    is_cut: bool = False
    """True: only the beginning of the body is kept."""

    @staticmethod
    def id_of(durable: str, partition: int, sequence: int) -> str:
        """Return the id of the dead letter for a message that a durable delivered."""
        return f"{durable}-{partition}-{sequence}"

    @classmethod
    def of(
        cls,
        job: str,
        durable: str,
        subject: str,
        sequence: int,
        body: bytes,
        reason: str,
        *,
        code: str | None = None,
        partition: int = 0,
    ) -> "PoisonMessage":
        """Return the dead letter of a message; its id is always the same."""
        kept = body[:MAX_BODY_BYTES]
        return cls(
            job=job,
            id=cls.id_of(durable, partition, sequence),
            reason=reason[:MAX_REASON_LENGTH],
            code=code,
            durable=durable,
            subject=subject,
            sequence=sequence,
            partition=partition,
            body=b64encode(kept).decode(),
            is_cut=len(kept) < len(body),
        )

    def identified(self, message_id: str | None) -> "PoisonMessage":
        if message_id is None:
            return self
        return self.changed(message_id=message_id[:MAX_MESSAGE_ID_LENGTH])


class Replayed(DeadLetterFact, frozen=True, kw_only=True):
    """An operator requested a replay of a dead letter.

    The API stores this, and the planner plans the execution.
    """

    type: Literal["replayed"] = constant("replayed")
    number: Annotated[int, msgspec.Meta(ge=1), Field(ge=1)]
    """The number of this replay of the dead letter, counted from 1."""
    execution_id: str | None = None
    """The id of the execution that the replay requests. Absent: an old version stored this."""
    input: dict[str, Json] | None = None
    """Keys that override the original input."""
    failed_only: bool = False
    """True: the steps that completed in the failed execution are not run again."""
    by: Actor | None = None
    """The identity that requested the replay."""
    reason: str | None = None
    """The reason that the caller gave."""
    request: str | None = None
    """The caller's id of the request; repeating the request adds no second replay."""
    ledger: Sequence | None = None
    """The last sequence of the job's ledger at the time of the request.

    The definition in force there is used, however late and often the replay is handled. Absent: no registered job is
    affected.
    """


class Resolved(DeadLetterFact, frozen=True, kw_only=True):
    """A dead letter needs no more work.

    The DAG advancer stores this when a replay completes, and the API on request.
    """

    type: Literal["resolved"] = constant("resolved")
    execution_id: str | None = None
    """The replay that completed."""
    by: Actor | None = None
    """The identity that resolved the dead letter."""
    reason: str | None = None
    """The reason that the caller gave."""
