"""The real stages store the same in batches as message by message, apart from sequences."""

import asyncio
import re
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.properties import examples
from tests.stages.world import World
from tocsin import subjects
from tocsin.engine.stage import BoundSubscription

POLICIES: Final = ("allow", "skip", "enqueue", "cancel-previous")
SEQUENCES: Final = re.compile(r'"(definition|fence|oldest|sole)":("[0-9a-f]{32}"|\d+)')
"""Fields that are sequences, or a keyed hash of one."""


async def stored_by(jobs: list[str], size: int) -> dict[str, list[str]]:
    """The events of each scope, in order, after the triggers of some jobs came in batches of a size."""
    world = World()
    for policy in POLICIES:
        await world.define({"name": policy, "function": "f", "overlap_policy": policy.replace("-", "_")})
    for number, job in enumerate(jobs):
        await world.trigger(job, str(number))
    for stage in (world.planner, world.lock_keeper, world.dag_advancer, world.lock_keeper):
        for subscription in stage.subscriptions:
            await drained(world, subscription, size)
    scopes = dict[str, list[str]]()
    for recorded in await world._log():
        scope = subjects.guard_of(recorded.subject) or recorded.subject
        body = SEQUENCES.sub(r'"\1":0', recorded.message.encode().decode())
        scopes.setdefault(scope, []).append(f"{recorded.subject} {body}")
    return scopes


async def drained(world: World, subscription: BoundSubscription, size: int) -> None:
    while deliveries := await world.durable(subscription).take(size, wait=0):
        await world.outcomes.apply(subscription, deliveries)


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.sampled_from(POLICIES), min_size=2, max_size=12), st.integers(2, 12))
def test_stages_store_the_same_in_batches(jobs: list[str], size: int) -> None:
    assert asyncio.run(stored_by(jobs, size)) == asyncio.run(stored_by(jobs, 1))
