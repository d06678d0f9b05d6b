"""Applications on a real server: graphs with typed results, and two versions side by side."""

from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tests.system.running import Running, running
from tocsin import Context, Tocsin
from tocsin.domain.events import Advanced, Completed, RetryScheduled


@dataclass
class Row:
    country: str
    day: date


def graph(world: Running) -> Tocsin:
    app = Tocsin("billing", settings=world.settings)

    @app.step
    async def extract(context: Context, country: str, day: date) -> list[Row]:
        assert isinstance(day, date)
        assert context.attempt == 1
        return [Row("${env:HOME}" if country == "it" else country, day)]

    @app.step
    def count(parts: list[list[Row]], *, factor: int = 1) -> int:
        assert [row.country for part in parts for row in part] == [
            "de",
            "fr",
            "${env:HOME}",
        ]  # a result names no secret
        return factor * sum(len(part) for part in parts)

    @app.dag
    async def report(day: date = date(2026, 1, 1)) -> None:
        parts = [await extract(country, day) for country in ("de", "fr", "it")]
        count(parts, factor=10)

    return app


async def test_results_reach_their_parameters(nats_url: str, tmp_path: Path) -> None:
    async with running(nats_url, tmp_path) as world:
        app = graph(world)
        assert len((await app.apply()).of("create")) == 1
        async with app.worker.running():
            await world.trigger("report", input={"day": "2026-11-26"})
            assert (await world.ended("report", Completed))[0].result == 30
        steps = {fact.step: fact.result for fact in await world.of_executions("report", Advanced)}
        assert steps["extract-2"] == [{"country": "fr", "day": "2026-11-26"}]


def version(world: Running, name: str, *, takes_currency: bool) -> tuple[Tocsin, list[Any]]:
    """Return a version of an application, and the arguments that its handler got."""
    app, got = Tocsin("billing", settings=world.settings), list[Any]()
    policy = {"max_attempts": 100, "initial_delay": 0.05, "max_delay": 0.05}

    @app.step
    def extract() -> list[int]:
        return [1, 2]

    if takes_currency:

        @app.step(name="load", retry=policy)
        def load_with_currency(rows: list[int], currency: str = "EUR") -> str:
            got.append((name, rows, currency))
            return name

        @app.dag(name="report")
        def second() -> None:
            load_with_currency(extract(), "USD")

    else:

        @app.step(name="load", retry=policy)
        def load(rows: list[int]) -> str:
            got.append((name, rows))
            return name

        @app.dag(name="report")
        def first() -> None:
            load(extract())

    return app, got


async def test_versions_read_the_plan_they_get(nats_url: str, tmp_path: Path) -> None:
    async with running(nats_url, tmp_path) as world:
        old, old_got = version(world, "old", takes_currency=False)
        new, new_got = version(world, "new", takes_currency=True)
        await old.apply()
        async with new.worker.running():  # the newer code gets the older plan
            await world.trigger("report")
            await world.ended("report", Completed)
        assert new_got == [("new", [1, 2], "EUR")]
        await new.apply()
        async with old.worker.running():  # the older code gets the newer plan: another worker may have the newer code
            await world.trigger("report")
            failed = (await world.ended("report", RetryScheduled))[0]
            assert (failed.error.type, failed.step) == ("wrong_input", "load")
            assert "`currency` is unknown" in failed.error.message
        async with new.worker.running():
            await world.ended("report", Completed, 2)
        assert old_got == []
        assert new_got[1:] == [("new", [1, 2], "USD")]


@pytest.mark.parametrize("first", [True, False])
async def test_application_finds_its_own_installation(nats_url: str, tmp_path: Path, first: bool) -> None:  # noqa: FBT001
    async with running(nats_url, tmp_path, stages=["registrar"]) as world:
        app, _ = version(world, "only", takes_currency=first)
        assert (await app.apply()).has_differences
        assert not (await app.apply()).has_differences
