"""The log lines of processes: how an execution went, and how it ended."""

import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import structlog

from tests.system.running import running
from tocsin import Context, NonRetryableError, Worker, telemetry
from tocsin.adapters import decision_lines
from tocsin.domain.events import Completed, Completion, Failed, Skipped
from tocsin.ports import Append, Publish

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
    assert list(dict.fromkeys(line["action"] for line in way)) == [
        "acquired",
        "admitted",
        "started",
        "report",
        "retry-scheduled",
        "retry-timer",
        "dispatched",
        "execution-completed",
    ]
    without = [line["action"] for line in way if line.get("trace_id") != TRACE_ID]
    assert without == ["acquired"]  # the lock is taken before the first event of the execution
    assert stages["admitted"] == "planner"
    assert stages["started"] == "matcher"
    assert stages["retry-scheduled"] == "retrier"
    assert stages["dispatched"] == "dag_advancer"


def test_answer_sent_again_shows_no_json() -> None:
    stream = io.StringIO()
    telemetry.configure("debug", "json", stream=stream)
    answer = Completion(status="failed", step="load", error="no such table", worker={"name": "x" * 5_000}, attempt=2)
    decision_lines.write_lines(Publish("mq.scheduler.complete.etl", answer, "m1"), [7])
    [line] = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert (line["subject"], line["step"], line["attempt"]) == ("mq.scheduler.complete.etl", "load", 2)
    assert line.keys().isdisjoint({"worker", "error"})


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
