"""The reset of an installation between two tests of a conformance suite."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.stages.test_rerun import etl, failed
from tests.stages.world import World
from tocsin.adapters.sql.history import SqlHistory, open_history
from tocsin.domain.events import Resolved
from tocsin.ports.queries import DeadLetterQuery
from tocsin.services import reset as module
from tocsin.services.reset import ResetTimeout, reset
from tocsin.subjects import Stream


async def no_names() -> list[Any]:
    return []


NOTHING: Any = SimpleNamespace(jobs=no_names, paused=no_names)


async def record(world: World, history: SqlHistory) -> None:
    """Record what is new."""
    facts = [*await world.log.read("execution.>"), *await world.log.read("dead-letter.>")]
    after = await history.offset(Stream.LOG)
    new = sorted((one for one in facts if one.sequence > after), key=lambda one: one.sequence)
    if new:
        await history.record(Stream.LOG, new, after=after, upto=new[-1].sequence)


@asynccontextmanager
async def recording(world: World, history: SqlHistory) -> AsyncIterator[None]:
    async def run() -> None:
        while True:
            await record(world, history)
            await asyncio.sleep(0)

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()


@asynccontextmanager
async def with_letters(folder: Path, number: int) -> AsyncIterator[tuple[World, SqlHistory]]:
    world = World()
    await world.define(etl(overlap_policy="allow"))
    for one in range(number):
        await failed(world, f"m{one}")
    async with open_history(f"sqlite:///{folder}/history.db") as history:
        await record(world, history)
        yield world, history


async def test_reset_resolves_more_letters_than_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_UNRESOLVED", DeadLetterQuery(unresolved=True, limit=1))
    async with with_letters(tmp_path, 3) as (world, history), recording(world, history):
        await reset(world.log, history, NOTHING, NOTHING)
        assert len(await world.stored(Resolved)) == 3
        assert (await history.dead_letters()).rows == []


async def test_reset_without_a_recorder_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.2)
    async with with_letters(tmp_path, 1) as (world, history):
        with pytest.raises(ResetTimeout):
            await reset(world.log, history, NOTHING, NOTHING)
        assert len(await world.stored(Resolved)) == 1
