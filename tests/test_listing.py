"""The queries of a list, and the errors of invalid queries."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tocsin.ports.queries import DeadLetterQuery, ExecutionQuery, InvalidQuery, Place, microseconds

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
CURSOR = Place("newest", microseconds(NOON), "7").cursor


@pytest.mark.parametrize("query", [ExecutionQuery, DeadLetterQuery])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"limit": 0}, "`limit` is 0: must be between 1 and 10,000"),
        ({"limit": 10_001}, "`limit` is 10001: must be between 1 and 10,000"),
        ({"since": datetime(2026, 1, 1)}, '`since` is "2026-01-01T00:00:00": must have an offset from UTC'),  # noqa: DTZ001
        (
            {"since": NOON, "until": NOON},
            '`until` is "2026-11-20T12:00:00+00:00": must be later than `since`, 2026-11-20T12:00:00+00:00',
        ),
        ({"cursor": "x"}, '`cursor` is "x": not a cursor'),
        ({"cursor": "é"}, '`cursor` is "é": not a cursor'),
        ({"cursor": ""}, '`cursor` is "": not a cursor'),
        ({"cursor": CURSOR, "sort": "oldest"}, "it belongs to a list sorted by `newest`, not by `oldest`"),
    ],
)
def test_contradictory_query_is_refused_by_its_field(
    query: type[ExecutionQuery | DeadLetterQuery], fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidQuery) as refused:
        query(**fields)
    assert message in str(refused.value)
    assert refused.value.field in fields


@pytest.mark.parametrize("time", [NOON, NOON + timedelta(microseconds=1), datetime.min.replace(tzinfo=UTC)])
def test_a_cursor_holds_a_time_to_the_microsecond(time: datetime) -> None:
    place = Place("newest", microseconds(time), "7")
    assert Place.read(place.cursor, "newest") == place
    assert place.time == time
