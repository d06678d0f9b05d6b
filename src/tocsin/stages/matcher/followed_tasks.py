"""The events that the matcher follows: tasks, claims, and their ends.

Of most events the subject says enough, so that only tasks and claims are decoded, and only in part.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from ... import subjects
from ...domain.events import Message, Recorded
from ...domain.open_task import LimitGroup, OpenTask
from ...domain.task_board import TaskBoard
from ...subjects import DecodeError

TASK_KINDS: Final = frozenset({"dispatched", "admitted"})
STEP_ENDS: Final = ("released", "retry-scheduled", "advanced", "exhausted")
"""Events of a step after which its task needs no worker, or is dispatched again."""
ENDINGS: Final = ("failed", "cancelled")
"""Ends that may come before a report on the task. A completed execution has no open task, and a report ended its claims."""


class _Limit(msgspec.Struct):
    limit: int
    key: str | None = None
    value: str | None = None


class _Head(msgspec.Struct):
    job: str
    function: str
    priority: int = 0
    concurrency: _Limit | None = None


class _Claim(msgspec.Struct):
    agent: str | None = None


class _Release(msgspec.Struct):
    delivery: int


class _Loss(msgspec.Struct):
    step: str | None = None


class _Recovery(msgspec.Struct):
    lost: tuple[_Loss, ...] = ()


_HEADS: Final = msgspec.json.Decoder(_Head)
_CLAIMS: Final = msgspec.json.Decoder(_Claim)
_RELEASES: Final = msgspec.json.Decoder(_Release)
_RECOVERIES: Final = msgspec.json.Decoder(_Recovery)


class Unread(Message):
    """A message whose body is not decoded yet."""

    body: bytes


def unread(_: str, body: bytes) -> Unread:
    """Implement `ports.Decode`."""
    return Unread.trusted(body=body)


def filters(queues: Iterable[str]) -> tuple[str, ...]:
    """Return filters over tasks of queues, and over claims and ends."""
    tasks = (pattern for queue in queues for pattern in subjects.tasks(queue))
    types = ("started", "recovered", *STEP_ENDS, *ENDINGS)
    return (*tasks, *(subjects.filter_for(f"execution.{event}") for event in types))


def learn(board: TaskBoard, recorded: Recorded[Message]) -> None:
    """Apply an event to the board.

    Raises:
        DecodeError: the body has not the fields of its event.
    """
    assert isinstance(recorded.message, Unread)  # noqa: S101 - `unread` decoded it
    body = recorded.message.body
    _, job, execution_id, kind, *rest = recorded.subject.split(".")
    scope = f"execution.{job}.{execution_id}.>"
    try:
        if kind in TASK_KINDS:
            board.dispatch(_task(scope, rest, recorded, body))
        elif kind == "started":
            if not board.knows_claim(scope, rest[0], recorded.sequence):
                agent_id = _CLAIMS.decode(body).agent
                delivery = int(rest[2])
                board.claim(
                    scope, rest[0], int(rest[1]), delivery=delivery, sequence=recorded.sequence, agent_id=agent_id
                )
        elif kind in ENDINGS:
            board.end_execution(scope)
        elif kind == "recovered":
            for loss in _RECOVERIES.decode(body).lost:
                if loss.step is not None:
                    board.end_step(scope, loss.step, sequence=recorded.sequence)
        elif kind == "released":
            board.release(
                scope, rest[0], int(rest[1]), delivery=_RELEASES.decode(body).delivery, sequence=recorded.sequence
            )
        else:
            board.end_step(scope, rest[0], sequence=recorded.sequence)
    except (msgspec.MsgspecError, IndexError, ValueError) as error:
        raise DecodeError(f"{recorded.subject}: {error}") from error


def note_report(board: TaskBoard, subject: str) -> None:
    """Note that a report is stored."""
    _, job, execution_id, outcome, step, attempt, delivery, *_ = subject.split(".")
    if attempt.isdecimal():
        delivery_count = int(delivery) if outcome != "completed" and delivery.isdecimal() else None
        board.answer(f"execution.{job}.{execution_id}.>", step, int(attempt), delivery=delivery_count)


def _task(scope: str, rest: list[str], recorded: Recorded[Message], body: bytes) -> OpenTask:
    head = _HEADS.decode(body)
    step, attempt, *queue = rest
    limit = head.concurrency
    return OpenTask(
        scope=scope,
        step=step,
        attempt=int(attempt),
        sequence=recorded.sequence,
        subject=recorded.subject,
        job=head.job,
        queue=subjects.name(queue[0]) if queue else subjects.DEFAULT_QUEUE,
        function=head.function,
        time=recorded.time,
        body=body,
        priority=head.priority,
        group=None if limit is None else LimitGroup(head.job, limit.key, limit.value),
        limit=0 if limit is None else limit.limit,
    )
