"""The queries of a list, and the errors of invalid queries."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tocsin.ports.queries import DeadLetterQuery, ExecutionQuery, InvalidQuery, Place, microseconds

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
CURSOR = Place("newest", microseconds(NOON), "7").cursor


@pytest.mark.parametrize("query", [ExecutionQuery, DeadLetterQuery])
@pytest.mark.parametrize(
    ("fields", "field", "hint"),
    [
        ({"limit": 0}, "limit", "10,000"),
        ({"limit": 10_001}, "limit", "10,000"),
        ({"since": datetime(2026, 1, 1)}, "since", "UTC"),  # noqa: DTZ001
        ({"since": NOON, "until": NOON}, "until", "`since`"),
        ({"cursor": "x"}, "cursor", ""),
        ({"cursor": "é"}, "cursor", ""),
        ({"cursor": ""}, "cursor", ""),
        ({"cursor": CURSOR, "sort": "oldest"}, "cursor", "`newest`"),
    ],
)
def test_invalid_query_names_its_field(
    query: type[ExecutionQuery | DeadLetterQuery], fields: dict[str, Any], field: str, hint: str
) -> None:
    with pytest.raises(InvalidQuery) as caught:
        query(**fields)
    error = caught.value
    assert (error.code, error.field) == ("invalid-query", field)
    assert error.value in {fields[field], getattr(fields[field], "isoformat", str)()}
    assert hint in error.reason


@pytest.mark.parametrize("time", [NOON, NOON + timedelta(microseconds=1), datetime.min.replace(tzinfo=UTC)])
def test_a_cursor_holds_a_time_to_the_microsecond(time: datetime) -> None:
    place = Place("newest", microseconds(time), "7")
    assert Place.read(place.cursor, "newest") == place
    assert place.time == time
