"""Sorted items behave as a sorted list would, and a change leaves the others alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.domain import lock
from tocsin.domain.lock import SortedItems

CHANGES = st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=120)


@given(CHANGES)
def test_each_version_equals_a_sorted_list(changes: list[tuple[bool, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lock, "CHUNK", 3)
        items: SortedItems[tuple[int]] = SortedItems()
        expected: set[tuple[int]] = set()
        versions = []
        for is_added, number in changes:
            items = items.add((number,)) if is_added else items.remove((number,))
            expected = expected | {(number,)} if is_added else expected - {(number,)}
            versions.append((items, sorted(expected)))
    for version, numbers in versions:
        assert [*version] == numbers
        assert len(version) == len(numbers)
        assert version.first == (numbers[0] if numbers else None)
        for wanted in range(42):
            assert version.at_least((wanted,)) == next((item for item in numbers if item >= (wanted,)), None)
