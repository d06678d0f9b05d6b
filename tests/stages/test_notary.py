"""The notary on the in-memory log: restarts, two notaries, an archive, a log that was cut off."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.stages.world import World
from tocsin.archive.checkpoints import Checkpoint, CheckpointStore, stored_checkpoints
from tocsin.archive.signing_keys import KeyRefused, SigningKey
from tocsin.engine.stage import StageContext
from tocsin.ports import Extent, LogUnavailable, SequenceConflict, StoredLog
from tocsin.services.log_verification import LogVerification, Proof
from tocsin.settings import Settings
from tocsin.stages.notary import NOTARY, Notary, SignedLogCutOff
from tocsin.subjects import Stream

KEY = SigningKey.generate()
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


@pytest.fixture
def world() -> World:
    return World()


def notary(world: World, stored: StoredLog | None = None, **options: Any) -> Notary:  # noqa: ANN401 - any option
    return Notary(
        stored or world.past,
        CheckpointStore(world.projections),
        world.elect("notary"),
        world.clock,
        KEY,
        installation="i",
        **options,
    )


async def define(world: World, first: int, last: int) -> None:
    for number in range(first, last + 1):
        await world.define({"name": f"job-{number}", "function": "f"})


async def contents(world: World) -> list[Checkpoint]:
    return [signed.content() for signed in await stored_checkpoints(world.projections)]


async def verified(world: World, stored: StoredLog | None = None) -> Proof:
    verification = LogVerification([KEY.public], await stored_checkpoints(world.projections))
    stored = stored or world.past
    for stream in (Stream.LEDGER, Stream.LOG):
        upto = (await stored.extent(stream)).last
        async for portion in stored.messages(stream, upto=upto):
            for message in portion:
                verification.take(message)
    return verification.finish()


async def test_restarted_notary_continues_the_chain(world: World) -> None:
    await define(world, 1, 5)
    assert await notary(world).run_once(Stream.LEDGER, NOW) == 5
    assert await notary(world).run_once(Stream.LEDGER, NOW) == 0
    await define(world, 6, 7)
    assert await notary(world).run_once(Stream.LEDGER, NOW) == 2
    assert [(c.number, c.first, c.last, c.messages) for c in await contents(world)] == [(1, 1, 5, 5), (2, 6, 7, 2)]
    assert (await verified(world)).total == 0


async def test_empty_stream_is_not_signed(world: World) -> None:
    assert await notary(world).run_once(Stream.LOG, NOW) == 0
    assert await contents(world) == []


async def test_large_log_is_signed_in_ranges(world: World) -> None:
    await define(world, 1, 25)
    assert await notary(world, max_messages=10).run_once(Stream.LEDGER, NOW) == 25
    assert [c.last for c in await contents(world)] == [10, 20, 25]
    assert (await verified(world)).total == 0


async def test_clock_that_goes_back_changes_nothing(world: World) -> None:
    await define(world, 1, 2)
    await notary(world).run_once(Stream.LEDGER, NOW)
    await define(world, 3, 4)
    await notary(world).run_once(Stream.LEDGER, NOW - timedelta(days=400))
    assert (await verified(world)).total == 0


async def test_two_notaries_make_one_chain(world: World) -> None:
    await define(world, 1, 3)
    inner = world.past

    class Slow:
        """Lets another notary sign before the first message is read."""

        async def extent(self, stream: Stream) -> Extent:
            found = await inner.extent(stream)
            await notary(world).run_once(stream, NOW)
            return found

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any method
            return getattr(inner, name)

    with pytest.raises(SequenceConflict):
        await notary(world, Slow()).run_once(Stream.LEDGER, NOW)
    assert [(c.number, c.last) for c in await contents(world)] == [(1, 3)]
    assert (await verified(world)).total == 0


async def test_cut_off_log_is_not_signed_again(world: World) -> None:
    await define(world, 1, 5)
    await notary(world).run_once(Stream.LEDGER, NOW)
    inner = world.past

    class Restored:
        """An older copy of the streams."""

        async def extent(self, stream: Stream) -> Extent:
            return replace(await inner.extent(stream), last=3)

    with pytest.raises(SignedLogCutOff):
        await notary(world, Restored()).run_once(Stream.LEDGER, NOW)  # type: ignore[arg-type]
    assert len(await contents(world)) == 1


async def play(world: World, notary: Notary, seconds: float) -> None:
    tasks = [asyncio.create_task(loop()) for loop in (notary.leadership.run, notary.run)]
    await world.clock.run(seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_leader_signs_again_and_again(world: World) -> None:
    await define(world, 1, 2)
    signing = notary(world, interval=5.0)
    await play(world, signing, 12)
    await define(world, 3, 3)
    await play(world, notary(world, interval=5.0), 60)
    assert [(c.number, c.last) for c in await contents(world)] == [(1, 2), (2, 3)]


async def test_failure_of_the_log_is_survived(world: World) -> None:
    await define(world, 1, 2)
    inner, failures = world.past, [LogUnavailable("away"), ValueError("unexpected")]

    class Failing:
        """Fails twice."""

        async def extent(self, stream: Stream) -> Extent:
            if failures:
                raise failures.pop()
            return await inner.extent(stream)

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any method
            return getattr(inner, name)

    with capture_logs() as logs:
        await play(world, notary(world, Failing(), interval=1.0), 20)
    assert [line["action"] for line in logs if line["action"].startswith("notary")] == ["notary-failed", "notary-waits"]
    assert [c.last for c in await contents(world)] == [2]


def context(world: World, **settings: Any) -> StageContext:  # noqa: ANN401 - any section
    return StageContext(
        settings=Settings(**settings),
        log=world.log,
        projections=world.projections,
        clock=world.clock,
        report_key=b"key",
        elect=world.elect,
        stored=world.past,
    )


def test_notary_without_a_key_does_not_run(world: World) -> None:
    assert NOTARY.run_in(context(world)) is None
    assert not NOTARY.is_installed(Settings())


@pytest.mark.parametrize("content", [None, b"", b"\xff", KEY.public.as_pem().encode()])
def test_unusable_key_names_the_setting_and_the_file(world: World, tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "notary.pem"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(KeyRefused) as refused:
        NOTARY.run_in(context(world, notary={"key": file}))
    assert f"notary.key: {file}" in str(refused.value)


def test_notary_with_a_key_runs(world: World, tmp_path: Path) -> None:
    file = tmp_path / "notary.pem"
    file.write_text(KEY.as_pem())
    stage = NOTARY.run_in(context(world, notary={"key": file}))
    assert stage is not None
    assert len(stage.loops) == 2
