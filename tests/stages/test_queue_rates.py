"""The tokens of queues with a rate."""

from tocsin.domain.token_bucket import TokenBucket
from tocsin.stages.matcher.queue_rates import QueueRates
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
