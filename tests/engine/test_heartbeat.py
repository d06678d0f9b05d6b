"""The heartbeat: when a monitor outside hears of Tocsin, and when it hears nothing."""

import pytest
from structlog.testing import capture_logs

from tocsin.engine.ticker_watch import MAX_SILENCE_S, Heartbeat
from tocsin.testing import START, ManualClock


class Monitor:
    """Counts the signs of life that it accepts."""

    def __init__(self) -> None:
        self.heard = 0
        self.error: Exception | None = None

    async def ping(self) -> None:
        if self.error is not None:
            raise self.error
        self.heard += 1


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def monitor() -> Monitor:
    return Monitor()


async def seconds(
    heartbeat: Heartbeat, clock: ManualClock, number: int, *, clean: bool = True, leads: bool = True
) -> None:
    """Let the ticker end a pass in each of some seconds."""
    for _ in range(number):
        heartbeat.pass_ended(is_clean=clean)
        await heartbeat.run_once(is_leading=leads)
        clock.advance(1)


async def test_signs_of_life_have_their_interval(monitor: Monitor, clock: ManualClock) -> None:
    heartbeat = Heartbeat(monitor.ping, clock, every=60)
    await seconds(heartbeat, clock, 181)
    assert monitor.heard == 4


async def test_only_the_leader_sends(monitor: Monitor, clock: ManualClock) -> None:
    heartbeat = Heartbeat(monitor.ping, clock, every=60)
    await seconds(heartbeat, clock, 100, leads=False)
    assert monitor.heard == 0
    await seconds(heartbeat, clock, 1)
    assert monitor.heard == 1


async def test_silence_follows_passes_that_could_not_be_stored(monitor: Monitor, clock: ManualClock) -> None:
    heartbeat = Heartbeat(monitor.ping, clock, every=10)
    await seconds(heartbeat, clock, 1)
    await seconds(heartbeat, clock, 600, clean=False)
    assert monitor.heard == 1 + MAX_SILENCE_S // 10
    await seconds(heartbeat, clock, 1)
    assert monitor.heard == 2 + MAX_SILENCE_S // 10


async def test_silence_follows_a_ticker_that_stands_still(monitor: Monitor, clock: ManualClock) -> None:
    heartbeat = Heartbeat(monitor.ping, clock, every=10)
    await heartbeat.run_once(is_leading=True)
    assert monitor.heard == 0  # it never ended a pass
    await seconds(heartbeat, clock, 1)
    clock.advance(MAX_SILENCE_S + 10)
    await heartbeat.run_once(is_leading=True)
    assert monitor.heard == 1


async def test_monitor_that_is_away_is_warned_of_once(monitor: Monitor, clock: ManualClock) -> None:
    heartbeat, secret = Heartbeat(monitor.ping, clock, every=10), "https://monitor.example.com/ping/hunter2"
    monitor.error = ConnectionError(secret)
    with capture_logs() as lines:
        await seconds(heartbeat, clock, 50)
        monitor.error = None
        await seconds(heartbeat, clock, 50)
    assert [line["action"] for line in lines] == ["heartbeat-failed", "heartbeat-accepted"]
    assert "hunter2" not in str(lines)
    assert monitor.heard == 5
