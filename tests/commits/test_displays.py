"""Held locks in the bucket `locks`, as hip-62 shows them."""

import json
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from tests.commits.test_memory import Work
from tocsin.adapters.memory.archive import InMemoryProjections
from tocsin.domain import lock
from tocsin.domain.events import Shard, ShardsDefined
from tocsin.domain.text import utc_text
from tocsin.engine.displays import LockDisplay
from tocsin.ports import LogUnavailable
from tocsin.subjects import Bucket

KEY = "scheduler.lock.nightly"
TTL = 3_600 + lock.GRACE_S


class Scene:
    """A job with a lock, and the process that shows it."""

    def __init__(self) -> None:
        self.work = Work()
        self.clock = self.work.installation.clock
        self.projections = InMemoryProjections(self.clock)
        self.display = self.other()
        self._taken = 0

    def other(self) -> LockDisplay:
        """The display of another process."""
        view: Any = SimpleNamespace(loop=self.work.process.loop)
        log: Any = None  # the test hands it the events
        return LockDisplay(view, "lock_keeper", log, self.projections, self.clock)

    async def begin(self, **fields: Any) -> "Scene":  # noqa: ANN401 - fields of the definition
        await self.work.define("nightly", overlap_policy="enqueue", max_waiting=5, timeout=3_600, **fields)
        await self.show()
        return self

    async def follow(self, display: LockDisplay | None = None) -> None:
        events = await self.work.installation.events()
        for recorded in events[self._taken :]:
            (display or self.display).take(recorded)
        self._taken = len(events)

    async def show(self, display: LockDisplay | None = None) -> None:
        await self.follow(display)
        await (display or self.display).show()

    async def shown(self) -> dict[str, Any] | None:
        entry = await self.projections.get(Bucket.LOCKS, KEY)
        return None if entry is None else json.loads(entry[0])

    async def holder(self) -> str | None:
        return (await self.shown() or {}).get("execution_id")

    def holds(self) -> str | None:
        held = self.work.fold.states["lock.nightly.*"]
        assert isinstance(held, lock.Lock)
        return held.holder

    async def end_one(self) -> None:
        [report] = await self.work.claim()
        await self.work.report(report)


@pytest.fixture
async def scene() -> Scene:
    return await Scene().begin()


async def test_held_lock_is_shown_as_hip_62_says(scene: Scene) -> None:
    await scene.work.trigger("nightly", "a")
    acquired_at = utc_text(scene.clock.now())
    scene.clock.advance(1)
    await scene.show()
    assert await scene.shown() == {"execution_id": scene.holds(), "acquired_at": acquired_at, "ttl": TTL}
    await scene.end_one()
    await scene.show()
    assert await scene.shown() is None


async def test_next_holder_replaces_the_last(scene: Scene) -> None:
    await scene.work.trigger("nightly", "a")
    await scene.work.trigger("nightly", "b")
    await scene.show()
    first = scene.holds()
    await scene.end_one()
    await scene.show()
    assert await scene.holder() == scene.holds() != first


async def test_briefly_held_lock_is_never_shown(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    writes = AsyncMock()
    for call in ("put", "remove"):
        monkeypatch.setattr(scene.projections, call, writes)
    await scene.work.trigger("nightly", "a")
    await scene.end_one()
    await scene.show()
    writes.assert_not_called()


async def test_shown_lock_lives_as_long_as_its_holder(scene: Scene) -> None:
    await scene.work.trigger("nightly", "a")
    await scene.show()
    for _ in range(6):
        scene.clock.advance(TTL / 3)
        await scene.show()
    shown = await scene.shown() or {}
    assert (shown.pop("renewed_at"), shown["execution_id"]) == (utc_text(scene.clock.now()), scene.holds())


async def test_other_process_goes_on(scene: Scene) -> None:
    """The new process begins with its fold, and ends entries of the process before."""
    await scene.work.define("other", overlap_policy="skip")
    await scene.work.trigger("nightly", "a")
    await scene.work.trigger("other", "a")
    acquired_at = utc_text(scene.clock.now())
    await scene.show()
    await scene.projections.remove(Bucket.LOCKS, "scheduler.lock.other")
    await scene.projections.put(
        Bucket.LOCKS, "scheduler.lock.gone", b'{"execution_id":"gone","acquired_at":"2026-03-01T00:00:00Z","ttl":90}'
    )
    other = scene.other()
    other.begin()
    await other.show()
    assert {*await scene.projections.entries(Bucket.LOCKS)} == {KEY, "scheduler.lock.other"}
    assert (await scene.shown() or {})["acquired_at"] == acquired_at
    await scene.work.finish()
    await scene.show(other)
    assert await scene.projections.entries(Bucket.LOCKS) == {}


async def test_locks_of_shards_have_no_entry() -> None:
    scene = Scene()
    await scene.work.installation.store(ShardsDefined(shards=(Shard(shard_id="a"), Shard(shard_id="b"))))
    await scene.begin(partition="all_shards")
    await scene.work.trigger("nightly", "a")
    await scene.show()
    other = scene.other()
    other.begin()
    await other.show()
    assert [scope for scope in scene.work.fold.states if scope.startswith("lock.")] != []
    assert await scene.projections.entries(Bucket.LOCKS) == {}


@pytest.mark.parametrize("call", ["put", "remove", "entries"])
async def test_change_of_a_lock_outlasts_a_failure(scene: Scene, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next update shows or removes it."""

    async def show() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(scene.projections, call, AsyncMock(side_effect=LogUnavailable("away")))
            scene.clock.advance(10)
            with suppress(LogUnavailable):
                await scene.show()
        await scene.show()

    await scene.work.trigger("nightly", "a")
    await scene.work.trigger("nightly", "b")
    await show()
    assert await scene.holder() == scene.holds()
    await scene.end_one()
    await show()
    assert await scene.holder() == scene.holds()
    await scene.end_one()
    await show()
    assert await scene.holder() is None


@pytest.mark.parametrize(
    "body", [b"not JSON", b"[]", b'{"ttl": 90}', b'{"execution_id": "a", "acquired_at": "7", "ttl": 1}']
)
async def test_foreign_entry_stays(scene: Scene, body: bytes) -> None:
    await scene.projections.put(Bucket.LOCKS, "scheduler.lock.foreign", body)
    await scene.work.trigger("nightly", "a")
    scene.clock.advance(10)
    await scene.show()
    assert {*await scene.projections.entries(Bucket.LOCKS)} == {KEY, "scheduler.lock.foreign"}
