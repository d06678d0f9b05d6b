"""A job with callbacks, run by the real stages."""

import pytest

from tests.stored_events import StoredEvents
from tocsin import Context, Tocsin
from tocsin.domain.events import DeadLettered, Failed
from tocsin.testing import Simulation

ONCE = {"max_attempts": 1}
app = Tocsin("billing")
called: list[tuple[str, dict[str, object]]] = []


@app.step(retry=ONCE)
def extract(country: str) -> str:
    return country


@app.step(retry=ONCE)
def load(parts: list[str]) -> int:
    return len(parts)


@app.step
def report(context: Context, team: str) -> None:
    called.append((f"{context.step} {team}", dict(context.upstream)))


@app.step
def alert(context: Context) -> None:
    called.append((context.step, dict(context.upstream)))


@app.dag(on_complete=report, on_failure=alert, dead_letter=True)
def daily(team: str = "ops") -> int:  # noqa: ARG001 - a key of the input, for the callbacks
    return load([extract("de"), extract("fr")])


@pytest.fixture(autouse=True)
def no_calls() -> None:
    called.clear()


async def test_callbacks_of_success() -> None:
    async with Simulation(app) as simulation:
        id_ = await simulation.trigger(daily, team="data")
        await simulation.advance("1m")
        assert simulation.execution(id_).status == "completed"
        assert called == [("report data", {"extract": "de", "extract-2": "fr", "load": 2})]


async def test_failed_step_fails_the_job_after_its_callbacks() -> None:
    async with Simulation(app) as simulation:
        simulation.fail("extract", times=1, error=OSError("no route to host"))
        id_ = await simulation.trigger(daily)
        await simulation.advance("1m")
        execution = simulation.execution(id_)
        assert (execution.status, execution.error) == ("failed", "OSError: no route to host")
        report = (await StoredEvents.of(simulation.installation.log)).audited()
        assert report.is_clean, report.violations
        assert sorted(called) == [
            (step, {"extract": None, "extract-2": "fr", "load": None}) for step in ("alert", "report ops")
        ]


async def test_failed_callback_hides_no_earlier_error() -> None:
    async with Simulation(app) as simulation:
        simulation.fail("extract", times=1, error=OSError("no route to host"))
        simulation.fail("report", times=99, error=ValueError("no printer"))
        id_ = await simulation.trigger(daily)
        await simulation.advance("1h")
        execution = simulation.execution(id_)
        assert (execution.status, execution.error) == ("failed", "OSError: no route to host")
        assert execution.steps["report"].error == "ValueError: no printer"
        stored = await StoredEvents.of(simulation.installation.log)
        [failed] = [recorded.message for recorded in stored.facts(Failed)]
        assert failed.error is not None
        assert failed.cause is not None
        assert (failed.error.message, failed.cause.message) == ("no printer", "no route to host")
        [letter] = [recorded.message for recorded in stored.facts(DeadLettered)]
        assert letter.last_error == failed.cause
        assert {str(attempt.error and attempt.error.message) for attempt in letter.attempts} >= {
            "no printer",
            "no route to host",
        }
        assert stored.audited().is_clean, stored.audited().violations
