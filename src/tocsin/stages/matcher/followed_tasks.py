"""The events that the matcher follows: tasks, claims, and their ends."""

from collections.abc import Callable, Collection
from typing import Final

from ... import subjects
from ...domain.events import Dispatched, Message, Recorded, Started
from ...domain.open_task import LimitGroup, OpenTask, RateGroup
from ...domain.task_board import NO_AGENT, TaskBoard
from ...domain.task_fetch import FetchedClaim
from ...domain.token_bucket import TokenBucket
from .claims import learn_claim, learn_end
from .fetches import Fetches
from .http_workers import HttpWorkers

FETCH_FILTERS: Final = (
    *subjects.ALL_TASKS,
    subjects.filter_for("execution.started"),
)
"""Filters over tasks and claims, which decide what a fetch receives."""
FILTERS: Final = (
    *FETCH_FILTERS,
    *subjects.COMPLETIONS,
    *(
        subjects.filter_for(f"execution.{event}")
        for event in ("released", "retry-scheduled", "advanced", "exhausted", "failed", "cancelled")
    ),
)
"""Filters over everything that the matcher follows in the log."""


class FollowedTasks:
    """Applies events to the board, and the claims of fetches to the fetches."""

    def __init__(self, board: TaskBoard, fetches: Fetches, workers: HttpWorkers, serves: Callable[[str], bool]) -> None:
        """`serves` says whether the matcher has the tasks of a queue."""
        self._board = board
        self._fetches = fetches
        self._workers = workers
        self._serves = serves
        self._fetched: list[tuple[str, FetchedClaim]] = []
        """The claims of fetches, each with its fetch, that may be undone: no answer names them yet."""

    def learn(self, recorded: Recorded[Message]) -> None:
        """Apply an event; those that say nothing about tasks change nothing."""
        fact, sequence = recorded.message, recorded.sequence
        _, job, execution_id, _ = recorded.subject.split(".", 3)
        scope = f"execution.{job}.{execution_id}.>"
        self._board.see(scope, sequence)
        if isinstance(fact, Dispatched):
            self._dispatch(scope, fact, recorded)
        elif isinstance(fact, Started):
            self._claim(scope, fact, sequence)
        else:
            learn_end(self._board, scope, fact, sequence)

    def _claim(self, scope: str, fact: Started, sequence: int) -> None:
        known = self._board.claim_of(scope, fact.step)
        if known is not None and known.sequence == sequence and known.agent != NO_AGENT:
            return
        learn_claim(self._board, scope, fact, sequence)
        if fact.holder is not None:
            self._workers.note_claim(scope, sequence, fact.holder, fact.worker)
        if fact.fetch is not None:
            self._fetched.append((fact.fetch, FetchedClaim(scope=scope, step=fact.step, sequence=sequence)))

    def settle(self, upto: int, undone: Collection[str] = ()) -> None:
        """Answer fetches with the claims up to a number, which are stored; forget undone scopes."""
        fetched, self._fetched = self._fetched, []
        for fetch, claim in fetched:
            if claim.scope in undone:
                continue
            if claim.sequence <= upto:
                self._fetches.learn(fetch, claim)
            else:
                self._fetched.append((fetch, claim))

    def _dispatch(self, scope: str, fact: Dispatched, recorded: Recorded[Message]) -> None:
        if not self._serves(fact.queue):
            return
        limit, rate = fact.concurrency, fact.rate
        self._board.dispatch(
            OpenTask(
                scope=scope,
                step=fact.step,
                attempt=fact.attempt,
                sequence=recorded.sequence,
                subject=recorded.subject,
                job=fact.job,
                queue=fact.queue,
                function=fact.function,
                time=recorded.time,
                message=fact,
                priority=fact.priority,
                group=None if limit is None else LimitGroup(fact.job, limit.key, limit.value),
                limit=0 if limit is None else limit.limit,
                rate=None if rate is None else RateGroup(rate.key, TokenBucket(rate.limit, rate.per, rate.burst)),
                resource=fact.resource,
                shard=fact.shard,
                deaths=fact.deaths,
                runs_alone=fact.runs_alone,
            )
        )
