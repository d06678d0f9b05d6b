"""The CronJob of the Open Job Spec (ojs-cron §2): read, refused, written, and read again."""

import pytest
from hypothesis import find, given
from hypothesis import strategies as st
from pydantic import JsonValue

from tocsin.domain.definition import (
    Blackout,
    Calendar,
    Concurrency,
    DefinitionError,
    EventTrigger,
    JobDefinition,
    JobDependency,
    Notify,
    RecoveryPolicy,
    RetryPolicy,
    Step,
)
from tocsin.domain.definition.builtin_work import FIELDS
from tocsin.domain.definition.partition import Partition
from tocsin.domain.formats import ojs, read
from tocsin.domain.schedule import DstPolicy

DAILY: dict[str, JsonValue] = {
    "name": "daily-report",
    "cron": "0 9 * * *",
    "timezone": "America/New_York",
    "type": "report.generate",
    "args": [{"report": "daily_summary"}],
    "options": {
        "queue": "reports",
        "timeout": 300,
        "retry": {
            "max_attempts": 3,
            "initial_interval": "PT30S",
            "backoff_coefficient": 2.0,
            "max_interval": "PT5M",
            "jitter": True,
            "non_retryable_errors": [],
            "on_exhaustion": "dead_letter",
        },
        "tags": ["reporting"],
        "meta": {"team": "finance"},
    },
    "overlap_policy": "skip",
    "enabled": True,
    "description": "Generate daily summary report at 9 AM ET",
}


def cron_job(**fields: object) -> JobDefinition:
    (definition,) = read({"name": "job", "cron": "@daily", "type": "a.b", **fields})
    return definition


def test_a_cron_job_there_and_back() -> None:
    (definition,) = read(DAILY)
    assert definition == JobDefinition(
        name="daily-report",
        schedule="0 9 * * *",
        timezone="America/New_York",
        function="report.generate",
        args=({"report": "daily_summary"},),
        queue="reports",
        timeout=300,
        retry=RetryPolicy(max_attempts=3, initial_delay=30, multiplier=2, max_delay=300, jitter=0.1),
        dead_letter=True,
        tags=("reporting",),
        meta={"team": "finance"},
        description="Generate daily summary report at 9 AM ET",
    )
    assert ojs.write(definition) == DAILY


def test_defaults_are_those_of_the_open_job_spec() -> None:
    assert cron_job().retry == RetryPolicy(max_attempts=3, initial_delay=1, multiplier=2, max_delay=300, jitter=0.1)
    assert cron_job(options={"retry": {"max_attempts": 5}}).retry == RetryPolicy(max_attempts=5, initial_delay=1)
    assert cron_job(options=None) == cron_job()
    assert (cron_job().overlap_policy, cron_job().timezone, cron_job().args) == ("skip", "UTC", ())


@pytest.mark.parametrize(("written", "jitter"), [(True, 0.1), (False, 0.0), (0.25, 0.25)])
def test_jitter_is_a_switch_or_a_share(written: object, jitter: float) -> None:
    definition = cron_job(options={"retry": {"jitter": written}})
    assert definition.retry.jitter == jitter
    assert read(ojs.write(definition)) == (definition,)


def test_what_the_system_manages_is_ignored() -> None:
    managed = {"last_run_at": None, "next_run_at": "2026-02-13T14:00:00Z", "run_count": 42, "created_at": "nonsense"}
    assert cron_job(**managed) == cron_job()


def test_a_listing_reads_back() -> None:
    assert [definition.name for definition in read({"cron_jobs": [DAILY], "count": 1})] == ["daily-report"]


def test_the_registration_of_the_conformance_suite() -> None:
    written = {
        "name": "cron-fire-test",
        "expression": "* * * * *",
        "job_template": {
            "type": "cron.test.fires",
            "args": [{"action": "tick"}],
            "options": {"queue": "cron-fire-test"},
        },
    }
    (definition,) = read(written)
    assert (definition.schedule, definition.function, definition.queue) == (
        "* * * * *",
        "cron.test.fires",
        "cron-fire-test",
    )
    assert definition.args == ({"action": "tick"},)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"args": {"a": 1}}, ("wrong-type", "args", "a mapping", "")),
        ({"args": "a"}, ("wrong-type", "args", '"a"', "")),
        (
            {"type": "Report Generate"},
            ("invalid-value", "type", '"Report Generate"', ""),
        ),
        ({"typ": "a.b"}, ("unknown-field", "typ", None, "`type`")),
        ({"options": {"qeue": "x"}}, ("unknown-field", "options.qeue", None, "`queue`")),
        ({"options": {"timeout": -1}}, ("duration-out-of-range", "options.timeout", "-1", "")),
        (
            {"options": {"queue": "My Queue"}},
            ("invalid-value", "options.queue", '"My Queue"', ""),
        ),
        (
            {"options": {"retry": {"initial_delay": "1s"}}},
            ("unknown-field", "options.retry.initial_delay", None, "`initial_interval`"),
        ),
        ({"options": {"retry": {"max_attempts": 0}}}, ("out-of-range", "options.retry.max_attempts", "0", "1")),
        (
            {"options": {"retry": {"initial_interval": "1 day"}}},
            ("invalid-duration", "options.retry.initial_interval", '"1 day"', ""),
        ),
        (
            {"options": {"retry": {"on_exhaustion": "explode"}}},
            ("unknown-choice", "options.retry.on_exhaustion", '"explode"', "`dead_letter`"),
        ),
        ({"options": {"retry": 3}}, ("wrong-type", "options.retry", "3", "")),
        ({"options": []}, ("wrong-type", "options", "an empty list", "")),
        ({"job_template": []}, ("wrong-type", "job_template", "an empty list", "")),
        ({"enabled": 1}, ("wrong-type", "enabled", "1", "")),
    ],
)
def test_mistake_names_its_field_and_value(
    fields: dict[str, object], problem: tuple[str, str, str | None, str]
) -> None:
    with pytest.raises(DefinitionError) as caught:
        cron_job(**fields)
    code, field, value, hint = problem
    assert [(actual.code, actual.field, actual.value) for actual in caught.value.problems] == [(code, field, value)]
    assert hint in caught.value.problems[0].reason


def test_what_is_required() -> None:
    with pytest.raises(DefinitionError) as refused:
        read({"type": "a.b"})
    assert [problem.field for problem in refused.value.problems] == ["cron", "name"]
    with pytest.raises(DefinitionError) as refused:
        read({"name": "job", "cron": "@daily"})
    (problem,) = refused.value.problems
    assert (problem.job, problem.field) == ("job `job`", "type")


@pytest.mark.parametrize(
    ("definition", "problem"),
    [
        (JobDefinition(name="job", function="a.b"), ("not-expressible", "cron", None)),
        (
            JobDefinition(name="job", function="a/b", schedule="@daily"),
            ("not-expressible", "type", '"a/b"'),
        ),
        (
            JobDefinition(name="job", dag=(Step(name="a", function="a.b"),), schedule="@daily"),
            ("not-expressible", "dag", None),
        ),
    ],
)
def test_fields_outside_a_cron_job_are_not_written(
    definition: JobDefinition, problem: tuple[str, str, str | None]
) -> None:
    with pytest.raises(DefinitionError) as caught:
        ojs.write(definition)
    assert [(actual.code, actual.field, actual.value) for actual in caught.value.problems] == [problem]
    assert caught.value.problems[0].job == "job `job`"


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0$"), max_size=10)
OBJECT = st.dictionaries(TEXT, st.none() | st.booleans() | st.integers(-(2**63), 2**63) | TEXT, max_size=3)
MILLISECONDS = st.integers(1, 10_000_000).map(lambda ms: ms / 1000)
SAYABLE = st.builds(
    JobDefinition,
    name=st.from_regex(r"[a-z0-9][a-z0-9\-.]{0,20}", fullmatch=True),
    schedule=st.sampled_from(["@daily", "*/5 * * * *", "@every 5m", "every weekday at 7am"]),
    timezone=st.sampled_from(["UTC", "Europe/Berlin"]),
    function=st.from_regex(ojs.TYPE, fullmatch=True).filter(lambda text: len(text) < 200),
    input=OBJECT,
    args=st.lists(OBJECT, max_size=2).map(tuple),
    timeout=MILLISECONDS,
    retry=st.builds(
        RetryPolicy,
        max_attempts=st.integers(1, 100),
        initial_delay=MILLISECONDS,
        multiplier=st.floats(1, 10),
        max_delay=MILLISECONDS,
        jitter=st.floats(0, 1),
        max_delay_with_jitter=st.booleans(),
        backoff=st.sampled_from(["exponential", "linear", "polynomial", "none"]),
        non_retryable_errors=st.lists(TEXT, max_size=2).map(tuple),
    ),
    recovery=st.builds(RecoveryPolicy, max_deaths=st.integers(1, 20)),
    overlap_policy=st.sampled_from(["skip", "allow", "cancel_previous", "enqueue"]),
    max_waiting=st.integers(1, 100_000),
    priority=st.integers(-100, 100),
    concurrency=st.none() | st.builds(Concurrency, limit=st.integers(1, 9), key=st.none() | st.just("input.customer")),
    depends_on=st.lists(st.builds(JobDependency, job=st.just("zz-upstream.1"), within=MILLISECONDS), max_size=1).map(
        tuple
    ),
    dependency_timeout=MILLISECONDS,
    job_class=st.just("QUORUM_REQUIRED"),
    acknowledgements=st.integers(1, 100),
    acknowledgement_timeout=MILLISECONDS,
    partition=st.sampled_from(
        [None, Partition(all_shards=True), Partition(shard_set=("a", "b")), Partition(single_shard="a")]
    ),
    dead_letter=st.booleans(),
    tags=st.lists(TEXT, max_size=2).map(tuple),
    queue=st.just("default") | st.just("a.b-c"),
    description=st.none() | TEXT,
    enabled=st.booleans(),
    meta=OBJECT,
    catch_up=st.sampled_from(["once", "skip", "all"]),
    input_schema=st.none() | st.just({"type": "object"}),
    owner=st.none() | TEXT,
    execution_timeout=st.none() | MILLISECONDS,
    catch_up_limit=st.integers(1, 1_000),
    catch_up_max_age=MILLISECONDS,
    starting_deadline=st.none() | MILLISECONDS,
    jitter=st.integers(0, 299_000).map(lambda ms: ms / 1_000),
    on_completion=st.just("preserve"),
    retention=st.none() | MILLISECONDS,
    notify=st.none()
    | st.booleans().map(
        lambda on: Notify(channels=("ops",), on_failure=True, late_after=1.5 if on else None, must_complete_by="07:00")
    ),
    viewers=st.lists(TEXT, max_size=2).map(tuple),
    triggers=st.booleans().map(lambda has: (EventTrigger(nats="orders.>", when="body.n > 1"),) if has else ()),
    exclude=st.just((Calendar(name="cz", days=("2026-12-24/2026-12-26",)),)),
    only=st.just((Calendar(name="trading", weekdays=("monday", "friday")),)),
    blackout=st.just((Blackout(start="2026-12-20T18:00", end="2026-12-21T06:00", reason="migration"),)),
    shift=st.just("skip"),
    dst=st.none()
    | st.builds(DstPolicy, gap=st.sampled_from(["skip", "shift"]), fold=st.sampled_from(["once", "both"])),
)


def test_job_that_is_dropped_is_written() -> None:
    once = cron_job(cron="at 2027-03-01T09:00", on_completion="drop")
    assert once.on_completion == "drop"
    assert read(ojs.write(once)) == (once,)
    with pytest.raises(DefinitionError, match="whose schedule ends"):
        cron_job(on_completion="drop")


def test_cron_job_has_each_field_of_job() -> None:
    one = find(SAYABLE, lambda _: True)
    assert JobDefinition.model_fields.keys() - {"dag", *FIELDS} <= one.model_fields_set
    assert RetryPolicy.model_fields.keys() <= one.retry.model_fields_set


@given(SAYABLE)
def test_writing_loses_nothing(definition: JobDefinition) -> None:
    assert read(ojs.write(definition)) == (definition,)


@given(SAYABLE)
def test_a_definition_survives_json(definition: JobDefinition) -> None:
    assert JobDefinition.model_validate_json(definition.model_dump_json()) == definition
