"""The events that the matcher follows: tasks, claims, and their ends.

Of most events the subject says enough, so that only tasks and claims are decoded, and only in part.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Final

import msgspec
from pydantic import ValidationError

from ... import subjects
from ...domain.events import Message, Recorded, TaskLimit
from ...domain.open_task import LimitGroup, OpenTask, RateGroup
from ...domain.task_board import NO_AGENT, TaskBoard
from ...domain.task_fetch import FetchedClaim
from ...domain.token_bucket import TokenBucket
from ...subjects import DecodeError
from .claims import STEP_ENDS, agent_of, learn_end
from .fetches import Fetches
from .http_workers import HttpWorkers

TASK_KINDS: Final = frozenset({"dispatched", "admitted"})
FETCH_FILTERS: Final = (
    *subjects.ALL_TASKS,
    subjects.filter_for("execution.started"),
)
"""Filters over tasks and claims, which decide what a fetch receives."""
FILTERS: Final = (
    *FETCH_FILTERS,
    *subjects.COMPLETIONS,
    *(subjects.filter_for(f"execution.{event}") for event in (*STEP_ENDS, "failed", "cancelled")),
)
"""Filters over everything that the matcher follows in the log."""


class _Limit(TaskLimit, frozen=True, kw_only=True, forbid_unknown_fields=False): ...


class _Rate(msgspec.Struct):
    key: str
    limit: Annotated[int, msgspec.Meta(ge=1)]
    per: Annotated[float, msgspec.Meta(gt=0)]
    burst: Annotated[int, msgspec.Meta(ge=1)]


class _Head(msgspec.Struct):
    job: str
    function: str
    priority: int = 0
    concurrency: _Limit | None = None
    rate: _Rate | None = None
    resource: str | None = None
    shard: str | None = None
    deaths: int = 0
    runs_alone: bool = False


class _Claim(msgspec.Struct):
    agent: str | None = None
    fetch: str | None = None
    holder: str | None = None
    worker: str = ""
    epoch: int | None = None


_HEADS: Final = msgspec.json.Decoder(_Head)
_CLAIMS: Final = msgspec.json.Decoder(_Claim)


class Unread(Message):
    """A message whose body is not decoded yet."""

    __slots__ = ("body",)

    def __init__(self, body: bytes) -> None:
        self.body = body


def unread(_: str, body: bytes) -> Unread:
    """Implement `ports.Decode`."""
    return Unread(body)


def read(recorded: Recorded[Message]) -> Recorded[Message]:
    """Decode an event.

    Raises:
        DecodeError: this version cannot decode it.
    """
    assert isinstance(recorded.message, Unread)  # noqa: S101 - the type of what the matcher follows
    message = subjects.decode(recorded.subject, recorded.message.body)
    return Recorded(message, recorded.subject, recorded.sequence, recorded.time)


class FollowedTasks:
    """Applies events to the board, and the claims of fetches to the fetches."""

    def __init__(self, board: TaskBoard, fetches: Fetches, workers: HttpWorkers, serves: Callable[[str], bool]) -> None:
        """`serves` says whether the matcher has the tasks of a queue."""
        self._board = board
        self._fetches = fetches
        self._workers = workers
        self._serves = serves

    def learn(self, recorded: Recorded[Message]) -> None:
        """Apply an event; those that say nothing about tasks change nothing.

        Raises:
            DecodeError: the body has not the fields of its event.
        """
        assert isinstance(recorded.message, Unread)  # noqa: S101 - as for `read`
        body = recorded.message.body
        _, job, execution_id, kind, *rest = recorded.subject.split(".")
        scope = f"execution.{job}.{execution_id}.>"
        self._board.see(scope, recorded.sequence)
        try:
            if kind in TASK_KINDS and rest:
                self._dispatch(scope, rest, recorded, body)
            elif kind == "started":
                self._claim(scope, rest, recorded.sequence, body)
            else:
                learn_end(self._board, scope, kind, rest, recorded.sequence, body)
        except (msgspec.MsgspecError, ValidationError, IndexError, ValueError) as error:
            raise DecodeError(f"{recorded.subject}: {error}") from error

    def _claim(self, scope: str, rest: Sequence[str], sequence: int, body: bytes) -> None:
        step, attempt, delivery = rest
        known = self._board.claim_of(scope, step)
        if known is not None and known.sequence == sequence and known.agent != NO_AGENT:
            return
        claim = _CLAIMS.decode(body)
        agent = agent_of(claim.worker, claim.agent)
        self._board.claim(
            scope, step, int(attempt), delivery=int(delivery), sequence=sequence, agent=agent, epoch=claim.epoch
        )
        if claim.holder is not None:
            self._workers.note_claim(scope, sequence, claim.holder, claim.worker)
        if claim.fetch is not None:
            self._fetches.learn(claim.fetch, FetchedClaim(scope=scope, step=step, sequence=sequence))

    def _dispatch(self, scope: str, rest: Sequence[str], recorded: Recorded[Message], body: bytes) -> None:
        step, attempt, *token = rest
        queue = subjects.name(token[0]) if token else subjects.DEFAULT_QUEUE
        if not self._serves(queue):
            return
        head = _HEADS.decode(body)
        limit, rate = head.concurrency, head.rate
        self._board.dispatch(
            OpenTask(
                scope=scope,
                step=step,
                attempt=int(attempt),
                sequence=recorded.sequence,
                subject=recorded.subject,
                job=head.job,
                queue=queue,
                function=head.function,
                time=recorded.time,
                body=body,
                priority=head.priority,
                group=None if limit is None else LimitGroup(head.job, limit.key, limit.value),
                limit=0 if limit is None else limit.limit,
                rate=None if rate is None else RateGroup(rate.key, TokenBucket(rate.limit, rate.per, rate.burst)),
                resource=head.resource,
                shard=head.shard,
                deaths=head.deaths,
                runs_alone=head.runs_alone,
            )
        )
