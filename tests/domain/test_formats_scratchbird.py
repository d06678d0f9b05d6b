"""The job of ScratchBird's scheduler: what its fields mean, and the errors of mistakes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.domain.definition import DefinitionError, JobDefinition, JobDependency, RetryPolicy
from tocsin.domain.definition.command import Command
from tocsin.domain.definition.partition import Partition
from tocsin.domain.duration import MAX_DURATION_S
from tocsin.domain.formats import read
from tocsin.domain.formats.scratchbird import CommandLineError, join_command, split_command
from tocsin.domain.retry import delay


def job(**fields: object) -> JobDefinition:
    (definition,) = read({"job_name": "job", "function": "f", **fields})
    return definition


def problems(**fields: object) -> list[tuple[str, str]]:
    with pytest.raises(DefinitionError) as caught:
        job(**fields)
    return [(problem.code, problem.field) for problem in caught.value.problems]


def test_a_job_with_all_fields() -> None:
    (definition,) = read(
        {
            "job_name": "daily-sweep",
            "job_type": "EXTERNAL",
            "external_command": "/usr/bin/sweep --all 'two words'",
            "schedule_type": "RECURRING",
            "schedule_kind": "CRON",
            "cron_expression": "0 2 * * *",
            "schedule_tz": "Europe/Berlin",
            "starts_at": "2027-01-01T00:00",
            "ends_at": "2027-06-01T00:00",
            "on_completion": "DROP",
            "max_retries": 5,
            "retry_backoff": "30s",
            "timeout": "10m",
            "depends_on": ["extract"],
            "description": "sweeps",
            "state": "DISABLED",
            "catch_up": "none",
            "queue": "slow",
            "job_uuid": "0",
        }
    )
    assert definition == JobDefinition(
        name="daily-sweep",
        function="tocsin.command",
        command=Command(argv=("/usr/bin/sweep", "--all", "two words")),
        schedule="0 2 * * * from 2027-01-01T00:00 until 2027-06-01T00:00",
        timezone="Europe/Berlin",
        on_completion="drop",
        retry=RetryPolicy(max_attempts=6, initial_delay=30, jitter=0, max_delay=MAX_DURATION_S),
        timeout=600,
        depends_on=(JobDependency(job="extract"),),
        description="sweeps",
        enabled=False,
        catch_up="skip",
        queue="slow",
    )


def test_the_defaults_are_those_of_the_specification() -> None:
    definition = job(cron_expression="@daily")
    assert (definition.timeout, definition.enabled, definition.on_completion) == (3_600, True, "preserve")
    assert [delay(definition.retry, attempt, draw) for attempt, draw in ((1, 1.0), (2, -1.0), (3, 0.5))] == [
        60,
        120,
        240,
    ]
    assert definition.retry.max_attempts == 4


@pytest.mark.parametrize(("written", "policy"), [("none", "skip"), ("last", "once"), ("all", "all")])
def test_catch_up_has_three_words(written: str, policy: str) -> None:
    assert job(cron_expression="@daily", catch_up=written).catch_up == policy


def test_no_limit_cuts_a_backoff() -> None:
    retry = job(max_retries=12).retry
    assert delay(retry, 12, 1.0) == 60 * 2**11


@pytest.mark.parametrize(
    ("fields", "schedule"),
    [
        ({"cron_expression": "0 2 * * *"}, "0 2 * * *"),
        ({"schedule_kind": "cron", "cron_expression": "every day at 2am"}, "every day at 2am"),
        ({"timestamp": "2027-03-01T09:00:00Z"}, "at 2027-03-01T09:00:00Z"),
        ({"schedule_type": "ONE_TIME", "timestamp": "2027-03-01 09:00"}, "at 2027-03-01 09:00"),
        ({"schedule_kind": "AT", "timestamp": "2027-03-01 09:00"}, "at 2027-03-01 09:00"),
        ({"interval_seconds": 90}, "@every 1m30s"),
        ({"schedule_type": "RECURRING", "schedule_kind": "EVERY", "interval_seconds": 60}, "@every 1m"),
        ({"interval_seconds": 60, "ends_at": "2027-03-01T09:00"}, "@every 1m until 2027-03-01T09:00"),
        ({"max_retries": 0}, None),
    ],
)
def test_a_schedule_has_three_kinds(fields: dict[str, Any], schedule: str | None) -> None:
    assert job(**fields).schedule == schedule


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"job_class": "ANY_NODE"}, [("unknown-choice", "job_class")]),
        ({"run_as": "dba"}, [("not-expressible", "run_as")]),
        ({"job_sql": "SELECT 1", "function": None}, [("required", "connection")]),
        ({"procedure": "f", "function": None}, [("required", "connection")]),
        ({"connection": "dwh"}, [("exclusive-fields", "connection")]),
        ({"job_type": "SQL"}, [("exclusive-fields", "job_type")]),
        ({"partition_rule": "ALL_SHARDS"}, [("invalid-value", "partition_rule")]),
        ({"partition_rule": {"strategy": "EACH"}}, [("invalid-value", "partition_rule")]),
        ({"partition_rule": {"strategy": "ALL_SHARDS", "shard": "a"}}, [("invalid-value", "partition_rule")]),
        ({"partition_rule": {"strategy": "SINGLE_SHARD"}}, [("invalid-value", "partition_rule")]),
        (
            {"partition_rule": {"strategy": "ALL_SHARDS"}, "partition": "all_shards"},
            [("exclusive-fields", "partition")],
        ),
        ({"state": "PAUSED"}, [("not-expressible", "state")]),
        ({"state": "on"}, [("unknown-choice", "state")]),
        ({"state": True}, [("unknown-choice", "state")]),
        ({"catch_up": "once", "state": "ENABLED"}, [("unknown-choice", "catch_up")]),
        ({"max_retries": -1}, [("out-of-range", "max_retries")]),
        ({"max_retries": 100}, [("out-of-range", "max_retries")]),
        ({"max_retries": "3"}, [("wrong-type", "max_retries")]),
        ({"max_retries": True}, [("wrong-type", "max_retries")]),
        ({"retry_backoff": "soon"}, [("invalid-duration", "retry_backoff")]),
        ({"retry_backoff": -1}, [("duration-out-of-range", "retry_backoff")]),
        ({"cron_expression": "99 * * * *"}, [("invalid-field", "cron_expression")]),
        ({"cron_expression": 5}, [("wrong-type", "cron_expression")]),
        ({"cron_expression": "@daily", "schedule_tz": "Mars/Olympus"}, [("invalid-timezone", "schedule_tz")]),
        ({"timestamp": "soon"}, [("invalid-instant", "timestamp")]),
        ({"timestamp": "2027-03-01"}, [("invalid-instant", "timestamp")]),
        ({"timestamp": 5}, [("wrong-type", "timestamp")]),
        ({"timestamp": "2027-03-01T09:00", "ends_at": "2027-03-01T09:00"}, [("exclusive-fields", "ends_at")]),
        ({"ends_at": "2027-03-01T09:00"}, [("required", "ends_at")]),
        ({"interval_seconds": "x"}, [("invalid-duration", "interval_seconds")]),
        ({"interval_seconds": 0}, [("invalid-interval", "interval_seconds")]),
        ({"interval_seconds": 60, "starts_at": "x"}, [("invalid-instant", "starts_at")]),
        ({"interval_seconds": 60, "cron_expression": "@daily"}, [("exclusive-fields", "interval_seconds")]),
        ({"schedule_kind": "AT", "interval_seconds": 60}, [("exclusive-fields", "schedule_kind")]),
        ({"schedule_kind": "AT"}, [("required", "schedule_kind")]),
        ({"schedule_kind": "WHEN"}, [("unknown-choice", "schedule_kind")]),
        ({"schedule_type": "ONE_TIME", "interval_seconds": 60}, [("exclusive-fields", "schedule_type")]),
        ({"schedule_type": "RECURRING"}, [("required", "schedule_type")]),
        ({"on_completion": "DROP", "cron_expression": "@daily"}, [("exclusive-fields", "on_completion")]),
        ({"job_type": "SHELL"}, [("unknown-choice", "job_type")]),
        ({"name": "job"}, [("exclusive-fields", "name")]),
        ({"function": None, "external_command": "a | b"}, [("invalid-value", "external_command")]),
        ({"function": None, "external_command": "a 'b"}, [("invalid-value", "external_command")]),
        ({"function": None, "external_command": ""}, [("invalid-value", "external_command")]),
        ({"external_command": "a"}, [("exclusive-fields", "")]),
        ({"retry": {"max_attempts": 2}, "max_retries": 1}, [("exclusive-fields", "max_retries")]),
        ({"retry": {"max_attempts": 0}}, [("out-of-range", "retry.max_attempts")]),
        ({"job_name": "Job"}, [("invalid-value", "job_name")]),
        ({"max_retrys": 2, "state": "ENABLED"}, [("unknown-field", "max_retrys")]),
    ],
)
def test_mistake_names_its_field(fields: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert problems(**fields) == expected


@pytest.mark.parametrize(
    ("document", "unknown"),
    [
        ({"name": "job", "function": "f", "schedule": "@daily", "max_retries": 3}, "max_retries"),
        ({"name": "job", "dag": [{"step": "a", "function": "f"}], "state": "ENABLED"}, "state"),
    ],
)
def test_fields_of_both_formats_are_read_as_hip62(document: dict[str, Any], unknown: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        read(document)
    problem = caught.value.problems[0]
    assert (problem.code, problem.field) == ("unknown-field", unknown)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("./report.sh", ["./report.sh"]),
        ("a  'b c' \"d e\" f\\ g", ["a", "b c", "d e", "f g"]),
        ("/bin/sh -c 'a | b > c'", ["/bin/sh", "-c", "a | b > c"]),
        ("echo # 5", ["echo", "#", "5"]),
        ("echo ''", ["echo", ""]),
        ("a | b", None),
        ("a && b", None),
        ("a; b", None),
        ("a>b", None),
        ("a &", None),
        ("a 'b", None),
        ("a\\", None),
        ("  ", None),
    ],
)
def test_a_line_is_one_program(text: str, words: list[str] | None) -> None:
    if words is not None:
        assert split_command(text) == words
        return
    with pytest.raises(CommandLineError):
        split_command(text)


@given(st.lists(st.text(max_size=8) | st.sampled_from(["|", "a;b", "'", '"', "\\", "#x"]), min_size=1, max_size=5))
def test_arguments_are_written_and_read_back(arguments: list[str]) -> None:
    line = join_command(arguments)
    if line is not None:
        assert split_command(line) == arguments
    else:
        assert any(word and not word.strip("();<>|&") for word in arguments)


@pytest.mark.parametrize(
    ("rule", "partition"),
    [
        ({"strategy": "ALL_SHARDS"}, Partition(all_shards=True)),
        ({"strategy": "single_shard", "shard_uuid": "a"}, Partition(single_shard="a")),
        ({"strategy": "SHARD_SET", "shard_uuids": ["a", "b"]}, Partition(shard_set=("a", "b"))),
        ({"strategy": "DYNAMIC", "partition_expression": "customer"}, Partition(shard_key="input.customer")),
    ],
)
def test_partition_rule_is_a_partition(rule: dict[str, object], partition: Partition) -> None:
    assert job(partition_rule=rule).partition == partition
