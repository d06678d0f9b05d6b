"""The shard map as operators define it: versions, repetition, other writers, and foreign messages."""

import pytest

from tocsin import subjects
from tocsin.domain.events import Actor, Shard, ShardsDefined, ShardState
from tocsin.domain.shard_map import WrongShardMap
from tocsin.ports import SequenceConflict
from tocsin.services.documents import has_version
from tocsin.services.shards import ShardMap, ShardMaps
from tocsin.testing import InMemoryEventLog

A, B = Shard(shard_id="a"), Shard(shard_id="b")
ANN = Actor(identity="ann")


async def test_map_has_a_version() -> None:
    maps = ShardMaps(log := InMemoryEventLog())
    assert await maps.newest() == ShardMap(0, ())
    assert not await maps.apply([])
    assert await maps.apply([B, A], by=ANN, reason="begin")
    assert not await maps.apply([A, B])
    first = await maps.newest()
    assert first.shards == (A, B)
    drained = A.changed(state=ShardState.DRAINING)
    assert await maps.apply([drained, B])
    second = await maps.newest()
    assert second.version > first.version
    stored = [r.message for r in await log.read("shards.>") if isinstance(r.message, ShardsDefined)]
    assert [(fact.previous, fact.by, fact.reason) for fact in stored] == [
        (0, ANN, "begin"),
        (first.version, None, None),
    ]
    old = await log.get(subjects.shard_map(), first.version)
    assert old is not None
    assert isinstance(old.message, ShardsDefined), "`due` names a version, which must stay readable"


async def test_map_of_another_version_is_kept() -> None:
    maps = ShardMaps(log := InMemoryEventLog())
    assert await maps.apply([A], check=has_version("the shard map", 0))
    read = await maps.newest()
    assert await maps.apply([A, B], check=has_version("the shard map", read.version))
    with pytest.raises(SequenceConflict, match=f"the newest is {(await maps.newest()).version}"):
        await maps.apply([], check=has_version("the shard map", read.version))
    assert (await maps.newest()).shards == (A, B)
    assert len(await log.read("shards.>")) == 2


async def test_wrong_map_stores_nothing() -> None:
    maps = ShardMaps(log := InMemoryEventLog())
    with pytest.raises(WrongShardMap):
        await maps.apply([A, A])
    assert await log.read("shards.>") == []
