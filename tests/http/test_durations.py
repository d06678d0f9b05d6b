"""Durations and the calendar of a job."""

from collections.abc import Sequence
from datetime import timedelta
from threading import current_thread
from typing import Any

import pytest

from tests.conformance.test_history import A_FAILURE, A_SUCCESS, at, story
from tests.domain.given import NOON, recorded
from tests.http.conftest import World
from tocsin.domain.access import Role
from tocsin.domain.events import Passed
from tocsin.services.timeline import reader
from tocsin.services.timeline.reader import percentile
from tocsin.subjects import Stream

HOUR = timedelta(hours=1)
WINDOW = {"since": (NOON - 24 * HOUR).isoformat(), "until": (NOON + 24 * HOUR).isoformat()}


@pytest.fixture
async def ran(world: World) -> World:
    """A job with four executions and three missed instants."""
    await world.given(schedule="0 * * * *", timezone="Asia/Kolkata", owner="token:ann", viewers=["token:bob"])
    facts = [
        *at(story(*A_SUCCESS, execution_id="1", job="job"), NOON),
        *at(story(*A_FAILURE, execution_id="2", job="job"), NOON + HOUR),
        *at(story("skipped", execution_id="3", job="job"), NOON + 6.5 * HOUR),
        *at(story(*A_SUCCESS, execution_id="4", job="job"), NOON + 6.4 * HOUR),
    ]
    missed = Passed(job="job", start=NOON + 5 * HOUR, until=NOON + 8 * HOUR, reason="missed", count=3, definition=1)
    await world.history.record(Stream.LOG, recorded(facts), after=0, upto=len(facts))
    await world.history.record(Stream.LEDGER, recorded([missed]), after=0, upto=1)
    return world


async def shown(world: World, path: str, identity: str = "bob", **query: str) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {await world.token(identity, Role.VIEWER)}"}
    answer = await world.client.get(f"/v1/jobs/job/{path}", params={**WINDOW, **query}, headers=headers)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def test_durations_have_percentiles(ran: World) -> None:
    answer = await shown(ran, "durations", buckets="2")
    assert answer["sampled"] is False
    assert [(bucket["count"], bucket["p50"], bucket["max"]) for bucket in answer["buckets"]] == [(3, 2.0, 3.0)]


async def test_many_durations_are_sampled(ran: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_DURATIONS", 2)
    monkeypatch.setattr(reader, "MAX_SLICES", 2)
    answer = await shown(ran, "durations", buckets="2")
    assert answer["sampled"] is True
    assert [bucket["count"] for bucket in answer["buckets"]] == [3]


async def test_event_loop_calculates_no_percentiles(ran: World, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set[str]()

    def noted(ascending: Sequence[float], percent: int) -> float | None:
        threads.add(current_thread().name.rpartition("_")[0])
        return percentile(ascending, percent)

    monkeypatch.setattr(reader, "percentile", noted)
    assert (await shown(ran, "durations", buckets="2"))["buckets"]
    assert threads == {"calculation"}


async def test_calendar_counts_local_days(ran: World) -> None:
    answer = await shown(ran, "calendar")
    assert answer["timezone"] == "Asia/Kolkata"
    busy = [(day["day"], day["completed"], day["failed"], day["skipped"], day["missed"]) for day in answer["days"]]
    assert [day[0] for day in busy] == ["2026-11-19", "2026-11-20", "2026-11-21"]
    # 18:30 UTC is midnight there, and the schedule names whole hours of its own clock.
    assert busy[1:] == [("2026-11-20", 2, 1, 0, 1), ("2026-11-21", 0, 0, 1, 2)]
    utc = await shown(ran, "calendar", timezone="UTC")
    assert [(day["completed"], day["failed"], day["skipped"], day["missed"]) for day in utc["days"]] == [
        (0, 0, 0, 0),
        (2, 1, 1, 3),
        (0, 0, 0, 0),
    ]


@pytest.mark.parametrize("path", ["durations", "calendar", "revisions", "timeline"])
async def test_viewer_of_others_sees_nothing(ran: World, path: str) -> None:
    token = f"Bearer {await ran.token('eve', Role.VIEWER)}"
    assert (await ran.ask("GET", f"/v1/jobs/job/{path}", Authorization=token)).status_code == 404


@pytest.mark.parametrize("query", [{"timezone": "Mars/Olympus"}, {"since": "2020-01-01"}])
async def test_invalid_calendar_is_refused(ran: World, query: dict[str, str]) -> None:
    answer = await ran.client.get("/v1/jobs/job/calendar", params={**WINDOW, **query})
    assert answer.status_code == 422


def test_percentiles_are_values() -> None:
    assert [percentile([1.0, 2.0, 3.0, 4.0], p) for p in (1, 50, 51, 95, 100)] == [1.0, 2.0, 3.0, 4.0, 4.0]
    assert percentile([], 50) is None
