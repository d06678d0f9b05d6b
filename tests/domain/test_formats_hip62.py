"""hip-62's job registry: the meaning of its fields, and the errors of mistakes."""

import pytest

from tocsin.domain.definition import JobDefinition, RetryPolicy, Step
from tocsin.domain.formats import DefinitionError, read


def job(**fields: object) -> JobDefinition:
    (definition,) = read({"name": "job", "function": "f", **fields})
    return definition


def refusals(**fields: object) -> list[str]:
    with pytest.raises(DefinitionError) as refused:
        read({"name": "job", "function": "f", **fields})
    assert all(problem.job == "job `job`" for problem in refused.value.problems)
    return [line.removeprefix("job `job`: ") for line in str(refused.value).splitlines()]


def test_a_job() -> None:
    assert job(
        schedule="0 */6 * * *",
        timeout="300s",
        retry={"max_attempts": 3, "initial_delay": "30s", "multiplier": 2, "max_delay": "300s", "jitter": 0.2},
        lock=True,
        dead_letter=True,
        tags=["billing"],
        input={"top_k": 1000},
    ) == JobDefinition(
        name="job",
        function="f",
        schedule="0 */6 * * *",
        timeout=300,
        retry=RetryPolicy(jitter=0.2),
        overlap_policy="skip",
        dead_letter=True,
        tags=("billing",),
        input={"top_k": 1000},
    )


def test_a_graph() -> None:
    (definition,) = read(
        {
            "name": "etl",
            "dag": [
                {"step": "extract", "function": "f", "timeout": "30m"},
                {
                    "step": "load",
                    "function": "g",
                    "depends_on": ["extract"],
                    "retry": {"max_attempts": 1},
                    "queue": "slow",
                },
            ],
        }
    )
    assert definition.dag == (
        Step(name="extract", function="f", timeout=1800),
        Step(name="load", function="g", depends_on=("extract",), retry=RetryPolicy(max_attempts=1), queue="slow"),
    )


@pytest.mark.parametrize(
    ("fields", "policy"),
    [
        ({}, "enqueue"),
        ({"schedule": "@daily"}, "skip"),
        ({"lock": True}, "skip"),
        ({"lock": False}, "allow"),
        ({"concurrent": True}, "allow"),
        ({"concurrent": False}, "skip"),
        ({"overlap_policy": "enqueue"}, "enqueue"),
        ({"lock": True, "overlap_policy": "skip"}, "skip"),
        ({"lock": True, "overlap_policy": "enqueue"}, "enqueue"),
        ({"lock": True, "overlap_policy": "cancel_previous"}, "cancel_previous"),
        ({"lock": False, "overlap_policy": "allow"}, "allow"),
        ({"lock": False, "concurrent": True}, "allow"),
    ],
)
def test_the_lock_is_an_overlap_policy(fields: dict[str, object], policy: str) -> None:
    assert job(**fields).overlap_policy == policy


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        (
            {"lock": True, "overlap_policy": "allow"},
            '`lock` is true: `overlap_policy` is "allow", which contradicts it: leave one of them out',
        ),
        (
            {"lock": False, "overlap_policy": "skip"},
            '`lock` is false: `overlap_policy` is "skip", which contradicts it: leave one of them out',
        ),
        (
            {"lock": True, "concurrent": True},
            '`concurrent` is true: `overlap_policy` is "skip", which contradicts it: leave one of them out',
        ),
        ({"lock": "yes"}, '`lock` is "yes": must be true or false'),
        ({"retires": {"max_attempts": 1}}, "unknown field `retires`, did you mean `retry`?"),
        ({"cron": "* * * * *"}, "unknown field `cron`, did you mean `schedule`?"),
        ({"deadLetter": True}, "unknown field `deadLetter`, did you mean `dead_letter`?"),
        ({"dead-letter": True}, "unknown field `dead-letter`, did you mean `dead_letter`?"),
        ({"retry": {"max_attempt": 2}}, "unknown field `retry.max_attempt`, did you mean `max_attempts`?"),
        ({"retry": {"max_attempts": 0}}, "`retry.max_attempts` is 0: must be at least 1"),
        ({"retry": {"max_attempts": 101}}, "`retry.max_attempts` is 101: must be at most 100"),
        ({"retry": {"max_attempts": "3"}}, '`retry.max_attempts` is "3": must be a whole number'),
        ({"retry": {"max_attempts": 1.5}}, "`retry.max_attempts` is 1.5: must be a whole number"),
        ({"retry": {"multiplier": 0.5}}, "`retry.multiplier` is 0.5: must be at least 1"),
        ({"retry": {"multiplier": "2"}}, '`retry.multiplier` is "2": must be a number'),
        ({"retry": {"jitter": 2}}, "`retry.jitter` is 2: must be at most 1"),
        (
            {"retry": {"backoff": "cubic"}},
            '`retry.backoff` is "cubic": must be one of `exponential`, `linear`, `polynomial` or `none`',
        ),
        ({"retry": 3}, "`retry` is 3: must be a mapping"),
        ({"retry": None}, "`retry` is null: must be a mapping"),
        ({"timeout": 0}, "`timeout` is 0: must be more than 0"),
        ({"execution_timeout": "0s"}, '`execution_timeout` is "0s": must be more than 0'),
        ({"deadline": "1h"}, "unknown field `deadline`, did you mean `execution_timeout`?"),
        (
            {"timeout": "soon"},
            '`timeout` is "soon": not a duration: write 30s, 5m, 1h30m, 500ms, PT30S or a number of seconds',
        ),
        ({"tags": "a"}, '`tags` is "a": must be a list'),
        ({"tags": ["a", True]}, "`tags[1]` is true: must be text: put it in quotes"),
        ({"input": ["a"]}, "`input` is a list: must be a mapping"),
        ({"enabled": "on"}, '`enabled` is "on": must be true or false'),
        ({"schedule": 5}, "`schedule` is 5: must be text: put it in quotes"),
        (
            {"function": "two words"},
            '`function` is "two words": must match [!-~]+, printable ASCII without spaces, at most 255 characters',
        ),
        (
            {"overlap_policy": "concurrent"},
            (
                '`overlap_policy` is "concurrent": must be one of `skip`, `allow`, `cancel_previous` or `enqueue`, '
                "did you mean `allow`?"
            ),
        ),
        ({"catch_up": "never"}, '`catch_up` is "never": must be one of `once`, `skip` or `all`'),
        ({"dag": [{"step": "a", "function": "f"}]}, "`function` and `dag` exclude each other: give one"),
    ],
)
def test_a_mistake(fields: dict[str, object], refusal: str) -> None:
    assert refusals(**fields) == [refusal]


def test_where_nothing_is_near_the_fields_are_listed() -> None:
    (refusal,) = refusals(retry={"zzz": 1})
    assert refusal == (
        "unknown field `retry.zzz`: the fields here are `backoff`, `initial_delay`, `jitter`, `max_attempts`, `max_delay`, "
        "`max_delay_with_jitter`, `multiplier` and `non_retryable_errors`"
    )


def test_a_key_that_is_no_text() -> None:
    with pytest.raises(DefinitionError) as refused:
        read({"name": "job", "function": "f", True: "x"})
    (problem,) = refused.value.problems
    assert (problem.code, problem.field) == ("unknown-field", "true")


@pytest.mark.parametrize(
    ("steps", "refusal"),
    [
        ("a", '`dag` is "a": must be a list'),
        (["a"], '`dag[0]` is "a": must be a mapping'),
        ([], "give either `function` or `dag`"),
        (
            [{"step": "extract", "function": "f"}, {"step": "load", "function": "g", "dependson": ["extract"]}],
            "unknown field `dependson` in step `load`, did you mean `depends_on`?",
        ),
        (
            [{"step": "extract", "function": "f"}, {"step": "load", "function": "g", "depends_on": ["extrakt"]}],
            "`depends_on` in step `load`: there is no step `extrakt`, did you mean `extract`?",
        ),
        ([{"step": "a", "function": "f", "depends_on": "b"}], '`depends_on` in step `a` is "b": must be a list'),
        ([{"step": "a"}], "`function` in step `a`: required, and not given"),
        ([{"function": "f"}], "`step` in step `1`: required, and not given"),
        (
            [{"step": "a b", "function": "f"}],
            (
                r'`step` in step `a b` is "a b": must match [A-Za-z0-9][A-Za-z0-9_\-]*, letters, digits, underscores and hyphens, '
                "at most 64 characters"
            ),
        ),
        (
            [{"step": "a", "name": "a", "function": "f"}],
            "`name` in step `a`: is the same as `step`: leave one of them out",
        ),
        (
            [{"step": "a", "function": "f", "retry": {"jitter": -1}}],
            "`retry.jitter` in step `a` is -1: must be at least 0",
        ),
        (
            [
                {"step": "a", "function": "f", "depends_on": ["b"]},
                {"step": "b", "function": "f", "depends_on": ["c"]},
                {"step": "c", "function": "f", "depends_on": ["a"]},
            ],
            "`depends_on` in step `a`: the steps depend on each other in a circle: a → b → c → a",
        ),
    ],
)
def test_a_mistake_in_a_step(steps: object, refusal: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        read({"name": "job", "dag": steps})
    assert str(refused.value) == f"job `job`: {refusal}"


def test_all_mistakes_are_reported_together() -> None:
    assert refusals(timeout="soon", tags=[1], timezone="EST", retry={"max_attempts": 0}, input={"a": "${env:}"}) == [
        '`timeout` is "soon": not a duration: write 30s, 5m, 1h30m, 500ms, PT30S or a number of seconds',
        "`retry.max_attempts` is 0: must be at least 1",
        "`tags[0]` is 1: must be text: put it in quotes",
        '`timezone` is "EST": EST is an abbreviation, which is ambiguous; allowed are IANA names (try: America/New_York)',
        "`input`: malformed reference `${env:}`; write ${env:NAME}, or $${ for a literal ${",
    ]
