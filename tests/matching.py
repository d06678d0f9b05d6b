"""A matcher over in-memory adapters, which runs by itself."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from tests.domain.given import KEY
from tocsin.adapters.memory.agents import InMemoryAgentChannel, InMemoryFetchChannel
from tocsin.engine.clock_guard import ClockGuard
from tocsin.engine.leader_election import LeaderElection
from tocsin.stages.matcher.stage import Channels, Matcher
from tocsin.testing import InMemoryEventLog, InMemoryProjections, ManualClock


@asynccontextmanager
async def running_matcher(
    log: InMemoryEventLog,
    clock: ManualClock,
    fetches: InMemoryFetchChannel,
    serves: Callable[[str], bool] = lambda _: True,
    *,
    agents: InMemoryAgentChannel | None = None,
) -> AsyncIterator[Matcher]:
    """Yield a matcher that leads, assigns tasks and serves fetches until the end of the block."""
    projections = InMemoryProjections(clock)
    election = LeaderElection(projections, ClockGuard(log, clock), key="matcher", holder="test", ttl=1e9)
    await election.run_once()
    channels = Channels(agents or InMemoryAgentChannel(), fetches)
    matcher = Matcher(log, projections, channels, election, clock, {}, serves, key=KEY)
    async with AsyncExitStack() as stack:
        for loop in (
            matcher.follow(),
            matcher.follow_decisions(),
            matcher.run(),
            matcher.tick(),
        ):
            task = asyncio.create_task(loop)
            stack.push_async_callback(asyncio.wait, {task})
            stack.callback(task.cancel)
        yield matcher
