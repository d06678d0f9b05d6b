"""`tocsin jobs`: what is printed, what is stored, and the exit codes."""

import getpass
import json
import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from tests.cli.conftest import World
from tocsin.adapters.files import load
from tocsin.cli.jobs import apply
from tocsin.cli.runtime.errors import Exit
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Defined, Deleted, Due, Paused, Resumed, Trigger

TWO = """
jobs:
  - { name: health, schedule: "*/5 * * * *", function: probe, tags: [a] }
  - { name: nightly, schedule: "0 3 * * *", function: report, owner: us }
"""
ONE = """
jobs:
  - { name: health, schedule: "*/10 * * * *", function: probe, tags: [a] }
"""


@pytest.fixture
def applied(world: World) -> World:
    assert world.call("jobs", "apply", "-f", world.jobs(TWO)).code == 0
    return world


def names(world: World) -> list[str]:
    return [job["name"] for job in world.call("jobs", "list", "-o", "json").json]


def test_apply_prints_the_plan_and_does_it(world: World) -> None:
    result = world.call("jobs", "apply", "-f", world.jobs(TWO))
    assert result.code == 0
    assert "+ create    health" in result.out
    assert "2 to create" in result.out
    assert names(world) == ["health", "nightly"]


def test_apply_records_the_actor_and_the_owner(applied: World) -> None:
    first, second = (recorded.message for recorded in applied.recorded("ledger.>"))
    assert isinstance(first, Defined)
    assert isinstance(second, Defined)
    assert first.by is not None
    assert first.by.identity.startswith(f"{getpass.getuser()}@")
    assert (first.definition.owner, second.definition.owner) == (apply.OWNER, "us")


def test_apply_leaves_a_dropped_job(world: World) -> None:
    file = world.jobs("jobs: [{name: once, schedule: 'at 2090-01-01T00:00Z', function: f, on_completion: drop}]")
    world.call("jobs", "apply", "-f", file)
    world.append(Due(job="once", scheduled_time=datetime(2090, 1, 1, tzinfo=UTC), definition=1), expect=1)
    world.call("jobs", "delete", "once", "--yes")
    result = world.call("jobs", "apply", "-f", file)
    assert (result.code, result.out.splitlines()[-1].strip()) == (0, "1 unchanged")
    assert "ran for the last time, and was deleted" in result.out
    assert names(world) == []


def test_apply_again_changes_nothing(applied: World) -> None:
    result = applied.call("jobs", "apply", "-f", applied.jobs(TWO))
    assert (result.code, result.out.splitlines()[-1].strip()) == (0, "2 unchanged")
    assert len(applied.recorded("ledger.>")) == 2


def test_an_update_is_printed_field_by_field(applied: World) -> None:
    result = applied.call("jobs", "apply", "-f", applied.jobs(ONE.replace("tags: [a]", "timeout: 90s")))
    assert 'schedule: "*/5 * * * *" → "*/10 * * * *"' in result.out
    assert "timeout: 5m → 1m30s" in result.out
    assert "1 to update" in result.out


def test_a_dry_run_only_prints(world: World) -> None:
    result = world.call("jobs", "apply", "-f", world.jobs(TWO), "--dry-run")
    assert "2 to create" in result.out
    assert world.recorded("ledger.>") == []


def test_definitions_come_from_standard_input_too(world: World) -> None:
    assert world.call("jobs", "apply", "-f", "-", input=TWO).code == 0
    assert names(world) == ["health", "nightly"]


def test_definitions_come_from_settings_without_a_file(world: World) -> None:
    (world.folder / "tocsin.yaml").write_text(f"jobs_file: {world.jobs(TWO)}\nexecution: {{ default_timeout: 7s }}\n")
    assert world.call("jobs", "apply").code == 0
    assert world.do(world.registry.job("health")).definition.timeout == 7


def test_default_time_zone_is_that_of_the_settings(world: World) -> None:
    (world.folder / "tocsin.yaml").write_text("execution: { default_timezone: Europe/Berlin }\n")
    jobs = world.jobs("""\
jobs:
  - { name: local, schedule: "0 7 * * *", function: f }
  - { name: own, schedule: "0 7 * * *", timezone: UTC, function: f }
  - { name: phrase, schedule: every day at 7am Asia/Tokyo, function: f }
  - { name: on-demand, function: f }
""")
    assert world.call("jobs", "apply", "-f", jobs).code == 0
    zones = {job.name: job.definition.timezone for job in world.do(world.registry.jobs())}
    assert zones == {"local": "Europe/Berlin", "own": "UTC", "phrase": "Asia/Tokyo", "on-demand": "UTC"}
    exported = world.folder / "exported.yaml"
    assert world.call("jobs", "export", "--out", str(exported)).code == 0
    assert world.call("jobs", "diff", "-f", str(exported)).code == 0


def test_schedule_must_exist_in_the_default_zone(world: World) -> None:
    (world.folder / "tocsin.yaml").write_text("execution: { default_timezone: Europe/Berlin }\n")
    jobs = world.jobs("jobs: [{ name: once, schedule: at 2031-03-30T02:30, function: f }]")
    result = world.call("jobs", "apply", "-f", jobs, "-o", "json")
    assert (result.code, result.error["error_code"]) == (2, "invalid-definition")
    assert "does not exist in Europe/Berlin" in result.error["message"]


def test_apply_without_files_names_the_option(world: World) -> None:
    result = world.call("jobs", "apply", "-o", "json")
    assert (result.code, result.error["error_code"]) == (2, "definitions-required")
    assert "-f" in result.error["message"]
    assert "`jobs_file`" in result.error["message"]


def test_pruning_deletes_jobs_missing_from_the_owners_files(applied: World) -> None:
    result = applied.call("jobs", "apply", "-f", applied.jobs(ONE), "--prune", "--yes")
    assert result.code == 0
    assert names(applied) == ["health", "nightly"]  # of another owner
    applied.call("jobs", "apply", "-f", applied.jobs(TWO.replace("health", "other")), "--owner", "us")
    assert (
        "- delete    nightly"
        in applied.call("jobs", "apply", "-f", applied.jobs("jobs: []"), "--prune", "--yes", "--owner", "us").out
    )
    assert names(applied) == ["health"]


def test_a_plan_is_json_for_programs(world: World) -> None:
    result = world.call("jobs", "apply", "-f", world.jobs(TWO), "--output", "json")
    assert result.json["summary"] == {"create": 2, "update": 0, "delete": 0, "unchanged": 0}
    change = result.json["changes"][0]
    assert (change["job"], change["action"], change["differences"]) == ("health", "create", [])
    assert len(change["next"]) == 5


def test_phrase_is_shown_as_cron_with_warnings(world: World) -> None:
    definition = """
        jobs:
          - name: warm
            schedule: every weekday at 2:30am
            timezone: America/New_York
            function: f
          - name: rare
            schedule: 30 2 * * *
            timezone: America/New_York
            function: f
    """
    result = world.call("jobs", "apply", "-f", world.jobs(definition))
    assert "is 30 2 * * 1-5" in result.out
    assert "02:30 does not exist and will not fire (see dst.gap)" in " ".join(result.out.split())


def test_invalid_definitions_are_all_refused_and_none_applied(world: World) -> None:
    text = TWO.replace("function: probe", "funktion: probe").replace("0 3 * * *", "0 25 * * *")
    result = world.call("jobs", "apply", "-f", world.jobs(text), "-o", "json")
    assert result.code == 2
    assert result.error["kind"] == "usage"
    assert any("did you mean `function`?" in problem for problem in result.error["problems"])
    assert any("nightly" in problem for problem in result.error["problems"])
    assert world.recorded("ledger.>") == []


def test_diff_answers_with_its_exit_code(applied: World) -> None:
    assert applied.call("jobs", "diff", "-f", applied.jobs(TWO)).code == 0
    result = applied.call("jobs", "diff", "-f", applied.jobs(ONE))
    assert result.code == 1
    assert "~ update    health" in result.out
    assert len(applied.recorded("ledger.>")) == 2


def test_list_shows_the_next_time(applied: World) -> None:
    result = applied.call("jobs", "list")
    assert result.code == 0
    assert "*/5 * * * *" in result.out
    assert "UTC" in result.out
    (health,) = applied.call("--output", "json", "jobs", "list", "--tag", "a").json
    assert health["state"] == "active"
    assert health["next_fire_time"].endswith(":00Z")
    assert int(health["next_fire_time"][-6:-4]) % 5 == 0


def test_next_time_is_in_the_jobs_zone(world: World, tmp_path: Path) -> None:
    file = tmp_path / "zoned.yaml"
    file.write_text("jobs: [{name: warm, schedule: every day at 7am, timezone: America/Los_Angeles, function: f}]\n")
    assert world.call("jobs", "apply", "-f", str(file)).code == 0
    assert re.search(r" 07:00:00-0[78]:00", world.call("jobs", "list").out)
    assert re.search(r" 07:00:00-0[78]:00", world.call("jobs", "show", "warm").out)


def test_list_claims_no_order_of_steps(world: World) -> None:
    steps = "[{step: a, function: f}, {step: b, function: f}, {step: c, function: f, depends_on: [b]}]"
    world.call("jobs", "apply", "-f", world.jobs(f"jobs: [{{name: forked, dag: {steps}}}]"))
    assert " a, b, c " in world.call("jobs", "list").out


def test_empty_job_list_prints_a_sentence(world: World) -> None:
    assert "tocsin jobs apply" in world.call("jobs", "list").out
    assert world.call("jobs", "list", "-o", "json").json == []


def test_show_shows_the_definition(applied: World) -> None:
    page = applied.call("jobs", "show", "nightly").out
    assert "schedule: 0 3 * * *" in page
    assert "runs    unknown" in page  # there is no history
    shown = applied.call("jobs", "show", "nightly", "-o", "json").json
    assert JobDefinition.model_validate(shown["definition"]).function == "report"


def test_end_and_days_of_a_calendar_are_shown(world: World) -> None:
    today = datetime.now(UTC).date()
    closed, end = today + timedelta(days=3), today + timedelta(days=30)

    def applied(*days: date) -> str:
        listed = ", ".join(map(str, days))
        job = "{ name: trade, schedule: '@daily', function: f, exclude: [fair] }"
        path = world.jobs(f"calendars: {{ fair: {{ days: [{listed}], until: {end} }} }}\njobs: [{job}]")
        return " ".join(world.call("jobs", "apply", "-f", path).out.split())

    warning = f"the calendar fair is known up to {end}; then none of its days is excluded"
    assert warning in applied(end)
    assert f"note {warning}" in " ".join(world.call("jobs", "show", "trade").out.split())
    assert world.call("jobs", "show", "trade", "-o", "json").json["warnings"] == [warning]
    assert "0 occurrences added, 1 removed" in applied(closed, end)


def test_pause_and_resume_are_recorded_with_their_reason(applied: World) -> None:
    assert applied.call("jobs", "pause", "nightly", "--reason", "maintenance").out.strip() == "paused nightly"
    assert applied.call("jobs", "pause", "nightly").out.strip() == "paused nightly (it was already)"
    assert applied.call("jobs", "resume", "nightly", "-o", "json").json["changed"] is True
    paused, resumed = (recorded.message for recorded in applied.recorded("ledger.nightly.>")[1:])
    assert isinstance(paused, Paused)
    assert paused.reason == "maintenance"
    assert isinstance(resumed, Resumed)


def test_pruning_without_a_terminal_requires_yes(applied: World) -> None:
    result = applied.call("jobs", "apply", "-f", applied.jobs("jobs: []"), "--prune", "--owner", "us", "-o", "json")
    assert result.failure == (2, "confirmation-required")
    assert not any(isinstance(recorded.message, Deleted) for recorded in applied.recorded("ledger.>"))


def test_delete_without_a_terminal_requires_yes(applied: World) -> None:
    result = applied.call("jobs", "delete", "nightly", "-o", "json")
    assert result.failure == (2, "confirmation-required")
    assert not isinstance(applied.recorded("ledger.nightly.>")[-1].message, Deleted)
    assert applied.call("jobs", "delete", "nightly", "--yes").out.strip() == "deleted nightly"
    assert isinstance(applied.recorded("ledger.nightly.>")[-1].message, Deleted)


def test_trigger_answers_with_the_execution(applied: World) -> None:
    result = applied.call("jobs", "trigger", "nightly", "--input", '{"day": 1}', "-o", "json")
    assert result.code == 0
    assert len(result.json["execution_id"]) == 36
    (trigger,) = (recorded.message for recorded in applied.recorded("trigger.nightly.>"))
    assert isinstance(trigger, Trigger)
    assert (trigger.trigger, trigger.input) == ("manual", {"day": 1})


def test_input_can_come_from_a_file(applied: World) -> None:
    (applied.folder / "input.json").write_text(json.dumps({"day": 2}))
    assert applied.call("jobs", "trigger", "nightly", "--input", "@input.json").code == 0


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (
            ("--input", "{bad"),
            (
                '--input is "{bad": not JSON (expecting property name enclosed in double quotes, line 1, column 2); '
                "write an object, as in '{\"key\": 1}'"
            ),
        ),
        (("--input", "[1]"), "--input is a list: write an object, as in '{\"key\": 1}'"),
        (("--args", "{}"), "--args is an empty mapping: write a list, as in '[1, 2]'"),
        (("--input", "@nope.json"), "--input names nope.json: no such file or directory"),
    ],
)
def test_input_that_cannot_be_used_is_refused(args: tuple[str, ...], expected: str, applied: World) -> None:
    result = applied.call("jobs", "trigger", "nightly", *args)
    assert result.code == 2
    assert expected in result.err
    assert applied.recorded("trigger.nightly.>") == []


@pytest.mark.parametrize("verb", ["show", "pause", "resume", "delete", "trigger"])
def test_unknown_job_is_reported_with_the_nearest_name(verb: str, applied: World) -> None:
    result = applied.call("jobs", verb, "nihgtly", "-o", "json")
    assert result.failure == (3, "job-not-found")
    assert "'nightly'" in result.error["message"]


def test_diff_names_changed_elements_of_a_list(world: World) -> None:
    job = "name: nightly\nfunction: f\ntags: [{tags}]\n"
    assert world.call("jobs", "apply", "-f", world.jobs(job.format(tags="etl, slow"))).code == 0
    changed = world.call("jobs", "diff", "-f", world.jobs(job.format(tags="slow, new"))).out
    assert 'tags: +"new", -"etl"' in changed
    reordered = world.call("jobs", "diff", "-f", world.jobs(job.format(tags="slow, etl"))).out
    assert 'tags: ["etl", "slow"] → ["slow", "etl"]' in reordered


EVERY_FIELD = """
jobs:
  - name: nightly
    schedule: "every weekday at 2am"
    timezone: America/New_York
    dst: { gap: shift, fold: both }
    dag:
      - { step: extract, function: orders/extract, timeout: 30m, args: [1, 1.0, "1", "1e5", true, null] }
      - { step: load, function: orders/load, depends_on: [extract], queue: heavy, retry: { max_attempts: 1 }, input: {} }
    input: { "on": "yes", text: "first\\nsecond: # \\u00e9", at: "2026-01-01", "0o7": "0o7", nested: { list: [[], {}] } }
    args: ["${env:TOKEN}"]
    execution_timeout: 2h
    retry: { max_attempts: 5, backoff: none, initial_delay: 1.5s, non_retryable_errors: ["Value*"] }
    overlap_policy: enqueue
    dead_letter: true
    tags: [a, b]
    description: "a text"
    meta: { team: { name: orders } }
    catch_up: all
    catch_up_limit: 7
    catch_up_max_age: 1d
    starting_deadline: 90s
    input_schema: { type: object }
    owner: us
    retention: 1d
    viewers: [eve]
  - { name: plain, function: f, timeout: 1m, enabled: false }
"""


def test_export_is_applied_unchanged(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert world.call("jobs", "apply", "-f", world.jobs(EVERY_FIELD)).code == 0
    before = {name: world.call("jobs", "show", name, "-o", "json").json["definition"] for name in names(world)}
    assert len(before["nightly"]) > 20

    text = world.call("jobs", "export").out
    # Neither settings nor options fill anything in.
    monkeypatch.setenv("TOCSIN_EXECUTION__DEFAULT_TIMEOUT", "7s")
    assert world.call("jobs", "diff", "-f", world.jobs(text), "--owner", "other").code == 0

    for name in before:
        assert world.call("jobs", "delete", name, "--yes").code == 0
    assert world.call("jobs", "apply", "-f", world.jobs(text)).code == 0
    assert {name: world.call("jobs", "show", name, "-o", "json").json["definition"] for name in before} == before


def test_export_keeps_a_job_without_an_owner(world: World) -> None:
    world.do(world.registry.define(JobDefinition(name="free", function="f")))
    text = world.call("jobs", "export").out
    assert world.call("jobs", "diff", "-f", world.jobs(text)).code == 0


def test_export_lists_paused_jobs(applied: World) -> None:
    assert applied.call("jobs", "pause", "nightly").code == 0
    document = applied.call("jobs", "export", "-o", "json").json
    assert document["x-paused"] == ["nightly"]
    assert applied.call("jobs", "diff", "-f", "-", input=json.dumps(document)).code == 0


def test_export_of_some_jobs_to_a_file(applied: World) -> None:
    answer = applied.call("jobs", "export", "nightly", "nightly", "--out", "new.yaml", "-o", "json").json
    assert answer == {"file": "new.yaml", "jobs": 1}
    assert [definition.name for definition in load("new.yaml")] == ["nightly"]


def test_export_of_an_unknown_job_writes_nothing(applied: World) -> None:
    refused = applied.call("jobs", "export", "nightly", "no-such-job", "--out", "new.yaml", "-o", "json")
    assert (refused.code, refused.error["error_code"]) == (Exit.NOT_FOUND, "job-not-found")
    assert not (applied.folder / "new.yaml").exists()


def test_schedule_and_plan_name_dependencies(world: World) -> None:
    jobs = """
      - { name: load, schedule: "0 * * * *", function: f }
      - { name: rates, function: f }
      - { name: report, schedule: "0 2 * * *", function: f, depends_on: [load, { job: rates, within: 6h }] }
    """
    result = world.call("jobs", "apply", "-f", world.jobs(jobs))
    assert "waits for load, rates" in result.out
    assert result.out.count("waits for") == 1
    document = world.call("jobs", "apply", "-f", world.jobs(jobs), "-o", "json").json
    assert {change["job"]: change["depends_on"] for change in document["changes"]} == {
        "load": [],
        "rates": [],
        "report": ["load", "rates"],
    }
    upcoming = world.call("schedule", "-o", "json").json
    assert {job["job"]: job["depends_on"] for job in upcoming["jobs"]} == {"load": [], "report": ["load", "rates"]}
    assert "load, rates" in world.call("schedule").out
    assert world.call("jobs", "delete", "report", "--yes").code == 0
    assert "AFTER" not in world.call("schedule").out
