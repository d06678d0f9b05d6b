"""`tocsin events replay`: the state as of a moment, from the log or an export of it."""

from typing import Any

import pytest

from tests.cli.conftest import World
from tests.cli.test_audit import busy, stages
from tocsin.domain.events import Completed, ExecutionFact, Started

__all__ = ["busy", "stages"]  # the fixtures


def replayed(world: World, *args: str) -> Any:  # noqa: ANN401 - JSON
    result = world.call("events", "replay", *args, "-o", "json")
    assert result.code == 0, result.err
    return result.json


def test_everything_as_of_now(busy: World) -> None:
    result = replayed(busy)
    assert result["jobs"] == {"active": 3, "on demand": 2}
    assert result["executions"]["completed"] > 0
    page = busy.call("events", "replay").out.splitlines()
    assert page[0].startswith("as of 2026-01-01 00:00:")
    assert page[1] == "jobs        3 active, 2 on demand"


def test_an_execution_as_of_each_of_its_facts(busy: World) -> None:
    [first, *_] = busy.recorded("execution.etl.>")
    assert isinstance(first.message, ExecutionFact)
    of_it = busy.recorded(f"execution.etl.{first.message.execution_id}.>")
    started = next(recorded for recorded in of_it if isinstance(recorded.message, Started))
    ended = next(recorded for recorded in of_it if isinstance(recorded.message, Completed))
    result = [
        replayed(busy, "--execution", first.message.execution_id, "--until", f"LOG:{sequence}")
        for sequence in (first.sequence, started.sequence, ended.sequence - 1, ended.sequence)
    ]
    assert [one["status"] for one in result] == ["pending", "running", "running", "completed"]
    assert [len(one["facts"]) for one in result] == [1, 3, len(of_it) - 1, len(of_it)]


def test_an_execution_that_was_not_there_yet(busy: World) -> None:
    [first, *_] = busy.recorded("execution.etl.>")
    assert isinstance(first.message, ExecutionFact)
    result = busy.call("events", "replay", "--execution", first.message.execution_id, "--until", "LOG:1", "-o", "json")
    assert result.failure == (3, "execution-not-found")


def test_a_job_as_it_was(busy: World) -> None:
    before = busy.clock.now()
    busy.clock.advance(1)
    assert busy.call("jobs", "pause", "free").code == 0
    assert replayed(busy, "--job", "free")["paused"] is True
    was = replayed(busy, "--job", "free", "--until", before.isoformat())
    assert was["paused"] is False
    assert was["ledger"]["last_fired"] is not None
    page = busy.call("events", "replay", "--job", "free").out.splitlines()
    assert page[1] == "free  paused"
    result = busy.call("events", "replay", "--job", "fre", "-o", "json")
    assert result.failure == (3, "job-not-found")


def test_export_gives_the_same_state(busy: World) -> None:
    assert busy.call("events", "export", "--out", "log").code == 0
    [first, *_] = busy.recorded("execution.etl.>")
    assert isinstance(first.message, ExecutionFact)
    for args in ([], ["--job", "locked"], ["--execution", first.message.execution_id], ["--until", "LEDGER:3"]):
        assert replayed(busy, *args, "--file", "log") == replayed(busy, *args)


@pytest.mark.parametrize(
    ("args", "result"),
    [
        (["--until", "LAG:1"], "error: --until is 'LAG:1': write an ISO date and time such as"),
        (["--execution", "a.b"], "error: --execution is 'a.b': an id has only letters, digits and hyphens"),
        (["--file", "nothing"], "error: nothing: no such file or directory"),
    ],
)
def test_invalid_moment_is_refused(world: World, args: list[str], result: str) -> None:
    answer = world.call("events", "replay", *args)
    assert answer.code in {2, 3}
    assert answer.err.startswith(result)
