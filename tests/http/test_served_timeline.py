"""The timeline and the overviews of a real nats-server agree with what happened there.

For the timeline, a job fires every second, is paused and resumed, and is triggered by hand.
"""

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.http.test_served import greeter, served
from tests.system.running import Running, running
from tocsin import Context

JOB: Final = {"schedule": "* * * * * *", "overlap_policy": "allow", "catch_up": "skip"}
TIME: Final = timedelta(minutes=2)

Marks = Sequence[Mapping[str, Any]]


@pytest.fixture
async def api(nats_url: str, tmp_path: Path) -> AsyncIterator[tuple[Running, httpx.AsyncClient]]:
    worker = greeter()

    @worker.task("broken")
    async def broken(_: Context) -> None:
        raise ValueError("no rows for 7")

    options = {"server": {"port": 0}, "metrics": {"port": 0}}
    async with running(nats_url, tmp_path, worker=worker, **options) as tocsin, served(tocsin) as client:
        yield tocsin, client


async def _until_decided(tocsin: Running, client: httpx.AsyncClient, begun: datetime, **wanted: int) -> Marks:
    """Wait until a timeline has a number of marks of each decision."""
    window = {"since": begun.isoformat(), "until": (begun + TIME).isoformat()}

    async def decided() -> Marks:
        timeline = (await client.get("/v1/jobs/greet/timeline", params=window)).json()
        found = Counter(mark["decision"] for mark in timeline["marks"])
        return timeline["marks"] if all(found[decision] >= number for decision, number in wanted.items()) else []

    return await tocsin.until(decided)


async def test_marks_of_a_real_ledger_agree_with_why(api: tuple[Running, httpx.AsyncClient]) -> None:
    tocsin, client = api
    begun = datetime.now(UTC)
    created = await client.post("/v1/jobs", json={"name": "greet", "function": "greet", **JOB})
    assert created.status_code == 201
    await _until_decided(tocsin, client, begun, completed=2)
    await client.post("/v1/jobs/greet/pause", json={"reason": "too loud"})
    await _until_decided(tocsin, client, begun, completed=2, paused=2)
    await client.post("/v1/jobs/greet/resume")
    execution_id = (await client.post("/v1/jobs/greet/trigger")).json()["execution_id"]
    await client.put("/v1/jobs/greet", json={"name": "greet", "function": "greet", **JOB, "enabled": False})
    marks = await _until_decided(tocsin, client, begun, completed=2, paused=2, trigger=1)

    [manual] = [mark for mark in marks if mark["decision"] == "trigger"]
    assert (manual["execution_id"], manual["reason"]) == (execution_id, "api")
    open_decisions = {"undecided", "future", "future-disabled"}  # real time decides on these meanwhile
    instants = [mark for mark in marks if mark is not manual and mark["decision"] not in open_decisions]
    assert len({mark["at"] for mark in instants}) == len(instants)  # no instant has two marks
    assert {mark["reason"] for mark in instants if mark["decision"] == "paused"} == {"too loud"}
    for mark in instants:
        [answer] = (await client.get("/v1/jobs/greet/why", params={"time": mark["at"]})).json()["answers"]
        assert (answer["at"], answer["verdict"]) == (mark["at"], "fired" if mark["status"] else mark["decision"])
        assert mark["status"] is None or answer["execution_id"] == mark["execution_id"]


async def test_overviews_agree_with_the_executions(api: tuple[Running, httpx.AsyncClient]) -> None:
    tocsin, client = api
    jobs: list[dict[str, Any]] = [
        {"name": "greet", "function": "greet", "schedule": "0 * * * *", "overlap_policy": "allow"},
        {"name": "twin", "function": "greet", "schedule": "0 * * * *", "enabled": False},
        {"name": "other", "function": "greet", "schedule": "0 * * * *"},
        {
            "name": "broken",
            "function": "broken",
            "dead_letter": True,
            "retry": {"max_attempts": 1},
        },
    ]
    for job in jobs:
        assert (await client.post("/v1/jobs", json=job)).status_code == 201
    await client.post("/v1/jobs/other/pause")
    for name in ("greet", "greet", "broken"):
        assert (await client.post(f"/v1/jobs/{name}/trigger")).status_code == 202
    density = (await client.get("/v1/schedule/density", params={"hours": 2, "threshold": 2})).json()
    assert (sum(bucket["count"] for bucket in density["buckets"]), density["herds"]) == (2, [])

    async def ended() -> dict[str, Any]:
        overview: dict[str, Any] = (await client.get("/v1/overview")).json()
        # The parts are read side by side, so one may show an end that another does not have yet.
        has_all = sum(overview["totals"]["ended"].values()) == 3 and overview["failing"]["count"] == 1
        has_none_open = overview["running"]["count"] == overview["waiting"]["count"] == 0
        return overview if has_all and has_none_open else {}

    overview = await tocsin.until(ended)
    assert overview["totals"]["jobs"] == {"active": 1, "paused": 1, "disabled": 1, "on_demand": 1}
    assert (overview["totals"]["ended"]["completed"], overview["totals"]["ended"]["failed"]) == (2, 1)
    assert (overview["running"]["count"], overview["waiting"]["count"], overview["late"]["count"]) == (0, 0, 0)
    assert [instant["job"] for instant in overview["upcoming"]["instants"]] == ["greet"]
    assert [failing["job"] for failing in overview["failing"]["jobs"]] == ["broken"]
    assert {lease["stage"] for lease in overview["leader"]} >= {"ticker", "matcher"}

    async def buried() -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = (await client.get("/v1/dead-letters/groups")).json()["groups"]
        return groups

    [group] = await tocsin.until(buried)
    assert (group["job"], group["count"]) == ("broken", 1)
    assert group["pattern"] == "ValueError: no rows for <n>"
    listed = (await client.get("/v1/dead-letters", params={"job": "broken"})).json()["dead_letters"]
    assert [letter["id"] for letter in listed] == [group["example"]]
    await client.post("/v1/jobs/other/resume")
    density = (await client.get("/v1/schedule/density", params={"hours": 2, "threshold": 2})).json()
    assert [(herd["count"], herd["jobs"]) for herd in density["herds"]] == [(2, ["greet", "other"])]
