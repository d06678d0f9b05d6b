"""The statement and the procedure of a definition: what the door checks."""

import pytest

from tests.domain.test_builtin_work import job, problems_of


def test_statement_and_call_imply_their_function() -> None:
    assert job(sql={"connection": "dwh", "statement": "SELECT 1"}).function == "tocsin.sql"
    assert job(procedure={"connection": "dwh", "name": "refresh"}).function == "tocsin.procedure"


def test_work_is_said_once() -> None:
    fields = {"sql": {"connection": "dwh", "statement": "SELECT 1"}, "procedure": {"connection": "dwh", "name": "x"}}
    assert [problem.code for problem in problems_of(**fields)] == ["exclusive-fields"]


@pytest.mark.parametrize(
    ("fields", "field", "code"),
    [
        ({"statement": " "}, "sql.statement", "required"),
        ({"statement": "SELECT '{{ input.day }}'"}, "sql.statement", "invalid-value"),
        ({"statement": "SELECT '{{- job }}'"}, "sql.statement", "invalid-value"),
        ({"statement": "SELECT '${env:TOKEN}'"}, "sql.statement", "secret-reference-not-allowed"),
        ({"statement": "SELECT :day"}, "sql.parameters", "required"),
        ({"statement": "SELECT 1", "parameters": {"day": 1}}, "sql.parameters.day", "unknown-field"),
        ({"statement": "SELECT :1", "parameters": {"1": 1}}, "sql.parameters", "invalid-value"),
        ({"statement": "SELECT :a", "parameters": {"a": "{{ x }}"}}, "sql.parameters.a", "malformed-template"),
        (
            {"statement": "SELECT :a", "parameters": {"a": ["${env:}"]}},
            "sql.parameters.a",
            "malformed-secret-reference",
        ),
        ({"statement": "SELECT 1", "max_rows": 1_001}, "sql.max_rows", "out-of-range"),
        ({"statement": "SELECT 1", "max_rows": True}, "sql.max_rows", "wrong-type"),
        ({"statement": "SELECT '" + "x" * 70_000 + "'"}, "sql", "too-large"),
        ({"statement": "SELECT 1", "url": "postgresql://x"}, "sql.url", "unknown-field"),
        ({"statement": "SELECT 1", "connection": "postgresql://x"}, "sql.connection", "invalid-value"),
    ],
)
def test_wrong_statement_is_refused_with_code(fields: dict[str, object], field: str, code: str) -> None:
    assert [(p.field, p.code) for p in problems_of(sql={"connection": "dwh"} | fields)] == [(field, code)]


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1::int",
        "SELECT '{{1,2},{3,4}}'::int[]",
        "SELECT '12:30', 'at \\:noon'",
        "SELECT a[1:2] FROM t",
        "SELECT '${x}'",
    ],
)
def test_statement_may_have_colons_and_braces(statement: str) -> None:
    assert job(sql={"connection": "dwh", "statement": statement}).sql is not None


@pytest.mark.parametrize(
    ("fields", "field", "code"),
    [
        ({"name": 'a"b'}, "procedure.name", "invalid-value"),
        ({"name": "a.b.c"}, "procedure.name", "invalid-value"),
        ({"name": "a()"}, "procedure.name", "invalid-value"),
        ({"name": "{{ input.name }}"}, "procedure.name", "invalid-value"),
        ({"name": "a" * 64}, "procedure.name", "invalid-value"),
        ({"name": ""}, "procedure.name", "invalid-value"),
        ({"name": "a", "arguments": ["{{ x }}"]}, "procedure.arguments", "malformed-template"),
        ({"name": "a", "arguments": [1] * 101}, "procedure.arguments", "too-large"),
        ({"name": "a", "arguments": {"x": 1}}, "procedure.arguments", "wrong-type"),
    ],
)
def test_wrong_call_is_refused_with_code(fields: dict[str, object], field: str, code: str) -> None:
    assert [(p.field, p.code) for p in problems_of(procedure={"connection": "dwh"} | fields)] == [(field, code)]
