"""The CronJob of the Open Job Spec (ojs-cron §2): read, refused, written, and read again."""

import pytest
from hypothesis import find, given
from hypothesis import strategies as st
from pydantic import JsonValue

from tocsin.domain.definition import JobDefinition, RetryPolicy, Step
from tocsin.domain.formats import DefinitionError, ojs, read
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


def refusals(**fields: object) -> list[str]:
    with pytest.raises(DefinitionError) as refused:
        cron_job(**fields)
    return [line.removeprefix("job `job`: ") for line in str(refused.value).splitlines()]


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
    ("fields", "refusal"),
    [
        ({"args": {"a": 1}}, "`args` is a mapping: must be a list"),
        ({"args": "a"}, '`args` is "a": must be a list'),
        (
            {"type": "Report Generate"},
            (
                '`type` is "Report Generate": must be words of lower-case letters, digits and underscores, joined by dots, e.g. '
                "`report.generate`"
            ),
        ),
        ({"typ": "a.b"}, "unknown field `typ`, did you mean `type`?"),
        ({"options": {"qeue": "x"}}, "unknown field `options.qeue`, did you mean `queue`?"),
        ({"options": {"timeout": -1}}, "`options.timeout` is -1: a duration cannot be negative"),
        (
            {"options": {"queue": "My Queue"}},
            (
                r'`options.queue` is "My Queue": must match [a-z0-9][a-z0-9\-\.]*, lower-case letters, digits, hyphens and dots, '
                "the first a letter or a digit, at most 255 characters"
            ),
        ),
        (
            {"options": {"retry": {"initial_delay": "1s"}}},
            "unknown field `options.retry.initial_delay`, did you mean `initial_interval`?",
        ),
        ({"options": {"retry": {"max_attempts": 0}}}, "`options.retry.max_attempts` is 0: must be at least 1"),
        (
            {"options": {"retry": {"initial_interval": "1 day"}}},
            (
                '`options.retry.initial_interval` is "1 day": not a duration: write 30s, 5m, 1h30m, 500ms, PT30S or a number of '
                "seconds"
            ),
        ),
        (
            {"options": {"retry": {"on_exhaustion": "explode"}}},
            '`options.retry.on_exhaustion` is "explode": must be one of `discard` or `dead_letter`',
        ),
        ({"options": {"retry": 3}}, "`options.retry` is 3: must be a mapping"),
        ({"options": []}, "`options` is an empty list: must be a mapping"),
        ({"job_template": []}, "`job_template` is an empty list: must be a mapping"),
        ({"enabled": 1}, "`enabled` is 1: must be true or false"),
    ],
)
def test_a_mistake(fields: dict[str, object], refusal: str) -> None:
    assert refusals(**fields) == [refusal]


def test_what_is_required() -> None:
    with pytest.raises(DefinitionError) as refused:
        read({"type": "a.b"})
    assert [problem.field for problem in refused.value.problems] == ["cron", "name"]
    with pytest.raises(DefinitionError) as refused:
        read({"name": "job", "cron": "@daily"})
    (problem,) = refused.value.problems
    assert (problem.job, problem.field) == ("job `job`", "type")


@pytest.mark.parametrize(
    ("definition", "refusal"),
    [
        (JobDefinition(name="job", function="a.b"), "job `job`: `cron`: a CronJob needs a schedule"),
        (
            JobDefinition(name="job", function="a/b", schedule="@daily"),
            'job `job`: `type` is "a/b": a CronJob\'s type is words joined by dots, e.g. `report.generate`',
        ),
        (
            JobDefinition(name="job", dag=(Step(name="a", function="a.b"),), schedule="@daily"),
            "job `job`: `dag`: a CronJob has no steps",
        ),
    ],
)
def test_fields_outside_a_cron_job_are_not_written(definition: JobDefinition, refusal: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        ojs.write(definition)
    assert str(refused.value) == refusal


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
    overlap_policy=st.sampled_from(["skip", "allow", "cancel_previous", "enqueue"]),
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
    on_completion=st.just("preserve"),
    retention=st.none() | MILLISECONDS,
    viewers=st.lists(TEXT, max_size=2).map(tuple),
    dst=st.none()
    | st.builds(DstPolicy, gap=st.sampled_from(["skip", "shift"]), fold=st.sampled_from(["once", "both"])),
)


def test_job_that_is_dropped_is_written() -> None:
    once = cron_job(cron="at 2027-03-01T09:00", on_completion="drop")
    assert once.on_completion == "drop"
    assert read(ojs.write(once)) == (once,)
    with pytest.raises(DefinitionError, match="scheduled once"):
        cron_job(on_completion="drop")


def test_cron_job_has_each_field_of_job() -> None:
    one = find(SAYABLE, lambda _: True)
    assert JobDefinition.model_fields.keys() - {"dag"} <= one.model_fields_set
    assert RetryPolicy.model_fields.keys() <= one.retry.model_fields_set


@given(SAYABLE)
def test_writing_loses_nothing(definition: JobDefinition) -> None:
    assert read(ojs.write(definition)) == (definition,)


@given(SAYABLE)
def test_a_definition_survives_json(definition: JobDefinition) -> None:
    assert JobDefinition.model_validate_json(definition.model_dump_json()) == definition
