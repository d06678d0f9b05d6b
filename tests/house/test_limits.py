"""No figure of the source, the documentation and the tests is above its limit."""

import pytest

from tests.house.limits import above, lowered, read
from tests.house.measure import House


def test_no_figure_is_above_its_limit() -> None:
    assert above(House().figures(), read()) == {}


def test_figure_above_its_limit_is_found() -> None:
    limits = {"lines": 10, "modules": 2}
    assert above({"lines": 10, "modules": 1}, limits) == {}
    assert [*above({"lines": 11, "modules": 2}, limits)] == ["lines"]
    assert [*above({"lines": 10, "words": 5}, limits)] == ["words"]


@pytest.mark.parametrize(("figure", "limit"), [(9, 9), (10, 10), (11, 10)])
def test_writing_never_raises_a_limit(figure: int, limit: int) -> None:
    assert lowered({"lines": 10, "kept": 3}, {"lines": figure, "new": 7}) == {"lines": limit, "new": 7, "kept": 3}
