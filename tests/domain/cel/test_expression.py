"""Expressions: what compiles, what is refused and why, and that nothing hostile takes long."""

from contextlib import suppress
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from tocsin.domain import cel
from tocsin.domain.cel.regex import UnknownSize, program_size

AT = datetime(2026, 11, 26, 10, 0, tzinfo=UTC)
ORDER: dict[str, JsonValue] = {"id": "A-1", "total": 120, "items": [{"sku": "A", "n": 2}, {"sku": "B", "n": 1}]}


def event(body: JsonValue) -> cel.Event:
    return cel.Event(body, "orders.new", {"X-Kind": "paid"}, AT)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("body.id", "A-1"),
        ("body.total > 100", True),
        ("body.total > 100.5 && subject == 'orders.new'", True),
        ('headers["X-Kind"] == "paid"', True),
        ("has(body.missing) && body.missing > 1", False),
        ('body.items.exists(i, i.sku == "B" && i.n > 0)', True),
        ("body.items.all(i, i.n > 1)", False),
        ("body.items.exists_one(i, i.n == 1)", True),
        ('body.items.exists(i, i.sku.matches("^[AB]$"))', True),
        ('"order-" + body.id', "order-A-1"),
        ('{"first": body.items[0].sku, "all": [body.id]}', {"first": "A", "all": ["A-1"]}),
        ('body.total > 100 ? "large" : "small"', "large"),
        ('body.id in ["A-1", "A-2"]', True),
        ("string(time.getFullYear())", "2026"),
        ("size(body.items)", 2),
        ("body.items.exists(i, i.sku == body.id)", False),
        ("body.items.exists(i, body.items.exists(j, i.n > j.n))", True),
    ],
)
def test_expressions_have_values(text: str, value: JsonValue) -> None:
    assert cel.compile_(text).evaluate(event(ORDER)) == value


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "is empty"),
        ("body.total >", "Syntax error"),
        ("order.total > 1", "undeclared reference to 'order"),
        ("nosuch(1)", "undeclared reference to 'nosuch'"),
        ('"a" + 1', "no matching overload"),
        ("a" * 1_001, "1,001 characters"),
        ("(" * 200 + "1" + ")" * 200, "recursion"),
        ("[" * 200 + "]" * 200, "recursion"),
        ("body" + ".a" * 200, "recursion"),
        ("body.items.map(i, i.sku)", "`map` and `filter`"),
        ("body.items.filter(i, i.n > 1)", "`map` and `filter`"),
        ("body.a.matches(body.b)", "must be written out"),
        (f'body.a.matches("{"a" * 201}")', "at most 200 characters"),
        ("body.items.exists(i, body.text.matches('a+b'))", "more than 0.25 s"),
        ('body.matches("(a{1000}){1000}")', "more than 0.25 s"),
        ('body.exists(i, i.matches(".{300}"))', "more than 0.25 s"),
        ('body.exists(i, i.matches("[\\\\pL]{9}"))', "more than 0.25 s"),
        ('body.matches("[\\\\p{L}]{300}")', "more than 0.25 s"),
        ('body.matches("(\\\\p{L}{20}x){20}")', "more than 0.25 s"),
        ('body.matches("\\\\Q(\\\\E")', "quote"),
        ('body.matches("(")', "invalid regular expression"),
        ('body.matches("[z-a]")', "invalid regular expression"),
        ("body.items.exists(i, i in body.others)", "more than 0.25 s"),
        ("body.items.exists(i, size(" + "+".join(["body.s"] * 20) + ") > 1)", "more than 0.25 s"),
        ("body.items.exists(i, body.items.exists(j, i == j))", "more than 0.25 s"),
        ("google.protobuf.Struct{}", "the type `google.protobuf.Struct`"),
        ("type(body) == int", "`type` is not available"),
        ("bytes(body.a)", "`bytes` is not available"),
        ("__import__('os')", "undeclared reference"),
    ],
)
def test_refused_expressions_say_why(text: str, part: str) -> None:
    with pytest.raises(cel.ExpressionError) as refused:
        cel.compile_(text)
    assert part in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.code == "invalid-expression"


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("body.missing > 1", {}),
        ("body.total > 1", {"total": "many"}),
        ("body.total / 0", {"total": 1}),
        ("body.total + 9223372036854775807", {"total": 1}),
        ("body.total", {"total": 2**70}),
        ("body.a ? 1 : 2", {"a": 1}),
        ("body.exists(x, x == -1)", [*range(10_001)]),
        ("timestamp(body) > time", "yesterday"),
        ("body", "\ud800"),
    ],
)
def test_evaluation_without_value_fails(text: str, body: JsonValue) -> None:
    with pytest.raises(cel.EvaluationFailed) as failed:
        cel.compile_(text).evaluate(event(body))
    assert failed.value.code == "evaluation-failed"


WIDE = [0] * 9_990
LARGEST = [
    ("body == body", [[]] * 20_000),
    ("body.exists(x, x == -1)", WIDE),
    ("body.all(x, x < 1 && x > -1 && x != 7 && x >= 0 && x <= 0)", WIDE),
    ("body.exists(x, body.exists(y, x > y))", [0] * 99),
    ('body.exists(x, x.matches("(a|aa)+$"))', ["a" * 60 + "b"] * 1_000),
    ('body[0].matches("[ab]*a[ab]{150}c")', ["ab" * 30_000]),
    ('body[0].matches("^[^@]{1,64}@[a-z0-9.-]{1,190}$")', ["a" * 60_000]),
    ('body[0].matches("(?i)\\\\pL+[^x]{20}$")', ["ä" * 30_000]),
    ('body.exists(x, x.matches("^[0-9]{4}-[A-Z]+$"))', ["1234-A-"] * 6_000),
    ('body[0].matches("(((a*)*)*)*b")', ["a" * cel.MAX_EVENT_BYTES]),
    ("body[0].contains(body[1])", ["a" * 32_000, "a" * 16_000 + "b"]),
    ("body.exists(x, x == x)", [["a"] * 3] * 5_000),
    ("+".join(["body[0]"] * 12), ["a" * 60_000]),
]


@pytest.mark.parametrize(("text", "body"), LARGEST)
def test_allowed_work_stays_within_bound(text: str, body: JsonValue) -> None:
    """The time limit of the test finds what the bound on the work overlooks."""
    program = cel.compile_(text)
    with suppress(cel.EvaluationFailed):  # an evaluation that stopped is bounded too
        program.evaluate(event(body))


@given(st.text(alphabet="ab.[]()*+?{}0129,\\\\pLQExi^:|-", max_size=40))
def test_size_of_any_regular_expression_is_known(pattern: str) -> None:
    with suppress(UnknownSize):
        assert program_size(pattern, of_property=1_000) >= 1


@pytest.mark.parametrize(
    ("pattern", "least"),
    [
        ("a{100}", 100),
        ("(a{10}){10}", 100),
        ("((?:a|b){10,20}c)+", 40),
        ("[]a]{50}", 50),
        ("[^]a]{50}b{50}", 100),
        (r"[\]a]{50}", 50),
        ("[[:alpha:]]{50}", 50),
        (r"\p{Greek}{10}", 10_000),
        (r"\PL{10}", 10_000),
        (r"[a\pL]{10}", 10_000),
        (r"(?P<name>\pL){10}", 10_000),
        (r"\({50}", 50),
        ("a){50}", 50),
        ("(?i)a{100}", 300),
    ],
)
def test_repetitions_multiply_the_size(pattern: str, least: int) -> None:
    assert least <= program_size(pattern, of_property=1_000) <= 20 * least


@given(st.text(alphabet="body.[]()'\"+-!?:&|=<>{}0129 ,exists\\\x00\n", max_size=60))
def test_any_text_compiles_or_is_refused(text: str) -> None:
    with suppress(cel.ExpressionError, cel.EvaluationFailed):
        cel.compile_(text).evaluate(event(ORDER))
