"""A simulation: schedules, handlers and failures on a clock that the test moves."""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.stages.world import World
from tocsin import Context, NonRetryableError, Tocsin, Worker
from tocsin.domain.definition import DefinitionError, JobDefinition
from tocsin.domain.events import Due, Passed
from tocsin.domain.ledger import JobNotFound
from tocsin.testing import Simulation, SimulationError, Skip
from tocsin.testing import rest as rest_module

MINUTE = timedelta(minutes=1)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def job(name: str = "tick", **fields: object) -> JobDefinition:
    return JobDefinition.model_validate({"name": name, "function": name, **fields})


def worker_of(**handlers: Callable[..., object]) -> Worker:
    worker = Worker()
    for name, handler in handlers.items():
        worker.task(name)(handler)
    return worker


async def done(context: Context) -> str:
    return context.scheduled_time.isoformat()


async def test_instants_run_in_order_at_their_time() -> None:
    app = Tocsin("shop")
    ran: list[tuple[str, datetime]] = []

    @app.job(schedule="0 * * * *")
    async def hourly(context: Context) -> None:
        ran.append(("hourly", context.scheduled_time))

    @app.job(schedule="30 */2 * * *")
    async def second(context: Context, limit: int = 3) -> int:
        ran.append(("second", context.scheduled_time))
        return limit

    async with Simulation(app, at="2026-01-01T12:00") as simulation:
        await simulation.advance("3h")
        assert simulation.now == NOON + timedelta(hours=3)
        assert ran == [
            ("second", NOON + 30 * MINUTE),
            ("hourly", NOON + 60 * MINUTE),
            ("hourly", NOON + 120 * MINUTE),
            ("second", NOON + 150 * MINUTE),
            ("hourly", NOON + 180 * MINUTE),
        ]
        assert simulation.instants("hourly") == [NOON + timedelta(hours=n) for n in (1, 2, 3)]
        assert simulation.results("second") == [3, 3]
        first = simulation.executions("hourly")[0]
        assert (first.status, first.started_at, first.completed_at) == ("completed", ran[1][1], ran[1][1])


@pytest.mark.parametrize(
    ("at", "hours", "skipped"),
    [
        ("2026-03-08T00:00", [0, 1, 3, 4], ["dst_skip"]),  # 02:30 does not exist
        ("2026-11-01T00:00", [0, 1, 2, 3, 4], []),  # 01:30 exists twice, and runs once
    ],
)
async def test_local_day_has_its_clock_change(at: str, hours: list[int], skipped: list[str]) -> None:
    definition = job(schedule="30 0-4 * * *", timezone="America/New_York")
    async with Simulation(worker_of(tick=done), at=at, tz="America/New_York", definitions=[definition]) as simulation:
        await simulation.advance("1 day")
        assert [instant.hour for instant in simulation.instants("tick")] == hours
        assert [skip.reason for skip in simulation.skips("tick")] == skipped
        assert (simulation.now.hour, simulation.now.minute) == (0, 0)


@pytest.mark.usefixtures("other_zone_table")
async def test_simulated_zone_is_the_zone_of_schedules() -> None:
    definition = job(schedule="30 9 * * *", timezone="America/New_York")
    at, tz = "2026-03-02T00:00", "America/New_York"
    async with Simulation(worker_of(tick=done), at=at, tz=tz, definitions=[definition]) as simulation:
        await simulation.advance_to("2026-03-02T10:00")
        [instant] = simulation.instants("tick")
        assert instant.replace(tzinfo=None) == datetime(2026, 3, 2, 9, 30)  # noqa: DTZ001 - the clock on the wall


async def test_handlers_wait_for_the_simulated_time() -> None:
    ends: list[float] = []

    async def tick(context: Context) -> str:
        loop = asyncio.get_running_loop()
        start = loop.time()
        await asyncio.sleep(90)
        ends.append(loop.time() - start)
        try:
            async with asyncio.timeout(10):
                await asyncio.Event().wait()
        except TimeoutError:
            return context.job
        return "no timeout"

    began = time.monotonic()
    async with Simulation(worker_of(tick=tick), definitions=[job()]) as simulation:
        id_ = await simulation.trigger("tick")
        await simulation.advance("99s")
        assert simulation.execution(id_).status == "running"
        await simulation.advance(1)
        assert simulation.results("tick") == ["tick"]
    assert ends == [90]
    assert time.monotonic() - began < 60


async def test_the_test_itself_keeps_the_machines_time() -> None:
    async with Simulation(worker_of(tick=done)) as simulation:
        loop = asyncio.get_running_loop()
        before = time.monotonic()
        await asyncio.sleep(0.01)
        assert abs(loop.time() - time.monotonic()) < 60
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0.01)
        assert time.monotonic() > before
        assert simulation.now == datetime(2026, 1, 1, tzinfo=UTC)
    assert not {"time", "call_soon", "call_at"} & set(vars(loop))


async def test_step_timeout_is_simulated() -> None:
    async def tick(_: Context) -> None:
        await asyncio.sleep(10**6)

    definition = job(timeout="5m", retry={"max_attempts": 2, "initial_delay": "1h", "max_delay": "2h", "jitter": 0})
    async with Simulation(worker_of(tick=tick), definitions=[definition]) as simulation:
        id_ = await simulation.trigger("tick")
        await simulation.advance("1h9m")
        assert simulation.execution(id_).status == "running"
        await simulation.advance("2m")
        execution = simulation.execution(id_)
        assert (execution.status, execution.attempt) == ("failed", 2)
        assert execution.error_type is not None


async def test_sync_handlers_run_in_threads() -> None:
    threads: set[int] = set()

    def tick(context: Context, n: int) -> int:
        threads.add(threading.get_ident())
        context.logger.info("in a thread")
        return n + context.attempt

    async with Simulation(worker_of(tick=tick), definitions=[job()]) as simulation:
        await simulation.trigger("tick", n=1)
        await simulation.trigger("tick", n=2)
        assert simulation.results("tick") == [2, 3]
    assert threading.get_ident() not in threads


async def test_sync_handler_that_hangs_is_named() -> None:
    release = threading.Event()

    def tick(_: Context) -> None:
        release.wait(30)

    async with Simulation(worker_of(tick=tick), definitions=[job()], thread_limit=0.3) as simulation:
        with pytest.raises(SimulationError, match="tick"):
            await simulation.trigger("tick")
        release.set()


async def test_handler_that_never_rests_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest_module, "BUSY_ROUNDS", 500)
    stop = False

    async def tick(_: Context) -> None:
        while not stop:  # noqa: ASYNC110 - that is the mistake
            await asyncio.sleep(0)

    async with Simulation(worker_of(tick=tick), definitions=[job()]) as simulation:
        with pytest.raises(SimulationError, match="never rests"):
            await simulation.trigger("tick")
        stop = True


@pytest.mark.parametrize("is_caught", [False, True])
async def test_handler_that_never_waits_is_ended(*, is_caught: bool) -> None:
    async def tick(_: Context) -> None:
        while True:
            with suppress(Exception if is_caught else ValueError):
                sum(range(1_000))

    async with Simulation(worker_of(tick=tick), definitions=[job()], thread_limit=0.2) as simulation:
        with pytest.raises(SimulationError, match="async handler tick"):
            await simulation.trigger("tick")


async def test_slow_test_is_no_slow_handler() -> None:
    async with Simulation(worker_of(tick=done), definitions=[job()], thread_limit=0.3) as simulation:
        time.sleep(0.7)  # noqa: ASYNC251 - the test, not a handler
        await simulation.trigger("tick")
        assert len(simulation.results("tick")) == 1


async def test_injected_failures_are_retried() -> None:
    definition = job(retry={"max_attempts": 3, "initial_delay": "1m", "backoff": "exponential", "jitter": 0})
    async with Simulation(worker_of(tick=done), definitions=[definition]) as simulation:
        simulation.fail("tick", times=2, error=OSError("no route"))
        id_ = await simulation.trigger("tick")
        assert simulation.execution(id_).error == "OSError: no route"
        await simulation.advance("59s")
        assert simulation.execution(id_).attempt == 1
        await simulation.advance("1h")
        execution = simulation.execution(id_)
        assert (execution.status, execution.attempt) == ("completed", 3)


async def test_non_retryable_failure_ends_the_job() -> None:
    async with Simulation(worker_of(tick=done), definitions=[job()]) as simulation:
        simulation.fail("main", error=NonRetryableError("closed"))
        id_ = await simulation.trigger("tick")
        assert (simulation.execution(id_).status, simulation.execution(id_).attempt) == ("failed", 1)
        with pytest.raises(ValueError, match="times"):
            simulation.fail("main", times=0)


async def test_killed_worker_loses_its_work() -> None:
    begun: list[int] = []

    async def tick(context: Context) -> int:
        begun.append(context.delivery)
        await asyncio.sleep(20)
        return context.delivery

    async with Simulation(worker_of(tick=tick), definitions=[job()]) as simulation:
        id_ = await simulation.trigger("tick")
        await simulation.advance("10s")
        await simulation.kill_worker()
        await simulation.advance("15s")
        assert simulation.execution(id_).status == "running"
        await simulation.advance("5m")
        assert begun == [1, 2]
        assert simulation.results("tick") == [2]


async def test_work_waits_until_a_worker_starts() -> None:
    async with Simulation(
        worker_of(tick=done), definitions=[job(schedule="0 * * * *", overlap_policy="allow")]
    ) as simulation:
        await simulation.kill_worker(restart=False)
        await simulation.advance("1h1m")
        [waiting] = simulation.executions("tick")
        assert waiting.started_at is not None
        assert waiting.status == "pending"
        await simulation.start_worker()
        await simulation.advance("1m")
        assert [each.status for each in simulation.executions("tick")] == ["completed"]


async def test_overlapping_and_paused_instants_are_skipped() -> None:
    async def tick(_: Context) -> None:
        await asyncio.sleep(90)

    definition = job(schedule="* * * * *", overlap_policy="skip")
    async with Simulation(worker_of(tick=tick), at=NOON, definitions=[definition]) as simulation:
        await simulation.advance("2m")
        await simulation.pause("tick")
        await simulation.advance("2m")
        await simulation.resume("tick")
        await simulation.advance("1m")
        assert simulation.instants("tick") == [NOON + MINUTE, NOON + 5 * MINUTE]
        assert simulation.skips("tick") == [
            Skip(NOON + 2 * MINUTE, "overlap_skip"),
            Skip(NOON + 3 * MINUTE, "paused"),
            Skip(NOON + 4 * MINUTE, "paused"),
        ]


async def test_excluded_instants_are_skipped() -> None:
    weekends = [{"name": "weekends", "weekdays": ["saturday", "sunday"]}]
    friday, saturday = datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 3, 9, tzinfo=UTC)
    definition = job(schedule="0 9 * * *", exclude=weekends)
    async with Simulation(worker_of(tick=done), at=friday, definitions=[definition]) as simulation:
        await simulation.advance_to(saturday)
        id_ = await simulation.trigger("tick")  # runs on any day
        assert simulation.execution(id_).status == "completed"
        await simulation.advance("3 days")
        assert [instant.day for instant in simulation.instants("tick")] == [2, 5, 6]
        skips = [Skip(saturday + timedelta(days=day), "excluded") for day in (0, 1)]
        assert simulation.skips("tick") == skips
        await simulation.apply(job(schedule="@every 6h", exclude=weekends))
        await simulation.advance_to("2026-01-10T22:00")
        later = simulation.skips("tick")[2:]
        assert [(skip.at.day, skip.at.hour % 6, skip.reason) for skip in later] == [(10, 3, "excluded")] * 4


async def test_job_of_every_second_fires_each_second() -> None:
    async with Simulation(worker_of(tick=done), definitions=[job(schedule="* * * * * *")]) as simulation:
        await simulation.advance("90s")
        assert len(simulation.instants("tick")) == 90


async def test_years_without_work_are_skipped() -> None:
    definition = job(schedule="0 0 1 1 *")
    async with Simulation(worker_of(tick=done), definitions=[definition]) as simulation:
        await simulation.advance("2200 days")
        assert [instant.year for instant in simulation.instants("tick")] == [2027, 2028, 2029, 2030, 2031, 2032]


async def test_definitions_come_from_files(tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text("jobs:\n  - name: tick\n    schedule: '@daily'\n    function: tick\n")
    async with Simulation(worker_of(tick=done), definitions=[file]) as simulation:
        await simulation.advance("2 days")
        assert len(simulation.results("tick")) == 2
    with pytest.raises(DefinitionError):
        Simulation(definitions=[tmp_path / "missing.yaml"])


async def test_simulations_of_one_loop_are_apart() -> None:
    async with (
        Simulation(worker_of(tick=done), at=NOON, definitions=[job()]) as first,
        Simulation(worker_of(tick=done), at="2027-01-01T00:00", definitions=[job()]) as second,
    ):
        await second.advance("1h")
        await first.trigger("tick")
        assert (first.now, second.now.year, second.now.hour) == (NOON, 2027, 1)
        assert (len(first.executions()), len(second.executions())) == (1, 0)


async def test_trigger_takes_a_function_and_its_types() -> None:
    app = Tocsin("shop")

    @app.job
    def close_day(day: date, rate: Decimal = Decimal(1)) -> str:
        return f"{day:%d.%m.%Y} {rate}"

    async with Simulation(app) as simulation:
        for job in (close_day, "close-day"):
            await simulation.trigger(job, day=date(2026, 5, 1), rate=Decimal("0.10"))
        assert simulation.results("close-day") == ["01.05.2026 0.10"] * 2
        with pytest.raises(DefinitionError, match=r"input\.day"):
            await simulation.trigger(close_day, day="tomorrow")


async def test_results_are_those_of_a_run() -> None:
    app = Tocsin("shop")

    @app.step
    async def count() -> int:
        return 3

    @app.step
    async def double(number: int) -> int:
        return 2 * number

    @app.dag
    async def report() -> None:
        number = await count()
        await double.named("first")(number)
        await double.named("second")(number)

    async with Simulation(app) as simulation:
        await simulation.trigger(report)
        assert simulation.results("report") == [{"first": 6, "second": 6}]


@pytest.mark.parametrize(
    ("options", "named"), [({"tz": "Europe/Nowhere"}, "tz"), ({"at": "noon"}, "at"), ({"tz": "../etc/passwd"}, "tz")]
)
async def test_wrong_options_are_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Simulation(**options)


async def test_time_does_not_go_back() -> None:
    async with Simulation(at=NOON) as simulation:
        for span in (timedelta(seconds=-1), "12 parsecs", -5):
            with pytest.raises(ValueError):  # noqa: PT011 - the texts are those of durations
                await simulation.advance(span)
        with pytest.raises(ValueError, match="back"):
            await simulation.advance_to("2026-01-01T11:59")
        with pytest.raises(JobNotFound):
            simulation.executions("unknown")
        with pytest.raises(SimulationError, match="no worker"):
            simulation.fail("main")


async def test_jitter_delays_the_start_under_the_lock() -> None:
    app = Tocsin("shop")

    @app.job(schedule="0 * * * *", jitter="10m", timeout="30m")
    async def hourly() -> None: ...

    async with Simulation(app, at="2026-01-01T12:30") as simulation:
        await simulation.advance("3h")
        runs = [*simulation.executions("hourly")]
        delays = [timedelta(milliseconds=run.start_delay_ms or 0) for run in runs]
        assert len({*delays}) == 3
        assert all(timedelta() <= delay < 10 * MINUTE for delay in delays)
        for run, delay in zip(runs, delays, strict=True):
            assert run.started_at is not None
            assert timedelta() <= run.started_at - run.scheduled_time - delay < timedelta(seconds=2)


async def test_trigger_is_skipped_while_a_start_waits() -> None:
    app = Tocsin("shop")

    @app.job(schedule="0 * * * *", jitter="59m", overlap_policy="skip")
    async def hourly() -> None: ...

    async with Simulation(app, at="2026-01-01T12:59") as simulation:
        await simulation.advance("61s")
        await simulation.trigger("hourly")
        assert [skip.reason for skip in simulation.skips("hourly")] == ["overlap_skip"]


async def test_waiting_start_survives_a_killed_worker() -> None:
    app = Tocsin("shop")

    @app.job(schedule="0 * * * *", jitter="10m")
    async def hourly() -> None: ...

    async with Simulation(app, at="2026-01-01T12:59") as simulation:
        await simulation.advance("61s")
        await simulation.kill_worker()
        await simulation.advance("11m")
        assert [run.status for run in simulation.executions("hourly")] == ["completed"]


def minutes(instants: list[datetime]) -> list[int]:
    return [round((at - NOON) / MINUTE) for at in instants]


async def edited(simulation: Simulation, edit: str) -> None:
    """Change the job `tick` of every minute between two of its instants."""
    match edit:
        case "pause":
            await simulation.pause("tick")
            await simulation.resume("tick")
        case "enabled":
            for enabled in (False, True):
                await simulation.apply(job(schedule="* * * * *", enabled=enabled))
        case "schedule":
            await simulation.apply(job(schedule="*/5 * * * *"))
            await simulation.apply(job(schedule="* * * * *"))
        case _:
            await simulation.apply(job(schedule="* * * * *", timeout=600))


@pytest.mark.parametrize("edit", ["timeout", "pause", "enabled", "schedule"])
async def test_edited_job_loses_no_instant(edit: str) -> None:
    definitions = [job(schedule="* * * * *")]
    async with Simulation(worker_of(tick=done), at=NOON, definitions=definitions) as simulation:
        await simulation.advance("150s")
        await edited(simulation, edit)
        await simulation.advance("10m")
        assert minutes(simulation.instants("tick")) == [*range(1, 13)]


async def test_shorter_schedule_fires_from_its_first_instant() -> None:
    async with Simulation(worker_of(tick=done), at=NOON, definitions=[job(schedule="0 * * * *")]) as simulation:
        await simulation.advance("150s")
        await simulation.apply(job(schedule="*/2 * * * *"))
        await simulation.advance("6m")
        assert minutes(simulation.instants("tick")) == [4, 6, 8]


EDITS: list[tuple[int, dict[str, Any]]] = [
    (150, {"schedule": "* * * * *", "timeout": 600}),
    (60, {"schedule": "*/2 * * * *"}),
    (210, {"schedule": "*/2 * * * *", "enabled": False}),
    (190, {"schedule": "*/2 * * * *", "enabled": True}),
    (45, {"schedule": "* * * * *", "timezone": "Asia/Tokyo"}),
    (300, {"schedule": "* * * * *"}),
]
"""Seconds that pass, and then the fields of the job."""


async def test_edits_fire_what_the_ticker_fires() -> None:
    first = {"name": "tick", "function": "tick", "schedule": "* * * * *"}
    world = World()
    start = world.clock.now()
    await world.define(first)
    for seconds, fields in EDITS:
        for _ in range(seconds):
            world.clock.advance(1)
            await world.run(world.ticker)
        await world.define({**first, **fields})
    product = [due.scheduled_time - start for due in await world.stored(Due)]
    async with Simulation(worker_of(tick=done), at=start, definitions=[job(schedule="* * * * *")]) as simulation:
        for seconds, fields in EDITS:
            await simulation.advance(seconds)
            await simulation.apply(job(**fields))
        assert [at - start for at in simulation.instants("tick")] == product
        assert len(product) > 5


async def test_missed_instants_are_skips() -> None:
    async with Simulation(worker_of(tick=done), at=NOON, definitions=[job(schedule="* * * * *")]) as simulation:
        log = simulation.installation.log
        [defined] = await log.read("ledger.tick.defined")
        missed = Passed(
            job="tick", start=NOON, until=NOON + 3 * MINUTE, reason="missed", count=3, definition=defined.sequence
        )
        await log.append(missed, expect=defined.sequence)
        assert simulation.skips("tick") == [Skip(NOON + n * MINUTE, "missed") for n in (1, 2, 3)]


async def test_only_named_jobs_are_registered() -> None:
    app = Tocsin("shop")

    @app.job(schedule="* * * * *")
    async def wanted() -> None: ...

    @app.job(schedule="* * * * *")
    async def other() -> None: ...

    async with Simulation(app, at=NOON, only=[wanted]) as simulation:
        await simulation.advance("2m")
        assert minutes(simulation.instants("wanted")) == [1, 2]
        with pytest.raises(JobNotFound):
            simulation.instants("other")
    with pytest.raises(ValueError, match=r"only: no job is called 'nobody'; the jobs are: other, wanted"):
        Simulation(app, only=["nobody"])


@pytest.mark.parametrize(
    ("span", "hours"),
    [("2 days 12h", 59), ("2 days 12 hours", 59), ("1 week 1 day 30m", 191.5), ("2 hours 30 minutes", 2.5)],
)
async def test_span_of_days_and_hours(span: str, hours: float) -> None:
    """The clocks of Berlin change on 29 March."""
    async with Simulation(at="2026-03-28T12:00", tz="Europe/Berlin") as simulation:
        start = simulation.now.astimezone(UTC)
        await simulation.advance(span)
        assert simulation.now.astimezone(UTC) - start == timedelta(hours=hours)


@pytest.mark.parametrize("span", ["12h 2 days", "2 days -1h", "", "two days", "999999999999 days"])
async def test_text_that_is_no_span_is_refused(span: str) -> None:
    async with Simulation() as simulation:
        with pytest.raises(ValueError, match=r"\S"):
            await simulation.advance(span)
