"""`tocsin policy`: show and set, and what `jobs apply` makes of it."""

import asyncio
from pathlib import Path

import pytest

from tests.cli.conftest import World
from tocsin.domain.events import Defined, PolicyDefined
from tocsin.domain.policy import SCRATCHBIRD, UNUSED

UNSET = dict.fromkeys(("max_concurrent_jobs", "job_timeout", "job_history_retention_days", "enable_job_history"))


def facts(world: World) -> list[PolicyDefined]:
    return [r.message for r in world.recorded("policy.>") if isinstance(r.message, PolicyDefined)]


def test_nothing_is_set_at_first(world: World) -> None:
    assert world.call("policy", "show", "-o", "json").json["policy"] == UNSET
    page = world.call("policy", "show").out
    assert "no policy is defined" in page
    assert "execution.default_timeout" in page


def test_fields_are_set_and_unset_one_by_one(world: World) -> None:
    answer = world.call(
        "policy", "set", "max_concurrent_jobs=5", "job_timeout=30m", "--reason", "small", "-o", "json"
    ).json
    assert (answer["changed"], answer["notes"]) == (True, [])
    assert world.call("policy", "set", "job_timeout=1800", "-o", "json").json["changed"] is False
    world.call("policy", "set", "max_concurrent_jobs=none", "enable_job_history=false")
    shown = world.call("policy", "show", "-o", "json").json
    assert shown["policy"] == UNSET | {"job_timeout": 1_800.0, "enable_job_history": False}
    first, second = facts(world)
    assert (first.reason, second.previous > 0, second.reason) == ("small", True, None)
    assert first.by is not None
    page = world.call("policy", "show").out
    assert "30m" in page
    assert f"version {shown['version']}" in page


def test_defaults_are_those_of_scratchbird(world: World) -> None:
    world.call("policy", "set", "--defaults", "job_timeout=2h")
    shown = world.call("policy", "show", "-o", "json").json
    assert shown["policy"] == SCRATCHBIRD.model_dump() | {"job_timeout": 7_200.0}


def test_unused_field_is_accepted_with_a_note(world: World) -> None:
    result = world.call("policy", "set", "polling_interval=10s", "-o", "json")
    assert (result.code, result.json["changed"]) == (0, False)
    assert result.json["notes"] == [f"polling_interval: {UNUSED['polling_interval']}"]
    assert facts(world) == []


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ((), "fields-required"),
        (("job_timeout",), "invalid-field"),
        (("job_timeout=1h", "job_timeout=2h"), "invalid-field"),
        (("job_timeout=1h", "job_timeout =2h"), "invalid-field"),
        (("job_timeout=soon",), "invalid-policy"),
        (("max_concurrent_jobs=0",), "invalid-policy"),
        (("max_concurrent_jobs=many",), "invalid-policy"),
        (("job_timeouts=1h",), "invalid-policy"),
        (("enable_job_history=1",), "invalid-policy"),
    ],
)
def test_wrong_field_is_refused(world: World, arguments: tuple[str, ...], code: str) -> None:
    assert world.call("policy", "set", *arguments, "-o", "json").failure == (2, code)
    assert facts(world) == []


def test_apply_obeys_the_policy(world: World, tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text("jobs: [{name: a, function: f}, {name: b, function: f, timeout: 2h}]")
    assert world.call("jobs", "apply", "-f", str(file)).code == 0
    result = world.call("policy", "set", "job_timeout=1h")
    assert "1 job with a longer timeout" in result.err
    assert "b" in result.err.rpartition(":")[2]
    for verb in ("apply", "diff"):
        refused = world.call("jobs", verb, "-f", str(file), "-o", "json")
        assert refused.failure == (2, "invalid-definition")
        assert "job `b`: `timeout` is 2h: above the ceiling of 1h" in refused.error["message"]
    file.write_text("jobs: [{name: a, function: f}, {name: b, function: f, timeout: 30m}]")
    assert world.call("jobs", "apply", "-f", str(file)).code == 0

    async def timeouts() -> dict[str, float]:
        return {job.name: job.definition.timeout for job in await world.registry.jobs()}

    assert asyncio.run(timeouts()) == {"a": 3_600.0, "b": 1_800.0}


def test_change_is_in_the_audit_trail(world: World) -> None:
    world.call("policy", "set", "job_timeout=1h", "--reason", "limits")
    [row] = world.call("events", "audit-trail", "-o", "json").json
    assert (row["audit"]["type"], row["fact"]["reason"]) == ("POLICY_DEFINED", "limits")
    assert "limits" in world.call("events", "audit-trail").out


def test_stored_definitions_are_unchanged_without_a_policy(world: World, tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text("jobs: [{name: a, function: f}, {job_name: b, function: f}, {name: c, function: f, timeout: 10s}]")
    world.call("jobs", "apply", "-f", str(file))
    definitions = [r.message.definition for r in world.recorded("ledger.>") if isinstance(r.message, Defined)]
    assert {each.name: each.timeout for each in definitions} == {"a": 300.0, "b": 3_600.0, "c": 10.0}
