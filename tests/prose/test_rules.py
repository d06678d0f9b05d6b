"""The rules of the prose check find what they are for, and leave plain English alone."""

import pytest

from tests.prose import rules


@pytest.mark.parametrize(
    "text",
    [
        "Whoever asks is told.",
        "Nobody answers.",
        "It is made anew.",
        "Facts come behind the cursor, and wait behind it.",
        "Whatever nobody's beginning depends on says so.",
        "a " * 41 + ".",
    ],
)
def test_unclear_wording_is_found(text: str) -> None:
    assert list(rules.wording(text))


@pytest.mark.parametrize(
    "text",
    [
        "Return the next instant after a time.",
        "The `asked` field holds the caller.",
        "A value of None is stored.",
        "See [the page](https://example.org/whoever).",
        "Anewton is a name.",
    ],
)
def test_plain_english_passes(text: str) -> None:
    assert not list(rules.wording(text))


@pytest.mark.parametrize(
    "docstring",
    ["What a stage is.", "Return the instant", "Return " + "the " * 15 + "instant.", "How it runs.\n\nMore."],
)
def test_unclear_summary_is_found(docstring: str) -> None:
    assert list(rules.summary(docstring))


def test_plain_summary_passes() -> None:
    assert not list(rules.summary("Return the next instant after a time.\n\nIt may be in the past."))


def test_long_test_name_is_found() -> None:
    assert list(rules.test_name("test_a_skipped_run_is_announced_once_after_a_crash"))
    assert not list(rules.test_name("test_skipped_run_is_announced_after_crash"))
