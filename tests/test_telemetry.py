"""Log lines: their form, their action, and that libraries go the same way."""

import io
import json
import logging
import subprocess
import sys
from typing import Any, NoReturn

import pytest
import structlog

from tests.domain.given import admitted
from tests.stages.world import World
from tocsin import telemetry
from tocsin.engine.stage import BoundStage, BoundSubscription
from tocsin.subjects import Stream

pytestmark = pytest.mark.usefixtures("restored_logging")


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def configured(level: telemetry.Level = "info", form: telemetry.Format = "auto") -> io.StringIO:
    stream = io.StringIO()
    telemetry.configure(level, form, stream=stream)
    return stream


def test_non_terminal_output_is_json_with_standard_fields() -> None:
    stream = configured()
    structlog.get_logger("tocsin.test").info("the lease is ours", action="leadership-gained", lease="ticker")
    (line,) = lines(stream)
    assert (
        line.items()
        >= {
            "event": "the lease is ours",
            "action": "leadership-gained",
            "level": "info",
            "logger": "tocsin.test",
            "lease": "ticker",
        }.items()
    )
    assert line["timestamp"].endswith("Z")


def test_missing_action_is_derived_from_the_event() -> None:
    stream = configured()
    structlog.get_logger("tocsin.test").info("NATS: connected, again!")
    assert lines(stream)[0]["action"] == "nats-connected-again"


def test_the_level_counts_for_our_own_lines() -> None:
    stream = configured(level="warning")
    structlog.get_logger("tocsin.test").info("not this")
    structlog.get_logger("tocsin.test").warning("this")
    assert [line["event"] for line in lines(stream)] == ["this"]


def test_job_lines_have_their_own_level() -> None:
    stream = io.StringIO()
    telemetry.configure("error", tasks="info", stream=stream)
    structlog.get_logger("tocsin.task").info("of a job")
    structlog.get_logger("tocsin.task").debug("of no importance")
    structlog.get_logger("tocsin.stages").info("of ours")
    assert [line["event"] for line in lines(stream)] == ["of a job"]


def test_library_warnings_are_logged_at_any_level() -> None:
    stream = configured(level="debug")
    library = logging.getLogger("nats.aio")
    library.info("not this")
    library.warning("slow consumer %s", 7)
    (line,) = lines(stream)
    assert (line["event"], line["action"], line["logger"]) == ("slow consumer 7", "slow-consumer-7", "nats.aio")


def test_for_people_a_line_is_text() -> None:
    stream = configured(form="console")
    structlog.get_logger("tocsin.test").warning("the log does not answer", action="log-unavailable")
    assert "the log does not answer" in stream.getvalue()
    assert "action=log-unavailable" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("colors", [True, False])
def test_control_characters_never_reach_the_terminal(*, colors: bool) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return colors

    hostile = "\x1b]0;owned\x07\x9b2J\u202etxt"
    out = Terminal()
    telemetry.configure("info", "console", stream=out)
    error = ValueError(hostile)
    telemetry.get_logger("tocsin.test").error(
        hostile, action="x", text=hostile, listed=[hostile], **{hostile: 1}, exc_info=error
    )
    shown = out.getvalue()
    assert "\\x1b]0;owned" in shown
    assert not {"\x07", "\x9b", "\u202e"} & set(shown)
    assert "\x1b]" not in shown


def test_value_that_json_lacks_loses_no_line() -> None:
    class Odd:
        def __str__(self) -> str:
            raise RuntimeError("no text")

        __repr__ = __str__

    circle: list[object] = []
    circle.append(circle)
    stream = configured()
    telemetry.get_logger("tocsin.test").info(
        "odd", keys={(1, 2): 3}, circle=circle, nan=float("nan"), odd=Odd(), rows=3
    )
    [line] = lines(stream)
    assert (line["event"], line["rows"], line["keys"]) == ("odd", 3, "{(1, 2): 3}")
    assert (line["circle"], line["nan"]) == ("[[...]]", "nan")
    assert line["odd"] == "<a value without readable text: RuntimeError>"


def test_an_exception_is_part_of_its_line() -> None:
    stream = configured()
    try:
        int("broken")
    except ValueError:
        structlog.get_logger("tocsin.test").exception("a handler failed", action="handler-failed")
    (line,) = lines(stream)
    assert "broken" in json.dumps(line["exception"])


def _broken(*_: object) -> NoReturn:
    password = "hunter" + "2"
    try:
        "".index(password[:1])
    except ValueError as error:
        raise LookupError(len(password)) from error
    raise AssertionError


@pytest.mark.parametrize("form", ["json", "console", None])
async def test_tracebacks_show_no_local_variables(
    form: telemetry.Format | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither in a stage nor in an application that embeds a worker and configured no logging (None)."""
    structlog.reset_defaults()
    if form is not None:
        telemetry.configure(format=form)
    world = World()
    await world.given(admitted())
    await world.run(BoundStage("broken", (BoundSubscription("broken", Stream.LOG, ("execution.>",), _broken),)))
    written = "".join(capsys.readouterr())
    assert "handler failed" in written
    assert "LookupError" in written
    assert "_broken" in written
    assert "hunter2" not in written


def test_asyncio_remark_on_closed_tls_is_suppressed() -> None:
    stream = configured()
    logging.getLogger("asyncio").warning("returning true from eof_received() has no effect when using ssl")
    logging.getLogger("asyncio").warning("something else")
    assert [line["event"] for line in lines(stream)] == ["something else"]


LAZY_PROGRAM = """
import sys
from tocsin import telemetry
logger = telemetry.get_logger("tocsin.test")
telemetry.configure("error", "json", is_deferred=True)
logger.info("below the level")
assert not {"structlog", "rich", "pygments"} & sys.modules.keys()
logger.error("broken", action="test-broken")
assert "structlog" in sys.modules
"""


def test_deferred_setup_imports_structlog_at_first_line() -> None:
    done = subprocess.run([sys.executable, "-c", LAZY_PROGRAM], capture_output=True, text=True, check=True)
    (line,) = [json.loads(text) for text in done.stderr.splitlines()]
    assert (line["event"], line["action"], line["level"], line["logger"]) == (
        "broken",
        "test-broken",
        "error",
        "tocsin.test",
    )


def test_lazy_logger_writes_the_lines_of_structlog() -> None:
    stream = configured()
    telemetry.get_logger("tocsin.test").bind(job="nightly").info("done", action="test-done")
    structlog.get_logger("tocsin.test").bind(job="nightly").info("done", action="test-done")
    first, second = (line.items() - {("timestamp", line["timestamp"])} for line in lines(stream))
    assert first == second


def test_lazy_logger_follows_later_configurations() -> None:
    logger = telemetry.get_logger("tocsin.test")
    first = configured(level="error")
    logger.info("dropped")
    second = configured(level="info")
    logger.info("written")
    assert not first.getvalue()
    assert [line["event"] for line in lines(second)] == ["written"]
