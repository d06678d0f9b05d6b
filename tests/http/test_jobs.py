"""`/v1/jobs`: the effects on jobs, and the answers to clients."""

import json
from collections.abc import AsyncIterator

import pytest
from sqlalchemy.exc import OperationalError

from tests.http.conftest import World
from tocsin.domain.events import Defined, Deleted, Paused, Trigger
from tocsin.ports import HistoryUnavailable, LogUnavailable, NotAllowed

JOB = {"name": "report", "schedule": "every weekday at 7am", "timezone": "Europe/Berlin", "function": "f"}


async def test_new_job_is_registered_with_its_parsed_schedule(world: World) -> None:
    answer = await world.ask("POST", "/v1/jobs", JOB, X_Reason="quarterly report")

    assert answer.status_code == 201
    assert answer.headers["Location"] == "/v1/jobs/report"
    result = answer.json()
    assert result["expressions"] == ["0 7 * * 1-5"]
    assert result["created_by"] == "local:anonymous"
    assert answer.headers["ETag"] == f'"{result["sequence"]}"'
    [fact] = [r.message for r in await world.facts("ledger.report.>")]
    assert isinstance(fact, Defined)
    assert fact.by is not None
    assert (fact.by.identity, fact.by.source, fact.reason) == ("anonymous", "127.0.0.1", "quarterly report")


async def test_registering_the_same_again_changes_nothing(world: World) -> None:
    await world.ask("POST", "/v1/jobs", JOB)
    answer = await world.ask("POST", "/v1/jobs", JOB)
    assert answer.status_code == 200
    assert len(await world.facts("ledger.report.>")) == 1


async def test_different_job_of_the_name_is_not_overwritten(world: World) -> None:
    await world.ask("POST", "/v1/jobs", JOB)
    answer = await world.ask("POST", "/v1/jobs", {**JOB, "schedule": "@daily"})
    assert answer.status_code == 409
    assert answer.json()["type"] == "urn:tocsin:problem:exists"
    assert "'report'" in answer.json()["detail"]
    assert "PUT /v1/jobs/report" in answer.json()["detail"]
    assert answer.headers["Content-Type"] == "application/problem+json"


async def test_either_spelling_is_read(world: World) -> None:
    ojs = {"name": "ojs", "cron": "0 9 * * *", "type": "report.generate", "options": {"queue": "reports"}}
    answer = await world.ask("POST", "/v1/jobs", ojs)
    assert answer.status_code == 201
    assert answer.json()["definition"]["queue"] == "reports"


async def test_every_error_names_field_value_and_remedy(world: World) -> None:
    answer = await world.ask("POST", "/v1/jobs", {"name": "A", "schedule": "61 * * * *", "function": "f", "tz": "UTC"})
    assert answer.status_code == 422
    problem = answer.json()
    assert problem["type"] == "urn:tocsin:problem:invalid-definition"
    assert {error["field"] for error in problem["errors"]} == {"name", "schedule", "tz"}
    [unknown] = [error for error in problem["errors"] if error["field"] == "tz"]
    assert unknown["right"] == "unknown field: did you mean `timezone`?"
    [minute] = [error for error in problem["errors"] if error["field"] == "schedule"]
    assert minute["value"] == '"61 * * * *"'


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        (b'{"name', 400, "malformed"),
        (b"[]", 422, "invalid-request"),
        (b'{"name": "a", "schedule": "@daily", "function": "\\ud800"}', 422, "invalid-definition"),
        (
            b'{"name": "a", "schedule": "@daily", "function": "f", "input": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
            422,
            "",
        ),
        (b'{"name": "a", "schedule": "@daily", "function": "f", "input": {"a": NaN}}', 422, "invalid-definition"),
    ],
)
async def test_what_is_no_job_is_refused_in_words(world: World, body: bytes, status: int, kind: str) -> None:
    answer = await world.client.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in {status, 400}
    assert answer.json()["type"].startswith("urn:tocsin:problem:")
    assert kind in answer.json()["type"] or answer.status_code == 400
    assert not await world.facts("ledger.>")


@pytest.mark.parametrize(
    ("body", "field", "value"),
    [(b"nojson", "body", '"nojson"'), (b"[1]", "body", "a list"), (b'{"inpt": 1}', "inpt", None)],
)
async def test_invalid_body_is_explained_without_python(world: World, body: bytes, field: str, value: str) -> None:
    await world.ask("POST", "/v1/jobs", JOB)
    headers = {} if body == b"nojson" else {"Content-Type": "application/json"}
    answer = await world.client.post("/v1/jobs/report/trigger", content=body, headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:tocsin:problem:invalid-request")
    [error] = answer.json()["errors"]
    assert (error["field"], error.get("value")) == (field, value)
    assert "Extra inputs" not in error["right"]
    assert "dictionary" not in error["right"]


async def test_refused_method_names_those_allowed(world: World) -> None:
    answer = await world.ask("PATCH", "/v1/jobs/report")
    assert answer.status_code == 405
    assert all(method in answer.json()["detail"] for method in answer.headers["allow"].split(", "))


async def test_oversized_body_is_refused_with_or_without_length(world: World) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield b" " * 100_000

    sized = await world.ask("POST", "/v1/jobs", {**JOB, "description": "x" * 5_000_000})
    streamed = await world.client.post("/v1/jobs", content=chunks(), headers={"Content-Type": "application/json"})
    for answer in (sized, streamed):
        assert answer.status_code == 413
        assert answer.json()["type"] == "urn:tocsin:problem:too-large"
        assert "4,194,304 bytes" in answer.json()["detail"]


async def test_a_read_after_a_write_sees_it(world: World) -> None:
    await world.ask("POST", "/v1/jobs", JOB)
    assert (await world.ask("GET", "/v1/jobs/report")).json()["state"] == "active"
    listed = (await world.ask("GET", "/v1/jobs")).json()["jobs"]
    assert [job["name"] for job in listed] == ["report"]


async def test_a_list_is_read_in_pages(world: World) -> None:
    for name in ("a", "b", "c"):
        await world.given(name=name, tags=("t",))
    await world.given(name="d")
    first = (await world.ask("GET", "/v1/jobs?limit=2&tag=t")).json()
    assert ([job["name"] for job in first["jobs"]], first["next"]) == (["a", "b"], "b")
    second = (await world.ask("GET", "/v1/jobs?limit=2&tag=t&after=b")).json()
    assert ([job["name"] for job in second["jobs"]], second["next"]) == (["c"], None)


async def test_an_update_on_an_outdated_version_is_refused(world: World) -> None:
    etag = (await world.ask("POST", "/v1/jobs", JOB)).headers["ETag"]
    changed = {**JOB, "schedule": "@hourly"}

    first = await world.ask("PUT", "/v1/jobs/report", changed, If_Match=etag)
    assert first.status_code == 200
    second = await world.ask("PUT", "/v1/jobs/report", {**JOB, "schedule": "@daily"}, If_Match=etag)

    assert second.status_code == 412
    assert second.headers["ETag"] == first.headers["ETag"]
    assert second.json()["type"] == "urn:tocsin:problem:precondition-failed"
    assert (await world.ask("GET", "/v1/jobs/report")).json()["schedule"] == "@hourly"


async def test_update_keeps_creator_and_creation_time(world: World) -> None:
    created = (await world.ask("POST", "/v1/jobs", JOB)).json()
    world.clock.advance(60)
    updated = (await world.ask("PUT", "/v1/jobs/report", {**JOB, "schedule": "@hourly"})).json()
    assert (updated["created_at"], updated["created_by"]) == (created["created_at"], "local:anonymous")
    assert updated["defined_at"] > created["defined_at"]


async def test_put_creates_a_job_unless_forbidden(world: World) -> None:
    assert (await world.ask("PUT", "/v1/jobs/report", JOB, If_Match="*")).status_code == 412
    assert (await world.ask("PUT", "/v1/jobs/report", JOB)).status_code == 201
    assert (await world.ask("PUT", "/v1/jobs/report", JOB, If_None_Match="*")).status_code == 412


async def test_name_in_the_body_must_match_the_path(world: World) -> None:
    answer = await world.ask("PUT", "/v1/jobs/other", JOB)
    assert answer.status_code == 422
    [error] = answer.json()["errors"]
    assert (error["field"], error["value"]) == ("name", '"report"')
    assert "'other'" in error["right"]


async def test_pause_and_resume_report_a_change(world: World) -> None:
    await world.given()
    paused = await world.ask("POST", "/v1/jobs/job/pause", {"reason": "maintenance"})
    again = await world.ask("POST", "/v1/jobs/job/pause")
    assert paused.json() == {"job": "job", "action": "paused", "changed": True}
    assert again.json()["changed"] is False
    assert (await world.ask("GET", "/v1/jobs/job")).json()["next_fire_time"] is None
    assert (await world.ask("POST", "/v1/jobs/job/resume")).json()["changed"] is True
    [fact] = [r.message for r in await world.facts("ledger.job.paused")]
    assert isinstance(fact, Paused)
    assert fact.reason == "maintenance"


async def test_a_deleted_job_is_gone(world: World) -> None:
    await world.given()
    assert (await world.ask("DELETE", "/v1/jobs/job", X_Reason="obsolete")).status_code == 204
    assert (await world.ask("GET", "/v1/jobs/job")).status_code == 404
    again = await world.ask("DELETE", "/v1/jobs/job")
    assert again.status_code == 404
    assert again.json()["type"] == "urn:tocsin:problem:not-found"
    [fact] = [r.message for r in await world.facts("ledger.job.deleted")]
    assert isinstance(fact, Deleted)
    assert fact.reason == "obsolete"


async def test_a_trigger_is_an_input_with_its_origin(world: World) -> None:
    await world.given(input={"a": 1})
    answer = await world.ask("POST", "/v1/jobs/job/trigger", {"input": {"b": 2}, "reason": "again"})
    assert answer.status_code == 202
    assert answer.json()["execution_id"]
    [trigger] = [r.message for r in await world.facts("trigger.job.>")]
    assert isinstance(trigger, Trigger)
    assert (trigger.trigger, trigger.input, trigger.reason) == ("api", {"b": 2}, "again")


async def test_trigger_outside_the_schema_is_refused(world: World) -> None:
    await world.given(input_schema={"properties": {"n": {"type": "integer"}}})
    answer = await world.ask("POST", "/v1/jobs/job/trigger", {"input": {"n": "x"}})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "input.n"
    assert not await world.facts("trigger.job.>")


async def test_schedule_lists_coming_firings(world: World) -> None:
    await world.given(name="hourly", schedule="@hourly")
    await world.given(name="paused", schedule="@hourly")
    await world.registry.pause("paused")
    result = (await world.ask("GET", "/v1/schedule?hours=3&limit=1")).json()
    [hourly] = result["jobs"]
    assert (hourly["job"], hourly["count"], len(hourly["fire_times"])) == ("hourly", 3, 1)


async def test_a_schedule_is_explained(world: World) -> None:
    result = await world.ask("POST", "/v1/explain", {"schedule": "every weekday at 7am", "timezone": "Europe/Berlin"})
    assert result.json()["expressions"] == ["0 7 * * 1-5"]
    wrong = await world.ask("POST", "/v1/explain", {"schedule": "60 * * * *"})
    assert wrong.status_code == 422
    assert wrong.json()["errors"][0]["field"] == "schedule"


async def test_without_tokens_pages_of_other_sites_cannot_call(world: World) -> None:
    origins = (
        "https://elsewhere.example",
        "localhost",
        "https://localhost:3000.elsewhere.example",
        "http://[::1]elsewhere.example",
        "http://localhost:x",
        "x://localhost",
        "http://localhost/",
        "http://localhost:3000 https://elsewhere.example",
        "null",
        "",
    )
    for headers in ({"Host": "rebound.example"}, *({"Origin": origin} for origin in origins)):
        answer = await world.ask("GET", "/v1/jobs", **headers)
        assert answer.status_code == 403
    assert (await world.ask("GET", "/v1/jobs", Origin="http://localhost:3000")).status_code == 200
    assert (await world.ask("GET", "/v1/jobs", Host="[::1]:8062")).status_code == 200


async def test_answers_carry_security_headers(world: World) -> None:
    for path in ("/v1/health", "/v1/nowhere"):
        answer = await world.ask("GET", path)
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"obsolete: 50% done", "obsolete: 50% done"),
        (b"UTF-8''W%C3%A4rme%20%F0%9F%94%A5%0A%25", "Wärme 🔥\n%"),
        (b"utf-8''a", "a"),
        ("Wärme 🔥".encode(), "Wärme 🔥"),
        ("Wärme".encode("latin-1"), "Wärme"),
        (b"UTF-8''" + b"%F0%9F%94%A5" * 1_000, "🔥" * 1_000),
    ],
)
async def test_reason_in_a_header_is_any_text(world: World, header: bytes, reason: str) -> None:
    await world.given()
    answer = await world.client.delete("/v1/jobs/job", headers=[(b"X-Reason", header)])
    assert answer.status_code == 204, answer.text
    [fact] = [recorded.message for recorded in await world.facts("ledger.job.deleted")]
    assert isinstance(fact, Deleted)
    assert fact.reason == reason


@pytest.mark.parametrize(
    "header", ["UTF-8''%FF", "UTF-8''%ED%A0%80", "UTF-8''%00", "x" * 1_001, "UTF-8''" + "%20" * 1_001]
)
async def test_reason_in_a_header_must_be_storable(world: World, header: str) -> None:
    await world.given()
    answer = await world.ask("DELETE", "/v1/jobs/job", X_Reason=header)
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:tocsin:problem:invalid-request")
    assert [error["field"] for error in answer.json()["errors"]] == ["X-Reason"]
    assert not await world.facts("ledger.job.deleted")


@pytest.mark.parametrize("reason", ["\x00", "\ud800", "x" * 1_001])
async def test_reason_must_be_storable_text(world: World, reason: str) -> None:
    await world.given()
    body = json.dumps({"reason": reason})
    headers = {"Content-Type": "application/json"}
    answer = await world.client.post("/v1/jobs/job/pause", content=body, headers=headers)
    assert answer.status_code == 422
    assert not await world.facts("ledger.job.paused")


@pytest.mark.parametrize(
    ("failure", "status", "kind", "subject"),
    [
        (HistoryUnavailable("postgresql://user:secret@db: no"), 503, "unavailable", "history"),
        (OperationalError("SELECT secret", {}, Exception("secret")), 503, "unavailable", "history"),
        (LogUnavailable("nats://user:secret@n: no"), 503, "unavailable", "log"),
        (NotAllowed("secret"), 503, "unavailable", "tocsin permissions api"),
        (RuntimeError("secret"), 500, "unforeseen", "log"),
    ],
)
async def test_internal_error_is_reported_without_secrets(
    world: World, monkeypatch: pytest.MonkeyPatch, failure: Exception, status: int, kind: str, subject: str
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(world.history, "executions", fail)
    answer = await world.ask("GET", "/v1/executions")
    assert (answer.status_code, answer.json()["type"]) == (status, f"urn:tocsin:problem:{kind}")
    assert subject in answer.json()["detail"]
    assert "secret" not in answer.text


async def test_definition_is_found_under_its_own_job_only(world: World) -> None:
    result = (await world.ask("POST", "/v1/jobs", JOB)).json()
    await world.ask("POST", "/v1/jobs", {**JOB, "name": "another"})

    found = await world.ask("GET", f"/v1/jobs/report/definitions/{result['sequence']}")
    assert found.json()["fact"]["definition"]["name"] == "report"
    of_another = await world.ask("GET", f"/v1/jobs/another/definitions/{result['sequence']}")
    assert (of_another.status_code, of_another.json()["type"]) == (404, "urn:tocsin:problem:not-found")


@pytest.mark.parametrize(
    "given", [None, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "nonsense", "x" * 9_000]
)
async def test_trigger_continues_the_trace_of_its_caller(world: World, given: str | None) -> None:
    await world.ask("POST", "/v1/jobs", JOB)
    answer = await world.ask("POST", "/v1/jobs/report/trigger", {}, **({} if given is None else {"traceparent": given}))
    assert answer.status_code == 202
    [stored] = [r.message for r in await world.facts("trigger.report.>")]
    assert isinstance(stored, Trigger)
    assert stored.traceparent == (given if given and given.startswith("00") else None)
