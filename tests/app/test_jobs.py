"""Decorated functions as jobs: names, definitions, and what an application refuses."""

from datetime import date
from typing import Any, get_type_hints

import pytest

import tocsin
from tocsin import Context, Tocsin
from tocsin.app.declarations import JobFields
from tocsin.app.errors import SignatureError
from tocsin.app.job import OWNED, Job
from tocsin.domain.definition import DefinitionError, JobDefinition
from tocsin.domain.identity import typed
from tocsin.worker.handlers import HandlerExistsError


@pytest.fixture
def app() -> Tocsin:
    return Tocsin("billing", timezone="Europe/Berlin", queue="money")


def problems(error: DefinitionError) -> list[tuple[str, str]]:
    return [(problem.code, problem.field) for problem in error.problems]


def test_function_becomes_a_job(app: Tocsin) -> None:
    @app.job(schedule="every day at 2am", retry={"max_attempts": 5}, lock=False, jitter="5m", tags=["month-end"])
    async def nightly_report(context: Context, day: date | None = None) -> None:
        """Send the report.

        To all.
        """

    [definition] = app.definitions
    assert definition == JobDefinition.model_validate(
        {
            "name": "nightly-report",
            "function": "billing/nightly-report",
            "owner": "app:billing",
            "schedule": "every day at 2am",
            "timezone": "Europe/Berlin",
            "queue": "money",
            "retry": {"max_attempts": 5},
            "overlap_policy": "allow",
            "jitter": "5m",
            "tags": ["month-end"],
            "description": "Send the report.",
            "input_schema": nightly_report.signature.schema(),
        }
    )
    assert nightly_report.name == "nightly-report"


def test_decorator_needs_no_parentheses(app: Tocsin) -> None:
    @app.job
    def plain(number: int) -> int:
        return number * 2

    assert isinstance(plain, Job)
    assert plain(21) == 42


def test_schedule_may_name_its_own_time_zone(app: Tocsin) -> None:
    @app.job(schedule="every day at 9am America/New_York")
    def morning() -> None: ...

    assert morning.definition.timezone == "America/New_York"


def test_time_zone_is_left_to_the_settings() -> None:
    @Tocsin("billing").job(schedule="every day at 9am")
    def morning() -> None: ...

    assert "timezone" not in morning.definition.model_fields_set


def test_worker_has_every_handler_and_queue(app: Tocsin) -> None:
    @app.job
    def first() -> None: ...

    @app.job(name="other", queue="heavy")
    async def second() -> None: ...

    assert list(app.worker.handlers) == ["billing/first", "billing/other"]
    assert app.worker.options.queues == ("money", "heavy")


def test_two_jobs_may_share_a_function(app: Tocsin) -> None:
    def report(day: date) -> None: ...

    first, second = app.job(name="first")(report), app.job(name="second")(report)
    assert [first.definition.function, second.definition.function] == ["billing/first", "billing/second"]


def test_owner_has_its_own_kind(app: Tocsin) -> None:
    assert typed(app.owner) == app.owner == "app:billing"


def test_name_belongs_to_one_job(app: Tocsin) -> None:
    @app.job
    def report() -> None: ...

    with pytest.raises(DefinitionError, match=r"report.*another_report.*pass another `name`") as taken:

        @app.job(name="report")
        def another_report() -> None: ...

    assert problems(taken.value) == [("duplicate-name", "")]
    assert len(app.definitions) == 1


def test_function_is_decorated_once(app: Tocsin) -> None:
    with pytest.raises(SignatureError, match="the job `report` already") as twice:

        @app.job(name="again")
        @app.job
        def report() -> None: ...

    assert twice.value.code == "not-a-function"


def test_handler_of_the_worker_is_not_replaced(app: Tocsin) -> None:
    app.worker.task("billing/report")(lambda _: None)
    with pytest.raises(HandlerExistsError):

        @app.job
        def report() -> None: ...

    assert app.definitions == ()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"schdule": "@daily"}, [("unknown-field", "schdule"), ("schema-mismatch", "input")]),
        ({"owner": "user:ada"}, [("exclusive-fields", "owner")]),
        ({"dag": []}, [("exclusive-fields", "dag")]),
        ({"function": "other"}, [("exclusive-fields", "function")]),
        ({"retry": {"max_attempt": 1}}, [("unknown-field", "retry.max_attempt")]),
        ({"lock": 3}, [("wrong-type", "lock")]),
        ({"schedule": "@daily"}, [("required", "input.number")]),
        ({"input": {"number": "many"}}, [("schema-mismatch", "input.number")]),
        ({"input": {"numbre": 3}}, [("schema-mismatch", "input")]),
        ({"schedule": "0 25 * * *", "input": {"number": 3}}, [("invalid-field", "schedule")]),
        ({"schedule": "@daily", "input": {"number": 3}, "timezone": "Mars/Base"}, [("invalid-timezone", "timezone")]),
        ({"command": ["true"]}, [("reserved-name", "function"), ("exclusive-fields", "")]),
    ],
)
def test_field_is_checked_as_in_a_job_file(
    app: Tocsin, fields: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    def report(number: int) -> None: ...

    with pytest.raises(DefinitionError) as wrong:
        app.job(**fields)(report)
    assert set(problems(wrong.value)) <= set(expected)
    assert all("test_jobs" in (problem.source or "") for problem in wrong.value.problems)
    assert all(problem.job == "job `report`" for problem in wrong.value.problems)


def test_schedule_with_the_missing_input_is_accepted(app: Tocsin) -> None:
    @app.job(schedule="@daily", input={"number": 3})
    def report(number: int) -> None: ...

    assert report.definition.input == {"number": 3}


@pytest.mark.parametrize("name", ["", "Billing", "a b", "ab/c", "-a", "ä"])
def test_name_of_an_application_is_checked(name: str) -> None:
    with pytest.raises(DefinitionError) as wrong:
        Tocsin(name)
    assert problems(wrong.value) == [("invalid-value", "name")]


def test_options_of_the_worker_are_checked() -> None:
    with pytest.raises(ValueError, match="concurrency"):
        Tocsin("billing", concurrency=0)


def test_fields_are_those_of_a_definition() -> None:
    builtins = {"command", "http", "sql", "procedure", "container"}
    expected = JobDefinition.model_fields.keys() - builtins - OWNED - {"name"} | {"lock", "concurrent"}
    assert get_type_hints(JobFields).keys() == expected


def test_public_name_is_imported_at_its_first_use() -> None:
    assert tocsin.Tocsin is Tocsin


CALENDARS: dict[str, Any] = {"weekends": {"weekdays": ["saturday", "sunday"]}, "year-end": ["2026-12-28/2026-12-31"]}


def test_jobs_name_calendars_of_their_application() -> None:
    app = Tocsin("billing", calendars=CALENDARS)

    @app.job(schedule="@daily", exclude=("weekends", {"name": "own", "days": ["2026-12-24"]}))
    def first() -> None: ...

    @app.step
    def step() -> None: ...

    @app.dag(schedule="@daily", only=["year-end"])
    def second() -> None:
        step()

    plain, graph = app.definitions
    assert [(each.name, each.days) for each in plain.exclude] == [("weekends", ()), ("own", ("2026-12-24",))]
    assert [(each.name, each.days) for each in graph.only] == [("year-end", ("2026-12-28/2026-12-31",))]


@pytest.mark.parametrize(
    ("calendars", "code", "field"),
    [
        ({"Week": ["2026-01-01"]}, "invalid-value", ""),
        ({"a": 5}, "wrong-type", ""),
        ({"a": {"dais": []}}, "unknown-field", "dais"),
        ({"a": {"ics": "nowhere.ics"}}, "file-not-found", ""),
        ({"a": {"country": "XX"}}, "unknown-choice", "country"),
    ],
)
def test_wrong_calendar_is_refused(calendars: dict[str, Any], code: str, field: str) -> None:
    with pytest.raises(DefinitionError, match=r"Tocsin\(calendars=") as taken:
        Tocsin("billing", calendars=calendars)
    assert problems(taken.value) == [(code, field)]


def test_unknown_calendar_is_refused() -> None:
    app = Tocsin("billing", calendars=CALENDARS)
    with pytest.raises(DefinitionError, match="no such calendar"):

        @app.job(schedule="@daily", exclude=["holidays"])
        def job() -> None: ...
