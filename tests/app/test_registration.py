"""The registration of an application's jobs, and commands that import applications."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from textwrap import dedent
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from tests.cli.conftest import World
from tocsin import Tocsin
from tocsin.app import Job
from tocsin.app.errors import ConnectedElsewhereError
from tocsin.app.operations import NotConnectedError
from tocsin.app.registration import ForeignJobError, keep_registered, plan_registration
from tocsin.bootstrap import Installation
from tocsin.bootstrap.operators import operator_of
from tocsin.domain.definition import DefinitionError, JobDefinition
from tocsin.ports import LogUnavailable, NotAllowed, NotInitialized, SequenceConflict, Unreachable
from tocsin.services.jobs import Plan
from tocsin.services.operator import Operator
from tocsin.settings import Settings


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


class Registering:
    """Applications that register their jobs in one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.failures: list[Exception] = []
        """Errors that the next connections raise."""

    @asynccontextmanager
    async def operator(self) -> AsyncIterator[Operator]:
        if self.failures:
            raise self.failures.pop()
        installation = cast("Installation", self.world)
        self.world.settings = Settings()
        yield operator_of(installation, self.world.history, by=None)

    def apply(self, app: Tocsin, *, prune: bool = False, take_over: bool = False) -> Plan:
        """Do what `tocsin apply` does."""

        async def applied() -> Plan:
            async with self.operator() as operator:
                plan = await plan_registration(
                    operator, app.definitions, app.owner, Settings(), prune=prune, take_over=take_over
                )
                await operator.carry_out(plan)
                return plan

        return asyncio.run(applied())

    def start(self, app: Tocsin) -> list[str]:
        """Do what `app.run(apply=True)` does beside the worker; return the actions that were logged."""
        with capture_logs() as lines:
            asyncio.run(keep_registered(self.operator, app.definitions, app.owner, Settings()))
        return [line["action"] for line in lines]

    def job(self, name: str) -> JobDefinition | None:
        jobs = asyncio.run(self.world.registry.jobs())
        return next((job.definition for job in jobs if job.name == name), None)


@pytest.fixture
def here(world: World) -> Registering:
    return Registering(world)


def version(schedule: str, *more: str) -> Tocsin:
    """Return an application with the job `report`, and further jobs."""
    app = Tocsin("billing")

    @app.job(schedule=schedule)
    def report(limit: int = 5) -> None: ...

    for name in more:
        app.job(name=name)(lambda: None)
    return app


def test_jobs_are_registered_once(here: Registering) -> None:
    assert len(here.apply(version("@daily", "other")).of("create")) == 2
    assert not here.apply(version("@daily", "other")).has_differences


def test_only_jobs_of_the_application_are_pruned(here: Registering) -> None:
    here.apply(version("@daily", "other"))
    here.apply(Tocsin("empty"))
    stranger = Tocsin("shipping")
    stranger.job(name="stranger")(lambda: None)
    here.apply(stranger)
    assert [change.job for change in here.apply(version("@daily"), prune=True).of("delete")] == ["other"]
    assert here.job("stranger") is not None


@pytest.mark.parametrize("owner", ["cli:default", "team-a", "app:shipping", None])
def test_job_of_another_owner_is_not_replaced(here: Registering, owner: str | None) -> None:
    asyncio.run(here.world.registry.define(JobDefinition(name="report", function="f", owner=owner)))
    with pytest.raises(ForeignJobError, match="--take-over") as refused:
        here.apply(version("@daily", "other"))
    assert refused.value.code == "job-of-another-owner"
    assert list(refused.value.jobs) == ["report"]
    assert here.job("other") is None
    here.apply(version("@daily", "other"), take_over=True)
    taken = here.job("report")
    assert taken is not None
    assert taken.owner == "app:billing"


def test_starting_application_leaves_foreign_jobs(here: Registering) -> None:
    asyncio.run(here.world.registry.define(JobDefinition(name="report", function="f")))
    assert here.start(version("@daily", "other")) == ["app-job-foreign", "app-jobs-registered"]
    foreign = here.job("report")
    assert foreign is not None
    assert foreign.function == "f"
    assert here.job("other") is not None


def schedule_of(here: Registering) -> str | None:
    job = here.job("report")
    assert job is not None
    return job.schedule


def test_old_version_that_restarts_does_not_return(here: Registering) -> None:
    old, new = version("@daily"), version("@hourly")
    assert here.start(old) == ["app-jobs-registered"]
    assert here.start(new) == ["app-jobs-registered"]
    assert here.start(old) == ["app-job-not-returned", "app-jobs-registered"]
    assert here.start(new) == ["app-jobs-registered"]
    assert schedule_of(here) == "@hourly"


class Overtaken:
    """An operator: another version registers its jobs after the first plan."""

    def __init__(self, operator: Operator, other: list[Tocsin]) -> None:
        self._operator = operator
        self._other = other

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of the operator
        return getattr(self._operator, name)

    async def plan(self, definitions: Any, *, prune: Any = ()) -> Plan:  # noqa: ANN401 - likewise
        plan = await self._operator.plan(definitions, prune=prune)
        while self._other:
            other = self._other.pop()
            await self._operator.carry_out(await self._operator.plan(other.definitions, prune=(other.owner,)))
        return plan


def test_overtaken_version_plans_again(here: Registering) -> None:
    old, new = version("@daily", "other"), version("@hourly")
    here.start(version("@daily", "other"))
    here.apply(version("@weekly"), prune=True)
    others = [new]

    @asynccontextmanager
    async def overtaken() -> AsyncIterator[Operator]:
        async with here.operator() as operator:
            yield cast("Operator", Overtaken(operator, others))

    async def apply(app: Tocsin) -> None:
        async with overtaken() as operator:
            plan = await plan_registration(operator, app.definitions, app.owner, Settings(), prune=True)
            await operator.carry_out(plan)

    asyncio.run(keep_registered(overtaken, version("@yearly").definitions, old.owner, Settings()))
    assert schedule_of(here) == "@yearly"  # planned again, as a version that never was
    others.append(new)
    with pytest.raises(SequenceConflict, match="was changed since this change was planned"):
        asyncio.run(apply(old))
    assert schedule_of(here) == "@hourly"
    others.append(version("@weekly"))
    asyncio.run(keep_registered(overtaken, old.definitions, old.owner, Settings()))
    assert (schedule_of(here), here.job("other")) == ("@weekly", None)


def test_conflict_is_logged_and_pauses(here: Registering, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("tocsin.app.registration.asyncio.sleep", sleep)
    here.failures = [SequenceConflict("job 'report' was changed")] * 3
    assert here.start(version("@daily")) == [*["app-jobs-conflict"] * 3, "app-jobs-registered"]
    waits = [pause for pause in pauses if pause]
    assert len(set(waits)) == 3
    assert all(0.5 <= pause / factor <= 1 for pause, factor in zip(waits, (1, 2, 4), strict=True))


def test_registration_is_given_up_after_conflicts(here: Registering, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("tocsin.app.registration.asyncio.sleep", sleep)
    here.failures = [SequenceConflict("job 'report' was changed")] * 1_000
    assert here.start(version("@daily")) == [*["app-jobs-conflict"] * 20, "app-jobs-refused"]
    longest = [pause for pause in pauses if pause][6:]
    assert (len(longest), len(set(longest)), here.job("report")) == (14, 14, None)  # the copies do not fall into step
    assert all(30 <= pause <= 60 for pause in longest)


def test_change_that_another_copy_made_is_no_conflict(here: Registering) -> None:
    app = version("@hourly")

    async def twice() -> None:
        async with here.operator() as operator:
            plans = [await plan_registration(operator, app.definitions, app.owner, Settings()) for _ in range(2)]
            for plan in plans:
                await operator.carry_out(plan)

    asyncio.run(twice())
    assert schedule_of(here) == "@hourly"


def test_operator_returns_to_the_old_version(here: Registering) -> None:
    old, new = version("@daily"), version("@hourly")
    here.start(old)
    here.start(new)
    here.apply(old)
    assert schedule_of(here) == "@daily"
    assert here.start(new) == ["app-job-not-returned", "app-jobs-registered"]


def test_version_that_never_was_is_registered(here: Registering) -> None:
    for schedule in ("@daily", "@hourly", "@weekly"):
        assert here.start(version(schedule)) == ["app-jobs-registered"]
        assert schedule_of(here) == schedule


def test_deleted_job_does_not_return(here: Registering) -> None:
    here.start(version("@daily", "other"))
    here.apply(version("@daily"), prune=True)
    assert here.start(version("@daily", "other")) == ["app-job-not-returned", "app-jobs-registered"]
    assert here.job("other") is None


def test_paused_job_stays_paused(here: Registering) -> None:
    here.start(version("@daily"))
    asyncio.run(here.world.registry.pause("report"))
    here.start(version("@hourly"))
    assert asyncio.run(here.world.registry.job("report")).status == "paused"


@pytest.mark.parametrize("error", [LogUnavailable("down"), Unreachable("down"), NotInitialized.of("tocsin")])
def test_starting_application_waits_for_nats(
    here: Registering, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr("tocsin.app.registration.RETRY_INTERVAL_S", 0)
    here.failures = [error, error]
    assert here.start(version("@daily")) == ["app-jobs-wait", "app-jobs-wait", "app-jobs-registered"]


def test_refused_job_is_logged(here: Registering) -> None:
    app = Tocsin("billing")
    app.job(name="past", schedule="at 2020-01-01T09:00")(lambda: None)
    assert here.world.clock.now() > datetime(2020, 1, 2, tzinfo=UTC)
    assert here.start(app) == ["app-jobs-refused"]


def test_missing_right_ends_the_registration(here: Registering) -> None:
    here.failures = [NotAllowed("publish denied")]
    assert here.start(version("@daily")) == ["app-jobs-refused"]


async def test_trigger_needs_a_connection() -> None:
    with pytest.raises(NotConnectedError, match=r"app\.connected\(\)"):
        await version("@daily").trigger("report")


class Triggers:
    """An operator that keeps the input of triggers."""

    def __init__(self) -> None:
        self.inputs: list[object] = []

    async def trigger(self, job: str, input: object = None, *_: object, **__: object) -> str:  # noqa: A002 - the protocol's
        self.inputs.append((job, input))
        return "01890f3e-0000-7000-8000-000000000001"


def dated() -> tuple[Tocsin, Job[..., None]]:
    app = Tocsin("billing")

    @app.job(input={"day": "2026-01-01"})
    def report(day: date, limit: int = 5) -> None: ...

    return app, report


async def test_trigger_writes_the_input_as_json() -> None:
    (app, report), operator = dated(), Triggers()
    async with app.connected(cast("Operator", operator)):
        await app.trigger(report, day=date(2026, 11, 26))
        await app.trigger("report", day="2026-11-26", limit=7)
        await app.trigger("report")
        await app.trigger("another", anything=[1])
    assert operator.inputs == [
        ("report", {"day": "2026-11-26"}),
        ("report", {"day": "2026-11-26", "limit": 7}),
        ("report", {}),
        ("another", {"anything": [1]}),
    ]


@pytest.mark.parametrize(
    ("given", "code", "field"),
    [
        ({"limt": 3}, "unknown-field", "input.limt"),
        ({"limit": "many"}, "schema-mismatch", "input.limit"),
        ({"day": object()}, "schema-mismatch", "input.day"),
    ],
)
async def test_wrong_input_is_not_sent(given: dict[str, Any], code: str, field: str) -> None:
    (app, report), operator = dated(), Triggers()
    async with app.connected(cast("Operator", operator)):
        with pytest.raises(DefinitionError) as wrong:
            await app.trigger(report, **given)
    assert [(problem.code, problem.field) for problem in wrong.value.problems] == [(code, field)]
    assert operator.inputs == []


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {"a": (1, float("nan"))}])
async def test_number_that_json_lacks_is_not_sent(value: object) -> None:
    app, operator = Tocsin("billing"), Triggers()

    @app.job
    def report(anything: Any) -> None: ...  # noqa: ANN401

    async with app.connected(cast("Operator", operator)):
        with pytest.raises(DefinitionError, match=r"input\.anything.* JSON has no infinity and no NaN"):
            await app.trigger(report, anything=value)


async def test_missing_input_is_not_sent() -> None:
    app, operator = Tocsin("billing"), Triggers()

    @app.job
    def report(day: date) -> None: ...

    async with app.connected(cast("Operator", operator)):
        with pytest.raises(DefinitionError, match=r"input\.day"):
            await app.trigger(report)


async def test_connection_is_shared_inside_of_another() -> None:
    app, operator = version("@daily"), Triggers()
    async with app.connected(cast("Operator", operator)) as outer:
        async with app.connected() as inner:
            assert inner is outer is app.client
        assert app.client is outer


async def test_second_operator_is_refused() -> None:
    app, operator = version("@daily"), cast("Operator", Triggers())
    async with app.connected(operator) as outer:
        with pytest.raises(ConnectedElsewhereError, match=r"`billing` is connected already"):
            async with app.connected(cast("Operator", Triggers())):
                pass
        async with app.connected(operator) as inner:
            assert inner is outer is app.client


def program(world: World, text: str) -> str:
    path = world.folder / "billing_app.py"
    path.write_text(dedent(text), "utf-8")
    return f"{path}:app"


APP = """
    from tocsin import Tocsin

    app = Tocsin("billing")


    @app.job(schedule="@daily")
    def report(limit: int = 5) -> None: ...
"""


def test_command_applies_an_application(world: World) -> None:
    target = program(world, APP)
    planned = world.call("apply", target, "--dry-run", "-o", "json")
    assert planned.json["summary"] == {"create": 1, "update": 0, "delete": 0, "unchanged": 0}
    assert "1 to create" in world.call("apply", target).out
    assert world.call("apply", target, "-o", "json").json["summary"]["unchanged"] == 1
    pruned = world.call("apply", program(world, APP.replace("def report", "def renamed")), "--prune", "--yes")
    assert "1 to create, 1 to delete" in pruned.out


def test_output_of_a_module_is_no_answer(world: World) -> None:
    answer = world.call("apply", program(world, "print('hello')\n" + dedent(APP)), "-o", "json")
    assert answer.json["summary"]["create"] == 1
    assert "hello" in answer.err


def test_command_confirms_deletions(world: World) -> None:
    world.call("apply", program(world, APP))
    other = program(world, APP.replace("def report", "def renamed"))
    assert world.call("apply", other, "--prune", "-o", "json").failure == (2, "confirmation-required")


def test_command_refuses_jobs_of_another_owner(world: World) -> None:
    world.call("jobs", "apply", "-f", world.jobs("{name: report, function: f}"))
    target = program(world, APP)
    assert world.call("apply", target, "-o", "json").error["error_code"] == "job-of-another-owner"
    assert world.call("apply", target, "--take-over").code == 0


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("app = 5", "not-an-app"),
        ("", "app-not-found"),
        ("import nowhere", "app-import-failed"),
        ("raise SystemExit(3)", "app-import-failed"),
        ("from tocsin import Tocsin\napp = Tocsin('billing')\napp.run()", "run-while-importing"),
        ("from tocsin import Tocsin\napp = Tocsin('Billing')", "invalid-definition"),
        ("from tocsin import Tocsin\napp = Tocsin('a')\n@app.job\ndef f(x): ...", "parameter-not-annotated"),
        ("from tocsin import Tocsin\napp = Tocsin('a')\n@app.dag\ndef f(x: int): ...", "not-traceable"),
    ],
)
def test_command_explains_what_is_no_application(world: World, text: str, code: str) -> None:
    assert world.call("apply", program(world, text), "-o", "json").error["error_code"] == code


def test_worker_command_accepts_an_application(world: World) -> None:
    from tocsin.cli.input.objects import load_worker  # noqa: PLC0415 - the path of the module is what is tested

    assert list(load_worker(program(world, APP)).worker.handlers) == ["billing/report"]
