"""Workers that do not register: bounded in number and text, written seldom, lost after silence."""

from datetime import timedelta
from typing import Final

import pytest

from tocsin.adapters.memory.archive import InMemoryProjections
from tocsin.adapters.memory.clock import ManualClock
from tocsin.domain.agent import SILENCE, AgentRecord, AgentState
from tocsin.engine import outside_workers
from tocsin.engine.outside_workers import OutsideName, OutsideWorkers
from tocsin.ports import LogUnavailable
from tocsin.subjects import Bucket, is_outside_key

ANN: Final = OutsideName("token:ann", "w1")


class Bench:
    """A process that hears workers, and the bucket."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.projections = InMemoryProjections(self.clock)
        self.workers = self.process()

    def process(self) -> OutsideWorkers:
        return OutsideWorkers("http", self.projections, self.clock)

    async def passes(self, seconds: float, *, heard: bool = False) -> None:
        """Let time pass in small steps, and show after each."""
        for _ in range(round(seconds / outside_workers.INTERVAL_S)):
            self.clock.advance(outside_workers.INTERVAL_S)
            if heard:
                self.workers.hear(ANN, ("mail",), ("*",))
            await self.workers.show()

    async def records(self) -> list[AgentRecord]:
        now = self.clock.now()
        bodies = (await self.projections.entries(Bucket.AGENTS)).values()
        return [AgentRecord.model_validate_json(body).at(now) for body in bodies]

    @property
    def writes(self) -> int:
        return self.projections._revisions[Bucket.AGENTS]


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_worker_is_shown_with_what_it_says(bench: Bench) -> None:
    bench.workers.hear(ANN, ("mail", "gpu"), ("mail/*",))
    await bench.workers.show({ANN: ["e.main.1"]})
    [record] = await bench.records()
    assert (record.name, record.kind, record.identity, record.state) == ("w1", "http", "token:ann", AgentState.ENABLED)
    assert (record.queues, record.functions, record.held) == (["gpu", "mail"], ["mail/*"], ["e.main.1"])
    assert record.has("mail/send")
    assert not record.has("report")
    assert all(map(is_outside_key, await bench.projections.entries(Bucket.AGENTS)))


async def test_entries_are_written_seldom(bench: Bench) -> None:
    for _ in range(1_000):
        bench.workers.hear(ANN, ("mail",), ("*",))
        await bench.workers.show()
    assert bench.writes == 1
    await bench.passes(60, heard=True)
    assert bench.writes <= 1 + 60 / outside_workers.REFRESH_S


async def test_silent_worker_is_lost_and_returns(bench: Bench) -> None:
    await bench.passes(60, heard=True)
    assert [record.state for record in await bench.records()] == [AgentState.ENABLED]
    await bench.passes(SILENCE["http"].total_seconds() + 2)
    [lost] = await bench.records()
    assert (lost.state, lost.queues) == (AgentState.LOST, ["mail"])
    await bench.passes(20, heard=True)
    assert [record.state for record in await bench.records()] == [AgentState.ENABLED]


async def test_two_processes_agree_on_a_heard_worker(bench: Bench) -> None:
    other = bench.process()
    other.hear(ANN, ("mail",), ("*",))
    await other.show()
    await bench.passes(120, heard=True)
    await other.show()
    assert [record.state for record in await bench.records()] == [AgentState.ENABLED]


async def test_workers_have_their_turn_of_writes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside_workers, "AT_ONCE", 2)
    for number in range(5):
        bench.workers.hear(OutsideName("token:ann", f"w{number}"), ("mail",), ("*",))
    for written in (2, 4, 5, 5):
        await bench.workers.show()
        assert bench.writes == written
        bench.clock.advance(outside_workers.INTERVAL_S)


async def test_entry_ends_long_after_the_last_word(bench: Bench) -> None:
    await bench.passes(2, heard=True)
    bench.clock.advance(outside_workers.KEPT_S + 1)
    await bench.workers.show()
    assert await bench.records() == []


async def test_invented_names_leave_room_for_other_identities(bench: Bench) -> None:
    for number in range(10 * outside_workers.MAX_WORKERS):
        bench.workers.hear(OutsideName("token:eve", f"w{number}"), ("mail",), ("*",))
    bench.workers.hear(ANN, ("mail",), ("*",))
    await bench.passes(20)
    records = await bench.records()
    assert len(records) == outside_workers.MAX_OF_IDENTITY + 1
    assert "token:ann" in {record.identity for record in records}


async def test_number_of_entries_is_bounded_over_time(bench: Bench) -> None:
    for round_ in range(5):
        for number in range(2 * outside_workers.MAX_WORKERS):
            bench.workers.hear(OutsideName(f"token:{number}", f"w{round_}"), ("mail",), ("*",))
        await bench.passes(60)
        assert len(await bench.records()) <= outside_workers.MAX_WORKERS, round_
    assert {record.name for record in await bench.records()} == {"w4"}


@pytest.mark.parametrize("name", ["", "x" * 100_000, "\x1b[2J\r\n\x00\u202e", "\ud800", "a.b.*.>"])
async def test_hostile_names_are_shown_harmlessly(bench: Bench, name: str) -> None:
    bench.workers.hear(OutsideName("token:eve", name), ("mail",), ("*",))
    await bench.workers.show()
    [record] = await bench.records()
    assert record.name.isprintable()
    assert 0 < len(record.name) <= outside_workers.MAX_NAME
    [key] = await bench.projections.entries(Bucket.AGENTS)
    assert key.isascii()
    assert key.count(".") == 2


async def test_many_queues_of_one_worker_are_bounded(bench: Bench) -> None:
    for number in range(1_000):
        bench.workers.hear(ANN, (f"q{number}",), (f"f{number}",))
    await bench.workers.show()
    [record] = await bench.records()
    assert (len(record.queues), len(record.functions)) == (100, 500)


async def test_queue_that_a_worker_left_is_forgotten(bench: Bench) -> None:
    bench.workers.hear(ANN, ("old",), ("*",))
    await bench.passes(SILENCE["http"].total_seconds() + 2, heard=True)
    [record] = await bench.records()
    assert record.queues == ["mail"]


async def test_bucket_that_does_not_answer_stops_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def put(*_: object, **__: object) -> int:
        raise LogUnavailable("down")

    with monkeypatch.context() as patch:
        patch.setattr(bench.projections, "put", put)
        await bench.passes(2, heard=True)
    assert await bench.records() == []
    await bench.passes(2, heard=True)
    [record] = await bench.records()
    assert record.since is not None
    assert record.heard_at is not None
    assert record.heard_at - record.since < timedelta(seconds=5)
