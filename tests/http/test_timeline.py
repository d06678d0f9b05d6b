"""`/v1/jobs/{name}/timeline` over the in-memory installation."""

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from tests.domain.given import plan
from tests.http.conftest import World
from tocsin import subjects
from tocsin.adapters.memory.clock import START
from tocsin.domain import ids, ledger
from tocsin.domain.access import Role
from tocsin.domain.events import Actor, Admitted, Cancelled, Due, validated
from tocsin.engine.ledger_reader import LedgerReader
from tocsin.ports import ExecutionRow
from tocsin.ports.queries import ExecutionQuery, Page
from tocsin.services.timeline import reader
from tocsin.subjects import Stream

HOUR = timedelta(hours=1)


async def passes(world: World, hours: float, *, runs: bool = True) -> None:
    """Let time pass, decide on it, and cancel each execution."""
    world.clock.advance(hours * 3_600)
    state, _ = await LedgerReader(world.log).load("job")
    for fact in ledger.decide_instants(state, world.clock.now()):
        await world.log.append(fact, expect=await world.log.tail(subjects.ledger("job")))
        if isinstance(fact, Due) and runs:
            await run(world, ids.occurrence_id("job", fact.scheduled_time), "cron", fact)


async def run(world: World, execution_id: str, trigger: str, fact: Due) -> None:
    """Store an execution that ends at once."""
    of = {"job": "job", "execution_id": execution_id, "scheduled_time": fact.scheduled_time, "trigger": trigger}
    planned = plan().changed(definition=fact.definition)
    first = await world.log.append(validated(Admitted, {**of, "plan": planned}), expect=0)
    await world.log.append(validated(Cancelled, {**of, "reason": "by hand"}), expect=first)


async def record(world: World) -> None:
    """Record everything in the history."""
    for stream, filter_subject in ((Stream.LEDGER, "ledger.>"), (Stream.LOG, "execution.>")):
        after = await world.history.offset(stream)
        while facts := await world.log.read(filter_subject, after=after):
            await world.history.record(stream, facts, after=after, upto=facts[-1].sequence)
            after = facts[-1].sequence


async def timeline(world: World, token: str | None = None, name: str = "job", **query: str | int) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    parameters: dict[str, str | int] = {"since": START.isoformat(), "until": (START + 6 * HOUR).isoformat(), **query}
    answer = await world.client.get(f"/v1/jobs/{name}/timeline", params=parameters, headers=headers)
    assert answer.status_code == 200, answer.text
    shown: dict[str, Any] = answer.json()
    return shown


async def test_instants_are_marks_with_their_decision(world: World) -> None:
    await world.given(schedule="0 * * * *", timezone="Europe/Berlin", catch_up="skip")
    await passes(world, 1)
    await world.registry.pause("job", by=Actor(identity="ada", kind="user"), reason="too loud")
    await passes(world, 1)
    await world.registry.resume("job")
    await passes(world, 1.5, runs=False)
    await run(
        world,
        "11111111-1111-7111-8111-111111111111",
        "manual",
        Due(job="job", scheduled_time=START + 1.2 * HOUR, definition=1),
    )
    await record(world)
    shown = await timeline(world)
    assert [(mark["at"], mark["decision"], mark["status"], mark["reason"]) for mark in shown["marks"]] == [
        ("2026-01-01T01:00:00Z", "cancelled", "cancelled", "by hand"),
        ("2026-01-01T01:12:00Z", "trigger", "cancelled", "manual"),
        ("2026-01-01T02:00:00Z", "paused", None, "too loud"),
        ("2026-01-01T03:00:00Z", "missed", None, None),
        ("2026-01-01T04:00:00Z", "future", None, None),
        ("2026-01-01T05:00:00Z", "future", None, None),
    ]
    assert (shown["buckets"], shown["truncated"], shown["timezone"]) == (None, False, "Europe/Berlin")
    assert [(version["kind"], version["by"], version["reason"]) for version in shown["versions"]] == [
        ("defined", None, None),
        ("paused", "user:ada", "too loud"),
        ("resumed", None, None),
    ]
    for mark in shown["marks"]:
        if mark["decision"] != "trigger":
            [why] = (await world.ask("GET", f"/v1/jobs/job/why?time={mark['at']}")).json()["answers"]
            assert why["verdict"] == ("fired" if mark["status"] else mark["decision"])


async def test_many_instants_are_counted(world: World) -> None:
    await world.given(schedule="* * * * * *")
    await passes(world, 100 / 3_600)
    await record(world)
    shown = await timeline(world, buckets=6)
    assert shown["marks"] is None
    assert [bucket["start"] for bucket in shown["buckets"]] == [f"2026-01-01T0{hour}:00:00Z" for hour in range(6)]
    total = Counter[str]()
    for bucket in shown["buckets"]:
        total.update(bucket["counts"])
    assert sum(total.values()) == 6 * 3_600 - 1
    assert total == {"cancelled": 3, "missed": 97, "future": 6 * 3_600 - 101}  # instants fire in time up to 2 seconds


async def test_hidden_job_has_no_timeline(world: World) -> None:
    await world.given(owner="token:ann", viewers=["token:bob"])
    eve = await world.token("eve", Role.VIEWER)
    bob = await world.token("bob", Role.VIEWER)
    headers = {"Authorization": f"Bearer {eve}"}
    hidden = await world.client.get("/v1/jobs/job/timeline", headers=headers)
    absent = await world.client.get("/v1/jobs/joc/timeline", headers=headers)
    assert hidden.status_code == absent.status_code == 404
    assert hidden.json() == {**absent.json(), "detail": absent.json()["detail"].replace("joc", "job")}
    assert await timeline(world, bob)


@pytest.mark.parametrize("schedule", ["0 * * * *", "* * * * * *"])
async def test_earlier_registration_of_others_is_left_out(world: World, schedule: str) -> None:
    await world.given(schedule=schedule, owner="token:ann", viewers=["token:bob"])
    await passes(world, 1)
    await world.registry.delete("job")
    world.clock.advance(1_800)
    await world.given(schedule="0 * * * *", owner="token:eve")
    await passes(world, 1)
    await record(world)
    eve, bob = await world.token("eve", Role.VIEWER), await world.token("bob", Role.VIEWER)
    admin = await world.token("root", Role.ADMIN)
    for hidden_until, token in ((2, eve), (0, bob), (0, admin)):
        shown = await timeline(world, token, until=(START + 3 * HOUR).isoformat())
        times = [mark["at"] for mark in shown["marks"] or ()]
        times += [bucket["start"] for bucket in shown["buckets"] or () if bucket["counts"]]
        assert min(times) >= (START + hidden_until * HOUR).isoformat().replace("+00:00", "Z")
        assert len(shown["versions"]) == (1 if hidden_until else 3)


async def test_hidden_executions_are_not_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page of them would be read only to be left out."""
    await world.given(owner="token:ann", viewers=["token:bob"])
    await passes(world, 16)
    await world.registry.delete("job")
    world.clock.advance(1_800)
    await world.given(owner="token:eve")
    await record(world)
    pages: list[ExecutionQuery] = []
    executions = world.history.executions

    async def counted(query: ExecutionQuery) -> Page[ExecutionRow]:
        pages.append(query)
        return await executions(query)

    monkeypatch.setattr(world.history, "executions", counted)
    tokens = [await world.token("root", Role.ADMIN), await world.token("eve", Role.VIEWER)]
    shown = [await timeline(world, token, until=(START + 20 * HOUR).isoformat()) for token in tokens]
    assert ["cancelled" in [mark["decision"] for mark in each["marks"]] for each in shown] == [True, False]
    assert len(pages) == 1


@pytest.mark.parametrize(
    ("buckets", "others", "shape", "reads"),
    [(120, 600, "marks", 1), (2, 600, "buckets", 500), (2, 499, "buckets", 500), (2, 498, "marks", 500)],
)
async def test_few_hidden_executions_are_read(
    world: World, monkeypatch: pytest.MonkeyPatch, buckets: int, others: int, shape: str, reads: int
) -> None:
    """Only those of hidden definitions that are among the others are read, and not more than a limit."""
    monkeypatch.setattr(reader, "MAX_READ", 500)
    await world.given(schedule="0 * * * *", owner="token:ann", viewers=["token:bob"])
    await passes(world, 1)
    [due] = [fact.message for fact in await world.facts("ledger.>") if isinstance(fact.message, Due)]
    for number in range(others):
        at = START + number * timedelta(seconds=1)
        await run(world, ids.occurrence_id("job", at), "cron", due.model_copy(update={"scheduled_time": at}))
    await world.registry.delete("job")
    world.clock.advance(1_800)
    await world.given(schedule="0 * * * *", owner="token:eve")
    await passes(world, 0.5)
    await record(world)
    pages: list[Page[ExecutionRow]] = []
    executions = world.history.executions

    async def counted(query: ExecutionQuery) -> Page[ExecutionRow]:
        pages.append(await executions(query))
        return pages[-1]

    monkeypatch.setattr(world.history, "executions", counted)
    until = (START + 3 * HOUR).isoformat()
    shown = await timeline(world, await world.token("eve", Role.VIEWER), until=until, buckets=buckets)
    counts = Counter[str]()
    if shape == "marks":
        counts.update(mark["decision"] for mark in shown["marks"])
    else:
        for bucket in shown["buckets"]:
            counts.update(bucket["counts"])
    assert sum(len(page.rows) for page in pages) == reads
    assert counts["cancelled"] == 1


async def test_history_that_expired_is_said(world: World) -> None:
    await world.given(schedule="* * * * * *", retention=3_600)
    await passes(world, 100 / 3_600)
    await record(world)
    assert not (await timeline(world))["truncated"]
    world.clock.advance(2 * 3_600)
    assert (await timeline(world))["truncated"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"since": "2026-01-02", "until": "2026-01-01"}, "until"),
        ({"since": "1000-01-01"}, "since"),
        ({"buckets": 1}, "buckets"),
        ({"buckets": 501}, "buckets"),
        ({"since": "yesterday"}, "since"),
    ],
)
async def test_invalid_query_is_refused(world: World, query: dict[str, str], field: str) -> None:
    await world.given()
    answer = await world.client.get("/v1/jobs/job/timeline", params={"until": "2026-02-01", **query})
    assert answer.status_code == 422
    assert field in answer.text
