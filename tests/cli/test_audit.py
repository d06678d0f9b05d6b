"""`tocsin audit` and `tocsin events export`: the proof, its text, and what it can be run over."""

import gzip
import json
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.cli.conftest import CallResult, World
from tests.domain.given import KEY
from tests.services.audit.test_defects import JOBS, time_passes, work
from tests.stages.world import World as Stages
from tocsin import subjects
from tocsin.adapters.commit_stored import CommitStoredLog
from tocsin.cli.events.commands import StreamName
from tocsin.domain import ids, ledger
from tocsin.domain.events import Due, Message, Recorded, Report, Started
from tocsin.engine.ledger_reader import LedgerReader
from tocsin.ports import StoredMessage
from tocsin.stages.recorder.stage import Recorder
from tocsin.subjects import STREAMS, Bucket, Stream
from tocsin.testing import InMemoryStoredLog

FUTURE = "execution.etl.0198.from-the-future"


@pytest.fixture
def stages() -> Stages:
    return Stages()


@pytest.fixture
def busy(world: World, stages: Stages) -> World:
    """A few seconds of every kind of job."""
    world.do(happen(stages))
    world.play(stages)
    return world


async def happen(stages: Stages) -> None:
    for job in JOBS:
        await stages.define(job)
    for _ in range(3):
        await time_passes(stages)
        await work(stages)
    await stages.trigger("etl", "one")
    await work(stages)
    await stages.run(stages.registrar)


def decide(busy: World, stages: Stages, event: Recorded[Message]) -> int:
    """Have an event in the log once more; return its number."""
    busy.do(stages.decide(event.subject, event.message.encode()))
    return stages.view.number


def test_a_log_in_order_is_clean(busy: World) -> None:
    result = busy.call("audit")
    assert result.code == 0
    assert result.out.strip().endswith("executions, 8 invariants: clean")


def test_an_empty_log_is_clean(world: World, stages: Stages) -> None:
    world.play(stages)
    result = world.call("audit")
    assert (result.code, result.out) == (0, "0 events, 0 executions, 8 invariants: clean\n")


def test_violation_is_reported_with_its_proof(busy: World, stages: Stages) -> None:
    [first, *_] = busy.recorded("ledger.locked.due")
    assert isinstance(first.message, Due)
    sequence = decide(busy, stages, first)
    result = busy.call("audit")
    assert result.code == 1
    lines = result.out.splitlines()
    [head] = [i for i, line in enumerate(lines) if line.startswith("I2  job locked: decided again: all up to")]
    assert lines[head + 1].startswith("    promised: each instant that a definition in force names is in one")
    assert lines[head + 2].startswith(f"    LEDGER {sequence} ledger.locked.due ")
    assert lines[-1].endswith("8 invariants: 1 violation")


def test_programs_are_given_all_of_it(busy: World, stages: Stages) -> None:
    [first, *_] = busy.recorded("ledger.locked.due")
    sequence = decide(busy, stages, first)
    result = busy.call("audit", "-o", "json")
    assert result.code == 1
    assert (result.json["clean"], result.json["violations_total"]) == (False, 1)
    [violation] = result.json["violations"]
    assert (violation["invariant"], violation["entity"]) == ("I2", "job locked")
    assert violation["facts"][0]["sequence"] == sequence
    assert result.json["invariants"].keys() == {"I1", "I2", "I3", "I4", "I5", "I6", "I7", "I9"}


def test_message_that_is_no_commit_is_remarked(busy: World, stages: Stages) -> None:
    for body in (b"\xff", b"no commit"):
        busy.do(stages.commits.receive(0, body))
    busy.do(_due(busy))
    result = busy.call("audit", "-o", "json")
    assert result.code == 0
    assert any("2 of the messages of the log are no commits" in remark for remark in result.json["remarks"])


def test_open_work_within_patience_is_no_violation(busy: World) -> None:
    at = busy.clock.now()
    busy.do(_due(busy))
    reason = "nothing has become of ledger.locked.due yet: "
    result = busy.call("audit", "-o", "json")
    assert result.code == 0
    assert any(debt["reason"].startswith(reason) for debt in result.json["under_way"])
    assert f"under way: {len(result.json['under_way'])}, the oldest since 2026-01-01" in busy.call("audit").out
    result = busy.call("audit", "--patience", "0s")
    assert result.code == 1
    assert f"I2  job locked: {reason}" in result.out
    before = busy.call("audit", "--until", at.isoformat(), "-o", "json")
    assert not any(debt["reason"].startswith(reason) for debt in before.json["under_way"])


async def _due(world: World) -> None:
    """Another instant is due, and no stage plans an execution for it."""
    world.clock.advance(1)
    state, sequence = await LedgerReader(world.log).load("locked")
    for fact in ledger.decide_instants(state, world.clock.now()):
        sequence = await world.log.append(fact, expect=sequence)


def test_one_job_is_audited(busy: World, stages: Stages) -> None:
    [first, *_] = busy.recorded("ledger.locked.due")
    decide(busy, stages, first)
    assert busy.call("audit", "--job", "free").code == 0
    assert busy.call("audit", "--job", "locked").code == 1
    unknown = busy.call("audit", "--job", "fre")
    assert (unknown.code, "job 'fre' does not exist" in unknown.err) == (3, True)


def test_what_was_stored_lately_is_audited(busy: World, stages: Stages) -> None:
    [first, *_] = busy.recorded("execution.locked.*.started.>")
    assert isinstance(first.message, Started)
    decide(busy, stages, first)
    assert busy.call("audit").code == 1
    busy.clock.advance(60)
    later = busy.clock.now()
    busy.do(_due(busy))
    result = busy.call("audit", "--since", later.isoformat(), "-o", "json")
    assert (result.code, result.json["clean"], result.json["executions"]) == (0, True, 0)


def test_what_cannot_be_read_is_remarked(busy: World, stages: Stages) -> None:
    stages.inputs.receive("trigger.etl", b"\xff")
    [remark] = busy.call("audit", "-o", "json").json["remarks"]
    assert "1 of the messages of REQUESTS, where the API and operators may publish, cannot be read" in remark


def test_hostile_reports_hide_no_finding(busy: World, stages: Stages) -> None:
    """A worker stores reports that no version reads, and reports that the stages do not believe."""
    [started, *_] = busy.recorded("execution.locked.*.started.>")
    assert isinstance(started.message, Started)
    fields = started.message.document(include={"job", "execution_id", "step", "attempt"})
    token = ids.report_token(KEY, started.message.execution_id, started.message.step, started.message.attempt)
    for number in range(3):
        forged = Report(outcome="completed", token=token, claim=number + 1, proof="0" * 32, **fields)
        stages.inputs.receive(subjects.subject_of(forged), forged.encode())
        stages.inputs.receive(f"report.x.{number}", b"no json")
    result = busy.call("audit", "-o", "json")
    assert result.code == 0
    unreadable, unproven = result.json["remarks"]
    assert unreadable.startswith("3 of the messages of REPORTS, where all workers may publish, cannot be read")
    assert unproven.startswith("3 of the messages of REPORTS, where all workers may publish, prove no claim")


def test_log_without_its_beginning_fails_the_audit(busy: World, stages: Stages) -> None:
    busy.do(stages.commits.purge(0, upto=1))
    result = busy.call("audit", "-o", "json")
    assert result.out, result.err
    [reason] = [found["reason"] for found in result.json["violations"] if found["invariant"] == "I9"]
    assert (result.code, reason) == (1, "commits before sequence 2 were removed, and no archive holds them")


def test_unreadable_decision_fails_the_audit(busy: World, stages: Stages) -> None:
    busy.do(stages.decide(FUTURE, b"{}"))
    sequence = stages.view.number
    result = busy.call("audit")
    assert result.code == 1
    assert f"I9  message {sequence} of LOG: this version cannot read it" in result.out


def test_the_history_and_the_projections_are_compared(busy: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.services.audit.read_models.LOOKS", (0.0,))  # the clock of this world stands still
    busy.do(_record(busy))
    result = busy.call("audit", "--history")
    assert (result.code, result.out.strip().endswith("9 invariants: clean")) == (0, True), result.out
    busy.do(busy.projections.put(Bucket.DEFINITIONS, "ghost", b"{}"))
    result = busy.call("audit", "--history")
    assert result.code == 1
    assert "I8  job ghost: KV `definitions` shows it, but the job does not exist" in result.out


async def _record(world: World) -> None:
    async with world.history() as history:
        recording = Recorder(world.log, history, world.clock, Stream.LOG, gathering=0, past=None).recorded()
        await anext(recording)


@pytest.mark.parametrize(
    ("args", "result"),
    [
        (["--patience", "soon"], "error: --patience is 'soon': "),
        (
            ["--since", "yesterday"],
            "error: --since is 'yesterday': write an ISO date and time such as 2026-11-20T09:00",
        ),
        (
            ["--history", "--job", "a"],
            "error: --history compares with the whole log: omit --file, --job and --since",
        ),
    ],
)
def test_invalid_selection_is_refused(world: World, args: list[str], result: str) -> None:
    answer = world.call("audit", *args)
    assert answer.code == 2
    assert answer.err.startswith(result)


def test_export_and_log_give_the_same_report(busy: World, stages: Stages) -> None:
    """With a defect, so that there is something to be the same."""
    [first, *_] = busy.recorded("ledger.locked.due")
    decide(busy, stages, first)
    for name in ("log.jsonl", "log.jsonl.gz"):
        result = busy.call("events", "export", "--out", name)
        assert (result.code, result.out) == (0, f"exported {_messages(busy):,} messages to {name}\n")
        live, file = busy.call("audit", "-o", "json"), busy.call("audit", "--file", name, "-o", "json")
        assert (file.code, live.code) == (1, 1)
        assert judged(file) == judged(live)


def test_export_is_reproducible_and_can_be_piped(busy: World) -> None:
    for name in ("one.gz", "other.gz", "plain"):
        assert busy.call("events", "export", "--out", name).code == 0
    assert Path("one.gz").read_bytes() == Path("other.gz").read_bytes()
    assert gzip.decompress(Path("one.gz").read_bytes()) == Path("plain").read_bytes()
    assert busy.call("events", "export").out == Path("plain").read_text("utf-8")


def test_an_export_can_be_a_part(busy: World) -> None:
    job = _lines(busy, "--job", "etl")
    assert {line["subject"].split(".")[1] for line in job if line["subject"].startswith("execution")} == {"etl"}
    assert {line["stream"] for line in _lines(busy, "--stream", "LEDGER")} == {"LEDGER"}
    assert get_args(StreamName) == tuple(map(str, STREAMS))
    began = busy.clock.now() - timedelta(seconds=1)
    late = [line for line in _lines(busy, "--since", began.isoformat()) if not line["subject"].endswith(".defined")]
    assert late
    assert all(line["time"] >= began.isoformat() for line in late)
    early = _lines(busy, "--until", (began - timedelta(microseconds=1)).isoformat())
    assert len(early) + len(late) == _messages(busy)


def judged(result: CallResult) -> dict[str, Any]:
    """Return a report but for I9: an export holds no commits."""
    return {**result.json, "invariants": result.json["invariants"].keys() - {"I9"}}


def _lines(world: World, *args: str) -> list[dict[str, Any]]:
    result = world.call("events", "export", *args)
    assert result.code == 0
    return [json.loads(line) for line in result.out.splitlines()[1:-1]]


def _messages(world: World) -> int:
    async def count() -> int:
        pages = [world.stored.messages(stream, upto=10**9) for stream in STREAMS]
        return sum([len(page) for each in pages async for page in each])

    return world.do(count())


def test_export_of_one_job_is_audited_as_partial(busy: World) -> None:
    assert busy.call("events", "export", "--job", "etl", "--out", "etl").code == 0
    live, file = busy.call("audit", "--job", "etl", "-o", "json"), busy.call("audit", "--file", "etl", "-o", "json")
    assert judged(file) == judged(live)
    result = busy.call("audit", "--file", "etl", "--job", "free", "-o", "json")
    assert result.failure == (3, "job-not-in-export")


def test_a_file_that_cannot_be_audited_is_refused(busy: World) -> None:
    assert busy.call("events", "export", "--out", "whole").code == 0
    whole = Path("whole").read_bytes()
    Path("cut").write_bytes(whole[: len(whole) // 2])
    result = busy.call("audit", "--file", "cut", "-o", "json")
    assert result.failure == (2, "truncated-export")
    assert result.out == ""
    result = busy.call("audit", "--file", "nothing", "-o", "json")
    assert result.failure == (2, "unreadable-file")
    assert busy.call("events", "export", "--stream", "LOG", "--out", "half").code == 0
    result = busy.call("audit", "--file", "half", "-o", "json")
    assert result.failure == (2, "stream-missing")
    assert all(stream in result.error["message"] for stream in ("LEDGER", "REPORTS"))


def test_where_nothing_can_be_written_nothing_is(busy: World) -> None:
    result = busy.call("events", "export", "--out", "missing/log", "-o", "json")
    assert result.failure == (3, "unwritable-file")


def test_half_an_export_is_no_file(busy: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: StoredMessage) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tocsin.archive.export.encode", fail)
    result = busy.call("events", "export", "--out", "log", "-o", "json")
    assert result.failure == (3, "unwritable-file")
    assert [path.name for path in Path().iterdir() if "log" in path.name] == []


@pytest.mark.parametrize("command", ["events export --out log", "events export", "audit"])
def test_read_of_a_lagging_replica_is_no_answer(busy: World, stages: Stages, command: str) -> None:
    past = stages.past
    busy.stored = CommitStoredLog(InMemoryStoredLog(stages.inputs, lag=1), past.commits, past._archive, past._end)
    result = busy.call(*command.split(), "-o", "json")
    assert result.failure == (1, "stale-read")
    assert [path.name for path in Path().iterdir() if "log" in path.name] == []
