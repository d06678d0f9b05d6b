"""`/ojs/v1/cron`: ojs-cron §8 by its numbers, in both spellings."""

from typing import Any

import pytest

from tests.http.conftest import World
from tocsin.domain import ids
from tocsin.domain.access import Role
from tocsin.domain.events import (
    CronMissed,
    CronMissedData,
    CronSkipped,
    CronSkippedData,
    CronTriggered,
    CronTriggeredData,
    Message,
    Plan,
    Planned,
    PlannedStep,
    Recorded,
    Skipped,
)

OJS = "application/openjobspec+json"
DAILY = {
    "name": "daily-report",
    "cron": "0 9 * * *",
    "timezone": "America/New_York",
    "type": "report.generate",
    "args": [{"report": "daily_summary"}],
    "options": {"queue": "reports", "timeout": 300, "retry": {"max_attempts": 3, "initial_interval": "PT30S"}},
    "overlap_policy": "skip",
    "enabled": True,
    "description": "Generate daily summary report at 9 AM ET",
}
SUITE = {
    "name": "daily-report",
    "expression": "0 9 * * *",
    "timezone": "America/New_York",
    "job_template": {"type": "report.generate", "args": [1], "options": {"queue": "reports", "timeout_ms": 60_000}},
}


async def register(world: World, written: dict[str, Any] | None = None) -> dict[str, Any]:
    answer = await world.ask("POST", "/ojs/v1/cron", written or DAILY)
    assert answer.status_code in {200, 201}, answer.text
    found: dict[str, Any] = answer.json()["cron_job"]
    return found


async def test_a_registration_is_answered_in_full(world: World) -> None:
    answer = await world.ask("POST", "/ojs/v1/cron", DAILY)
    assert answer.status_code == 201
    assert answer.headers["Content-Type"] == OJS
    assert answer.headers["OJS-Version"] == "1.0"
    result = answer.json()
    assert result["cron"] == result["cron_job"]
    job = result["cron_job"]
    assert {name: job[name] for name in DAILY if name != "options"} == {
        n: v for n, v in DAILY.items() if n != "options"
    }
    assert job["options"]["queue"] == "reports"
    assert job["options"]["retry"]["initial_interval"] == "PT30S"
    assert (job["last_run_at"], job["run_count"]) == (None, 0)
    assert job["next_run_at"] == "2026-01-01T14:00:00Z"
    assert job["created_at"] == "2026-01-01T00:00:00Z"


async def test_suites_spelling_is_read_and_answered(world: World) -> None:
    job = await register(world, SUITE)
    assert (job["expression"], job["type"], job["options"]["timeout"]) == ("0 9 * * *", "report.generate", 60)
    listed = (await world.ask("GET", "/ojs/v1/cron")).json()
    assert [one["name"] for one in listed["crons"]] == ["daily-report"]
    removed = (await world.ask("DELETE", "/ojs/v1/cron/daily-report")).json()
    assert removed == {"deleted": True, "name": "daily-report", "cron": {"name": "daily-report"}}


async def test_cron_26_registering_again_updates(world: World) -> None:
    created = await register(world)
    world.clock.advance(60)
    answer = await world.ask("POST", "/ojs/v1/cron", {**DAILY, "cron": "0 10 * * *"})
    assert answer.status_code == 200
    assert answer.json()["cron_job"]["cron"] == "0 10 * * *"
    assert answer.json()["cron_job"]["created_at"] == created["created_at"]


async def test_cron_06_what_the_system_manages_is_ignored(world: World) -> None:
    job = await register(world, {**DAILY, "run_count": 99, "last_run_at": "2020-01-01T00:00:00Z", "created_at": "x"})
    assert (job["run_count"], job["last_run_at"]) == (0, None)
    # What was answered can be sent back as it is.
    assert (await world.ask("POST", "/ojs/v1/cron", job)).status_code == 200
    assert len(await world.facts("ledger.daily-report.>")) == 1


async def triggered(world: World, run_count: int) -> None:
    """Store the event of an occurrence a second later."""
    world.clock.advance(1)
    at = world.clock.now()
    data = CronTriggeredData(
        cron_name="daily-report",
        cron_expression="0 9 * * *",
        timezone="America/New_York",
        job_id="x",
        job_type="report.generate",
        run_count=run_count,
        scheduled_time=at,
        actual_time=at,
    )
    expect = await world.log.tail("cron.triggered.daily-report")
    await world.log.append(CronTriggered(timestamp=at, data=data), expect=expect)


async def test_cron_07_runs_are_counted_and_next_is_shown(world: World) -> None:
    await register(world)
    await triggered(world, 43)
    job = (await world.ask("GET", "/ojs/v1/cron/daily-report")).json()["cron_job"]
    assert (job["run_count"], job["last_run_at"]) == (43, "2026-01-01T00:00:01Z")


async def test_runs_before_a_registration_are_not_its_own(world: World) -> None:
    await register(world)
    await triggered(world, 43)
    world.clock.advance(1)
    await world.ask("DELETE", "/ojs/v1/cron/daily-report")
    job = await register(world)
    assert (job["run_count"], job["last_run_at"]) == (0, None)
    await triggered(world, 1)
    job = (await world.ask("GET", "/ojs/v1/cron/daily-report")).json()["cron_job"]
    assert (job["run_count"], job["last_run_at"]) == (1, "2026-01-01T00:00:03Z")


async def test_cron_27_unknown_cron_job_is_not_found(world: World) -> None:
    await world.given(name="with-steps", function=None, dag=[{"name": "a", "function": "f"}])
    for name in ("nobody", "with-steps", "NO NAME", "*", "a%2Fb", "%2E%2E"):
        for method, body in (("GET", None), ("DELETE", None), ("PATCH", {"enabled": False})):
            answer = await world.ask(method, f"/ojs/v1/cron/{name}", body)
            assert answer.status_code in {404, 405}, (method, name)
            error = answer.json()["error"]
            assert error["code"] in {"not_found", "invalid_request"}
            assert error["retryable"] is False
            assert answer.headers["Content-Type"] == OJS


async def test_cron_28_disabled_cron_job_has_no_next_run(world: World) -> None:
    await register(world)
    off = await world.ask("PATCH", "/ojs/v1/cron/daily-report", {"enabled": False})
    assert off.json()["cron_job"]["enabled"] is False
    assert off.json()["cron_job"]["next_run_at"] is None
    on = await world.ask("PATCH", "/ojs/v1/cron/daily-report", {"enabled": True})
    assert on.json()["cron_job"]["next_run_at"] == "2026-01-01T14:00:00Z"


async def test_list_can_be_filtered_by_enabled(world: World) -> None:
    await register(world)
    await register(world, {**DAILY, "name": "other", "enabled": False})
    for enabled, names in (("true", ["daily-report"]), ("false", ["other"])):
        result = (await world.ask("GET", f"/ojs/v1/cron?enabled={enabled}")).json()
        assert ([one["name"] for one in result["cron_jobs"]], result["count"]) == (names, 1)


async def test_plain_json_is_answered_on_request(world: World) -> None:
    await register(world)
    for path in ("/ojs/v1/cron", "/ojs/v1/cron/nobody"):
        assert (await world.ask("GET", path, Accept="application/json")).headers["Content-Type"] == "application/json"
        both = await world.ask("GET", path, Accept=f"application/json, {OJS}")
        assert both.headers["Content-Type"] == OJS


async def test_the_media_type_of_the_specification_is_read(world: World) -> None:
    answer = await world.ask("POST", "/ojs/v1/cron", DAILY, Content_Type=OJS)
    assert answer.status_code == 201


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"cron": "not a valid cron"}, "cron"),
        ({"cron": "0 0 0 0 0 0 0"}, "cron"),
        ({"cron": "99 25 32 13 8"}, "cron"),
        ({"cron": ""}, "cron"),
        ({"cron": "*/0 * * * *"}, "cron"),
        ({"timezone": "EST"}, "timezone"),
        ({"timezone": "+02:00"}, "timezone"),
        ({"type": "Report Generate"}, "type"),
        ({"args": {"a": 1}}, "args"),
        ({"name": "Daily Report"}, "name"),
        ({"overlap_policy": "sometimes"}, "overlap_policy"),
        ({"options": {"timeout_ms": -1}}, "options.timeout"),
        ({"pending": True}, "pending"),
        ({"options": {"pending": True}}, "options.pending"),
    ],
)
async def test_what_cannot_be_registered_is_an_invalid_request(
    world: World, change: dict[str, Any], field: str
) -> None:
    answer = await world.ask("POST", "/ojs/v1/cron", {**DAILY, **change})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "invalid_request"
    assert field in {wrong["field"] for wrong in error["details"]["errors"]}
    assert error["message"]
    assert error["hint"]
    assert not await world.facts("ledger.>")


async def test_what_is_no_json_is_an_invalid_payload(world: World) -> None:
    answer = await world.client.post("/ojs/v1/cron", content=b"{ invalid", headers={"Content-Type": OJS})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_payload")


async def test_a_toggle_must_say_true_or_false(world: World) -> None:
    await register(world)
    answer = await world.ask("PATCH", "/ojs/v1/cron/daily-report", {"enabled": "off"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")


LOSSLESS = {
    "dst": {"gap": "shift", "fold": "both"},
    "catch_up": "all",
    "catch_up_limit": 7,
    "catch_up_max_age": 60.0,
    "starting_deadline": 30.0,
    "retention": 3600.0,
    "execution_timeout": 900.0,
    "input": {"a": 1},
    "owner": "finance",
}


async def test_get_then_post_loses_nothing(world: World) -> None:
    await world.given(name="report", function="report.make", retry={"max_delay_with_jitter": True}, **LOSSLESS)
    answer = await world.ask("GET", "/ojs/v1/cron/report")
    shown = answer.json()["cron_job"]
    assert {name: shown[name] for name in LOSSLESS} == LOSSLESS
    again = await world.ask("POST", "/ojs/v1/cron", shown)
    assert again.status_code == 200, again.text
    assert len(await world.facts("ledger.report.>")) == 1


@pytest.mark.parametrize(
    ("definition", "lost"),
    [
        ({"function": None, "dag": [{"name": "a", "function": "f"}]}, {"dag"}),
        ({"schedule": None, "function": "a.b"}, {"cron"}),
        ({"schedule": None, "function": "A/B"}, {"cron", "type"}),
    ],
)
async def test_job_that_a_cron_job_cannot_express_stays(
    world: World, definition: dict[str, Any], lost: set[str]
) -> None:
    await world.given(name=DAILY["name"], **definition)
    answer = await world.ask("POST", "/ojs/v1/cron", DAILY)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["retryable"]) == (409, "not_expressible", False)
    assert {wrong["field"] for wrong in error["details"]["errors"]} == lost
    assert len(await world.facts("ledger.>")) == 1
    await world.registry.delete("daily-report")
    assert (await world.ask("POST", "/ojs/v1/cron", DAILY)).status_code == 201


@pytest.mark.parametrize(
    ("fields", "warning"),
    [
        ({"cron": "0 0 31 * *"}, "day 31"),
        ({"cron": "30 2 * * *"}, "does not exist"),
        ({"cron": "@every 500ms"}, "500ms"),
    ],
)
async def test_registration_answers_warnings(world: World, fields: dict[str, Any], warning: str) -> None:
    answer = await world.ask("POST", "/ojs/v1/cron", {**DAILY, **fields})
    assert any(warning in found for found in answer.json()["warnings"]), answer.text
    quiet = await world.ask("POST", "/ojs/v1/cron", DAILY)
    assert quiet.json()["warnings"] == []


async def skipped(world: World) -> str:
    """An occurrence that was planned, and skipped because an earlier execution was active; return its id."""
    now = world.clock.now()
    execution_id = ids.occurrence_id("daily-report", now)
    plan = Plan(definition=1, steps=(PlannedStep(name="main", function="report.generate", timeout=1),))
    planned = Planned(job="daily-report", execution_id=execution_id, scheduled_time=now, trigger="cron", plan=plan)
    await world.log.append(planned, expect=0)
    fact = Skipped(
        job="daily-report",
        execution_id=execution_id,
        scheduled_time=now,
        trigger="cron",
        reason="overlap_skip",
        active_execution_id="earlier",
        definition=1,
    )
    await world.log.append(fact, expect=await world.log.tail(f"execution.daily-report.{execution_id}.>"))
    return execution_id


async def test_skipped_occurrence_is_not_a_job(world: World) -> None:
    await register(world)
    execution_id = await skipped(world)
    for method in ("GET", "DELETE"):
        answer = await world.ask(method, f"/ojs/v1/jobs/{execution_id}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    types = [event["type"] for event in (await world.ask("GET", "/ojs/v1/events")).json()["events"]]
    assert "job.discarded" not in types


async def test_cron_events_are_listed(world: World) -> None:
    await register(world)
    at = world.clock.now()
    schedule: dict[str, Any] = {"cron_name": "daily-report", "cron_expression": "0 9 * * *", "timezone": "UTC"}
    triggered = CronTriggeredData(
        **schedule, job_id="x", job_type="a.b", run_count=1, scheduled_time=at, actual_time=at
    )
    await world.log.append(CronTriggered(timestamp=at, data=triggered), expect=0)
    world.clock.advance(1)
    lapsed = CronSkippedData(**schedule, reason="disabled", scheduled_time=at)
    await world.log.append(CronSkipped(timestamp=at, data=lapsed), expect=0)
    world.clock.advance(1)
    missed = CronMissedData(**schedule, reason="missed", count=7, start=at, until=world.clock.now())
    await world.log.append(CronMissed(timestamp=at, data=missed), expect=0)
    events = (await world.ask("GET", "/ojs/v1/events")).json()["events"]
    assert [event["type"] for event in events] == ["cron.missed", "cron.skipped", "cron.triggered"]
    assert {event["subject"] for event in events} == {"daily-report"}
    assert events[0]["data"]["count"] == 7
    assert events[1]["data"]["scheduled_time"] == "2026-01-01T00:00:00Z"
    [only] = (await world.ask("GET", "/ojs/v1/events?types=cron.skipped")).json()["events"]
    assert only["time"] == "2026-01-01T00:00:01.000Z"
    assert (await world.ask("GET", "/ojs/v1/events?queues=reports")).json()["events"] == []


async def test_unreadable_event_hides_no_other(world: World) -> None:
    await register(world)
    at = world.clock.now()
    schedule: dict[str, Any] = {"cron_name": "daily-report", "cron_expression": "0 9 * * *", "timezone": "UTC"}
    skipped = CronSkipped(timestamp=at, data=CronSkippedData(**schedule, reason="disabled", scheduled_time=at))
    await world.log.append(skipped, expect=0)
    subject = "cron.missed.daily-report"
    world.log.receive(subject, b"from a newer version")
    missed = CronMissedData(**schedule, reason="missed", count=7, start=at, until=at)
    await world.log.append(CronMissed(timestamp=at, data=missed), expect=await world.log.tail(subject))
    events = (await world.ask("GET", "/ojs/v1/events")).json()["events"]
    assert {event["type"] for event in events} == {"cron.missed", "cron.skipped"}


async def test_cron_events_of_hidden_job_are_withheld(world: World) -> None:
    await world.given(name="hidden", function="a.b", viewers=["ada"])
    at = world.clock.now()
    data = CronSkippedData(
        cron_name="hidden", cron_expression="@daily", timezone="UTC", reason="disabled", scheduled_time=at
    )
    await world.log.append(CronSkipped(timestamp=at, data=data), expect=0)
    headers = {"Authorization": f"Bearer {await world.token('eve', Role.VIEWER)}"}
    answer = await world.ask("GET", "/ojs/v1/events", **headers)
    assert (answer.status_code, answer.json()) == (200, {"events": [], "next_cursor": None})


async def test_past_single_instant_is_invalid(world: World) -> None:
    answer = await world.ask("POST", "/ojs/v1/cron", {**DAILY, "cron": "at 2020-01-01T09:00:00Z"})
    assert answer.status_code == 400
    [wrong] = answer.json()["error"]["details"]["errors"]
    assert wrong["field"] == "cron"
    assert "past" in wrong["right"]
    assert not await world.facts("ledger.>")


async def test_list_is_paged(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        await register(world, {**DAILY, "name": f"report-{number}"})
    read = list[str]()
    last = world.log.last

    async def counted_last(subject: str) -> Recorded[Message] | None:
        read.append(subject)
        return await last(subject)

    monkeypatch.setattr(world.log, "last", counted_last)
    page = (await world.ask("GET", "/ojs/v1/cron?limit=2&offset=2")).json()
    assert [cron["name"] for cron in page["crons"]] == ["report-2", "report-3"]
    assert page["pagination"] == {"total": 5, "limit": 2, "offset": 2, "has_more": True, "next_cursor": "report-3"}
    assert page["count"] == 2
    assert len([subject for subject in read if "triggered" in subject]) == 2
    end = (await world.ask("GET", "/ojs/v1/cron?limit=2&offset=4")).json()
    assert (end["count"], end["pagination"]["has_more"]) == (1, False)
    assert (await world.ask("GET", "/ojs/v1/cron?limit=1001")).status_code == 400


@pytest.mark.parametrize(
    ("field", "work"),
    [
        ("command", {"argv": ["./report.sh", "{{ input.day }}"], "env": {"TOKEN": "${env:TOKEN}"}, "grace": 5.0}),
        ("http", {"url": "https://example.com/{{ input.day }}", "success": ["200-299", "404"]}),
        (
            "sql",
            {"connection": "dwh", "statement": "SELECT :day", "parameters": {"day": "{{ input.day }}"}, "max_rows": 1},
        ),
        ("procedure", {"connection": "dwh", "name": "reports.refresh", "arguments": ["{{ input.day }}", 1.5]}),
        ("container", {"image": "etl:1", "args": ["{{ input.day }}"], "resources": {"limits": {"memory": "1Gi"}}}),
    ],
)
async def test_job_without_code_survives_a_round_trip(field: str, work: dict[str, Any], world: World) -> None:
    job = {key: value for key, value in DAILY.items() if key not in {"type", "args"}}
    registered = await register(world, {**job, "type": f"tocsin.{field}", field: work})
    answer = await world.ask("GET", "/ojs/v1/cron/daily-report")
    read: dict[str, Any] = answer.json()["cron_job"]
    assert (read["type"], read[field]) == (f"tocsin.{field}", work)
    again = await world.ask("POST", "/ojs/v1/cron", read)
    assert again.status_code == 200
    assert again.json()["cron_job"] == registered
