"""SQL: what statements mean, the errors of texts that are none, and the way back from a definition."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.properties import examples
from tocsin.domain.definition import DefinitionError, JobDefinition
from tocsin.domain.definition.partition import Partition
from tocsin.domain.formats import read_job
from tocsin.domain.statement_error import StatementError
from tocsin.domain.statements import (
    AlterJob,
    CancelRun,
    CreateJob,
    DropJob,
    ExecuteJob,
    Select,
    ShowCreateJob,
    ShowJobs,
    altered,
    create_statement,
    defined,
    read_statements,
)
from tocsin.domain.statements.reader import MAX_CHARACTERS, MAX_STATEMENTS

RUN = "01890000-0000-7000-8000-000000000000"


def created(text: str) -> JobDefinition:
    (statement,) = read_statements(text)
    assert isinstance(statement, CreateJob)
    return defined(statement)


def document(**fields: object) -> JobDefinition:
    return read_job({"job_name": "a", **fields})


def changed(before: JobDefinition, clauses: str) -> JobDefinition:
    (statement,) = read_statements(f"ALTER JOB a SET {clauses}")
    assert isinstance(statement, AlterJob)
    return altered(statement, before)


@pytest.mark.parametrize(
    ("clauses", "work"),
    [
        ("CLASS = LOCAL_SAFE PARTITION BY ALL_SHARDS SCHEDULE = '0 2 * * *'", "'SWEEP ANALYZE'"),
        ("CLASS = LEADER_ONLY SCHEDULE = '*/5 * * * *'", "'SELECT check_cluster_health()'"),
        ("CLASS = QUORUM_REQUIRED SCHEDULE = '0 0 1 * *'", "'CALL generate_compliance_report()'"),
        ("CLASS = LOCAL_SAFE PARTITION BY SHARD 'shard_001' SCHEDULE = '0 4 * * 0'", "'REINDEX DATABASE'"),
        ("CLASS = LOCAL_SAFE PARTITION BY SHARD_KEY(customer_id)", "'CALL process_pending_orders(:customer_id)'"),
        ("CLASS = LEADER_ONLY DEPENDS ON etl_extract SCHEDULE = '0 2 * * *'", "'CALL transform_extracted_data()'"),
        ("CLASS = LEADER_ONLY SCHEDULE = '0 2 * * *' DESCRIPTION = 'Daily'", "'BACKUP CLUSTER TO backup_target_s3'"),
    ],
)
def test_example_of_the_specification_needs_a_connection(clauses: str, work: str) -> None:
    job = created(f"CREATE JOB etl_transform {clauses} CONNECTION = 'main' AS {work}")
    assert job.sql is not None
    assert (job.sql.connection, f"'{job.sql.statement}'") == ("main", work)
    with pytest.raises(DefinitionError) as caught:
        created(f"CREATE JOB etl_transform {clauses} AS {work}")
    assert [problem.field for problem in caught.value.problems] == ["connection"]


@pytest.mark.parametrize(
    ("clauses", "fields"),
    [
        ("SCHEDULE = '0 2 * * *' EXEC 'sweep -a'", {"cron_expression": "0 2 * * *", "external_command": "sweep -a"}),
        ("SCHEDULE '0 2 * * *' FUNCTION 'f'", {"cron_expression": "0 2 * * *", "function": "f"}),
        ("schedule cron '@daily' function 'f'", {"cron_expression": "@daily", "function": "f"}),
        ("CRON '@daily' FUNCTION 'f'", {"cron_expression": "@daily", "function": "f"}),
        ("FUNCTION 'f' CRON = '@daily'", {"cron_expression": "@daily", "function": "f"}),
        ("SCHEDULE = AT '2027-03-01 09:00' FUNCTION 'f'", {"timestamp": "2027-03-01 09:00", "function": "f"}),
        ("AT '2027-03-01T09:00' FUNCTION 'f'", {"timestamp": "2027-03-01T09:00", "function": "f"}),
        ("EVERY 90 FUNCTION 'f'", {"interval_seconds": 90, "function": "f"}),
        ("EVERY 5 MINUTES FUNCTION 'f'", {"interval_seconds": 300, "function": "f"}),
        ("EVERY INTERVAL '5m' FUNCTION 'f'", {"interval_seconds": 300, "function": "f"}),
        ("EVERY 1h30m FUNCTION 'f'", {"interval_seconds": 5_400, "function": "f"}),
        ("SCHEDULE EVERY 1 DAY FUNCTION 'f'", {"interval_seconds": 86_400, "function": "f"}),
        (
            "EVERY 60 STARTS '2027-03-01T09:00' ENDS '2027-04-01T00:00' ON COMPLETION DROP FUNCTION 'f'",
            {
                "interval_seconds": 60,
                "starts_at": "2027-03-01T09:00",
                "ends_at": "2027-04-01T00:00",
                "on_completion": "drop",
                "function": "f",
            },
        ),
        (
            "DEPENDS ON extract_daily, \"b.c\" SCHEDULE = '@daily' FUNCTION 'f'",
            {"depends_on": ["extract-daily", "b.c"], "cron_expression": "@daily", "function": "f"},
        ),
        (
            "MAX_RETRIES = 5 RETRY_BACKOFF = 30s TIMEOUT = 10 MINUTES FUNCTION 'f'",
            {"max_retries": 5, "retry_backoff": 30, "timeout": 600, "function": "f"},
        ),
        (
            "DESCRIPTION = 'it''s; -- text' DISABLED TIMEZONE = 'Asia/Tokyo' CRON '@daily' FUNCTION 'f'",
            {
                "description": "it's; -- text",
                "state": "DISABLED",
                "schedule_tz": "Asia/Tokyo",
                "cron_expression": "@daily",
                "function": "f",
            },
        ),
        ("CLASS = quorum_required FUNCTION 'f'", {"job_class": "QUORUM_REQUIRED", "function": "f"}),
        (
            "CLASS = quorum_required FUNCTION 'f' WITH '{\"acknowledgements\": 2}'",
            {"job_class": "QUORUM_REQUIRED", "acknowledgements": 2, "function": "f"},
        ),
        ("QUEUE = 'slow' CATCH_UP = all FUNCTION 'f'", {"queue": "slow", "catch_up": "all", "function": "f"}),
        (
            'WITH \'{"tags": ["x"], "input": {"a": 1}}\' FUNCTION \'f\' -- the end',
            {"tags": ["x"], "input": {"a": 1}, "function": "f"},
        ),
        ("/* a ; 'b' */ ENABLED FUNCTION 'f'", {"function": "f"}),
    ],
)
def test_create_writes_the_fields_of_a_document(clauses: str, fields: dict[str, Any]) -> None:
    assert created(f"CREATE JOB a {clauses}") == document(**fields)


def test_statements_are_separated_by_semicolons() -> None:
    text = """
    CREATE JOB daily_sweep FUNCTION 'a;b';; ALTER JOB "x.y" SET STATE = PAUSED, TIMEOUT 5 ;
    drop job a keep history; EXECUTE JOB at; CANCEL JOB RUN 01890000-0000-7000-8000-000000000000; CANCEL JOB RUN '01890000';
    SHOW JOBS; SHOW CREATE JOB state; SELECT a -- ; no
     FROM sys.jobs WHERE b = ';' /* ; */;
    """
    statements = read_statements(text)
    kinds = (CreateJob, AlterJob, DropJob, ExecuteJob, CancelRun, CancelRun, ShowJobs, ShowCreateJob, Select)
    assert tuple(type(statement) for statement in statements) == kinds
    assert [getattr(s, "job", getattr(s, "run", "")) for s in statements] == [
        *("daily-sweep", "x.y", "a", "at", RUN, RUN[:8], "", "state", "")
    ]
    assert statements[0].text == "CREATE JOB daily_sweep FUNCTION 'a;b'"
    assert statements[1].place == (2, 45)


@pytest.mark.parametrize(
    ("text", "place", "hint"),
    [
        ("", (1, 1), "no statement"),
        (" ; ", (1, 1), "no statement"),
        ("CREATE", (1, 7), "JOB"),
        ("CREATE JOB a SCHEDUEL = 'x'", (1, 14), "did you mean SCHEDULE"),
        ("DROP JOB a;\n DRP JOB b", (2, 2), "did you mean DROP"),
        ('CREATE JOB a\n  SCHEDULE = "x"', (2, 14), "single quotes"),
        ("CREATE JOB a SCHEDULE = 'x", (1, 25), "never closed"),
        ("CREATE JOB a MAX_RETRIES = many", (1, 28), "a number"),
        ("CREATE JOB a MAX_RETRIES = -1", (1, 28), "a number"),
        (f"CREATE JOB a MAX_RETRIES = {'9' * 5_000}", (1, 28), "too long"),
        (f"CREATE JOB a EVERY {'9' * 5_000}", (1, 20), "too long"),
        ("CREATE JOB a TIMEOUT 5 TIMEOUT 6", (1, 24), "second clause"),
        ("CREATE JOB a SCHEDULE '@daily' CRON '@daily'", (1, 32), "second clause"),
        ("CREATE JOB a WITH '[1]'", (1, 19), "JSON object"),
        ("CREATE JOB a WITH '{'", (1, 19), "not JSON"),
        ("CREATE JOB a WITH '{\"input\": NaN}'", (1, 19), "not JSON"),
        (f"CREATE JOB a WITH '{'[' * 100_000}'", (1, 19), "not JSON"),
        ("CREATE JOB a WITH '{\"dag\": []}'", (1, 19), "no field"),
        ("ALTER JOB a SET", (1, 16), "STATE"),
        ("ALTER JOB a SET STATE = PAUSED,", (1, 32), "STATE"),
        ("CANCEL JOB RUN a", (1, 16), "the id of a run"),
        ("SELECT 'a", (1, 8), "never closed"),
        ("GRANT ALL", (1, 1), "CREATE"),
        (";".join(["SHOW JOBS"] * (MAX_STATEMENTS + 1)), (1, 10 * MAX_STATEMENTS + 1), "more than"),
        (" " * (MAX_CHARACTERS + 1), (1, 1), "more than"),
    ],
)
def test_error_has_its_place_and_what_is_allowed(text: str, place: tuple[int, int], hint: str) -> None:
    with pytest.raises(StatementError) as caught:
        read_statements(text)
    assert caught.value.place == place
    assert hint in str(caught.value)
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CREATE JOB a\n MAX_RETRIES = 100 FUNCTION 'f'", [("out-of-range", "max_retries", "line 2, column 2")]),
        ("CREATE JOB a\n CLASS = ANY_NODE FUNCTION 'f'", [("unknown-choice", "job_class", "line 2, column 2")]),
        (
            "CREATE JOB a FUNCTION 'f'\n PARTITION BY SHARD 'S'",
            [("invalid-value", "partition_rule.single_shard", "line 2, column 2")],
        ),
        ("CREATE JOB a RUN AS dba FUNCTION 'f'", [("not-expressible", "run_as", "line 1, column 14")]),
        ("CREATE JOB a FUNCTION 'f' CRON '99 * * * *'", [("invalid-field", "cron_expression", "line 1, column 27")]),
        ("CREATE JOB a EXEC 'x | y'", [("invalid-value", "external_command", "line 1, column 14")]),
        ("CREATE JOB a FUNCTION 'f' STATE = PAUSED", [("not-expressible", "state", "line 1, column 27")]),
        ("CREATE JOB \"A b\" FUNCTION 'f'", [("invalid-value", "job_name", "line 1, column 1")]),
        ("CREATE JOB a FUNCTION 'f' EXEC 'x'", [("exclusive-fields", "", "line 1, column 1")]),
        ("\nCREATE JOB a CRON '@daily'", [("required", "", "line 2, column 1")]),
    ],
)
def test_a_wrong_clause_has_its_place(text: str, expected: list[tuple[str, str, str]]) -> None:
    with pytest.raises(DefinitionError) as caught:
        created(text)
    assert [(p.code, p.field, str(p.job).partition(":")[0]) for p in caught.value.problems] == expected


@pytest.mark.parametrize(
    ("clauses", "fields"),
    [
        (
            "CONNECTION = 'dwh' AS 'DELETE FROM a WHERE b = :site AND c = ''x'' '",
            {
                "sql": {
                    "connection": "dwh",
                    "statement": "DELETE FROM a WHERE b = :site AND c = 'x' ",
                    "parameters": {"site": "{{ input.site }}"},
                }
            },
        ),
        (
            "CALL reports.refresh(:day, 'y', 3, 1.5, NULL, true) CONNECTION 'dwh'",
            {
                "procedure": {
                    "connection": "dwh",
                    "name": "reports.refresh",
                    "arguments": ["{{ input.day }}", "y", 3, 1.5, None, True],
                }
            },
        ),
        ("CONNECTION 'dwh' CALL f()", {"procedure": {"connection": "dwh", "name": "f"}}),
    ],
)
def test_work_in_a_database(clauses: str, fields: dict[str, Any]) -> None:
    definition = created(f"CREATE JOB a {clauses}")
    assert definition == document(**fields)
    assert created(create_statement(definition)) == definition


@pytest.mark.parametrize(
    ("clauses", "code", "field"),
    [
        ("AS 'SELECT 1'", "required", "connection"),
        ("CALL f()", "required", "connection"),
        ("CONNECTION 'dwh' EXEC 'x'", "exclusive-fields", "connection"),
        ("CONNECTION 'dwh' AS 'SELECT 1' CALL f()", "exclusive-fields", ""),
        ("CONNECTION 'A B' AS 'SELECT 1'", "invalid-value", "job_sql.connection"),
    ],
)
def test_wrong_work_in_a_database_is_refused(clauses: str, code: str, field: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        created(f"CREATE JOB a {clauses}")
    assert [(problem.code, problem.field) for problem in caught.value.problems] == [(code, field)]


@pytest.mark.parametrize("work", ["AS 'SELECT 1'", "CALL f()"])
def test_work_without_a_connection_gets_the_default(work: str) -> None:
    def create(clauses: str) -> JobDefinition:
        (statement,) = read_statements(f"CREATE JOB a {clauses}")
        assert isinstance(statement, CreateJob)
        return defined(statement, "main")

    assert create(work) == create(f"CONNECTION = 'main' {work}")
    assert create(f"CONNECTION = 'dwh' {work}") == created(f"CREATE JOB a CONNECTION = 'dwh' {work}")
    assert create("FUNCTION 'f'") == created("CREATE JOB a FUNCTION 'f'")


@pytest.mark.parametrize("work", ["AS 'SELECT 2'", "CALL g()"])
def test_changed_work_keeps_its_connection(work: str) -> None:
    (statement,) = read_statements(f"ALTER JOB a SET {work}")
    assert isinstance(statement, AlterJob)
    other = created(f"CREATE JOB a CONNECTION = 'dwh' {work}")
    for before in ("AS 'SELECT 1'", "CALL f()"):
        assert altered(statement, created(f"CREATE JOB a CONNECTION = 'dwh' {before}"), "main") == other
    without = created("CREATE JOB a FUNCTION 'f'")
    assert altered(statement, without, "main") == created(f"CREATE JOB a CONNECTION = 'main' {work}")
    with pytest.raises(DefinitionError):
        altered(statement, without)


def test_an_argument_is_a_value() -> None:
    with pytest.raises(StatementError) as caught:
        created("CREATE JOB a CALL f(today) CONNECTION 'dwh'")
    assert caught.value.place == (1, 21)


WORDS = st.sampled_from(
    [
        "CREATE",
        "JOB",
        "a",
        "ALTER",
        "SET",
        "=",
        "'x'",
        '"y"',
        ";",
        "EVERY",
        "5",
        "5m",
        "(",
        ",",
        "--",
        "/*",
        "*/",
        "SELECT",
    ]
)


@given(st.lists(WORDS | st.text(max_size=4), max_size=12).map(" ".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        statements = read_statements(text)
    except StatementError:
        return
    assert statements


@pytest.mark.parametrize("words", [3, 400])
def test_work_on_a_text_can_be_ended(words: int) -> None:
    calls = iter(range(words))
    with pytest.raises(StatementError, match="too much work") as raised:
        read_statements("SHOW JOBS;\n" * 10_000, lambda: next(calls) == words - 1)
    assert raised.value.place == (1 + (words - 1) // 3, (1, 6, 10)[(words - 1) % 3])
    with pytest.raises(StopIteration):
        read_statements("SHOW JOBS", lambda: next(calls) == words)


GRAPH = JobDefinition.model_validate(
    {"name": "a", "dag": [{"name": "x", "function": "f"}], "schedule": "@daily", "retry": {"max_attempts": 7}}
)
PLAIN = read_job({"name": "a", "function": "f", "schedule": "@every 5m from 2027-01-01T00:00", "tags": ["x"]})


@pytest.mark.parametrize(
    ("before", "clauses", "change"),
    [
        (PLAIN, "SCHEDULE = '@hourly'", {"schedule": "@hourly"}),
        (PLAIN, "EVERY 60", {"schedule": "@every 1m"}),
        (
            PLAIN,
            "ENDS '2027-02-01T00:00'",
            {"schedule": "@every 5m from 2027-01-01T00:00:00Z until 2027-02-01T00:00"},
        ),
        (PLAIN, "STATE = DISABLED", {"enabled": False}),
        (PLAIN, "STATE = PAUSED", {}),
        (PLAIN, "MAX_RETRIES = 9", {"retry": {"max_attempts": 10}}),
        (
            PLAIN,
            "RETRY_BACKOFF = 5s",
            {"retry": {"max_attempts": 3, "initial_delay": 5, "jitter": 0, "max_delay": 315_360_000}},
        ),
        (PLAIN, "TIMEOUT = 5, DESCRIPTION = 'd' QUEUE 'q'", {"timeout": 5, "description": "d", "queue": "q"}),
        (PLAIN, "DEPENDS ON b, c", {"depends_on": ("b", "c")}),
        (PLAIN, "EXEC 'x y'", {"function": "tocsin.command", "command": ("x", "y")}),
        (GRAPH, "TIMEOUT = 5", {"timeout": 5}),
        (GRAPH, "MAX_RETRIES = 0", {"retry": {"max_attempts": 1}}),
        (GRAPH, "FUNCTION 'f'", {"dag": (), "function": "f"}),
    ],
)
def test_alter_changes_what_it_names(before: JobDefinition, clauses: str, change: dict[str, Any]) -> None:
    expected = JobDefinition.model_validate(before.model_dump(mode="json") | change)
    assert changed(before, clauses) == expected


@pytest.mark.parametrize(
    ("clauses", "field"),
    [("RUN AS dba", "run_as"), ("MAX_RETRIES = 1.5", "max_retries"), ("ON COMPLETION DROP", "on_completion")],
)
def test_alter_refuses_what_create_refuses(clauses: str, field: str) -> None:
    for before in (PLAIN, GRAPH):
        with pytest.raises(DefinitionError) as caught:
            changed(before, clauses)
        assert [(p.field, p.job) for p in caught.value.problems] == [(field, "line 1, column 17: job `a`")]


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
SECONDS = st.integers(1, 10**6) | st.floats(0.001, 10**6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
RETRIES = st.fixed_dictionaries(
    {},
    optional={
        "max_attempts": st.integers(1, 100),
        "initial_delay": SECONDS,
        "jitter": st.sampled_from([0, 0.1]),
        "max_delay": st.sampled_from([300, 315_360_000]),
        "non_retryable_errors": st.lists(TEXT, max_size=2),
    },
)
WORK = st.one_of(
    st.fixed_dictionaries({"function": st.sampled_from(["f", "a'b", "billing.close"])}),
    st.fixed_dictionaries(
        {"command": st.lists(st.sampled_from(["x", "a b", "|", "it's", "", "é"]), min_size=1, max_size=3)}
    ),
    st.just({"http": {"url": "https://example.org/a"}}),
    st.just({"sql": {"connection": "dwh", "statement": "SELECT ':a', :day", "parameters": {"day": 1, "a": None}}}),
    st.just({"procedure": {"connection": "dwh", "name": "reports.refresh", "arguments": ["it's", 1.5]}}),
    st.just({"container": {"image": "etl:1", "args": ["it's"], "resources": {"limits": {"memory": "1Gi"}}}}),
    st.just({"command": {"argv": ["x"], "cwd": "/tmp", "env": {"A": "b"}}}),  # noqa: S108 - nothing is written
)
FIELDS = st.fixed_dictionaries(
    {"name": st.sampled_from(["a", "daily-sweep", "a.b", "0", "state"])},
    optional={
        "schedule": st.sampled_from(
            [
                "0 2 * * *",
                "@every 5m",
                "every monday at 9am",
                "@every 1h from 2027-03-01T09:00 until 2027-04-01T00:00",
                "at 2027-03-01T09:00",
            ]
        ),
        "on_completion": st.sampled_from(["preserve", "drop"]),
        "partition": st.sampled_from(
            ["all_shards", {"shard_set": ["b", "a"]}, {"single_shard": "a"}, {"shard_key": "input.a.b"}]
        ),
        "timezone": st.sampled_from(["UTC", "Europe/Berlin"]),
        "retry": RETRIES,
        "timeout": SECONDS,
        "execution_timeout": SECONDS,
        "overlap_policy": st.sampled_from(["skip", "allow", "enqueue"]),
        "description": TEXT,
        "tags": st.lists(TEXT, max_size=2),
        "input": st.dictionaries(TEXT, JSON, max_size=2),
        "args": st.lists(JSON, max_size=2),
        "meta": st.dictionaries(TEXT, JSON, max_size=2),
        "queue": st.sampled_from(["default", "slow"]),
        "job_class": st.sampled_from(["LOCAL_SAFE", "QUORUM_REQUIRED"]),
        "acknowledgements": st.integers(1, 100),
        "priority": st.integers(-100, 100),
        "enabled": st.booleans(),
        "catch_up": st.sampled_from(["once", "skip", "all"]),
        "owner": st.sampled_from(["user:ada", "cli"]),
        "viewers": st.lists(TEXT, max_size=2),
        "concurrency": st.just({"limit": 2}),
        "dst": st.just({"gap": "shift"}),
    },
)


@settings(max_examples=examples(300))
@given(FIELDS, WORK, st.sampled_from([None, ["b"], ["b", "c-d"], [{"job": "b", "within": 60}]]))
def test_what_show_create_prints_reads_back(
    fields: dict[str, Any], work: dict[str, Any], depends: list[Any] | None
) -> None:
    try:
        definition = read_job({**fields, **work, **({"depends_on": depends} if depends else {})})
    except DefinitionError:
        return  # a secret in a text, a dependency without a window, and so on
    assert created(create_statement(definition)) == definition


CLAUSES = (
    (
        *(
            "SCHEDULE = '0 2 * * *'",
            "SCHEDULE CRON '0 2 * * *'",
            "CRON '@daily'",
            "EVERY 5 MINUTES",
            "AT '2027-03-01T09:00'",
        ),
        "SCHEDULE = EVERY INTERVAL '90s' STARTS '2027-03-01T09:00' ENDS '2027-04-01T00:00'",
    ),
    ("CLASS = LOCAL_SAFE", "CLASS leader_only", "CLASS = QUORUM_REQUIRED"),
    ("PARTITION BY ALL_SHARDS", "PARTITION BY SHARD 'a'", "PARTITION BY SINGLE_SHARD 'a'"),
    ("PARTITION BY SHARD_SET ('b', 'a')", "PARTITION BY SHARD_KEY(customer_id)", "PARTITION BY DYNAMIC 'input.a.b'"),
    ('DEPENDS ON extract_daily, "b.c"',),
    ("MAX_RETRIES = 5", "MAX_RETRIES 0"),
    ("RETRY_BACKOFF = 30s", "RETRY_BACKOFF = INTERVAL '1h30m'", "RETRY_BACKOFF 2 DAYS"),
    ("TIMEOUT = 10 MINUTES", "TIMEOUT 0.5"),
    ("ON COMPLETION PRESERVE", "ON COMPLETION DROP"),
    ("DESCRIPTION = 'it''s; -- text'",),
    ("ENABLED", "STATE = DISABLED"),
    ("CATCH_UP = none", "CATCH_UP all"),
    ("QUEUE = 'slow'",),
    ("TIMEZONE = 'Asia/Tokyo'",),
    ('WITH \'{"input": {"customer_id": 1, "day": "it\'\'s"}, "priority": 3}\'',),
)
"""Each clause of the specification and of the canonical document, in their spellings."""
WORK_CLAUSES = (
    *("FUNCTION 'f'", "EXEC 'sweep -a'", "CONNECTION = 'dwh' AS 'DELETE FROM a WHERE day = :day'"),
    "CALL reports.refresh(:day, 'it''s', 1.5, NULL) CONNECTION 'dwh'",
)


@settings(max_examples=examples(300))
@given(
    st.tuples(*(st.sampled_from(("", *spellings)) for spellings in CLAUSES), st.sampled_from(WORK_CLAUSES)).flatmap(
        st.permutations
    )
)
def test_every_spelling_is_shown_as_it_reads(clauses: list[str]) -> None:
    try:
        definition = created(f"CREATE JOB a {' '.join(clauses)}")
    except (DefinitionError, StatementError):
        return  # two partitions, a dependency without a window, and so on
    assert created(create_statement(definition)) == definition


def test_most_clauses_go_together() -> None:
    text = " ".join(spellings[0] for spellings in CLAUSES if spellings[0] != CLAUSES[3][0])
    definition = created(f"CREATE JOB a {text} {WORK_CLAUSES[0]}")
    assert created(create_statement(definition)) == definition
    assert (definition.priority, definition.queue, definition.retry.max_attempts) == (3, "slow", 6)


@pytest.mark.parametrize("fields", [{"dag": [{"name": "x", "function": "f"}]}])
def test_what_sql_cannot_say_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError) as caught:
        create_statement(JobDefinition.model_validate({"name": "a", **fields}))
    assert [(p.code, p.field, p.job) for p in caught.value.problems] == [("not-expressible", "dag", "job `a`")]


def test_show_create_leaves_out_defaults() -> None:
    definition = document(
        cron_expression="0 2 * * *", external_command="sweep -a", description="it's", state="DISABLED"
    )
    assert create_statement(definition) == (
        "CREATE JOB a\n  SCHEDULE = '0 2 * * *'\n  TIMEOUT = '1h'\n  DESCRIPTION = 'it''s'\n  DISABLED\n  EXEC 'sweep -a';"
    )


@pytest.mark.parametrize(
    ("clause", "partition", "written"),
    [
        ("ALL_SHARDS", Partition(all_shards=True), "ALL_SHARDS"),
        ("SHARD 'eu-1'", Partition(single_shard="eu-1"), "SHARD 'eu-1'"),
        ("SINGLE_SHARD 'eu-1'", Partition(single_shard="eu-1"), "SHARD 'eu-1'"),
        ("SHARD_SET ('b', 'a')", Partition(shard_set=("b", "a")), "SHARD_SET ('b', 'a')"),
        ("SHARD_KEY(customer_id)", Partition(shard_key="input.customer_id"), "DYNAMIC 'input.customer_id'"),
        ("DYNAMIC 'input.order.id'", Partition(shard_key="input.order.id"), "DYNAMIC 'input.order.id'"),
    ],
)
def test_partition_is_read_and_written(clause: str, partition: Partition, written: str) -> None:
    (statement,) = read_statements(f"CREATE JOB a PARTITION BY {clause} FUNCTION 'f'")
    assert isinstance(statement, CreateJob)
    definition = defined(statement)
    assert definition.partition == partition
    text = create_statement(definition)
    assert f"PARTITION BY {written}\n" in text


@pytest.mark.parametrize("expression", ["hash(a)", "a + 1", "$.a", "meta.team"])
def test_partition_by_an_expression_is_refused(expression: str) -> None:
    (statement,) = read_statements(f"CREATE JOB a PARTITION BY DYNAMIC '{expression}' FUNCTION 'f'")
    assert isinstance(statement, CreateJob)
    with pytest.raises(DefinitionError, match="No other expressions"):
        defined(statement)


@pytest.mark.parametrize("clause", ["SHARD 'a'", "SHARD_KEY(customer)"])
def test_partition_is_replaced_by_another(clause: str) -> None:
    (create, alter) = read_statements(
        f"CREATE JOB a PARTITION BY ALL_SHARDS FUNCTION 'f'; ALTER JOB a SET PARTITION BY {clause}"
    )
    assert isinstance(create, CreateJob)
    assert isinstance(alter, AlterJob)
    changed = altered(alter, defined(create)).partition
    assert changed is not None
    assert changed.has_one
