"""Shards: the map, its virtual nodes, and the shards of a partition."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue, TypeAdapter, ValidationError

from tocsin.domain.definition.partition import PartitionField, partition_problems
from tocsin.domain.events import validated
from tocsin.domain.events.shards import Shard, ShardsDefined, ShardState
from tocsin.domain.shard_map import (
    WrongShardMap,
    active,
    draft,
    resolve,
    shard_of,
    unknown,
    virtual_node,
)

PARTITIONS: TypeAdapter[Any] = TypeAdapter(PartitionField)
IDS = tuple(f"s{number:02}" for number in range(16))
MAP = tuple(Shard(shard_id=shard_id) for shard_id in IDS)


def partition(written: object) -> Any:  # noqa: ANN401 - a partition
    return PARTITIONS.validate_python(written)


@pytest.mark.parametrize("written", ["all_shards", "ALL_SHARDS", "all-shards", {"all_shards": True}])
def test_all_shards_have_several_spellings(written: object) -> None:
    assert resolve(partition(written), MAP, {}) == IDS


@pytest.mark.parametrize(
    "written",
    [
        {},
        "some_shards",
        {"all_shards": False},
        {"all_shards": True, "single_shard": "a"},
        {"shard_set": ["a", "a"]},
        {"shard_set": []},
        {"single_shard": "A.b"},
        {"shard_key": "customer_id"},
        {"shard_key": "meta.team"},
        {"shard_key": "input.a + 1"},
        {"shard_key": "$.input.a"},
        {"shard_key": "hash(input.a)"},
        {"expression": "input.a"},
    ],
)
def test_wrong_partition_is_refused(written: object) -> None:
    with pytest.raises(ValidationError):
        partition(written)


def test_only_active_shards_are_chosen() -> None:
    states = (ShardState.ACTIVE, ShardState.DRAINING, ShardState.DISABLED)
    shards = [Shard(shard_id=state.value.lower(), state=state) for state in states]
    assert resolve(partition("all_shards"), shards, {}) == ("active",)
    assert resolve(partition({"single_shard": "draining"}), shards, {}) == ()
    assert resolve(partition({"shard_set": ["disabled", "active", "unknown"]}), shards, {}) == ("active",)


def test_value_keeps_its_shard() -> None:
    """Keep the hash: plans store what it gave."""
    rule = partition({"shard_key": "input.customer_id"})
    values: tuple[JsonValue, ...] = ("ann", "bob", 42, 4.5, True, ["x"])
    chosen = [resolve(rule, MAP, {"customer_id": value})[0] for value in values]
    assert chosen == ["s06", "s11", "s12", "s07", "s06", "s02"]
    assert resolve(rule, MAP, {"customer_id": "42"}) == resolve(rule, MAP, {"customer_id": 42})
    assert (
        resolve(rule, MAP, {})
        == resolve(rule, MAP, {"customer_id": None})
        == resolve(rule, (), {"customer_id": 1})
        == ()
    )


@given(st.text(max_size=20), st.sets(st.sampled_from(IDS), min_size=2))
def test_shard_that_leaves_moves_only_its_values(value: str, ids: set[str]) -> None:
    before = shard_of(value, tuple(sorted(ids)))
    gone = min(ids)
    after = shard_of(value, tuple(sorted(ids - {gone})))
    assert before in {after, gone}


def test_virtual_nodes_are_spread() -> None:
    nodes = Counter(virtual_node(f"customer-{number}") for number in range(20_000))
    assert len(nodes) == 256
    owners = Counter(shard_of(f"customer-{number}", IDS) for number in range(20_000))
    assert len(owners) == len(IDS)
    assert max(owners.values()) < 3 * min(owners.values())


def test_order_of_shards_changes_no_map() -> None:
    first = draft(reversed(MAP))
    assert [shard.shard_id for shard in first.shards] == [*IDS]
    assert draft(MAP) == first
    second = draft((*MAP[1:], MAP[0].changed(state=ShardState.DRAINING)))
    assert active(second.shards) == IDS[1:]
    assert validated(ShardsDefined, second.encode()) == second


@pytest.mark.parametrize(
    "shards",
    [
        [Shard(shard_id="a"), Shard(shard_id="a")],
        [Shard(shard_id="")],
        [Shard(shard_id="a.b")],
        [Shard(shard_id="_a")],
        [Shard(shard_id="A")],
        [Shard(shard_id="x" * 65)],
        [Shard(shard_id="a", name="x" * 256)],
        [Shard(shard_id="a", labels={"k": "\n"})],
        [Shard(shard_id="a", labels={str(number): "" for number in range(51)})],
        [Shard(shard_id=f"s{number}") for number in range(1_001)],
    ],
)
def test_wrong_map_is_refused(shards: list[Shard]) -> None:
    with pytest.raises(WrongShardMap):
        draft(shards)


@pytest.mark.parametrize(
    ("written", "shards", "reason"),
    [
        ("all_shards", MAP, None),
        ("all_shards", (), "no shard is active"),
        ({"single_shard": "s01"}, MAP, None),
        ({"single_shard": "x"}, MAP, "no shard x in the shard map"),
        ({"shard_set": ["s01", "y", "x"]}, MAP, "no shard x, y in the shard map"),
    ],
)
def test_unknown_shard_is_named(written: object, shards: tuple[Shard, ...], reason: str | None) -> None:
    found = unknown(partition(written), shards)
    assert found is None if reason is None else reason in (found or "")


@pytest.mark.parametrize(
    ("written", "input_", "is_scheduled", "leads", "fields"),
    [
        ("all_shards", {}, True, False, []),
        ("all_shards", {}, True, True, ["partition"]),
        ({"shard_key": "input.a"}, {}, False, False, []),
        ({"shard_key": "input.a"}, {"a": 1}, True, False, []),
        ({"shard_key": "input.a"}, {"b": 1}, True, False, ["partition.shard_key"]),
    ],
)
def test_partition_fits_the_job(
    written: object,
    input_: dict[str, Any],
    is_scheduled: bool,  # noqa: FBT001 - a case
    leads: bool,  # noqa: FBT001 - a case
    fields: list[str],
) -> None:
    problems = partition_problems(partition(written), input_, is_scheduled=is_scheduled, leads=leads)
    assert [problem.field for problem in problems] == fields
