"""Replaying and resolving dead letters: repeated, open and impossible requests."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.stages.test_rerun import ETL, answer, etl, failed, refused_message, run
from tests.stages.world import World
from tocsin import subjects
from tocsin.adapters.sql.history import SqlHistory, open_history
from tocsin.domain.definition import DefinitionError
from tocsin.domain.events import Actor, CancelRequest, Failed, PoisonMessage, Replayed, Requested, Resolved
from tocsin.domain.execution import Status
from tocsin.domain.ledger import delete
from tocsin.engine.ledger_reader import LedgerReader
from tocsin.ports import LogUnavailable
from tocsin.ports.queries import DeadLetterQuery
from tocsin.services.operations import dead_letters
from tocsin.services.operations.dead_letters import Replay
from tocsin.services.operations.errors import NotAnId, NotFound, OperationError
from tocsin.subjects import Stream

ADA = Actor(identity="ada", source="test")
NOBODY = "0193a5b0-0000-7000-8000-000000000009"


@pytest.fixture
def world() -> World:
    return World()


async def replays_of(world: World) -> list[str]:
    return [fact.execution_id for fact in await world.stored(Requested) if fact.trigger == "replay"]


async def test_the_answer_names_the_execution_that_will_be(world: World) -> None:
    await world.define(etl(overlap_policy="allow"))
    letter = await failed(world)
    made = await dead_letters.replay(world.log, letter.id, by=ADA, reason="fixed")
    await run(world)
    assert (made.job, made.id, made.number) == (ETL, letter.id, 1)
    assert await replays_of(world) == [made.execution_id]
    [fact] = await world.stored(Replayed)
    assert (fact.by, fact.reason) == (ADA, "fixed")


async def test_open_replay_requires_an_explicit_second_request(world: World) -> None:
    await world.define(etl(overlap_policy="allow"))
    letter = await failed(world)
    first = await dead_letters.replay(world.log, letter.id)
    for _ in range(2):  # no planner has handled it yet; then it runs
        with pytest.raises(OperationError) as failure:
            await dead_letters.replay(world.log, letter.id)
        assert failure.value.code == "replay-open"
        assert str(first.execution_id) in str(failure.value)
        await run(world)
    assert (await dead_letters.replay(world.log, letter.id, again=True)).number == 2
    await run(world)
    assert len(await replays_of(world)) == 2


async def test_a_replay_that_failed_is_closed(world: World) -> None:
    await world.define(etl())
    letter = await failed(world)
    first = await dead_letters.replay(world.log, letter.id)
    await run(world)
    await answer(world, first.execution_id or "", "failed")
    assert (await dead_letters.find(world.log, letter.id)).replays == (Status.FAILED,)
    assert (await dead_letters.replay(world.log, letter.id)).number == 2


async def test_resolved_dead_letter_is_replayed_only_explicitly(world: World) -> None:
    await world.define(etl())
    letter = await failed(world)
    first = await dead_letters.replay(world.log, letter.id)
    await run(world)
    await answer(world, first.execution_id or "", "completed")
    with pytest.raises(OperationError) as failure:
        await dead_letters.replay(world.log, letter.id)
    assert failure.value.code == "dead-letter-resolved"
    assert str(first.execution_id) in str(failure.value)
    assert (await dead_letters.replay(world.log, letter.id, again=True)).number == 2


async def test_repeated_request_gets_the_same_answer(world: World) -> None:
    await world.define(etl())
    letter = await failed(world)
    first = await dead_letters.replay(world.log, letter.id, request="r-1")
    assert await dead_letters.replay(world.log, letter.id, request="r-1") == first
    with pytest.raises(OperationError) as failure:
        await dead_letters.replay(world.log, letter.id, request="r-2")
    assert failure.value.code == "replay-open"
    assert len(await world.stored(Replayed)) == 1


async def test_concurrent_requests_replay_once(world: World) -> None:
    await world.define(etl())
    letter = await failed(world)
    asked = (dead_letters.replay(world.log, letter.id) for _ in range(8))
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(one, Replay) for one in answers) == 1
    assert len(await world.stored(Replayed)) == 1


async def test_a_replay_that_the_planner_refused_is_closed(world: World) -> None:
    definition = etl()
    await world.define(definition)
    letter = await failed(world)
    state, sequence = await LedgerReader(world.log).load(ETL)
    [fact] = delete(state, ETL)
    gone = await world.log.append(fact, expect=sequence)
    await world.given(Replayed(job=ETL, id=letter.id, number=1, ledger=gone))
    await run(world)
    await world.define(definition)
    assert (await dead_letters.replay(world.log, letter.id)).number == 2


async def test_replay_runs_although_its_job_is_deleted_meanwhile(world: World) -> None:
    """As for a trigger, the state at the time of the request decides."""
    await world.define(etl(overlap_policy="allow"))
    letter = await failed(world)
    made = await dead_letters.replay(world.log, letter.id)
    state, sequence = await LedgerReader(world.log).load(ETL)
    [fact] = delete(state, ETL)
    await world.log.append(fact, expect=sequence)
    await run(world)
    assert await replays_of(world) == [made.execution_id]
    assert await world.stored(PoisonMessage) == []


async def test_deleted_job_is_reported_with_the_remedy(world: World) -> None:
    await world.define(etl())
    letter = await failed(world)
    state, sequence = await LedgerReader(world.log).load(ETL)
    [fact] = delete(state, ETL)
    await world.log.append(fact, expect=sequence)
    with pytest.raises(OperationError) as failure:
        await dead_letters.replay(world.log, letter.id)
    assert failure.value.code == "job-not-registered"
    assert await world.stored(Replayed) == []


async def test_invalid_input_is_refused_at_the_door(world: World) -> None:
    await world.define(etl(input_schema={"type": "object", "properties": {"a": {"type": "integer"}}}))
    letter = await failed(world)
    with pytest.raises(DefinitionError) as failure:
        await dead_letters.replay(world.log, letter.id, input={"a": "x"})
    assert [problem.field for problem in failure.value.problems] == ["input.a"]
    assert await world.stored(Replayed) == []


async def test_replay_keeps_references_of_its_definition(world: World) -> None:
    await world.define(etl(overlap_policy="allow", input={"password": "${env:OLD}"}))
    letter = await failed(world)
    await world.define(etl(overlap_policy="allow", input={"password": "${env:NEW}"}))
    with pytest.raises(DefinitionError) as refused:
        await dead_letters.replay(world.log, letter.id, input={"password": "${env:OTHER}"})
    assert [problem.code for problem in refused.value.problems] == ["secret-reference-not-allowed"]
    made = await dead_letters.replay(world.log, letter.id, input={"day": 1})
    await run(world)
    assert await replays_of(world) == [made.execution_id]


async def test_a_fact_says_why_it_cannot_be_replayed(world: World) -> None:
    end = Failed(job=ETL, execution_id="some-id", scheduled_time=world.clock.now(), trigger="cron")
    refused = refused_message(subjects.subject_of(end), end)
    await world.given(refused)
    with pytest.raises(OperationError) as failure:
        await dead_letters.replay(world.log, refused.id)
    assert failure.value.code == "not-replayable"
    assert "execution.etl.some-id.failed" in str(failure.value)


async def test_what_still_cannot_be_read_says_so(world: World) -> None:
    refused = PoisonMessage.of(ETL, "planner-triggers", "trigger.etl", 1, b"not json", "unreadable")
    await world.given(refused)
    with pytest.raises(OperationError) as failure:
        await dead_letters.replay(world.log, refused.id)
    assert failure.value.code == "not-replayable"
    assert "trigger.etl" in str(failure.value)


async def refused_cancel(world: World) -> tuple[PoisonMessage, CancelRequest]:
    request = CancelRequest(reason="late")
    refused = refused_message(subjects.cancel(ETL, "some-id"), request)
    await world.given(refused)
    return refused, request


async def test_input_is_sent_before_its_letter_is_resolved(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    refused, request = await refused_cancel(world)
    with monkeypatch.context() as dying:
        dying.setattr(world.log, "write", lambda _: (_ for _ in ()).throw(LogUnavailable("it died")))
        with pytest.raises(LogUnavailable):
            await dead_letters.replay(world.log, refused.id)
    assert await world.stored(CancelRequest) == [request]
    assert [*await world.stored(Replayed), *await world.stored(Resolved)] == []
    made = await dead_letters.replay(world.log, refused.id, by=ADA)
    assert (made.number, made.execution_id) == (1, None)
    assert await world.stored(CancelRequest) == [request, request]
    [replayed], [resolved] = await world.recorded(Replayed), await world.recorded(Resolved)
    assert (resolved.message.id, resolved.message.reason, resolved.message.by) == (refused.id, "handed in again", ADA)
    assert resolved.sequence == replayed.sequence + 1


async def test_an_input_that_cannot_be_sent_stays_dead(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    refused, _ = await refused_cancel(world)

    async def full(*_: object, **__: object) -> int:
        raise LogUnavailable("the stream is full")

    monkeypatch.setattr(world.log, "publish", full)
    with pytest.raises(LogUnavailable):
        await dead_letters.replay(world.log, refused.id)
    assert [*await world.stored(Replayed), *await world.stored(Resolved)] == []


async def test_a_repeated_request_sends_an_input_once(world: World) -> None:
    refused, request = await refused_cancel(world)
    first = await dead_letters.replay(world.log, refused.id, request="r-1")
    assert await dead_letters.replay(world.log, refused.id, request="r-1") == first
    with pytest.raises(OperationError) as failure:
        await dead_letters.replay(world.log, refused.id)
    assert failure.value.code == "dead-letter-resolved"
    await world.run(world.planner)
    assert await world.stored(CancelRequest) == [request]
    assert (await dead_letters.replay(world.log, refused.id, again=True)).number == 2
    assert await world.stored(CancelRequest) == [request, request]
    assert len(await world.stored(Resolved)) == 1


async def test_resolution_records_actor_and_reason_once(world: World) -> None:
    await world.define(etl())
    letter = await failed(world)
    assert (await dead_letters.resolve(world.log, letter.id, by=ADA, reason="done by hand")).changed
    assert not (await dead_letters.resolve(world.log, letter.id)).changed
    [fact] = await world.stored(Resolved)
    assert (fact.by, fact.reason, fact.execution_id) == (ADA, "done by hand", None)


async def test_unknown_id_is_not_found(world: World) -> None:
    with pytest.raises(NotFound) as missing:
        await dead_letters.replay(world.log, NOBODY)
    assert NOBODY in str(missing.value)
    with pytest.raises(NotAnId) as invalid:
        await dead_letters.resolve(world.log, "*")
    assert (missing.value.code, invalid.value.code) == ("not-found", "invalid-id")


@asynccontextmanager
async def recorded(world: World, folder: Path) -> AsyncIterator[SqlHistory]:
    async with open_history(f"sqlite:///{folder}/history.db") as history:
        facts = [*await world.log.read("execution.>"), *await world.log.read("dead-letter.>")]
        facts.sort(key=lambda one: one.sequence)
        after = await history.offset(Stream.LOG)
        new = [one for one in facts if one.sequence > after]
        await history.record(Stream.LOG, new, after=after, upto=facts[-1].sequence)
        yield history


async def replay_all(world: World, history: SqlHistory, query: DeadLetterQuery) -> list[Replay | OperationError]:
    found: list[Replay | OperationError] = []

    async def replay(letter_id: str, job: str) -> Replay:
        return await dead_letters.replay(world.log, letter_id, job=job)

    async def collect() -> None:
        rows = (await history.dead_letters(query)).rows
        replays = dead_letters.replay_all(replay, rows, world.clock, rate=2)
        found.extend([one async for one in replays])

    collecting = asyncio.create_task(collect())
    while not collecting.done():
        world.clock.advance(0.5)
        await asyncio.wait([collecting], timeout=0.001)
    collecting.result()
    return found


async def test_replay_all_replays_unresolved_and_skips_open(world: World, tmp_path: Path) -> None:
    await world.define(etl(overlap_policy="allow"))
    letters = [await failed(world, f"m{n}") for n in range(4)]
    await dead_letters.resolve(world.log, letters[0].id)
    await dead_letters.replay(world.log, letters[1].id)
    async with recorded(world, tmp_path) as history:
        replays = await replay_all(world, history, DeadLetterQuery(job=ETL, unresolved=True))
        assert {one.id for one in replays if isinstance(one, Replay)} == {letters[2].id, letters[3].id}
        [passed_over] = [str(one) for one in replays if isinstance(one, OperationError)]
        assert letters[1].id in passed_over
        assert not any(
            isinstance(one, Replay) for one in await replay_all(world, history, DeadLetterQuery(unresolved=True))
        )
    await run(world)
    assert len(await replays_of(world)) == 3


async def test_the_history_learns_what_is_resolved(world: World, tmp_path: Path) -> None:
    await world.define(etl())
    letter = await failed(world)
    async with recorded(world, tmp_path) as history:
        assert [row.resolved for row in (await history.dead_letters()).rows] == [False]
    await dead_letters.resolve(world.log, letter.id)
    async with recorded(world, tmp_path) as history:
        assert [(row.id, row.resolved) for row in (await history.dead_letters()).rows] == [(letter.id, True)]
        assert (await history.dead_letters(DeadLetterQuery(unresolved=True))).rows == []
