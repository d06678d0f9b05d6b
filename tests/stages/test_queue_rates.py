"""The tokens of queues with a rate."""

from collections.abc import Sequence

import pytest

from tocsin.domain.open_task import RateGroup
from tocsin.domain.token_bucket import TokenBucket
from tocsin.ports import EntryWrite, Written
from tocsin.stages.matcher.queue_rates import LIFETIME_S, QueueRates
from tocsin.subjects import Bucket
from tocsin.testing import InMemoryProjections, ManualClock

EXHAUSTED = ("a", "b", "c", "d")
OTHERS = ("e", "f", "g", "h")


async def test_exhausted_queue_leaves_the_rates_of_others() -> None:
    clock = ManualClock()
    rate = TokenBucket(1, 60.0, 1)
    rates = QueueRates(InMemoryProjections(clock), clock, dict.fromkeys((*EXHAUSTED, *OTHERS), rate))
    assert await rates.take(dict.fromkeys(EXHAUSTED, 1)) == dict.fromkeys(EXHAUSTED, 1)
    granted = await rates.take(dict.fromkeys((*EXHAUSTED, *OTHERS), 2))
    assert granted == dict.fromkeys(EXHAUSTED, 0) | dict.fromkeys(OTHERS, 1)


async def test_groups_share_a_bucket_by_key_and_limit() -> None:
    clock = ManualClock()
    projections = InMemoryProjections(clock)
    first, second = QueueRates(projections, clock, {}), QueueRates(projections, clock, {})
    group, other = (RateGroup("key:a", TokenBucket(limit, 60.0, limit)) for limit in (2, 3))
    assert await first.take({group: 1, other: 3}) == {group: 1, other: 3}
    assert await second.room_of([group, other]) == {group: 1, other: 0}
    assert await second.take({group: 5}) == {group: 1}
    assert await first.take({group: 5}) == {group: 0}  # another matcher took the token
    clock.advance(30)
    assert await first.room_of([group]) == {group: 1}


async def test_entry_of_a_full_bucket_is_removed() -> None:
    clock = ManualClock()
    projections = InMemoryProjections(clock)
    group = RateGroup("key:a", TokenBucket(1, 60.0, 1))
    rates = QueueRates(projections, clock, {})
    for _ in range(2):
        assert await rates.take({group: 1}) == {group: 1}
        assert len(await projections.entries(Bucket.QUEUES)) == 1
        clock.advance(60 + LIFETIME_S + 1)
        assert not await projections.entries(Bucket.QUEUES)
        rates.forget()


async def test_rarely_used_key_is_granted_at_once() -> None:
    clock = ManualClock()
    projections = InMemoryProjections(clock)
    group = RateGroup("key:a", TokenBucket(1, 60.0, 1))
    rates = QueueRates(projections, clock, {})
    for _ in range(3):
        assert await rates.take({group: 1}) == {group: 1}
        clock.advance(60 + LIFETIME_S + 1)  # the entry is removed, and its revision is still known


async def test_tokens_of_groups_are_stored_together(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    projections = InMemoryProjections(clock)
    write, requests = projections.write, list[int]()

    async def counted(bucket: Bucket, writes: Sequence[EntryWrite]) -> list[Written]:
        requests.append(len(writes))
        return await write(bucket, writes)

    monkeypatch.setattr(projections, "write", counted)
    rates = QueueRates(projections, clock, {})
    groups = [RateGroup(f"key:{number}", TokenBucket(1, 60.0, 1)) for number in range(50)]
    assert await rates.take(dict.fromkeys(groups, 2)) == dict.fromkeys(groups, 1)
    assert await rates.take(dict.fromkeys(groups, 1)) == dict.fromkeys(groups, 0)
    assert requests == [50, 0]
