"""Manifests are requested together, and the chain alone decides which of them count."""

import asyncio
from datetime import timedelta
from typing import Final

import pytest
from typing_extensions import override

from tests.domain.given import NOON
from tocsin.adapters.memory.archive import InMemoryArchiveStore
from tocsin.archive.archive import OLDER, Archive, ArchiveDamaged, Origin, State
from tocsin.ports import StoredMessage
from tocsin.subjects import Stream
from tocsin.testing import InMemoryEventLog, InMemoryProjections

ORIGIN: Final = Origin(installation="i", root="tocsin", version="1")
SEGMENTS: Final = 200


class SlowStore(InMemoryArchiveStore):
    """Counts the turns that its readers wait, and the requests at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = self.waiting = self.most = 0
        self.requested: list[str] = []

    @override
    async def get(self, name: str) -> bytes | None:
        self.requested.append(name)
        self.turns += not self.waiting
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        await asyncio.sleep(0)
        self.waiting -= 1
        return await super().get(name)


async def filled(store: SlowStore, segments: int = SEGMENTS) -> tuple[InMemoryProjections, State]:
    """Store segments, each by an archiver of its own."""
    projections = InMemoryProjections(InMemoryEventLog().clock)
    state, revision = State(), 0
    for number in range(1, segments + 1):
        archive = Archive(store, projections)
        subject = f"execution.job.{number:08}.completed"
        message = StoredMessage(Stream.LOG, number, NOON + timedelta(seconds=number), subject, {}, b"{}")
        segment = await archive.write([message], state, {Stream.LOG: number}, ORIGIN)
        digest = await archive.digest(segment)
        state = State(head=segment.name, head_sha256=digest, number=number, upto={Stream.LOG: number})
        revision = await archive.move(state, expect=revision)
    store.turns = store.most = 0
    store.requested.clear()
    return projections, state


async def test_manifests_are_read_together() -> None:
    store = SlowStore()
    projections, state = await filled(store)
    archive = Archive(store, projections)
    assert [segment.number for segment in await archive.segments()] == list(range(1, SEGMENTS + 1))
    assert store.most == OLDER + 1
    assert store.turns == 1 + -(-(SEGMENTS - 1) // (OLDER + 1))
    assert len(store.requested) == len({*store.requested}) == SEGMENTS
    assert len(await archive.segments(state=state)) == SEGMENTS
    assert len(store.requested) == SEGMENTS  # a reader keeps them


async def test_reader_of_new_segments_reads_no_others() -> None:
    store = SlowStore()
    projections, _ = await filled(store, 40)
    names = [segment.name for segment in await Archive(store, projections).segments()]
    store.requested.clear()
    assert [segment.name for segment in await Archive(store, projections).segments(behind=names[-11])] == names[-10:]
    assert len(store.requested) == 10


@pytest.mark.parametrize(
    "older", [(), ("../../secret", "00000003-x"), tuple(f"{n:08}-{'0' * 16}" for n in range(99, 0, -1))]
)
async def test_wrong_names_of_older_segments_change_nothing(older: tuple[str, ...]) -> None:
    """A writer of the bucket names any object, and replaces no manifest of the chain."""
    store = SlowStore()
    projections, state = await filled(store, 5)
    head = f"{state.head}.json"
    newest = (await Archive(store, projections).segments())[-1]
    store._objects[head] = newest.model_copy(update={"older": older}).model_dump_json(indent=2).encode()
    store.requested.clear()
    with pytest.raises(ArchiveDamaged):
        await Archive(store, projections).segments()
    trusting = state.model_copy(update={"head_sha256": None})
    assert [segment.number for segment in await Archive(store, projections).segments(state=trusting)] == [1, 2, 3, 4, 5]
    assert not any("secret" in name or name == "00000003-x.json" for name in store.requested)
    assert len(store.requested) <= 2 + 2 * (OLDER + 1) + 5
