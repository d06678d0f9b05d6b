"""Open executions: when to examine each, and the proof that a stalled one is lost.

They are followed by headings only; an ordinary execution costs two headings. Claims are not followed, so each open execution is looked at
again and again. Its events are read only if there are new events, or if something is due: one request finds the new events of
many executions, and of tasks that wait for a worker there are none. Each is read whole once an hour nevertheless. Its events may be gone
without an end, and a server that lost its newest messages may store others at sequences that were read. A cursor in the KV bucket `cursors` holds the
place of the first event of the oldest open execution, so that a restart reads from there. If the cursor is lost, a restart
reads all headings from the beginning of the log.

Each durable is compared with the sequence of a message of its own stream: sequences of two streams say nothing about each
other. A stage of another stream is past a message if it is past the input that led to the message.

A message that waits is not lost. It may wait for a stage that is down, or for the lock; a task may wait for a worker for any
time. A message is lost if its durable has passed it and no event followed. A durable that does
not exist proves nothing: when it is created, it begins at the first undecided message.

The proof is conservative. If a proof were ever wrong, the task that is dispatched again replaces the first task, whose claim is then refused
(`execution.claim`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from ... import subjects, telemetry
from ...domain import execution, lock, recovery
from ...domain.events import Report, RetryTimer
from ...domain.execution import Execution
from ...domain.lock import Lock
from ...domain.recovery import Overdue, Stalled
from ...engine.due_queue import DueQueue
from ...engine.report_authentication import reports_on
from ...engine.saved_place import SavedPlace
from ...ports import Clock, EventLog, Heading, LogUnavailable, Progress, Projections, SequenceConflict
from ...subjects import Bucket, Stream

CURSOR: Final = subjects.cursor(Stream.LOG, subjects.RECOVERER)
PAUSE_S: Final = 0.1
"""The time between two portions of headings until the log is read up to its end.

At a start, the matcher reads the same events in the same process, and no task starts before it has. Recovery can wait.
"""
MAX_PAUSED_S: Final = 30.0
"""After this time recovery waits for the matcher no longer, however long the log is."""
_log = telemetry.get_logger("tocsin.recoverer")


@dataclass(frozen=True, slots=True)
class Known:
    """Result of an examination, which holds until the next event or until a time.

    Attributes:
        upto: the sequence of the stream up to which its events were read.
        interval: as in `recovery.Findings`.
        until: when the execution is read whole again, also without an event.
    """

    upto: int
    interval: timedelta
    until: datetime


class OpenExecutions:
    """The scopes of all executions that began and have not ended."""

    def __init__(self, log: EventLog, projections: Projections, clock: Clock, *, first_look: timedelta) -> None:
        """`first_look`: how long after its beginning an execution is examined first."""
        self._log = log
        self._clock = clock
        self._place = SavedPlace(projections, clock, CURSOR)
        self._first_look = first_look
        self._since: dict[str, int] = {}  # in log order: the first entry is the oldest
        self._agenda = DueQueue()
        self._known: dict[str, Known] = {}
        self._upto = 0
        self.is_complete = False

    async def follow(self) -> None:
        """Follow beginnings and ends until cancelled."""
        pauses_until = self._clock.monotonic() + MAX_PAUSED_S
        filters = (*subjects.OPENINGS, *subjects.ENDINGS)
        async for batch in self._log.watch(Stream.LOG, *filters, after=(await self._place.load()).after):
            for heading in batch.headings:
                self.learn(heading)
            self._upto = batch.upto
            self.is_complete = self.is_complete or batch.caught_up
            if not self.is_complete and self._clock.monotonic() < pauses_until:
                await self._clock.sleep(PAUSE_S)

    def learn(self, heading: Heading) -> None:
        """Note that an execution began or ended."""
        scope = subjects.execution_scope(heading.subject)
        if subjects.is_ending(heading.subject):
            self.forget(scope)
        elif scope not in self._since:
            self._since[scope] = heading.sequence
            self._agenda.put(scope, heading.time + self._first_look)

    def take(self, now: datetime, limit: int) -> list[str]:
        """Take up to `limit` scopes that are due off the agenda, the oldest first."""
        return list(islice(self._agenda.take(now), limit))

    async def with_news(self, scopes: Sequence[str], now: datetime) -> list[str]:
        """Return scopes to read whole, and put the others back on the agenda."""
        after = {
            scope: known.upto for scope in scopes if (known := self._known.get(scope)) is not None and now < known.until
        }
        if not after:
            return list(scopes)
        try:
            loaded = await self._log.load_each(*after, after=after)
        except Exception:  # noqa: BLE001 - the read of whole executions shows which of them has the error
            return list(scopes)
        if not loaded.upto:
            return list(scopes)  # it found none of them, and its age is unknown
        unchanged = {scope for scope, news in zip(after, loaded.facts, strict=True) if not news}
        for scope in unchanged:
            if (known := self._known.get(scope)) is not None:  # it did not end meanwhile
                upto = max(known.upto, loaded.upto)
                self.note(scope, replace(known, upto=upto), now)
        return [scope for scope in scopes if scope not in unchanged]

    def note(self, scope: str, known: Known, now: datetime) -> None:
        """Note what is known of an execution since it was looked at `now`."""
        if scope in self._since:
            self._known[scope] = known
            self._agenda.put(scope, recovery.next_look(now, known.interval, known.until))

    def look_again(self, scope: str, at: datetime) -> None:
        """Read an execution again at `at`, unless it ended."""
        self._known.pop(scope, None)
        if scope in self._since:
            self._agenda.put(scope, at)

    def forget(self, scope: str) -> None:
        """Remove an execution that ended."""
        self._since.pop(scope, None)
        self._known.pop(scope, None)
        self._agenda.put(scope, None)

    def __contains__(self, scope: object) -> bool:
        """Return whether an execution is open."""
        return scope in self._since

    def __len__(self) -> int:
        """Return the number of open executions."""
        return len(self._since)

    async def save(self) -> None:
        """Store the place from which a restart reads, from time to time."""
        try:
            await self._place.save(lambda: (0, (), next(iter(self._since.values()), None)), self._upto)
        except (LogUnavailable, SequenceConflict) as error:
            _log.info("cursor not stored; retrying later", action="cursor-not-kept", error=str(error))


_STREAMS: Final = {
    subjects.RETRIER: Stream.REPORTS,
    subjects.DAG_ADVANCER_REPORTS: Stream.REPORTS,
    subjects.DAG_ADVANCER_TIMERS: Stream.TIMERS,
}
"""The stream of each durable; the others read the log."""


class Evidence:
    """The progress of the durables during one round of examinations.

    Each durable is read once, where that is enough.
    """

    def __init__(self, log: EventLog, projections: Projections, key: bytes) -> None:
        self._log = log
        self._projections = projections
        self._key = key
        self._known: dict[str, Progress | None] = {}
        self._locks: dict[str, tuple[Lock, int]] = {}
        """Locks, each with its last sequence: one queue may hold most of what is stalled."""

    async def is_lost(self, stalled: Stalled, state: Execution) -> bool:
        """Return whether a stalled message is lost."""
        match stalled.lost.what:
            case "planned":
                return await self._is_past_the_lock_keeper(stalled, state)
            case "dispatched":
                return False  # the matcher reads tasks from the log; older versions stored this loss
            case "retry-scheduled":
                return await self._has_no_delay(stalled, state)
            case "admitted":
                return await self._is_past_the_dag_advancer(stalled, state)

    async def was_handed_over(self, overdue: Overdue) -> bool:
        """Return whether the time limit of a task counts.

        It does not count while the task waits for an MQ bridge that is down.
        """
        return overdue.delivery is not None or await self._is_past(subjects.MQ_BRIDGE, overdue.task, missing=True)

    async def is_dealt_with(self, report: Report, sequence: int) -> bool:
        """Return whether the stage that decides on a report has handled it."""
        durable = subjects.RETRIER if report.outcome == "failed" else subjects.DAG_ADVANCER_REPORTS
        return await self._is_past(durable, sequence)

    async def _is_past_the_dag_advancer(self, stalled: Stalled, state: Execution) -> bool:
        """Return whether the DAG advancer has handled everything on which it could dispatch the step.

        That is the admission, in a workflow the last failure, and the reports on the steps before it.
        """
        if not await self._is_past(subjects.DAG_ADVANCER, stalled.sequence):
            return False
        planned = next((step for step in state.request.plan.steps if step.name == stalled.lost.step), None)
        before = () if planned is None else planned.depends_on
        successes = [subject for name in before for subject in self._reports_on(state, name, outcome="completed")]
        return await self._has_handled(subjects.DAG_ADVANCER_REPORTS, *successes)

    async def _is_past_the_lock_keeper(self, stalled: Stalled, state: Execution) -> bool:
        """Return whether the lock keeper has handled everything that could admit the execution.

        That is the request for the lock, and the end of the execution that holds it.
        """
        durables = subjects.LOCK_KEEPER, subjects.LOCK_KEEPER_ENDS
        if not await self._are_past(durables, stalled.sequence):
            return False
        request = state.request
        scope = subjects.lock(request.job, request.plan.shard)
        newest = await self._newest_lock(scope)
        if newest is None:
            return False  # a lagging replica answered; it may not know that the execution waits
        upto = newest.fence
        if newest.holder is not None and newest.has_waiter(request.execution_id):
            of_holder = await self._log.load(subjects.execution(request.job, newest.holder))
            is_over = execution.fold(of_holder).is_over if of_holder else await self._is_archived(newest.fence)
            if not is_over:
                return False
            upto = max([upto, *(fact.sequence for fact in of_holder)])
        return await self._are_past(durables, upto)

    async def _is_archived(self, fence: int) -> bool:
        """Return whether a lock's holder without events was archived.

        Otherwise the stage that acquired the lock for it is about to admit it, perhaps in a later delivery.
        """
        entry = await self._projections.get(Bucket.CURSORS, subjects.cursor(Stream.LOG))
        return entry is not None and fence <= int(entry[0])

    async def _newest_lock(self, scope: str) -> Lock | None:
        """Return the newest state of a lock; None: only an older state was read."""
        for _ in range(2):
            if scope not in self._locks:
                events = await self._log.load(scope)
                self._locks[scope] = lock.fold(events), events[-1].sequence if events else 0
            state, sequence = self._locks[scope]
            if await self._log.tail(scope) == sequence:
                return state
            self._locks.pop(scope, None)  # another examination of the round may have removed it
        return None

    async def _has_no_delay(self, stalled: Stalled, state: Execution) -> bool:
        """Return whether no delay is stored and the timer that it published is handled.

        The retrier stores the delay of a retry before it acknowledges the report of failure, and the DAG advancer that of a start before
        it acknowledges the admission. The order of the reads matters: a delay that fires between them is found as a timer.
        """
        lost, request = stalled.lost, state.request
        step, attempt = lost.step or "", lost.attempt or 0
        if not attempt and not await self._is_past(subjects.DAG_ADVANCER, stalled.sequence):
            return False
        if not await self._has_handled(subjects.RETRIER, *self._reports_on(state, step, outcome="failed")):
            return False
        timer = RetryTimer(job=request.job, execution_id=request.execution_id, step=step, attempt=attempt + 1)
        if await self._log.tail(subjects.delay(timer)):
            return False
        fired = await self._log.tail(subjects.subject_of(timer))
        return not fired or await self._is_past(subjects.DAG_ADVANCER_TIMERS, fired)

    def _reports_on(self, state: Execution, name: str, *, outcome: str) -> tuple[str, ...]:
        """Return filters over the reports on the last attempt of a step."""
        step = state.steps[name]
        claims = {None, step.claim or None}
        return reports_on(state.request, name, step.attempt, self._key, claims=claims, outcome=outcome)

    async def _has_handled(self, durable: str, *inputs: str) -> bool:
        """Return whether a durable has handled every message of some filters; archived messages are."""
        newest = max(await self._log.tails(*inputs), default=0) if inputs else 0
        return not newest or await self._is_past(durable, newest)

    async def _are_past(self, durables: Iterable[str], sequence: int) -> bool:
        return all([await self._is_past(durable, sequence) for durable in durables])

    async def _is_past(self, durable: str, sequence: int, *, missing: bool = False) -> bool:
        known = self._known.get(durable)
        # A durable that was idle when it was read may have messages stored since then.
        if durable not in self._known or (known is not None and known.is_idle and known.floor < sequence):
            known = self._known[durable] = await self._log.progress(_STREAMS.get(durable, Stream.LOG), durable)
        return missing if known is None else known.is_past(sequence)
