"""The id of an occurrence that fanned out stands for the executions on its shards."""

from collections.abc import Iterator
from typing import Final

import pytest

from tests.cli.test_remote import call
from tests.domain.given import NOON, admitted, plan
from tests.http.conftest import World
from tests.http.served import served
from tocsin.domain import ids
from tocsin.domain.events import Admitted, Cancelled, Completed, Failed, Failure, FannedOut, Message, validated
from tocsin.subjects import Stream

ROOT: Final = ids.occurrence_id("nightly", NOON)
SHARDS: Final = ("a", "b", "c", "d")


def execution_id(shard: str) -> str:
    return ids.shard_execution_id(ROOT, shard)


async def prepare(world: World) -> None:
    """Shard a completed, b failed, c runs, and d has not begun."""
    await world.given(name="nightly")
    definition = (await world.log.load("ledger.nightly.defined"))[-1].sequence
    fanned = FannedOut(
        job="nightly",
        execution_id=ROOT,
        scheduled_time=NOON,
        trigger="cron",
        definition=definition,
        map=3,
        shards=SHARDS,
    )
    await world.log.append(fanned, expect=0)
    ends: dict[str, type[Completed | Failed] | None] = {"a": Completed, "b": Failed, "c": None}
    for shard, end in ends.items():
        sequence = 0
        for event in (begun(shard, definition), *([] if end is None else [ended(shard, end)])):
            sequence = await world.log.append(event, expect=sequence)
    facts = await world.log.read("execution.>")
    await world.history.record(Stream.LOG, facts, after=0, upto=facts[-1].sequence)


def begun(shard: str, definition: int) -> Admitted:
    divided = plan().changed(shard=shard, occurrence=ROOT, definition=definition)
    return admitted(divided).changed(job="nightly", execution_id=execution_id(shard))


def ended(shard: str, kind: type[Completed] | type[Failed]) -> Message:
    error = {"error": Failure(type="ValueError", message="no")} if kind is Failed else {}
    fields = {"job": "nightly", "execution_id": execution_id(shard), "scheduled_time": NOON, "trigger": "cron"}
    return validated(kind, {**fields, "shard": shard, **error})


@pytest.fixture
async def divided(world: World) -> World:
    await prepare(world)
    return world


async def test_occurrence_counts_its_executions(divided: World) -> None:
    shown = (await divided.ask("GET", f"/v1/executions/{ROOT}")).json()
    assert (shown["status"], shown["definition"]) == ("running", 1)
    assert shown["fan_out"]["map"] == 3
    assert [(run["shard"], run["status"]) for run in shown["fan_out"]["runs"]] == [
        ("a", "completed"),
        ("b", "failed"),
        ("c", "pending"),
        ("d", "pending"),
    ]
    assert shown["fan_out"]["counts"] == {"completed": 1, "failed": 1, "pending": 2}
    one = (await divided.ask("GET", f"/v1/executions/{execution_id('b')}")).json()
    assert (one["shard"], one["occurrence_id"], one["fan_out"]) == ("b", ROOT, None)


async def test_executions_of_an_occurrence_are_listed(divided: World) -> None:
    listed = (await divided.ask("GET", f"/v1/executions?occurrence={ROOT}")).json()["executions"]
    assert sorted(row["shard"] for row in listed) == ["a", "b", "c"]
    assert (await divided.ask("GET", "/v1/executions?occurrence=other")).json()["executions"] == []


async def test_cancelling_an_occurrence_cancels_what_is_open(divided: World) -> None:
    for changed in (True, False):  # shard d has not begun, so that the request waits for it
        answer = (await divided.ask("POST", f"/v1/executions/{ROOT}/cancel", {"reason": "wrong"})).json()
        assert (answer["execution_id"], answer["changed"]) == (ROOT, changed)
    cancelled = [fact.message for fact in await divided.facts("execution.*.*.cancelled")]
    assert [(fact.shard, fact.reason) for fact in cancelled if isinstance(fact, Cancelled)] == [("c", "wrong")]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("served"), prepare) as address:
        yield address


def test_command_shows_the_state_of_all(url: str) -> None:
    shown = call(url, "executions", "show", ROOT).out
    assert "running, 1 of 4 completed, 1 failed, 2 pending" in shown
    assert "on 4 shards" in shown
    assert "ValueError: no" in shown
    listed = call(url, "-o", "json", "executions", "list", "--occurrence", ROOT).json
    assert {row["shard"] for row in listed} == {"a", "b", "c"}
    assert "on shard b" in call(url, "executions", "show", execution_id("b")).out


async def test_ojs_has_no_job_of_an_occurrence(divided: World) -> None:
    assert (await divided.ask("GET", f"/ojs/v1/jobs/{ROOT}")).status_code == 404
    assert (await divided.ask("GET", f"/ojs/v1/jobs/{execution_id('a')}")).json()["job"]["meta"]["shard"] == "a"
