"""References to secrets: found, resolved, refused, and never expanded twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from tocsin.domain.secret_reference import SecretReferenceError, find_references, reference, resolve_references

JSON: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def test_each_name_is_found_once_in_order() -> None:
    value: JsonValue = {
        "url": "https://${env:USER}:${env:TOKEN}@host",
        "more": [{"x": "${env:_A1}"}, "${env:USER}"],
        "n": 1,
    }
    assert find_references(value) == ("USER", "TOKEN", "_A1")


def test_file_is_named_by_its_path() -> None:
    value: JsonValue = ["${file:/run/secrets/db.password}", "${env:A}", "${file:/..data/x}"]
    assert find_references(value) == ("file:/run/secrets/db.password", "A", "file:/..data/x")
    assert [reference(name) for name in find_references(value)] == value


def test_keys_are_no_place_for_references() -> None:
    assert find_references({"${env:KEY}": "plain"}) == ()


def test_resolves_inside_of_text_and_leaves_the_rest() -> None:
    value: JsonValue = {
        "url": "https://${env:TOKEN}@host",
        "list": ["${env:TOKEN}", 1, None],
        "literal": "$${env:X} $5",
    }
    assert resolve_references(value, {"TOKEN": "s3cret"}.get) == {
        "url": "https://s3cret@host",
        "list": ["s3cret", 1, None],
        "literal": "${env:X} $5",
    }


def test_resolved_value_is_not_resolved_again() -> None:
    assert resolve_references("${env:A}", {"A": "${env:B}", "B": "no"}.get) == "${env:B}"


def test_an_empty_variable_is_set() -> None:
    assert resolve_references("<${env:A}>", {"A": ""}.get) == "<>"


def test_all_missing_variables_are_named_without_values() -> None:
    with pytest.raises(SecretReferenceError) as refused:
        resolve_references(["${env:A}", "${env:B}", "${env:C}"], {"B": "s3cret"}.get)
    assert (refused.value.code, "`A`, `C`" in str(refused.value)) == ("secret-not-resolved", True)


@pytest.mark.parametrize(
    "text",
    [
        *("${env:}", "${foo:X}", "${HOME}", "${env:X", "${}", "${env:1X}", "${env: X}", "${env:A-B}"),
        *("${file:}", "${file:a}", "${file:./a}", "${file:/}", "${file:/a/}", "${file://a}", "${file:/a//b}"),
        *(
            "${file:/a/../b}",
            "${file:/..}",
            "${file:/a/.}",
            "${file:/./a}",
            "${file:/a b}",
            "${file:/a*}",
            "${file:~/a}",
        ),
    ],
)
def test_unfinished_reference_is_refused(text: str) -> None:
    expected = f"malformed reference `{text}`; write ${{env:NAME}} or ${{file:/PATH}}, or $${{ for a literal ${{"
    with pytest.raises(SecretReferenceError) as refused:
        find_references({"a": [text]})
    assert str(refused.value) == expected


@given(JSON)
def test_without_references_nothing_changes(value: JsonValue) -> None:
    def unasked(name: str) -> str:
        raise AssertionError(name)

    if "${" not in str(value):
        assert resolve_references(value, unasked) == value
