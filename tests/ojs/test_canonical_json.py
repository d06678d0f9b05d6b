"""Canonical JSON is the same for equal values, and different for others (RFC 8785)."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.adapters.http.ojs.job_policies import canonical_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text("aé\u2028"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abé"), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": {"d": [], "c": None}}, '{"a":{"c":null,"d":[]},"b":1}'),
        (
            [1.0, -0.0, 1e21, 1e20, 1e-7, 0.000001, 1.5, 333333333.33333329],
            "[1,0,1e+21,100000000000000000000,1e-7,0.000001,1.5,333333333.3333333]",
        ),
        ([5e-324, 1.7976931348623157e308, -1.25e-10], "[5e-324,1.7976931348623157e+308,-1.25e-10]"),
        (9_007_199_254_740_993, "9007199254740993"),
        ("e\u0301", '"\u00e9"'),
        ({"\u20ac": 1, "\U0001f600": 2, "\uffee": 3}, '{"\u20ac":1,"\U0001f600":2,"\uffee":3}'),
        ('\x0f\n"\\/', '"\\u000f\\n\\"\\\\/"'),
    ],
)
def test_values_have_their_canonical_text(value: Any, text: str) -> None:  # noqa: ANN401
    assert canonical_json(value) == text


@given(VALUES)
def test_canonical_text_reads_back_and_is_stable(value: Any) -> None:  # noqa: ANN401
    text = canonical_json(value)
    again = json.loads(text)
    assert canonical_json(again) == text
    assert canonical_json(json.loads(json.dumps(value))) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_no_digit_of_a_number_is_lost(number: float) -> None:
    assert float(canonical_json(number)) == number
