"""The events that wait for one caller of a client."""

import asyncio

import pytest

from tests.domain.given import NOON, started
from tocsin.client.event_watch import Watcher
from tocsin.domain.events import Recorded


async def test_slow_caller_reads_again_after_a_stale_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.client.event_watch.MAX_BUFFERED", 1)
    monkeypatch.setattr("tocsin.client.event_watch.CHECKS_S", (0.0, 0.0))
    watcher = Watcher()
    for _ in range(2):
        assert await watcher.take() == ([], True)
    facts = [Recorded(started(), "", sequence, NOON) for sequence in (1, 2)]
    for fact in facts:
        watcher.receive(fact)
    assert await watcher.take() == (facts[:1], True)
    async with asyncio.timeout(60):
        assert await watcher.take() == ([], True)
