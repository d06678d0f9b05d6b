"""The behaviour of all projections."""

import asyncio

import pytest

from tests.conformance.worlds import World
from tocsin.ports import EntryWrite, SequenceConflict
from tocsin.subjects import Bucket

LEADER = Bucket.LEADER
KEY = "scheduler.lock.a_job"


async def test_what_was_put_is_there_under_its_revision(world: World) -> None:
    assert await world.projections.get(LEADER, KEY) is None
    first = await world.projections.put(LEADER, KEY, b"one")
    assert await world.projections.get(LEADER, KEY) == (b"one", first)
    second = await world.projections.put(LEADER, KEY, b"two")

    assert second > first
    assert await world.projections.get(LEADER, KEY) == (b"two", second)


async def test_a_value_may_be_empty(world: World) -> None:
    revision = await world.projections.put(LEADER, KEY, b"")

    assert await world.projections.get(LEADER, KEY) == (b"", revision)
    assert await world.projections.entries(LEADER) == {KEY: b""}


async def test_buckets_and_keys_are_apart(world: World) -> None:
    await world.projections.put(LEADER, KEY, b"one", expect=0)
    await world.projections.put(LEADER, "other", b"two", expect=0)
    await world.projections.put(Bucket.LOCKS, KEY, b"three", expect=0)

    assert await world.projections.entries(LEADER) == {KEY: b"one", "other": b"two"}
    assert await world.projections.entries(Bucket.LOCKS) == {KEY: b"three"}
    assert await world.projections.entries(Bucket.CURSORS) == {}


async def test_another_revision_than_expected_is_refused(world: World) -> None:
    first = await world.projections.put(LEADER, KEY, b"one", expect=0)
    for wrong in (0, first + 7):
        with pytest.raises(SequenceConflict):
            await world.projections.put(LEADER, KEY, b"lost", expect=wrong)
    second = await world.projections.put(LEADER, KEY, b"two", expect=first)
    with pytest.raises(SequenceConflict):
        await world.projections.put(LEADER, KEY, b"lost", expect=first)

    assert await world.projections.get(LEADER, KEY) == (b"two", second)


async def test_exactly_one_of_ten_creators_wins(world: World) -> None:
    for marked in (False, True):
        outcomes = await asyncio.gather(
            *(world.projections.put(LEADER, KEY, b"%d" % n, expect=0) for n in range(10)), return_exceptions=True
        )
        won = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, int)]
        assert [type(outcome) for outcome in outcomes].count(SequenceConflict) == 9
        found = await world.projections.get(LEADER, KEY)
        assert found is not None
        assert [found[0]] == [b"%d" % n for n in won]
        if not marked:  # and again over the mark of a removed key
            await world.projections.remove(LEADER, KEY)


async def test_removed_key_is_absent_and_can_be_created(world: World) -> None:
    revision = await world.projections.put(LEADER, KEY, b"one")
    await world.projections.remove(LEADER, KEY, expect=revision)

    assert await world.projections.get(LEADER, KEY) is None
    assert await world.projections.entries(LEADER) == {}
    with pytest.raises(SequenceConflict):
        await world.projections.put(LEADER, KEY, b"lost", expect=revision)
    again = await world.projections.put(LEADER, KEY, b"two", expect=0)
    assert again > revision
    assert await world.projections.get(LEADER, KEY) == (b"two", again)


async def test_removing_what_is_absent_is_no_error(world: World) -> None:
    await world.projections.remove(LEADER, KEY)
    await world.projections.remove(LEADER, KEY, expect=0)
    await world.projections.remove(LEADER, KEY, expect=7)
    await world.projections.put(LEADER, KEY, b"one", expect=0)
    await world.projections.remove(LEADER, KEY)
    await world.projections.remove(LEADER, KEY)

    assert await world.projections.get(LEADER, KEY) is None


async def test_a_stale_remover_is_refused(world: World) -> None:
    first = await world.projections.put(LEADER, KEY, b"one")
    second = await world.projections.put(LEADER, KEY, b"two")
    with pytest.raises(SequenceConflict):
        await world.projections.remove(LEADER, KEY, expect=first)

    assert await world.projections.get(LEADER, KEY) == (b"two", second)


async def test_several_keys_are_read_at_once(world: World) -> None:
    revisions = {key: await world.projections.put(LEADER, key, key.encode()) for key in ("a", "b", "gone")}
    await world.projections.remove(LEADER, "gone")
    await world.projections.put(Bucket.LOCKS, "never", b"in another bucket")

    entries = await world.projections.get_each(LEADER, ["b", "never", "gone", "a"])

    assert entries == [(b"b", revisions["b"]), None, None, (b"a", revisions["a"])]
    assert await world.projections.get_each(LEADER, []) == []
    assert await world.projections.get_each(LEADER, ["", "a", "a..b"]) == [None, (b"a", revisions["a"]), None]


async def test_more_keys_are_read_than_one_answer_holds(world: World) -> None:
    keys = [f"job-{number}" for number in range(1_100)]
    written = await world.projections.write(LEADER, [EntryWrite(key, key.encode(), 0) for key in keys])

    entries = await world.projections.get_each(LEADER, keys)

    assert entries == [(key.encode(), of.sequences[0]) for key, of in zip(keys, written, strict=True)]


async def test_refused_entry_does_not_hold_up_the_others(world: World) -> None:
    first = await world.projections.put(LEADER, "changed", b"one")
    second = await world.projections.put(LEADER, "changed", b"two")
    kept = await world.projections.put(LEADER, "kept", b"one")
    gone = await world.projections.put(LEADER, "gone", b"one")
    await world.projections.put(LEADER, "removed", b"one")
    await world.projections.remove(LEADER, "removed")
    writes = [
        EntryWrite("changed", b"lost", first),
        EntryWrite("created", b"", 0),
        EntryWrite("kept", None, kept + 7),
        EntryWrite("gone", None, gone),
        EntryWrite("removed", b"again", 0),
        EntryWrite("absent", None, 7),
    ]

    written = await world.projections.write(LEADER, writes)

    assert [type(result.error) for result in written] == [
        *(SequenceConflict, type(None), SequenceConflict),
        *[type(None)] * 3,
    ]
    assert [len(result.sequences) for result in written] == [0, 1, 0, 0, 1, 0]
    assert await world.projections.get_each(LEADER, [write.key for write in writes]) == [
        (b"two", second),
        (b"", written[1].sequences[0]),
        (b"one", kept),
        None,
        (b"again", written[4].sequences[0]),
        None,
    ]


async def test_two_writes_of_one_key_are_refused(world: World) -> None:
    with pytest.raises(ValueError, match="share a key"):
        await world.projections.write(LEADER, [EntryWrite(KEY, b"one", 0), EntryWrite(KEY, b"two", 0)])

    assert await world.projections.get(LEADER, KEY) is None


async def test_expired_key_can_be_created_again(world: World) -> None:
    first = await world.projections.put(LEADER, KEY, b"one", expect=0, ttl=1)
    assert await world.projections.get(LEADER, KEY) == (b"one", first)
    with pytest.raises(SequenceConflict):
        await world.projections.put(LEADER, KEY, b"lost", expect=0, ttl=1)

    await world.until(lambda: _is_absent(world, KEY))

    assert await world.projections.entries(LEADER) == {}
    with pytest.raises(SequenceConflict):
        await world.projections.put(LEADER, KEY, b"lost", expect=first, ttl=1)
    second = await world.projections.put(LEADER, KEY, b"two", expect=0, ttl=60)
    assert await world.until(lambda: world.projections.get(LEADER, KEY)) == (b"two", second)


async def test_a_life_time_is_renewed_by_putting_again(world: World) -> None:
    first = await world.projections.put(LEADER, KEY, b"one", expect=0, ttl=1)
    renewed = await world.projections.put(LEADER, KEY, b"one", expect=first, ttl=60)
    await world.projections.put(LEADER, "witness", b"", ttl=1)  # ends no earlier than the first life would have

    await world.until(lambda: _is_absent(world, "witness"))

    assert await world.projections.get(LEADER, KEY) == (b"one", renewed)


@pytest.mark.parametrize(
    ("keys", "covered"), [("*", {"mail"}), ("rate.*", {"rate.mail"}), (">", {"mail", "rate.mail", "rate.starts.a"})]
)
async def test_filter_covers_some_keys(world: World, keys: str, covered: set[str]) -> None:
    for key in ("mail", "rate.mail", "rate.starts.a"):
        await world.projections.put(Bucket.QUEUES, key, b"")

    assert set(await world.projections.entries(Bucket.QUEUES, keys)) == covered


@pytest.mark.parametrize("ttl", [0, -1.0])
async def test_a_life_time_is_longer_than_nothing(world: World, ttl: float) -> None:
    with pytest.raises(ValueError, match=f"ttl {ttl}"):
        await world.projections.put(LEADER, KEY, b"", ttl=ttl)


async def test_bucket_holds_more_keys_than_one_answer(world: World) -> None:
    entries = {f"job-{n}": b"%d" % n for n in range(1_100)}
    await asyncio.gather(*(world.projections.put(LEADER, key, value) for key, value in entries.items()))
    await world.projections.remove(LEADER, "job-7")

    assert await world.projections.entries(LEADER) == {key: entries[key] for key in entries if key != "job-7"}


async def _is_absent(world: World, key: str) -> bool:
    return await world.projections.get(LEADER, key) is None
