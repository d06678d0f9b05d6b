"""A replay of only the failed steps, run by the real stages."""

from collections.abc import Callable

import pytest

from tests.stored_events import StoredEvents
from tocsin import Context, Tocsin
from tocsin.domain.events import Advanced, DeadLettered, Message, Recorded, Requested, Resolved
from tocsin.services.operations import dead_letters
from tocsin.services.operations.errors import OperationError
from tocsin.testing import Simulation

ONCE = {"max_attempts": 1}
app = Tocsin("billing")
called: list[tuple[str, object]] = []


@app.step(retry=ONCE)
def extract(country: str) -> dict[str, str]:
    called.append(("extract", country))
    return {"country": country}


@app.step(retry=ONCE)
def load(parts: list[dict[str, str]]) -> int:
    called.append(("load", parts))
    return len(parts)


@app.step
def report(context: Context) -> None:
    called.append(("report", dict(context.upstream)))


@app.dag(dead_letter=True)
def daily(region: str = "eu") -> int:  # noqa: ARG001 - a key of the input
    return load([extract("de"), extract("fr")])


@app.dag(on_complete=report, dead_letter=True)
def reported() -> int:
    return load([extract("de"), extract("fr")])


@pytest.fixture(autouse=True)
def no_calls() -> None:
    called.clear()


async def letter_of(simulation: Simulation) -> str:
    stored = await StoredEvents.of(simulation.installation.log)
    return [fact.message.id for fact in stored.log if isinstance(fact.message, DeadLettered)][-1]


async def fail_once(simulation: Simulation, job: object, step: str) -> str:
    """Run a job whose step fails; return its dead letter."""
    simulation.fail(step, times=1, error=OSError("disk full"))
    failed = await simulation.trigger(job)  # type: ignore[arg-type]
    await simulation.advance("1m")
    assert simulation.execution(failed).status == "failed"
    letter = await letter_of(simulation)
    called.clear()
    return letter


def replaced(stored: StoredEvents, selects: Callable[[Message], bool], change: dict[str, object]) -> StoredEvents:
    """Return the events with other fields in some of them."""

    def changed(stream: list[Recorded[Message]]) -> list[Recorded[Message]]:
        return [
            Recorded(r.message.changed(**change), r.subject, r.sequence, r.time, r.message_id)
            if selects(r.message)
            else r
            for r in stream
        ]

    return stored.changed(changed)


async def replay(simulation: Simulation, letter: str, **more: object) -> str:
    made = await dead_letters.replay(simulation.installation.log, letter, failed_only=True, **more)  # type: ignore[arg-type]
    await simulation.advance("1m")
    assert made.execution_id is not None
    return made.execution_id


async def test_only_the_failed_step_runs_again() -> None:
    async with Simulation(app) as simulation:
        letter = await fail_once(simulation, daily, "load")
        again = await replay(simulation, letter)
        row = simulation.execution(again)
        assert called == [("load", [{"country": "de"}, {"country": "fr"}])]
        assert (row.status, row.result, row.replay_of) == ("completed", 2, letter)
        assert row.steps["extract"].result == {"country": "de"}
        stored = await StoredEvents.of(simulation.installation.log)
        adopted = [f.message for f in stored.log if isinstance(f.message, Advanced) and f.message.execution_id == again]
        assert {(fact.step, fact.attempt, fact.adopted_from) for fact in adopted} == {
            ("extract", 0, letter),
            ("extract-2", 0, letter),
        }
        assert [f.message.id for f in stored.log if isinstance(f.message, Resolved)] == [letter]
        assert stored.audited().is_clean, stored.audited().violations


async def test_replay_of_a_replay_adopts_what_both_completed() -> None:
    async with Simulation(app) as simulation:
        letter = await fail_once(simulation, daily, "extract")
        simulation.fail("load", times=1, error=OSError("disk full"))
        second = await replay(simulation, letter)
        assert [name for name, _ in called] == ["extract"]
        called.clear()
        assert simulation.execution(second).status == "failed"
        third = await replay(simulation, second)
        assert simulation.execution(third).status == "completed"
        assert called == [("load", [{"country": "de"}, {"country": "fr"}])]
        stored = await StoredEvents.of(simulation.installation.log)
        assert stored.audited().is_clean, stored.audited().violations


async def test_callback_runs_again_after_the_failed_step() -> None:
    async with Simulation(app) as simulation:
        letter = await fail_once(simulation, reported, "load")
        await replay(simulation, letter)
        assert [name for name, _ in called] == ["load", "report"]
        stored = await StoredEvents.of(simulation.installation.log)
        assert stored.audited().is_clean, stored.audited().violations


async def test_without_the_option_all_steps_run() -> None:
    async with Simulation(app) as simulation:
        letter = await fail_once(simulation, daily, "load")
        await dead_letters.replay(simulation.installation.log, letter)
        await simulation.advance("1m")
        assert sorted(name for name, _ in called) == ["extract", "extract", "load"]


async def test_another_input_is_refused() -> None:
    async with Simulation(app) as simulation:
        letter = await fail_once(simulation, daily, "load")
        with pytest.raises(OperationError) as refused:
            await replay(simulation, letter, input={"region": "us"})
        assert refused.value.code == "input-not-accepted"


async def test_job_without_the_failed_step_is_refused() -> None:
    async with Simulation(app) as simulation:
        letter = await fail_once(simulation, daily, "load")
        definition = next(each for each in app.definitions if each.name == daily.name)
        kept = tuple(step for step in definition.dag if step.name != "load")
        await simulation.apply(definition.model_copy(update={"dag": kept}))
        with pytest.raises(OperationError) as refused:
            await replay(simulation, letter)
        assert refused.value.code == "nothing-to-replay"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"result": {"country": "us"}}, "did not complete extract with the adopted result"),
        ({"adopted_from": "0193a5b0-0000-7000-8000-000000000009"}, "was not requested to"),
        ({"attempt": 1}, "was not requested to"),
        ({"step": "load"}, "load was over"),
    ],
)
async def test_audit_finds_forged_adoptions(change: dict[str, object], reason: str) -> None:
    async with Simulation(app) as simulation:
        letter = await fail_once(simulation, daily, "load")
        again = await replay(simulation, letter)
        stored = await StoredEvents.of(simulation.installation.log)
        forged = replaced(
            stored,
            lambda fact: isinstance(fact, Advanced) and fact.execution_id == again and fact.step == "extract",
            change,
        )
        reasons = [violation.reason for violation in forged.audited().violations]
        assert any(reason in each for each in reasons), reasons


async def test_audit_finds_adoptions_without_a_request() -> None:
    async with Simulation(app) as simulation:
        letter = await fail_once(simulation, daily, "load")
        again = await replay(simulation, letter)
        stored = await StoredEvents.of(simulation.installation.log)
        forged = replaced(
            stored,
            lambda fact: isinstance(fact, Requested) and fact.execution_id == again,
            {"failed_only": False},
        )
        assert any("was not requested to" in violation.reason for violation in forged.audited().violations)
