"""Fetch tasks of matched queues for workers over HTTP, which hold them under leases.

The matcher assigns the tasks and stores their claims (`stages.matcher.fetch_server`). A fetch is sent again until it is
answered, since each message may be lost; the matcher recognizes it by its id. A fetch whose caller has left, or that failed,
is withdrawn until the matcher answers which tasks it received, and these are handed back.
"""

import asyncio
import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar

from pydantic import ValidationError

from ... import subjects, telemetry
from ...domain import execution, ids, task_fetch
from ...domain.events import Dispatched, Message, Recorded, Started, newest_of, unfold
from ...domain.execution import Execution, Phase
from ...domain.task_fetch import Answer, Fetch, FetchedClaim, Lease
from ...ports import Clock, EventLog, FetchChannel, LogUnavailable, OutdatedState
from . import event_waiter
from .errors import FetchTooLarge, MatcherUnavailable, OperationError, TooManyFetches
from .lookup import ExecutionMatch

Facts: TypeAlias = tuple[Recorded[Message], ...]
F = TypeVar("F", Dispatched, Started)


@dataclass(frozen=True, slots=True)
class Holder:
    """The caller that fetches a task or answers for it.

    An answer may leave out the worker's id, as clients of the Open Job Spec do, but not the identity.
    """

    identity: str
    worker: str = ""
    """The id of the worker; empty: the caller named none."""
    may_run: Callable[[str, str], bool] = lambda _queue, _function: True
    """Whether the caller may have the tasks of a queue and a function."""


@dataclass(frozen=True, slots=True)
class Held:
    """A step that a worker holds under a lease."""

    found: ExecutionMatch
    state: Execution
    task: Recorded[Dispatched]
    claim: Recorded[Started]


async def hand_back(log: EventLog, held: Held) -> None:
    """Release a claim, so that another worker can take the same attempt.

    Raises:
        SequenceConflict: another writer changed the execution; read it again.
    """
    for fact in execution.release(held.state, held.claim.message.step, reason="handed_back"):
        await log.append(fact, expect=held.found.facts[-1].sequence)


def held_of(
    found: ExecutionMatch,
    *,
    step: str | None = None,
    claim: int | None = None,
    holder: Holder | None = None,
    exactly: bool = False,
) -> Held | None:
    """Return the held step; None unless exactly one step matches.

    With `claim`, the sequence of a claim, the step matches only while that claim is its newest. With `exactly`, `holder`
    must also name its worker if the fetch named one.

    Raises:
        OperationError: a holder other than `holder` has it, or a worker of the SDK.
    """
    state = execution.fold(found.facts)
    if state.is_over:
        return None
    running = [
        name for name, step_state in state.steps.items() if step_state.phase is Phase.STARTED and step in {None, name}
    ]
    if len(running) != 1:
        return None
    task = _newest(found.facts, Dispatched, running[0])
    newest = _newest(found.facts, Started, running[0])
    if task is None or newest is None or claim not in {None, newest.sequence}:
        return None
    if newest.message.lease is None or newest.message.agent is not None:
        raise OperationError(f"job {found.execution_id} is held by a worker of Tocsin's own", code="held-by-own-worker")
    if holder is not None:
        _require(holder, newest.message, exactly=exactly)
    return Held(found, state, task, newest)


def _require(holder: Holder, claim: Started, *, exactly: bool) -> None:
    job = f"job {claim.execution_id}"
    if holder.identity != claim.holder:
        raise OperationError(
            f"{job} is held by another identity. Answer with the token that fetched it", code="held-by-other"
        )
    if holder.worker == claim.worker or not (holder.worker or exactly):
        return
    owner = f"another worker, {claim.worker!r}" if claim.worker else "a worker that named no `worker_id`"
    raise OperationError(f"{job} is held by {owner}. Send the `worker_id` of its fetch", code="held-by-other")


def _newest(facts: Facts, kind: type[F], step: str) -> Recorded[F] | None:
    return newest_of([fact for fact in unfold(facts) if getattr(fact.message, "step", None) == step], kind)


REPEAT_S: Final = 1.0
"""Time without an answer after which a fetch is sent again."""
PATIENCE_S: Final = 4.0
"""Time after which a fetch fails if no matcher answers."""
MAX_ENDED: Final = 10_000
"""The number of fetches of which late answers are recognized."""
WITHDRAWAL_S: Final = 300.0
"""How long a fetch is withdrawn while no matcher answers."""
MAX_WORK: Final = 1_000
"""The number of fetches that are withdrawn, and of tasks that are handed back, at a time; the leases of others end by themselves."""
GRACE_S: Final = 1.0
"""Time for this at the end of the process."""
MAX_TRIES: Final = 5


async def held_by(log: EventLog, claims: Sequence[FetchedClaim], *, holder: Holder) -> list[Held]:
    """Return what the worker of some claims holds, in their order.

    Raises:
        Exception: the first failure, if nothing is held.
    """
    known = await _known(log, claims)
    results = await asyncio.gather(
        *(_read(log, claim, known.get(claim.scope, ()), holder) for claim in claims), return_exceptions=True
    )
    held = [result for result in results if isinstance(result, Held)]
    failures = [result for result in results if isinstance(result, BaseException)]
    if failures and not held:
        raise failures[0]
    for failure in failures:  # these tasks are dispatched again when their leases end
        _log.warning("claim unknown; the task is delivered again", action="claim-unknown", error=repr(failure))
    return held


async def _read(log: EventLog, claim: FetchedClaim, facts: Sequence[Recorded[Message]], holder: Holder) -> Held | None:
    """Return the step as its worker holds it; None: the claim is over.

    `facts` are the events of the execution, if known.
    """

    def has_claim(known: Sequence[Recorded[Message]]) -> bool:
        return bool(known) and known[-1].sequence >= claim.sequence

    if not has_claim(facts):  # a lagging replica answered, or the read failed
        facts = await event_waiter.until(log, claim.scope, has_claim)
    _, job, execution_id, _ = claim.scope.split(".")
    found = ExecutionMatch(subjects.name(job), execution_id, tuple(facts))
    return held_of(found, step=claim.step, claim=claim.sequence, holder=holder)


async def _known(log: EventLog, claims: Sequence[FetchedClaim]) -> dict[str, Sequence[Recorded[Message]]]:
    """Read the facts of all claims at once; none if a fact is unreadable."""
    scopes = tuple(dict.fromkeys(claim.scope for claim in claims))  # several claims may be steps of one execution
    if not scopes:
        return {}
    try:
        return dict(zip(scopes, (await log.load_each(*scopes)).facts, strict=True))
    except subjects.DecodeError:  # perhaps of a newer version: read each scope on its own
        return {}


_log = telemetry.get_logger("tocsin.operations")


@dataclass(slots=True)
class _Pending:
    """A fetch without an answer."""

    holder: Holder
    answer: Answer | None = None
    is_heard: bool = False
    """A matcher knows it, and lets it wait."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class TaskFetches:
    """The fetches of one process of the API."""

    def __init__(
        self,
        log: EventLog,
        channel: FetchChannel,
        clock: Clock,
        noise: Callable[[], str] = lambda: os.urandom(16).hex(),
    ) -> None:
        """Fetches are answered within the block `running`. `noise` makes their ids unique."""
        self._log = log
        self._channel = channel
        self._clock = clock
        self._noise = noise
        self._gateway = self._fresh_id()
        self._pending: dict[str, _Pending] = {}
        self._ended: OrderedDict[str, tuple[Holder, frozenset[int]]] = OrderedDict()
        self._withdrawn: dict[str, asyncio.Event] = {}
        self._work: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> "AsyncIterator[TaskFetches]":
        """Hear answers within the block."""
        async with self._channel.answers(self._gateway, self._receive), self._channel.calls(self._repeat):
            try:
                yield self
            finally:
                await self._finish()

    async def _finish(self) -> None:
        if self._work:
            await asyncio.wait(self._work, timeout=GRACE_S)
        for task in tuple(self._work):
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)

    async def take(
        self,
        queues: Sequence[str],
        *,
        functions: Sequence[str],
        limit: int,
        holder: Holder,
        lease: Lease,
        wait: float = 0.0,
    ) -> list[Held]:
        """Claim up to `limit` tasks, from the first queue first; `functions` are patterns.

        Waits up to `wait` seconds for the first task.

        Raises:
            FetchTooLarge: the names of queues and functions are too many or too long.
            MatcherUnavailable: no matcher answers.
            TooManyFetches: the matcher lets no more fetches wait.
            LogUnavailable: there is no connection, or the log did not answer.
        """
        fetch = self._fetch(queues, functions, limit, holder, lease)
        pending = self._pending[fetch.id] = _Pending(holder)
        try:
            claims = await self._answered(fetch, pending, wait)
            held = await held_by(self._log, claims, holder=holder)
        except BaseException:  # also if the caller has left, perhaps after the answer came and before it was read
            if pending.answer is not None:
                self._return_each(holder, pending.answer.claims)
            raise
        finally:
            del self._pending[fetch.id]
            if pending.answer is None:
                self._end(fetch.id, holder)
                self._spawn(self._withdraw(fetch))
        return held

    def hand_back(self, holder: Holder, claims: Sequence[Held]) -> None:
        """Hand back tasks that the caller will not receive, without waiting for it."""
        for each in claims:
            scope, step = subjects.scope_of(each.task.message), each.claim.message.step
            self._return_each(holder, [FetchedClaim(scope=scope, step=step, sequence=each.claim.sequence)])

    def _fetch(
        self, queues: Sequence[str], functions: Sequence[str], limit: int, holder: Holder, lease: Lease
    ) -> Fetch:
        try:
            fetch = Fetch(
                id=self._fresh_id(),
                gateway=self._gateway,
                queues=tuple(queues),
                functions=tuple(functions),
                count=limit,
                identity=holder.identity,
                worker=holder.worker,
                usual_lease=lease.usual,
                asked_lease=lease.asked,
            )
        except ValidationError as error:
            raise FetchTooLarge(
                "the queues, the functions of the token, or its identity are too many or too long"
            ) from error
        if len(fetch.encode()) > task_fetch.MAX_BYTES:
            raise FetchTooLarge(f"the names of queues and functions have more than {task_fetch.MAX_BYTES:,} bytes")
        return fetch

    async def _answered(self, fetch: Fetch, pending: _Pending, wait: float) -> tuple[FetchedClaim, ...]:
        deadline = self._clock.monotonic() + wait
        silent_since: float | None = None
        while True:
            left = max(0.0, deadline - self._clock.monotonic())
            pending.is_heard = False
            pending.changed.clear()
            await self._channel.request(fetch.model_copy(update={"wait": left}).encode())
            sent_at = self._clock.monotonic()
            await self._within(REPEAT_S, pending.changed)
            if pending.is_heard and pending.answer is None:
                silent_since = None
                pending.changed.clear()
                await self._within(deadline - self._clock.monotonic(), pending.changed)
            if (answer := pending.answer) is not None:
                if answer.state == "refused":
                    raise TooManyFetches("too many fetches wait for tasks already. Fetch less often, or later")
                return answer.claims
            if pending.is_heard:
                continue
            silent_since = sent_at if silent_since is None else silent_since
            if self._clock.monotonic() - silent_since >= PATIENCE_S:
                raise MatcherUnavailable("no matcher answers. Check that a process runs the stage `matcher`, and retry")

    async def _within(self, seconds: float, changed: asyncio.Event) -> None:
        if seconds <= 0 or changed.is_set():
            return
        news = asyncio.ensure_future(changed.wait())
        alarm = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait((news, alarm), return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
            alarm.cancel()

    def _receive(self, body: bytes) -> None:
        try:
            answer = Answer.model_validate_json(body)
        except ValidationError as error:
            _log.warning("answer not readable", action="answer-refused", errors=error.error_count())
            return
        pending = self._pending.get(answer.id)
        if pending is None or pending.answer is not None:
            self._receive_late(answer)
            return
        if answer.state == "waiting":
            pending.is_heard = True
        else:
            pending.answer = answer
            self._end(answer.id, pending.holder, answer.claims)
        pending.changed.set()

    def _receive_late(self, answer: Answer) -> None:
        """Hand back tasks of an answer that came after the end of its fetch."""
        if answer.state != "served":
            return
        if (withdrawn := self._withdrawn.get(answer.id)) is not None:
            withdrawn.set()
        if (ended := self._ended.get(answer.id)) is not None:
            holder, known = ended
            self._return_each(holder, (claim for claim in answer.claims if claim.sequence not in known))
            self._end(answer.id, holder, answer.claims)

    def _repeat(self) -> None:
        """Send every fetch again, because another matcher leads."""
        for pending in self._pending.values():
            pending.changed.set()

    def _end(self, fetch_id: str, holder: Holder, claims: Sequence[FetchedClaim] = ()) -> None:
        _, known = self._ended.get(fetch_id, (holder, frozenset[int]()))
        self._ended[fetch_id] = holder, known.union(claim.sequence for claim in claims)
        while len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)

    async def _withdraw(self, fetch: Fetch) -> None:
        """Tell the matcher that the caller has left, until it answers.

        `_receive_late` hands the tasks in its answer back.
        """
        answered = self._withdrawn[fetch.id] = asyncio.Event()
        body = fetch.model_copy(update={"count": 0}).encode()
        until = self._clock.monotonic() + WITHDRAWAL_S
        try:
            while not answered.is_set() and self._clock.monotonic() < until:
                with suppress(LogUnavailable):
                    await self._channel.request(body)
                await self._within(REPEAT_S, answered)
        finally:
            del self._withdrawn[fetch.id]

    def _return_each(self, holder: Holder, claims: Iterable[FetchedClaim]) -> None:
        for claim in claims:
            self._spawn(self._return(holder, claim))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        if len(self._work) >= MAX_WORK:
            work.close()
            return
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _return(self, holder: Holder, claim: FetchedClaim) -> None:
        """Hand a task back that no worker received. If this fails, its lease ends."""
        try:
            for _ in range(MAX_TRIES):
                for held in (tasks := await held_by(self._log, [claim], holder=holder)):
                    with suppress(OutdatedState):
                        await hand_back(self._log, held)
                        return
                if not tasks:
                    return
        except (LogUnavailable, OperationError) as error:
            _log.warning("task not handed back; its lease ends", action="not-handed-back", error=repr(error))

    def _fresh_id(self) -> str:
        return ids.agent_id("fetch", self._clock.now(), self._noise())
