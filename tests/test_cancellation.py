"""Cancelling at once: the answer is what happened."""

import pytest

from tests.domain.given import ID, JOB, NOON, admitted, started
from tests.stages.test_lock_keeper import planned
from tests.stages.world import World
from tocsin import subjects
from tocsin.domain.events import Actor, Cancelled, Completed, Message, Skipped
from tocsin.domain.execution import Status
from tocsin.ports import SequenceConflict
from tocsin.services.operations.errors import NotAnId, NotFound
from tocsin.services.operations.execution_requests import cancel

ADA = Actor(identity="ada", source="test")


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("facts", [(planned(ID),), (admitted(),), (admitted(), started())])
async def test_every_unfinished_execution_is_cancelled(world: World, facts: tuple[Message, ...]) -> None:
    await world.given(*facts)
    done = await cancel(world.log, ID, by=ADA, reason="wrong day")
    assert (done.job, done.execution_id, done.status, done.changed) == (JOB, ID, Status.CANCELLED, True)
    [fact] = await world.stored(Cancelled)
    assert (fact.by, fact.reason) == (ADA, "wrong day")


ENDS: list[tuple[Message, Status]] = [
    (Completed(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron"), Status.COMPLETED),
    (Cancelled(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron"), Status.CANCELLED),
    (
        Skipped(
            job=JOB, execution_id=ID, reason="overlap_skip", scheduled_time=NOON, trigger="cron", definition=1
        ),
        Status.SKIPPED,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("end", "status"), ENDS)
async def test_finished_execution_stays_and_its_end_is_returned(world: World, end: Message, status: Status) -> None:
    await world.given(planned(ID), end)
    size = await world.size()
    done = await cancel(world.log, ID)
    assert (done.status, done.changed) == (status, False)
    assert await world.size() == size


async def test_repeated_request_cancels_once(world: World) -> None:
    await world.given(admitted())
    assert [(await cancel(world.log, ID)).changed for _ in range(2)] == [True, False]
    assert len(await world.stored(Cancelled)) == 1


async def test_concurrent_change_is_decided_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.given(admitted())
    append = world.log.append
    done = Completed(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron")

    async def overtaken(fact: Message, *, expect: int) -> int:
        monkeypatch.setattr(world.log, "append", append)
        await world.given(done)
        return await append(fact, expect=expect)

    monkeypatch.setattr(world.log, "append", overtaken)
    answer = await cancel(world.log, ID)
    assert (answer.status, answer.changed) == (Status.COMPLETED, False)
    assert await world.stored(Cancelled) == []


async def test_what_moves_all_the_time_is_given_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.given(admitted())

    async def refuse(_: Message, *, expect: int) -> int:
        raise SequenceConflict(str(expect))

    monkeypatch.setattr(world.log, "append", refuse)
    with pytest.raises(SequenceConflict, match=f"{ID}.* 20 tries"):
        await cancel(world.log, ID)


async def test_unknown_execution_is_not_found(world: World) -> None:
    await world.given(admitted())
    with pytest.raises(NotFound, match=f"no execution has the id '{ID[:-1]}9'"):
        await cancel(world.log, f"{ID[:-1]}9")
    with pytest.raises(NotFound, match=f"no execution of 'other' has the id '{ID}'"):
        await cancel(world.log, ID, job="other")
    assert (await cancel(world.log, ID, job=JOB)).changed


@pytest.mark.parametrize("given", ["", "*", "a.b", ">", "a b"])
async def test_what_can_be_no_id_is_no_filter(world: World, given: str) -> None:
    await world.given(admitted())
    with pytest.raises(NotAnId):
        await cancel(world.log, given)
    assert await world.stored(Cancelled) == []


def test_cancellation_is_requested_under_its_name() -> None:
    assert subjects.cancel("daily.etl", ID) == f"cancel.daily_etl.{ID}"
