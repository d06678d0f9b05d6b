"""Patterns of errors: errors of one kind have the same pattern."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.domain.text import MAX_TEXT, error_pattern

UUID = "0193a5b0-0000-7000-8000-0000000000AF"


@pytest.mark.parametrize(
    ("error", "pattern"),
    [
        ("ValueError: boom", "ValueError: boom"),
        ("no rows for 17", "no rows for <n>"),
        ("took 1.5s of 1,200:30", "took <n>s of <n>"),
        (f"order {UUID} is gone", "order <id> is gone"),
        ("at 0x7f10394bc310", "at <hex>"),
        ("commit 2856f527 failed", "commit <hex> failed"),
        ("deadbeef decade", "deadbeef decade"),
        ("12345678 items", "<n> items"),
        ("utf8 at e5", "utf<n> at e<n>"),
        ("first\nsecond", "first"),
        ("", ""),
        ("Zähler ٣ 日本 7", "Zähler ٣ 日本 <n>"),
    ],
)
def test_variable_parts_become_placeholders(error: str, pattern: str) -> None:
    assert error_pattern(error) == pattern


@given(st.text(), st.integers(min_value=0), st.integers(min_value=0))
def test_numbers_do_not_change_the_pattern(text: str, first: int, second: int) -> None:
    assert error_pattern(f"{text[:200]} {first} ") == error_pattern(f"{text[:200]} {second} ")


@given(st.text(), st.uuids(), st.uuids())
def test_ids_do_not_change_the_pattern(text: str, first: object, second: object) -> None:
    assert error_pattern(f"{text[:200]} {first} x") == error_pattern(f"{text[:200]} {second} x")


@given(st.text(alphabet=st.sampled_from("ab 019f-x.:,\n<n>é"), max_size=2 * MAX_TEXT) | st.text())
def test_pattern_of_a_pattern_is_itself(error: str) -> None:
    pattern = error_pattern(error)
    assert error_pattern(pattern) == pattern[:MAX_TEXT].rstrip()
    assert not any(character in "0123456789" for character in pattern)
