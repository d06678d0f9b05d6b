"""The measurement of the log's clock, its bounds, and the judgement on the clock of this machine."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tests.clocks import ShiftedClock
from tests.stages.world import World
from tocsin.engine.clock_guard import ATTEMPTS, MAX_DRIFT, ClockGuard, Interval, LogTime, Measurement, Reading
from tocsin.ports import LogUnavailable

START = datetime(2026, 1, 1, tzinfo=UTC)
ROUNDING_S = 1e-5
"""Clocks show whole microseconds."""


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


@dataclass(frozen=True)
class Request:
    """A request for the log's time: when it starts, and how long it and its reply take."""

    pause: float
    there: float
    back: float


@dataclass(frozen=True)
class Machine:
    """A machine whose wall clock is wrong, and whose monotonic clock runs a little too fast or slow."""

    offset: float
    booted: float
    rate: float = 1.0

    def reading(self, true: float) -> Reading:
        return Reading(START + seconds(true + self.offset), self.booted + true * self.rate)

    def measurement(self, true: float, request: Request) -> Measurement:
        asked = true + request.there
        return Measurement(self.reading(true), START + seconds(asked), self.reading(asked + request.back))


_delays = st.floats(0.0, 30.0)
_requests = st.builds(Request, st.floats(0.0, 120.0), _delays, _delays)
_machines = st.builds(
    Machine, st.floats(-1e5, 1e5), st.floats(0.0, 1e7), st.floats(1 - MAX_DRIFT / 2, 1 + MAX_DRIFT / 2)
)


@given(_machines, st.lists(_requests, min_size=1, max_size=8))
@example(Machine(8.0, 0.0), [Request(0.0, 0.0, 0.0)])
@example(Machine(-120.0, 5.0), [Request(0.0, 0.0, 30.0), Request(5.0, 30.0, 0.0)])
@example(Machine(0.0, 0.0), [Request(0.0, 0.0, 0.0), Request(6e-8, 0.0, 1.0)])
def test_bounds_contain_the_truth_over_any_link(machine: Machine, requests: list[Request]) -> None:
    true, known, least_error = 0.0, None, float("inf")
    for request in requests:
        true += request.pause
        measurement = machine.measurement(true, request)
        known = LogTime.after(known, measurement)
        true += request.there + request.back
        offset = known.offset(measurement.after)
        slack = ROUNDING_S + MAX_DRIFT * true
        assert offset.low - slack <= machine.offset <= offset.high + slack
        assert offset.error <= (measurement.after.monotonic - measurement.before.monotonic) / 2 + ROUNDING_S
        least_error = min(least_error, (measurement.after.monotonic - measurement.before.monotonic) / 2)
        assert offset.error <= least_error + slack
        late = (START + seconds(true) - known.at(measurement.after.monotonic)).total_seconds()
        assert -slack <= late <= 2 * offset.error + slack


@given(st.floats(-1e5, 1e5), _requests, _requests, st.floats(-1e5, 1e5))
def test_set_clock_of_the_log_is_taken_over(offset: float, first: Request, second: Request, step: float) -> None:
    machine, true = Machine(offset, 0.0), first.there + first.back + second.pause
    known = LogTime.after(None, machine.measurement(0.0, first))
    later = machine.measurement(true, second)
    stepped = Measurement(later.before, later.log + seconds(step), later.after)
    found = LogTime.after(known, stepped).offset(stepped.after)
    width = second.there + second.back + ROUNDING_S
    assert found.low - width <= offset - step <= found.high + width


@pytest.mark.parametrize(
    ("low", "high", "least"), [(-1, 1, 0), (3, 4, 3), (-4, -3, 3), (0, 5, 0), (-5, 0, 0), (10.001, 10.002, 10.001)]
)
def test_least_distance_of_bounds_from_zero(low: float, high: float, least: float) -> None:
    assert Interval(low, high).least == least


class LogClock:
    """The answers of the log's clock: counted and late."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.there = self.back = 0.0
        self.before: Callable[[], None] = lambda: None
        self.is_away = False
        self._clock = world.clock
        monkeypatch.setattr(world.log, "now", self._now)

    async def _now(self) -> datetime:
        self.count += 1
        if self.is_away:
            raise LogUnavailable("no answer")
        self.before()
        self._clock.advance(self.there)
        now = self._clock.now()
        self._clock.advance(self.back)
        return now


@pytest.fixture
def log_clock(world: World, monkeypatch: pytest.MonkeyPatch) -> LogClock:
    return LogClock(world, monkeypatch)


@dataclass(frozen=True)
class Scene:
    """A process whose clock may be wrong."""

    clock: ShiftedClock
    guard: ClockGuard
    log: LogClock

    async def is_credible(self) -> bool:
        await self.guard.check()
        return self.guard.is_credible

    def error_of_now(self) -> float:
        """Return the seconds by which the time of leaders is ahead of the true time."""
        now = self.guard.now()
        assert now is not None
        return (now - self.clock.now()).total_seconds() + self.clock.seconds


@pytest.fixture
def scene(world: World, log_clock: LogClock) -> Scene:
    clock = ShiftedClock(world.clock)
    return Scene(clock, ClockGuard(world.log, clock), log_clock)


@pytest.mark.parametrize(
    ("offset", "credible"),
    [
        *((offset, True) for offset in (0, 8, -8, 10, -10)),
        *((offset, False) for offset in (10.001, -10.001, 120, -120, 7_200, -86_400)),
    ],
)
async def test_a_clock_may_be_ten_seconds_off(scene: Scene, offset: float, *, credible: bool) -> None:
    scene.clock.seconds = offset
    assert await scene.is_credible() is credible
    assert scene.guard.is_wrong is not credible
    assert scene.guard.offset == Interval(offset, offset)
    assert scene.error_of_now() == 0


@pytest.mark.parametrize(
    ("offset", "credible"), [(10, False), (9.001, False), (-9.001, False), (9, True), (-9, True), (0, True)]
)
async def test_wrong_clock_must_come_nearer_than_the_limit(scene: Scene, offset: float, *, credible: bool) -> None:
    scene.clock.seconds = 60
    assert not await scene.is_credible()
    scene.clock.seconds = offset
    assert await scene.is_credible() is credible


@pytest.mark.parametrize(("passed", "count"), [(4.999, 1), (5, 2)])
async def test_the_log_is_read_again_after_five_seconds(scene: Scene, world: World, passed: float, count: int) -> None:
    await scene.guard.check()
    world.clock.advance(passed)
    await scene.guard.check()
    assert scene.log.count == count


@pytest.mark.parametrize(("step", "count"), [(1, 1), (1.001, 2), (-1, 1), (-1.001, 2), (3600, 2)])
async def test_a_jump_above_a_second_reads_the_log(scene: Scene, step: float, count: int) -> None:
    await scene.guard.check()
    scene.clock.seconds = step
    assert (scene.guard.now() is None, scene.guard.is_credible) == (count == 2, count == 1)
    await scene.guard.check()
    assert scene.log.count == count
    assert scene.error_of_now() == 0


async def test_unmeasured_clock_is_neither_credible_nor_wrong(scene: Scene) -> None:
    scene.log.is_away = True
    with pytest.raises(LogUnavailable):
        await scene.guard.check()
    assert (scene.guard.is_credible, scene.guard.is_wrong, scene.guard.now()) == (False, False, None)


async def test_measured_clock_stays_credible_without_the_log(scene: Scene, world: World) -> None:
    await scene.guard.check()
    scene.log.is_away = True
    world.clock.advance(600)
    await scene.guard.check()
    assert scene.guard.is_credible
    assert scene.error_of_now() == 0
    scene.clock.seconds = -30
    with pytest.raises(LogUnavailable):
        await scene.guard.check()


@pytest.mark.parametrize(("there", "back"), [(0, 60), (60, 0), (300, 300)])
async def test_paused_process_has_no_wrong_clock(scene: Scene, there: float, back: float) -> None:
    scene.log.there, scene.log.back = there, back
    assert await scene.is_credible()
    assert scene.error_of_now() == -back
    scene.log.there = scene.log.back = 0
    scene.clock.seconds = 2
    assert await scene.is_credible()
    assert scene.error_of_now() == 0


async def test_slow_link_keeps_what_a_fast_link_measured(scene: Scene, world: World) -> None:
    await scene.guard.check()
    scene.log.there, scene.log.back = 1.0, 7.0
    world.clock.advance(5)
    await scene.guard.check()
    assert scene.log.count == 2
    assert -0.02 <= scene.error_of_now() <= 0


async def test_slow_link_still_finds_a_wrong_clock(scene: Scene) -> None:
    scene.log.there = scene.log.back = 3.0
    scene.clock.seconds = 120
    assert not await scene.is_credible()
    assert scene.log.count == ATTEMPTS
    scene.clock.seconds = -120
    assert not await scene.is_credible()


async def test_clock_that_is_set_while_it_is_measured(scene: Scene) -> None:
    def set_once() -> None:
        scene.clock.seconds, scene.log.before = -50.0, lambda: None

    scene.log.before = set_once
    assert not await scene.is_credible()
    assert (scene.log.count, scene.guard.offset) == (2, Interval(-50, -50))


async def test_clock_that_is_always_set_is_unknown(scene: Scene) -> None:
    def step() -> None:
        scene.clock.seconds += 2

    scene.log.before = step
    with pytest.raises(LogUnavailable):
        await scene.guard.check()
    assert (scene.log.count, scene.guard.is_credible, scene.guard.is_wrong) == (ATTEMPTS, False, False)


async def test_changed_judgement_is_logged_with_its_numbers(scene: Scene, world: World) -> None:
    scene.clock.seconds = -120
    scene.log.there = scene.log.back = 0.25
    with capture_logs() as lines:
        for _ in range(3):
            await scene.guard.check()
            world.clock.advance(5)
        scene.clock.seconds = 0
        await scene.guard.check()
    wrong, right = lines
    assert (wrong["log_level"], wrong["action"], right["action"]) == (
        "warning",
        "clock-not-credible",
        "clock-credible",
    )
    assert (wrong["offset_s"], wrong["error_s"], wrong["limit_s"]) == (-120, 0.25, 10)
