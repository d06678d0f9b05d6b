"""A flood of one program comes before other work by a batch or two at most."""

from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Final

import pytest

from tests.security.installations import connected, installed
from tests.security.server import Server
from tests.security.test_outside_requests import deciding
from tests.system.running import Running
from tocsin import subjects
from tocsin.adapters.nats.consumers.stage_router import BATCH
from tocsin.domain.events import CancelRequest, Due, PoisonMessage, Requested, Trigger

FLOOD: Final = 8 * BATCH
AHEAD: Final = 2 * BATCH
"""Messages of a flood that may be decided before other work: a batch in progress, and one that was taken meanwhile."""


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Server]:
    with installed(tmp_path / "server") as running:
        yield running


@pytest.mark.parametrize("policy", ["allow", "enqueue"])
async def test_flood_of_triggers_yields_to_other_work(policy: str, secured: Server, tmp_path: Path) -> None:
    async with (
        connected(secured, tmp_path, "operator") as it,
        connected(secured, tmp_path, "scheduler") as scheduler,
        connected(secured, tmp_path, "public-shop") as shop,
    ):
        tocsin, client = Running(it), shop.connection.client
        for name in ("flooded", "due", "own"):
            await tocsin.apply({"name": name, "function": "f", "overlap_policy": policy})
        for _ in range(FLOOD):
            await client.publish("cron.trigger.flooded", b"{}")
        await client.flush()
        await tocsin.stored("outside.shop.trigger.>", Trigger, FLOOD)
        await tocsin.trigger("own")
        [defined] = await it.log.load(subjects.ledger("due"))
        due = Due(job="due", scheduled_time=defined.time, definition=defined.sequence)
        await scheduler.log.append(due, expect=defined.sequence)
        async with deciding(secured, tmp_path):
            begun = await tocsin.stored("execution.>", Requested, FLOOD + 2)
    order = [recorded.message.job for recorded in sorted(begun, key=lambda recorded: recorded.sequence)]
    for job in ("due", "own"):
        assert len(list(takewhile(job.__ne__, order))) <= AHEAD


async def test_flood_of_cancels_yields_to_other_work(secured: Server, tmp_path: Path) -> None:
    async with connected(secured, tmp_path, "operator") as it, connected(secured, tmp_path, "public-shop") as shop:
        tocsin, client = Running(it), shop.connection.client
        await tocsin.apply({"name": "own", "function": "f"})
        for number in range(FLOOD):
            await client.publish(f"cron.cancel.own.unknown-{number}", b"{}")
        await client.flush()
        await tocsin.stored("outside.shop.cancel.>", CancelRequest, FLOOD)
        await tocsin.trigger("own")
        async with deciding(secured, tmp_path):
            [begun] = await tocsin.stored("execution.>", Requested, 1)
            refused = await tocsin.stored("dead-letter.>", PoisonMessage, FLOOD)
    assert begun.sequence < refused[AHEAD].sequence
