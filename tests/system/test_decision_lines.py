"""The log lines of processes: how an execution went, and how it ended."""

import asyncio
import io
import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import structlog

from tests.conformance.given import cron_triggered, due
from tests.domain.given import ID, JOB, NOON, admitted, started
from tests.system.running import running
from tocsin import Context, NonRetryableError, Worker, telemetry
from tocsin.adapters import decision_lines
from tocsin.domain import ids
from tocsin.domain.events import Completed, Completion, Failed, Message, Skipped
from tocsin.engine.public_events import required_event
from tocsin.ports import Append, Publish
from tocsin.telemetry import trace_ids

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"
RETRY = {"max_attempts": 2, "initial_delay": "10ms"}


pytestmark = pytest.mark.usefixtures("restored_logging")


async def lines_of(level: telemetry.Level, url: str, folder: Path) -> list[dict[str, Any]]:
    """Run a job that completes at its second attempt, and one that fails; return the lines."""
    worker, stream = Worker(), io.StringIO()

    @worker.task("load")
    async def load(context: Context) -> None:
        structlog.get_logger("my.program").warning("reading")
        if context.attempt == 1:
            raise ConnectionError("away")

    @worker.task("break")
    def break_(_: Context) -> None:
        structlog.get_logger("my.program").warning("breaking")
        raise NonRetryableError("no\x1b[31m such table" + "!" * 1_000)

    async with running(url, folder, worker=worker) as tocsin:
        telemetry.configure(level, "json", stream=stream)
        await tocsin.apply({"name": "etl", "function": "load", "retry": RETRY})
        await tocsin.apply({"name": "broken", "function": "break"})
        await tocsin.trigger("etl", input={"password": "hunter2"}, traceparent=TRACEPARENT)
        await tocsin.ended("etl", Completed)
        await tocsin.trigger("broken")
        await tocsin.ended("broken", Failed)
    assert "hunter2" not in stream.getvalue()
    return [json.loads(line) for line in stream.getvalue().splitlines()]


async def test_end_of_each_execution_has_one_line(nats_url: str, tmp_path: Path) -> None:
    lines = await lines_of("info", nats_url, tmp_path)
    [*registered, completed, failed] = [line for line in lines if line["logger"] == "tocsin.decisions"]
    assert [(line["action"], line["job"]) for line in registered] == [
        ("job-registered", "etl"),
        ("job-registered", "broken"),
    ]
    assert completed["duration_ms"] >= 10  # the delay of its retry
    assert (completed["action"], completed["job"], completed["step"]) == ("execution-completed", "etl", "main")
    assert (completed["attempt"], completed["stage"], completed["level"]) == (2, "dag_advancer", "info")
    assert (failed["action"], failed["job"], failed["stage"]) == ("execution-failed", "broken", "retrier")
    assert failed["error"].startswith("tocsin.worker.errors.NonRetryableError: no")
    assert len(failed["error"]) == 300
    assert (completed["trace_id"], failed.get("trace_id")) == (TRACE_ID, None)


async def test_lines_of_a_handler_name_its_attempt(nats_url: str, tmp_path: Path) -> None:
    lines = [line for line in await lines_of("info", nats_url, tmp_path) if line["logger"] == "my.program"]
    assert [(line["event"], line["job"], line["step"], line["attempt"]) for line in lines] == [
        ("reading", "etl", "main", 1),
        ("reading", "etl", "main", 2),
        ("breaking", "broken", "main", 1),
    ]
    assert len({line["execution_id"] for line in lines}) == 2
    assert [line.get("trace_id") for line in lines] == [TRACE_ID, TRACE_ID, None]


async def test_debug_lines_show_the_way_of_an_execution(nats_url: str, tmp_path: Path) -> None:
    lines = [line for line in await lines_of("debug", nats_url, tmp_path) if line["logger"] == "tocsin.decisions"]
    end = next(line for line in lines if line["action"] == "execution-completed")
    way = [line for line in lines if line.get("execution_id") == end["execution_id"]]
    stages = {line["action"]: line.get("stage") for line in way}
    assert stages.keys() == {  # a stage may write its line after another has gone on
        "acquired",
        "admitted",
        "started",
        "report",
        "retry-scheduled",
        "dispatched",
        "execution-completed",
        "cron.triggered",
    }
    assert {line.get("trace_id") for line in way} == {TRACE_ID}
    assert stages["admitted"] == "planner"
    assert stages["started"] == "matcher"
    assert stages["retry-scheduled"] == "retrier"
    assert stages["dispatched"] == "dag_advancer"


async def test_every_line_names_its_execution(nats_url: str, tmp_path: Path) -> None:
    """Lines of stages, of the worker and of handlers, also of libraries and threads, of a graph with a retry."""
    worker, stream = Worker(), io.StringIO()

    @worker.task("extract")
    def extract(context: Context) -> None:
        logging.getLogger("my.library").warning("in a thread")
        context.logger.info("extracting")

    @worker.task("load")
    async def load(context: Context) -> None:
        structlog.get_logger("my.program").warning("loading")
        if context.attempt == 1:
            raise ConnectionError("away")

    steps = [
        {"name": "extract", "function": "extract"},
        {"name": "load", "function": "load", "depends_on": ["extract"], "retry": RETRY},
    ]
    async with running(nats_url, tmp_path, worker=worker) as tocsin:
        telemetry.configure("debug", "json", stream=stream)
        await tocsin.apply({"name": "etl", "dag": steps})
        await tocsin.trigger("etl", input={"day": 1}, traceparent=TRACEPARENT)
        ended = await tocsin.ended("etl", Completed)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    execution_id = ended[0].execution_id
    way = [line for line in lines if execution_id in json.dumps(line)]
    of_execution = {"job": "etl", "execution_id": execution_id, "trace_id": TRACE_ID}
    assert [line for line in way if not line.items() >= of_execution.items()] == []
    assert {line["action"] for line in way if "step" not in line} == {"acquired", "admitted", "cron.triggered"}
    assert {line["step"] for line in way if "step" in line} == {"extract", "load"}
    assert {line["logger"] for line in way} >= {"my.library", "my.program", "tocsin.task", "tocsin.worker"}
    attempts = [line["attempt"] for line in way if line["logger"] == "my.program"]
    assert attempts == [1, 2]


async def test_lines_of_skips_and_dead_letters_name_theirs(nats_url: str, tmp_path: Path) -> None:
    worker, stream = Worker(), io.StringIO()
    begun, may_end = asyncio.Event(), asyncio.Event()

    @worker.task("wait")
    async def wait(_: Context) -> None:
        begun.set()
        await may_end.wait()

    @worker.task("break")
    def break_(_: Context) -> None:
        raise ConnectionError("away")

    async def is_dead_lettered() -> bool:
        return '"dead-letter' in stream.getvalue()

    broken = {"name": "first", "function": "break", "retry": RETRY}
    after = {"name": "next", "function": "wait", "depends_on": ["first"]}
    async with running(nats_url, tmp_path, worker=worker) as tocsin:
        telemetry.configure("debug", "json", stream=stream)
        await tocsin.apply({"name": "busy", "function": "wait", "overlap_policy": "skip"})
        await tocsin.apply({"name": "broken", "dag": [broken, after], "dead_letter": True})
        for _ in range(2):
            await tocsin.trigger("busy", input={"day": 1}, traceparent=TRACEPARENT)
            await begun.wait()
        [skipped] = await tocsin.ended("busy", Skipped)
        await tocsin.trigger("broken", input={"day": 1}, traceparent=TRACEPARENT)
        [failed] = await tocsin.ended("broken", Failed)
        await tocsin.until(is_dead_lettered)
        may_end.set()
        [completed] = await tocsin.ended("busy", Completed)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    actions, stages = dict[str, set[str]](), set[str]()
    for end in (skipped, failed, completed):
        way = [line for line in lines if end.execution_id in json.dumps(line)]
        of_execution = {"job": end.job, "execution_id": end.execution_id, "trace_id": TRACE_ID}
        assert [line for line in way if not line.items() >= of_execution.items()] == []
        actions[end.type] = {line["action"] for line in way}
        stages |= {line["stage"] for line in way if "stage" in line}
        about_all_steps = {"acquired", "planned", "admitted", "execution-skipped", "dead-lettered"}
        about_all_steps |= {"cron.answer", "cron.skipped", "cron.triggered"}
        assert {line["action"] for line in way if "step" not in line} <= about_all_steps
    assert actions["skipped"] == {"planned", "execution-skipped", "cron.answer", "cron.skipped"}
    assert actions["failed"] >= {
        "started",
        "attempt-failed",
        "report",
        "retry-scheduled",
        "dispatched",
        "dead-lettered",
        "cron.triggered",
    }
    assert stages >= {"planner", "lock_keeper", "dag_advancer", "matcher", "retrier", "dead_letter_sink"}


@pytest.mark.parametrize(
    ("field", "text", "ids"),
    [
        ("subject", f"execution.a_b.{ID}.started.load.2", {"job": "a.b", "step": "load", "attempt": 2}),
        ("subject", f"execution.a_b.{ID}.exhausted.load", {"job": "a.b", "step": "load"}),
        ("subject", f"execution.a_b.{ID}.completed.locked", {"job": "a.b"}),
        ("scope", f"execution.a_b.{ID}.>", {"job": "a.b"}),
        ("subject", f"report.a_b.{ID}.failed.load.2.seal.7", {"job": "a.b", "step": "load", "attempt": 2}),
        ("subject", f"execution.a_b.{ID}.lease-extended.load", {"job": "a.b", "step": "load"}),
        ("subject", f"heartbeat.a_b.{ID}.load.2.seal", {"job": "a.b", "step": "load", "attempt": 2}),
    ],
)
def test_line_about_a_message_names_its_execution(field: str, text: str, ids: dict[str, object]) -> None:
    trace_ids.note(admitted().changed(job=ids["job"], traceparent=TRACEPARENT))
    stream = io.StringIO()
    telemetry.configure("info", "json", stream=stream)
    telemetry.get_logger("tocsin.test").info("handler failed", **{field: text})
    [line] = [json.loads(line) for line in stream.getvalue().splitlines()]
    names = ("job", "execution_id", "step", "attempt", "trace_id")
    assert {name: line[name] for name in names if name in line} == {**ids, "execution_id": ID, "trace_id": TRACE_ID}


@pytest.mark.parametrize("subject", ["ledger.etl.due", "cron.triggered.etl", "lock.etl.acquired", "", "execution.etl"])
def test_line_about_another_subject_names_none(subject: str) -> None:
    stream = io.StringIO()
    telemetry.configure("info", "json", stream=stream)
    telemetry.get_logger("tocsin.test").info("handler failed", subject=subject)
    [line] = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert line.keys().isdisjoint({"execution_id", "step", "trace_id"})


def test_same_id_of_another_job_shows_no_duration() -> None:
    stream = io.StringIO()
    telemetry.configure("info", "json", stream=stream)
    end = Completed(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="api")
    for event in (started(), end.changed(job="other"), end):
        decision_lines.write_lines(Append((event,), 0), [7])
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["job"], "duration_ms" in line) for line in lines] == [("other", False), (JOB, True)]


def test_answer_sent_again_shows_no_json() -> None:
    stream = io.StringIO()
    telemetry.configure("debug", "json", stream=stream)
    answer = Completion(status="failed", step="load", error="no such table", worker={"name": "x" * 5_000}, attempt=2)
    decision_lines.write_lines(Publish("mq.scheduler.complete.etl", answer, "m1"), [7])
    [line] = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert (line["subject"], line["step"], line["attempt"]) == ("mq.scheduler.complete.etl", "load", 2)
    assert line.keys().isdisjoint({"worker", "error"})


def test_line_about_a_public_event_names_its_execution() -> None:
    stream = io.StringIO()
    telemetry.configure("debug", "json", stream=stream)
    event = cron_triggered()
    event = event.changed(data=event.data.changed(job_id=ID, traceparent=TRACEPARENT))
    decision_lines.write_lines(Append((event,), 0), [7])
    [line] = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert (line["action"], line["job"], line["execution_id"]) == ("cron.triggered", event.data.cron_name, ID)
    assert line["trace_id"] == TRACE_ID


def lines_at_debug(*events: Message) -> list[dict[str, Any]]:
    """Return the lines about events that are stored one after another."""
    stream = io.StringIO()
    telemetry.configure("debug", "json", stream=stream)
    for event in events:
        decision_lines.note(Append((event,), 0), [7])
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_due_instant_names_its_execution() -> None:
    [line] = lines_at_debug(due())
    assert (line["action"], line["execution_id"]) == ("due", ids.occurrence_id(due().job, due().scheduled_time))


@pytest.mark.parametrize("shard", [None, "eu"])
def test_announced_skip_names_its_execution(shard: str | None) -> None:
    skipped = Skipped(
        job="etl",
        execution_id=ID,
        reason="overlap_skip",
        scheduled_time=NOON,
        trigger="cron",
        definition=1,
        shard=shard,
    )
    event = required_event(skipped, sequence=7, now=NOON)
    assert event is not None
    lines = lines_at_debug(skipped, event.make(0))
    assert [(line["action"], line["execution_id"]) for line in lines] == [
        ("execution-skipped", ID),
        ("cron.skipped", ID),
    ]


@pytest.mark.parametrize(
    ("trigger", "reason", "lines"), [("cron", "disabled", 0), ("api", "disabled", 1), ("cron", "overlap_skip", 1)]
)
def test_times_of_a_paused_job_have_no_line(trigger: Any, reason: Any, lines: int) -> None:  # noqa: ANN401 - literals
    stream = io.StringIO()
    telemetry.configure("info", "json", stream=stream)
    skipped = Skipped(
        job="etl",
        execution_id="019b76da-a800-71c3-a894-9a143bb3a966",
        reason=reason,
        scheduled_time=datetime(2026, 1, 1, tzinfo=UTC),
        trigger=trigger,
        definition=1,
    )
    decision_lines.write_lines(Append((skipped,), 0), [7])
    assert len(stream.getvalue().splitlines()) == lines
