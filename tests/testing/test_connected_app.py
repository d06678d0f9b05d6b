"""An application that is connected to its simulation."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from tocsin import Context, Tocsin
from tocsin.app.errors import ConnectedElsewhereError
from tocsin.app.operations import NotConnectedError
from tocsin.testing import Simulation


async def test_handler_triggers_another_job() -> None:
    app = Tocsin("shop")

    @app.job(overlap_policy="allow")
    async def ship(order: int) -> str:
        await asyncio.sleep(30)
        return f"shipped {order}"

    @app.job(schedule="0 * * * *")
    async def collect(context: Context) -> object:
        runs = [
            await app.trigger(ship, order=order, idempotency_key=f"{context.execution_id}-{order}") for order in (1, 2)
        ]
        return [await run.result(timeout=300) for run in runs]

    async with Simulation(app, at="2026-01-01T12:30") as simulation:
        await simulation.advance("1h")
        assert simulation.results("collect") == [["shipped 1", "shipped 2"]]


async def test_application_reads_its_simulation() -> None:
    app = Tocsin("shop")

    @app.job(schedule="0 * * * *")
    async def hourly(context: Context) -> int:
        return context.scheduled_time.hour

    async with Simulation(app, at="2026-01-01T12:30") as simulation:
        await simulation.advance("1h")
        assert await app.pause(hourly)
        assert not await app.pause("hourly")
        await simulation.advance("1h")
        assert [skip.reason for skip in simulation.skips("hourly")] == ["paused"]
        assert (await app.get_status(hourly)).is_paused
        assert await app.resume(hourly)
        await simulation.advance("1h")
        run = await app.trigger(hourly)
        await simulation.advance("1s")
        assert await run.result(timeout=30) == 15
        rows = [row async for row in app.executions(hourly, sort="oldest")]
        assert [(row.status, row.result) for row in rows] == [
            ("completed", 13),
            ("skipped", None),
            ("completed", 15),
            ("completed", 15),
        ]
        assert [row async for row in app.executions(status="failed")] == []
        status = await app.get_status(hourly)
        assert (status.run_count, status.skip_count, status.error_count) == (4, 1, 0)
        assert status.next_run == datetime(2026, 1, 1, 16, tzinfo=UTC)
        assert status.last_run == simulation.now - timedelta(seconds=1)
        await app.remove(hourly)
        assert await app.job_count() == 0
    with pytest.raises(NotConnectedError):
        await app.pause(hourly)


async def test_application_is_in_one_simulation() -> None:
    app = Tocsin("shop")
    async with Simulation(app):
        with pytest.raises(ConnectedElsewhereError):
            await Simulation(app).__aenter__()
    async with Simulation(app):
        assert await app.client.jobs() == ()
