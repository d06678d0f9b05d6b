"""The log lines of jobs, in the live view."""

import io

import pytest
import structlog

from tocsin import telemetry
from tocsin.cli.dev.live import task_lines
from tocsin.cli.output.format import Output


@pytest.fixture
def log(restored_logging: None) -> io.StringIO:  # noqa: ARG001 - a fixture
    stream = io.StringIO()
    telemetry.configure("error", tasks="info", stream=stream)
    return stream


def test_they_are_as_short_as_those_about_facts(log: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    logger = structlog.get_logger("tocsin.task").bind(job="nightly", execution_id="e", step="main", worker="w")
    with task_lines(Output()):
        logger.info("rows copied", rows=42)
        logger.warning("it is late")
    first, second = capsys.readouterr().out.splitlines()
    assert first[8:].split() == ["¦", "info", "nightly", "rows", "copied", "rows=42"]
    assert second[8:].split() == ["¦", "warning", "nightly", "it", "is", "late"]
    assert log.getvalue() == ""


def test_what_has_a_traceback_stays_in_the_log(log: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    with task_lines(Output()):
        structlog.get_logger("tocsin.task").error("it failed", exc_info=ConnectionError("no route"))
    assert capsys.readouterr().out == ""
    assert "no route" in log.getvalue()


def test_afterwards_they_are_lines_of_the_log_again(log: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    with task_lines(Output()):
        pass
    structlog.get_logger("tocsin.task").info("rows copied")
    assert capsys.readouterr().out == ""
    assert "rows copied" in log.getvalue()
