"""Logging and instruments.

Every log line is one event: readable on a terminal, JSON elsewhere, always on standard error. Every line has an `action`,
a name that machines match on and that stays the same when the wording changes. Libraries that log through the standard
library come out the same way, from WARNING on.

Instruments are those of the OpenTelemetry API and are named `tocsin_…`. They record once an OpenTelemetry SDK is installed
in the process; without one they cost next to nothing.
"""

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO, TypeAlias

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter
    from structlog.typing import Processor

Level: TypeAlias = Literal["debug", "info", "warning", "error"]
Format: TypeAlias = Literal["auto", "console", "json"]

_IMPORTANCE: Final[tuple[Level, ...]] = ("debug", "info", "warning", "error")
_LIBRARIES: Final = ("nats", "faststream", "sqlalchemy", "asyncio")
_NO_NAME: Final = re.compile(r"[^a-z0-9]+")


def configure(
    level: Level = "info",
    format: Format = "auto",  # noqa: A002 - the option is called so
    *,
    tasks: Level | None = None,
    stream: TextIO | None = None,
) -> None:
    """Set logging up for the whole process; calling it again replaces what was set up before.

    Args:
        level: the least that Tocsin's own lines must be to be written.
        tasks: the same for the lines of jobs (`context.logger`), which are not Tocsin's own; None: `level`.
        format: `auto` is `console` where `stream` is a terminal, else `json`.
        stream: where to; None: standard error as it is now.
    """
    import structlog  # noqa: PLC0415 - `tocsin --version` and `tocsin --help` write no log

    out = stream or sys.stderr
    is_console = format == "console" or (format == "auto" and out.isatty())
    common: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        name_action,
        structlog.processors.StackInfoRenderer(),
    ]
    structlog.configure(
        processors=[*common, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(min(level, tasks or level, key=_IMPORTANCE.index)),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,  # loggers of modules live longer than one configuration
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*common, structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_rendering(out, is_console=is_console),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("tocsin").setLevel(level.upper())
    logging.getLogger("tocsin.task").setLevel((tasks or level).upper())
    for name in _LIBRARIES:
        # Some of them write to handlers of their own, past everybody else's.
        library = logging.getLogger(name)
        library.handlers, library.propagate = [], True
        library.setLevel(logging.WARNING)
    logging.getLogger("asyncio").addFilter(_is_worth_a_line)


def meter() -> "Meter":
    """Return the meter that makes Tocsin's instruments; it may be called before an SDK is installed."""
    from opentelemetry import metrics  # noqa: PLC0415 - the command line has no instruments

    return metrics.get_meter("tocsin")


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    # Each TLS connection that the NATS client closes makes asyncio say this of its own stream protocol.
    return not record.getMessage().startswith("returning true from eof_received()")


def name_action(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Make an action of the event's own words where the caller gave none."""
    if not event.get("action"):
        event["action"] = _NO_NAME.sub("-", str(event.get("event", "")).lower()).strip("-")[:60] or "event"
    return event


def _rendering(out: TextIO, *, is_console: bool) -> "list[Processor]":
    """Tracebacks show no local variables: those hold the inputs of jobs, tokens, and what secrets were resolved to."""
    import structlog  # noqa: PLC0415 - as in `configure`

    if is_console:
        return [structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback)]
    transform = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    return [structlog.processors.ExceptionRenderer(transform), structlog.processors.JSONRenderer(default=str)]
