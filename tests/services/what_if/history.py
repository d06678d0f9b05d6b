"""Random histories, recorded by the real stages on a manual clock.

The ticker, the planner and the lock keeper decide. The test plays the workers, the users, and the absences of a leader.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from random import Random
from typing import Any, Final

from tests.stages.world import World
from tocsin import subjects
from tocsin.domain import execution, ledger, start_jitter
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import (
    Actor,
    Cancelled,
    Completed,
    ExecutionFact,
    Failed,
    Message,
    Recorded,
    Requested,
    Started,
    unfold,
)
from tocsin.domain.log_events import Began, Left
from tocsin.engine.ledger_reader import LedgerReader
from tocsin.services.queue_decisions import QueueDecisions

ADA: Final = Actor(identity="ada", kind="token")
STARTS: Final = (
    datetime(2026, 3, 28, 22, 0, tzinfo=UTC),  # the clocks of Berlin go forward at 01:00
    datetime(2026, 10, 24, 22, 0, tzinfo=UTC),  # and back at 01:00
    datetime(2026, 4, 4, 13, 0, tzinfo=UTC),  # Lord Howe goes back by half an hour at 15:00
    datetime(2026, 5, 11, 3, 0, tzinfo=UTC),
)
SCHEDULES: Final = (
    "*/5 * * * *",
    "*/15 * * * *",
    "0 * * * *",
    "30 1-3 * * *",
    "*/10 2 * * *",
    "@every 7m",
    "@every 40m",
)
ZONES: Final = ("UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/New_York")


def draw_definition(chance: Random, name: str) -> dict[str, Any]:
    """Return a random definition."""
    return {
        "name": name,
        "schedule": chance.choice(SCHEDULES),
        "timezone": chance.choice(ZONES),
        "function": "f",
        "overlap_policy": chance.choice(("skip", "allow", "enqueue", "cancel_previous")),
        "max_waiting": chance.choice((1, 2, 10)),
        "catch_up": chance.choice(("once", "skip", "all")),
        "catch_up_max_age": chance.choice((600.0, 86_400.0)),
        "enabled": chance.random() < 0.95,
        "jitter": chance.choice((0.0, 0.0, 30.0, 290.0)),
    }


@dataclass
class History:
    """A history that is being recorded."""

    chance: Random
    hours: float = 4.0
    world: World = field(default_factory=World)
    definitions: dict[str, dict[str, Any]] = field(default_factory=dict)
    edits: bool = True
    rules: tuple[dict[str, Any], ...] = ()
    """Definitions of jobs; none: random jobs, users and absences."""
    durations: tuple[float, ...] = (0.5, 20, 290, 700, 4_000)
    waits: tuple[float, ...] = (0.002, 1.5, 90)
    absences: tuple[tuple[float, float], ...] = ()
    """Hours between which no ticker leads."""
    start: datetime | None = None
    pauses: tuple[tuple[float, float], ...] = ()
    """Hours between which the queue `default` is paused; tasks start after it."""
    job_pauses: tuple[tuple[float, float], ...] = ()
    """Hours at which a pause of the first job is requested, and at which the pause is stored."""
    _events: list[tuple[datetime, int, str, tuple[Any, ...]]] = field(default_factory=list)
    _number: int = 0
    _read_upto: int = 0
    _waiting: dict[str, str] = field(default_factory=dict)
    _started: set[str] = field(default_factory=set)
    _held: list[Requested] = field(default_factory=list)
    """Executions that wait until the queue is resumed."""

    @property
    def now(self) -> datetime:
        return self.world.clock.now()

    async def record(self) -> None:
        """Record it."""
        start = self.start or self.chance.choice(STARTS)
        self._pass_until(start)
        self._store_slowly()
        await self._lead()
        until = start + timedelta(hours=self.hours)
        rules = self.rules or [draw_definition(self.chance, f"job-{n}") for n in range(self.chance.choice((1, 2)))]
        for rule in rules:
            self.definitions[rule["name"]] = rule
            await self._define(rule["name"])
        self._script(start, until)
        while self._events and self._events[0][0] <= until:
            at, _, verb, args = heappop(self._events)
            self._pass_until(at)
            await getattr(self, f"_{verb}")(*args)
            await self._decide()
        self._pass_until(until)

    def _script(self, start: datetime, until: datetime) -> None:
        chance = self.chance
        names = list(self.definitions)
        hours = [(timedelta(hours=first), timedelta(hours=last)) for first, last in self.absences]
        absences = [(start + first, start + last) for first, last in hours]
        for _ in range(0 if self.rules else chance.choice((0, 1, 2))):
            begin = start + timedelta(seconds=chance.uniform(0, self.hours * 3_600))
            absences.append((begin, begin + timedelta(seconds=chance.choice((3, 400, 4_000, 9_000)))))
        at = start
        while at <= until:
            at += timedelta(seconds=60)
            if not any(begin <= at <= end for begin, end in absences):
                self._put(at + timedelta(microseconds=chance.choice((0, 900, 40_000, 1_200_000))), "tick")
        for begin, end in absences:
            self._put(begin, "leave")
            self._put(end, "lead")
            self._put(end, "tick")
        for request, stored in self.job_pauses:
            self._put(start + timedelta(hours=stored), "pause", names[0], start + timedelta(hours=request))
        for first, last in self.pauses:
            self._put(start + timedelta(hours=first), "switch_queue", True)
            self._put(start + timedelta(hours=last), "switch_queue", False)
        verbs = ["trigger", "trigger", "backfill", "switch", "cancel"] + (["edit", "delete"] if self.edits else [])
        for number in range(0 if self.rules else chance.randrange(12)):
            at = start + timedelta(seconds=chance.uniform(0, self.hours * 3_600))
            self._put(at, chance.choice(verbs), chance.choice(names), number)

    async def _lead(self) -> None:
        await self.world.note(Began(("ticker",)))

    async def _leave(self) -> None:
        await self.world.note(Left({"ticker": 1}))

    async def _tick(self) -> None:
        await self.world.run(self.world.ticker)

    async def _trigger(self, job: str, number: int) -> None:
        await self.world.trigger(job, f"m-{number}", trigger="manual")

    async def _backfill(self, job: str, number: int) -> None:
        at = self.now - timedelta(hours=1)
        await self.world.trigger(job, f"b-{number}", trigger="manual", backfill=f"b{number}", scheduled_time=at)

    async def _switch(self, job: str, number: int) -> None:
        del number
        state, sequence = await LedgerReader(self.world.log).load(job)
        if state.definition is None:
            return
        facts = ledger.resume(state, job) if state.is_paused else ledger.pause(state, job)
        for fact in facts:
            await self.world.log.append(fact, expect=sequence)

    async def _pause(self, job: str, since: datetime) -> None:
        state, sequence = await LedgerReader(self.world.log).load(job)
        for fact in ledger.pause(state, job):
            await self.world.log.append(fact.changed(since=since), expect=sequence)

    async def _switch_queue(self, paused: bool) -> None:  # noqa: FBT001 - what the script says
        await QueueDecisions(self.world.log, by=ADA).switch("default", paused=paused)
        if not paused:
            for request in self._held:
                self._put(self.now + timedelta(seconds=1), "start", request)
            self._held.clear()

    async def _edit(self, job: str, number: int) -> None:
        del number
        self.definitions[job] = draw_definition(self.chance, job)
        await self._define(job)

    async def _delete(self, job: str, number: int) -> None:
        state, sequence = await LedgerReader(self.world.log).load(job)
        if state.definition is not None:
            for fact in ledger.delete(state, job):
                await self.world.log.append(fact, expect=sequence)
            self._put(self.now + timedelta(seconds=self.chance.uniform(1, 3_000)), "edit", job, number)

    async def _cancel(self, job: str, number: int) -> None:
        """Cancel the newest execution that is not over."""
        del number
        for recorded in reversed(await self._openings(job)):
            fact = recorded.message
            state = await self._state(job, fact.execution_id)
            if not state.is_over:
                end = self._end_of(Cancelled, state.request, state.fence, by=ADA, reason="enough")
                await self.world.given(end)
                return

    async def _start(self, request: Requested) -> None:
        state = await self._state(request.job, request.execution_id)
        if state.is_over:
            return
        if (await QueueDecisions(self.world.log).state("default")).is_paused:
            self._held.append(request)
            return
        step = request.plan.steps[0].name
        started = Started(
            job=request.job, execution_id=request.execution_id, step=step, attempt=1, delivery=1, worker="w"
        )
        await self.world.given(started)
        seconds = self.chance.choice(self.durations) * (1.0 if self.rules else self.chance.uniform(0.7, 1.3))
        self._put(self.now + timedelta(seconds=seconds), "finish", request)

    async def _finish(self, request: Requested) -> None:
        state = await self._state(request.job, request.execution_id)
        if state.is_over:
            return
        kind = Failed if not self.rules and self.chance.random() < 0.2 else Completed
        await self.world.given(self._end_of(kind, request, state.fence))

    def _end_of(self, kind: Any, request: Requested, fence: int | None, **more: object) -> Message:  # noqa: ANN401
        reason = {"reason": "attempts"} if kind is Failed else {}
        end: Message = kind(
            job=request.job,
            execution_id=request.execution_id,
            scheduled_time=request.scheduled_time,
            trigger=request.trigger,
            fence=fence,
            **reason,
            **more,
        )
        return end

    async def _decide(self) -> None:
        """Run the stages, each a little later, and send new tasks to workers."""
        for _ in range(2):
            self._linger()
            await self.world.run(self.world.planner)
            self._linger()
            await self.world.run(self.world.lock_keeper)
        for recorded in await self.world.log.read("execution.>", after=self._read_upto, limit=100_000):
            self._read_upto = recorded.sequence
            if isinstance(recorded.message, ExecutionFact) and recorded.message.execution_id not in self._started:
                self._waiting[recorded.message.execution_id] = recorded.message.job
        for execution_id, job in list(self._waiting.items()):
            state = await self._state(job, execution_id)
            if state.status is execution.Status.ADMITTED:
                self._started.add(execution_id)
                wait = self.chance.choice(self.waits)
                begin = start_jitter.begins_at(state.request.plan, self.now)
                self._put(begin + timedelta(seconds=wait), "start", state.request)
            if state.is_over or execution_id in self._started:
                del self._waiting[execution_id]

    async def _define(self, job: str) -> None:
        definition = JobDefinition.model_validate(self.definitions[job])
        state, sequence = await LedgerReader(self.world.log).load(job)
        for fact in ledger.define(state, definition):
            await self.world.log.append(fact, expect=sequence)

    async def _openings(self, job: str | None = None) -> list[Recorded[Any]]:
        facts = await self.world.log.read("execution.>", limit=100_000)
        return [
            recorded
            for recorded in unfold(facts)
            if isinstance(recorded.message, Requested) and job in {None, recorded.message.job}
        ]

    async def _state(self, job: str, execution_id: str) -> Any:  # noqa: ANN401 - the state of an execution
        return execution.fold(await self.world.log.load(subjects.execution(job, execution_id)))

    def _linger(self) -> None:
        self.world.clock.advance(self.chance.choice((0.0, 0.0, 0.000_5, 0.02, 0.3)))

    def _store_slowly(self) -> None:
        """Let time pass with each event that is stored, as on a server."""
        append = self.world.log.append

        async def slow_append(fact: Message, *, expect: int) -> int:
            sequence = await append(fact, expect=expect)
            self.world.clock.advance(self.chance.choice((0.0, 0.000_4, 0.003)))
            return sequence

        self.world.log.append = slow_append  # type: ignore[method-assign]

    def _pass_until(self, at: datetime) -> None:
        if at > self.now:
            self.world.clock.advance((at - self.now).total_seconds())

    def _put(self, at: datetime, verb: str, *args: object) -> None:
        self._number += 1
        heappush(self._events, (at, self._number, verb, args))
