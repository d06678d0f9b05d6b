"""Formats of the log: a commit of a newer format is stored once every process that is present reads it."""

from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.commits.processes import SEAL, Installation
from tests.ports import free_port
from tests.system.processes import site
from tocsin.adapters.memory.archive import InMemoryProjections
from tocsin.cli.runtime.error_report import failure_of
from tocsin.cli.runtime.errors import Exit
from tocsin.domain import commit
from tocsin.domain.commit import CommitEvent, LogHead, UnknownFormat
from tocsin.domain.log_events import Began, decode, encode
from tocsin.engine import presence
from tocsin.engine.commit_writer import Chain
from tocsin.engine.presence import TTL_S, Presence, Present, Readers, processes
from tocsin.engine.stage_leases import StageLeases
from tocsin.subjects import Bucket, Stream
from tocsin.testing import ManualClock

NEWER = commit.FORMAT + 1


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.projections = InMemoryProjections(self.clock)

    def presence(self, name: str, *formats: int) -> Presence:
        present = Present(name, formats, self.clock.now())
        return Presence(self.projections, self.clock, lambda: present)


async def test_newer_format_waits_for_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "FORMAT", NEWER)
    world = World()
    old, new = world.presence("host-1-a", commit.FORMAT), world.presence("host.2", commit.FORMAT, NEWER)
    await old.run_once()
    await new.run_once()
    assert new.format == commit.FORMAT
    assert [one.name for one in await processes(world.projections)] == ["host-1-a", "host.2"]
    world.clock.advance(TTL_S - 1)
    await new.run_once()
    assert new.format == commit.FORMAT
    world.clock.advance(2)  # the older process is gone
    await new.run_once()
    assert new.format == NEWER
    await old.run_once()  # it is back
    await new.run_once()
    assert new.format == commit.FORMAT


async def test_entry_of_another_version_is_left_out() -> None:
    world = World()
    await world.projections.put(Bucket.LEADER, "process.newer", b'{"name":7}')
    await world.presence("a", 1).run_once()
    assert [one.name for one in await processes(world.projections)] == ["a"]


async def test_process_writes_the_format_that_all_read() -> None:
    installation = Installation()
    process = installation.process()
    process.loop._newest_format = lambda: NEWER
    process.loop.note("", Began(()))
    await process.run()
    [stored] = installation.log._stored[0]
    assert msgspec.json.decode(stored.body[65:])["format"] == NEWER


async def test_unknown_format_stops_readers_and_is_not_foreign() -> None:
    event = CommitEvent("execution.j.e.future", "planner", "@", msgspec.Raw(b"{}"))
    draft = SEAL.write(LogHead("k1"), writer="w", at=datetime.now(UTC), taken={}, events=[event], format_=NEWER)
    installation = Installation()
    await installation.log.append(0, draft.body, expect=0)
    foreign = list[Any]()
    stored = await installation.log.next(0, after=0)
    assert stored is not None
    chain = Chain(SEAL, LogHead("k1"), lambda *found: foreign.append(found))
    with pytest.raises(UnknownFormat, match=f"format {NEWER}") as caught:
        chain.take(stored)
    assert (foreign, chain.head) == ([], LogHead("k1"))
    process = installation.process()
    process.loop.receive([stored])
    with pytest.raises(UnknownFormat):
        await process.loop.run()
    failure = failure_of(ExceptionGroup("tasks", [caught.value]))
    assert (failure.code, failure.error_code) == (Exit.OUTDATED, "unknown-format")


async def test_api_ends_at_an_unknown_format(nats_url: str, tmp_path: Path) -> None:
    async with site(nats_url, tmp_path, metrics={"enabled": False}) as tocsin:
        gateway = tocsin.start_gateway(free_port())
        await tocsin.ready()
        commits = tocsin.installation.commits
        view, seal = await commits.view(), await commits.reader.seal()
        await view.end(Stream.LOG)
        assert view.chain is not None
        draft = seal.write(view.chain.head, writer="w", at=datetime.now(UTC), taken={}, events=[], format_=NEWER)
        await commits.log.append(0, draft.body, expect=view.chain.head.sequence)

        async def has_ended() -> bool:
            return gateway.ended is not None

        await tocsin.until(has_ended)
        assert gateway.ended == Exit.OUTDATED, gateway.said()
        assert f"format {NEWER}" in gateway.said()
        tocsin.programs.remove(gateway)


def test_unreadable_log_event_is_from_a_newer_version() -> None:
    event = encode(Began(("planner",)), by="", cause="@")
    with pytest.raises(UnknownFormat, match=r"log\.began"):
        decode(msgspec.structs.replace(event, body=msgspec.Raw(b'{"stages":7}')))


class Lease:
    def __init__(self) -> None:
        self.until = float("-inf")

    @property
    def is_leading(self) -> bool:
        return self.until > 0

    async def run_once(self) -> None:
        self.until = float("inf")

    async def release(self) -> None:
        self.until = float("-inf")


async def test_blind_leader_gives_its_leases_up() -> None:
    clock = ManualClock()
    readers, elections = Readers(clock), {"planner": Lease(), "ticker": Lease()}
    guard: Any = type("Guard", (), {"clock": clock})()
    leases = StageLeases(
        elections,  # type: ignore[arg-type] # what the leases ask of them
        guard,
        renew_interval=1.0,
        is_answered=lambda: not readers.are_lost_for(4.0),
    )
    await leases.run_once()
    assert leases.held == {"planner", "ticker"}
    lose = partial(readers.note, "REQUESTS")
    lose(False)
    readers.note("REPORTS", False)
    readers.note("REPORTS", True)
    clock.advance(3.9)
    lose(False)  # another try
    await leases.run_once()
    assert leases.held == {"planner", "ticker"}
    clock.advance(0.2)
    await leases.run_once()
    assert leases.held == frozenset()
    assert list(readers.lost) == ["REQUESTS"]
    lose(True)
    await leases.run_once()
    assert leases.held == {"planner", "ticker"}
