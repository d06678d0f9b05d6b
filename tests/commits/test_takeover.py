"""A standby that reads its inputs once it leads."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

from tests.commits.members import SECRET
from tests.commits.processes import NAMES, Held, bound, until
from tests.commits.test_turns import given, scopes
from tocsin import subjects
from tocsin.adapters.commit_view import CommitView
from tocsin.adapters.memory.agents import InMemoryTurnChannel
from tocsin.adapters.memory.archive import InMemoryProjections
from tocsin.adapters.memory.clock import LoopClock
from tocsin.adapters.memory.commit_log import InMemoryCommitLog
from tocsin.adapters.memory.event_log import InMemoryEventLog
from tocsin.bootstrap.commit_process import PARTITION, CommitProcess
from tocsin.bootstrap.leading import Leading
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Defined, Trigger
from tocsin.engine.change_requests import request_of
from tocsin.engine.snapshots import Snapshots
from tocsin.ports import Append, Batch, Decode
from tocsin.settings import Settings
from tocsin.subjects import Stream

TRIGGERS = 1_001


class FarInputs(InMemoryEventLog):
    """Each reader needs a moment to begin, as on a server."""

    async def follow(
        self, stream: Stream, *filters: str, after: int | None, decode: Decode = subjects.decode
    ) -> AsyncGenerator[Batch, None]:
        await asyncio.sleep(0.05)
        async for batch in super().follow(stream, *filters, after=after, decode=decode):
            yield batch


def defined(job: str) -> Defined:
    return Defined(job=job, definition=JobDefinition(name=job, function="f", overlap_policy="allow"))


async def test_takeover_takes_no_input_that_is_unread() -> None:
    """A change waits for the registrar of another process, and a newer change follows triggers."""
    clock = LoopClock()
    log, inputs, projections = InMemoryCommitLog(clock), FarInputs(clock), InMemoryProjections(clock)
    leading, stages = Leading(projections, inputs, clock, Settings().leader, 0.5), bound()

    def process(name: str) -> tuple[CommitProcess, CommitView]:
        turns = InMemoryTurnChannel()
        made = CommitProcess(log, inputs, clock, SECRET, installation="tocsin", name=name, turns=turns)
        return made, CommitView(log, PARTITION, made.seal, Snapshots(projections, SECRET))

    async def change(job: str, number: int) -> None:
        request = request_of(SECRET, Append((defined(job),), 0), clock, number)
        await inputs.publish(subjects.subject_of(request), request, message_id=request.id)

    async def trigger(number: int) -> None:
        await inputs.publish(subjects.trigger("free"), Trigger(), message_id=f"t{number}")

    def executions(view: CommitView) -> int:
        return sum(scope.startswith("execution.") for scope in view.fold.states)

    (one, first), (two, second) = process("one"), process("two")
    async with AsyncExitStack() as stack:
        async with one.running(bound(), first, leading) as loop:
            await until(lambda: loop.leads("planner") and loop.leads("recoverer"))
            await loop.propose("test", [defined("free")], expect=0)
            await change("a", 1)  # no registrar runs
            await trigger(0)
            await until(lambda: executions(first) == 1 and loop.floor(Stream.REQUESTS) >= 2)
            standby = await stack.enter_async_context(two.running(stages, second, leading))
        for number in range(1, TRIGGERS):
            await trigger(number)
        await change("b", 2)
        await until(lambda: standby.leads("planner"))
        assert two._describe(standby, stages).streams["REQUESTS"].seen >= 1  # else its oldest input looks unread
        await until(lambda: standby.floor(Stream.REQUESTS) >= TRIGGERS + 2)
        await until(lambda: executions(second) == TRIGGERS)


async def test_lapsed_lease_lets_no_instant_overtake_requests() -> None:
    installation = await given({"name": "tick", "schedule": "* * * * * *"})
    process = installation.process(leases=Held(installation.clock))
    loop = process.loop

    async def ends() -> dict[Stream, int]:
        return {Stream.REQUESTS: 7}

    loop._ends = ends
    await process.read_on()
    process.leases.held = NAMES
    assert await loop.run_once()  # the term began
    process.leases.held = ()  # the answer came after the lifetime of the lease
    await loop.run_once()
    process.leases.held = NAMES  # no other process was there: the term goes on
    installation.clock.advance(3)
    for _ in range(5):
        await loop.run_once()
    assert loop.leads("ticker")
    assert loop.intake.is_reading
    assert not await scopes(installation, "execution.tick.")
