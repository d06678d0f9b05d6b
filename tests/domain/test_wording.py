"""Words for numbers and changes."""

from tocsin.domain.text import added_and_removed, counted


def test_noun_agrees_with_its_number() -> None:
    assert [counted(number, "job") for number in (0, 1, 2, 1_200)] == ["0 jobs", "1 job", "2 jobs", "1,200 jobs"]
    assert counted(2, "entry", "entries") == "2 entries"


def test_changed_elements_are_named() -> None:
    assert added_and_removed("abb", "bcc") == "+c, -a, -b"
    assert added_and_removed("ab", "ba") is None
