"""Answers to fetches: tasks for workers over HTTP, under visibility leases.

The claim names its fetch. So a fetch that arrives again, also at the next leader, receives the same tasks. If an answer is
lost and the fetch does not arrive again, its leases end like those of a lost worker.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from ... import telemetry
from ...domain import execution
from ...domain.events import Dispatched, Started
from ...domain.open_task import OpenTask
from ...domain.task_board import TaskBoard
from ...domain.task_fetch import Answer, AnswerState, Fetch, FetchedClaim, ojs_field
from ...ports import Clock, EventLog, FetchChannel
from ...subjects import Stream
from . import followed_tasks
from .claims import Claims, Releases, StoredClaim, claim_of
from .fetches import Fetches, WaitingFetch
from .http_workers import HttpWorkers

_log = telemetry.get_logger("tocsin.matcher")

AT_ONCE: Final = 256
"""From this number of tasks on, no more are added to a write."""
MAX_TRIES: Final = 5
"""How often a fetch is tried again at once, after other writers changed all its tasks."""


class FetchServer:
    """Gives tasks to fetches."""

    def __init__(
        self,
        log: EventLog,
        channel: FetchChannel,
        fetches: Fetches,
        workers: HttpWorkers,
        board: TaskBoard,
        claims: Claims,
        releases: Releases,
        clock: Clock,
    ) -> None:
        self._log = log
        self._channel = channel
        self._fetches = fetches
        self._workers = workers
        self._board = board
        self._claims = claims
        self._releases = releases
        self._clock = clock

    async def serve(self, upto: int, room: Mapping[str, int]) -> bool:
        """Answer fetches by the events up to a sequence; return whether to repeat.

        `room` is the number of tasks that may be taken from a queue, if that is limited.

        Raises:
            LogUnavailable: the log did not answer, or there is no connection.
        """
        for refused in self._fetches.read(self._workers.hear):
            await self._answer(refused, "refused")
        if not len(self._fetches):
            return False
        await self._await_board(upto)
        ready = await self._ready(upto)
        chosen: list[tuple[OpenTask, WaitingFetch]] = []
        looked_at: list[WaitingFetch] = []
        for waiting in ready:
            if len(chosen) >= AT_ONCE:
                break
            looked_at.append(waiting)
            fetch = waiting.fetch
            if not self._workers.may_take_tasks(fetch):
                continue
            tasks = self._board.choose(fetch.queues, fetch.may_run, limit=fetch.count, room=room)
            chosen += [(task, waiting) for task in tasks]
        claims = await self._store(chosen)
        is_retried = await self._answer_each(looked_at, claims, chosen, upto)
        return is_retried or len(looked_at) < len(ready)

    async def _await_board(self, upto: int) -> None:
        """Find out for which fetches the board has everything that was stored before they arrived."""
        late = [waiting for waiting in self._fetches if not waiting.is_current]
        if not late:
            return
        is_current = not await self._log.has_newer(*followed_tasks.FETCH_FILTERS, after=upto)
        if not is_current and any(waiting.log_end is None for waiting in late):
            end = await self._log.end(Stream.LOG)
            for waiting in late:
                waiting.log_end = end if waiting.log_end is None else waiting.log_end
        for waiting in late:
            waiting.is_current = is_current or (waiting.log_end is not None and upto >= waiting.log_end)

    async def _ready(self, upto: int) -> list[WaitingFetch]:
        """Return the fetches that may be answered; answer those that have an answer already."""
        ready: list[WaitingFetch] = []
        for waiting in self._fetches:
            if not waiting.is_current:
                continue
            if (known := self._fetches.answer_to(waiting.fetch)) is not None:
                await self._answer_proven(waiting, known, upto)
            else:
                ready.append(waiting)
        return ready

    async def _store(self, chosen: Sequence[tuple[OpenTask, WaitingFetch]]) -> list[StoredClaim]:
        """Claim reserved tasks; those that are not claimed are open again."""
        wanted: list[tuple[OpenTask, Started]] = []
        try:
            for task, waiting in chosen:
                message = None if task.message is None else task.message.task
                if message is not None and not await self._has_expired(task, message):
                    fetch = waiting.fetch
                    lease, holder = fetch.lease.of(message), fetch.identity
                    claim = claim_of(task, fetch.worker, lease=lease, holder=holder, fetch=fetch.id)
                    wanted.append((task, claim))
            return await self._claims.store(wanted)
        finally:
            for task, _ in reversed(chosen):
                self._board.put_back(task)

    async def _has_expired(self, task: OpenTask, message: Dispatched) -> bool:
        """Withdraw a task whose execution has expired (ojs-core, `expires_at`); the lease keeper ends it."""
        if ojs_field(message, "expires_at") is None:
            return False
        state = execution.fold(await self._log.load(task.scope))
        expires_at = state.requested.plan.expires_at if state.requested is not None else None
        if expires_at is None or self._clock.now() < expires_at:
            return False
        if execution.expiry(state) is not None:
            self._board.withdraw(task)
        return True

    async def _answer_each(
        self,
        looked_at: Sequence[WaitingFetch],
        claims: Sequence[StoredClaim],
        chosen: Sequence[tuple[OpenTask, WaitingFetch]],
        upto: int,
    ) -> bool:
        """Answer fetches that have tasks or no time; return whether to repeat."""
        for stored in claims:
            task = stored.claim.task
            claim = FetchedClaim(scope=task.scope, step=task.step, sequence=stored.claim.sequence)
            self._fetches.learn(stored.started.fetch or "", claim)
        now = self._clock.monotonic()
        missed = {waiting.fetch.id for _, waiting in chosen}
        shrunk = {waiting.fetch.id for task, waiting in chosen if not self._board.is_open(task)}
        is_retried = False
        for waiting in looked_at:
            if (known := self._fetches.answer_to(waiting.fetch)) is not None:
                await self._answer_proven(waiting, known, upto)
            elif waiting.fetch.id in missed and waiting.tries < MAX_TRIES:
                # Other writers changed the executions of its tasks. There may be other tasks.
                waiting.tries += waiting.fetch.id not in shrunk
                is_retried = True
            elif now >= waiting.until:
                await self._end(waiting, ())
        for waiting in self._fetches:
            if not waiting.is_reported and now < waiting.until:
                await self._answer(waiting.fetch, "waiting")
                waiting.is_reported = True
        return is_retried

    async def _answer_proven(self, waiting: WaitingFetch, claims: tuple[FetchedClaim, ...], upto: int) -> None:
        """Answer a fetch with its claims, once the fold proves that none is void.

        Another leader may have claimed up to the limit, or given a shard its first owner. Then they are released, as for agents.
        """
        permitted: list[FetchedClaim] = []
        for claim in claims:
            known = self._board.claim_of(claim.scope, claim.step)
            if known is not None and known.sequence == claim.sequence and self._board.is_contested(known.task):
                if claim.sequence > upto:
                    return
                if self._board.is_beyond_limit(known) or self._claims.owners.is_outdated(known):
                    await self._releases.release(known, "handed_back")
            if (claim.scope, claim.sequence) not in self._releases.requested:
                permitted.append(claim)
        await self._end(waiting, tuple(permitted))

    async def _end(self, waiting: WaitingFetch, claims: tuple[FetchedClaim, ...]) -> None:
        await self._answer(waiting.fetch, "served", claims)
        self._fetches.end(waiting)

    async def _answer(self, fetch: Fetch, state: AnswerState, claims: tuple[FetchedClaim, ...] = ()) -> None:
        answer = Answer(id=fetch.id, state=state, claims=claims)
        await self._channel.answer(fetch.gateway, answer.encode())
