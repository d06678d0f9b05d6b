"""Logging and instruments.

Each log line is one event, written to standard error: text on a terminal, JSON elsewhere. Each line has an `action`, a
name for programs that stays the same when the wording changes. Lines that libraries log through the standard library
have the same form; only those from WARNING on are written.

Instruments come from the OpenTelemetry API and have names that begin with `tocsin_`. They record after an OpenTelemetry
SDK is installed in the process; until then they cost almost nothing.

structlog takes a large part of a short command's start, because it imports rich and pygments. Therefore `get_logger`
and a deferred `configure` import it only before the first line is written.
"""

import json
import logging
import re
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from functools import partial
from io import StringIO
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO, TypeAlias, cast

from typing_extensions import override

from ..domain.text import printable, printable_lines

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter
    from structlog.typing import EventDict, ExcInfo, FilteringBoundLogger, Processor

Level: TypeAlias = Literal["debug", "info", "warning", "error"]
Format: TypeAlias = Literal["auto", "console", "json"]

_IMPORTANCE: Final[tuple[Level, ...]] = ("debug", "info", "warning", "error")
_LIBRARIES: Final = ("nats", "faststream", "sqlalchemy", "asyncio")
_NO_NAME: Final = re.compile(r"[^a-z0-9]+")


_deferred: Final = list[Callable[[], None]]()
"""The configuration of structlog that is still to be applied; at most one."""


def _apply_deferred() -> None:
    while _deferred:
        _deferred.pop()()


def configure(
    level: Level = "info",
    format: Format = "auto",  # noqa: A002 - the option has this name
    *,
    tasks: Level | None = None,
    stream: TextIO | None = None,
    is_deferred: bool = False,
) -> None:
    """Configure logging for the whole process; a second call replaces the configuration.

    Args:
        level: the lowest level of Tocsin's own lines that are written.
        tasks: the lowest level of the lines that handlers write with `context.logger`; None: `level`.
        format: `auto` means `console` if `stream` is a terminal, else `json`.
        stream: the destination; None: the current standard error.
        is_deferred: configure structlog before the first line of `get_logger` only. Code that calls structlog itself
            before that line finds it unconfigured.
    """
    out = stream or sys.stderr
    is_console = format == "console" or (format == "auto" and out.isatty())
    _deferred[:] = [partial(_configure_structlog, min(level, tasks or level, key=_IMPORTANCE.index))]
    if not is_deferred or "structlog" in sys.modules:
        _apply_deferred()
    handler = logging.StreamHandler(out)
    handler.setFormatter(_LazyFormatter(partial(_formatter, out, is_console=is_console)))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("tocsin").setLevel(level.upper())
    logging.getLogger("tocsin.task").setLevel((tasks or level).upper())
    for name in _LIBRARIES:
        # Some libraries have handlers of their own, which would bypass the root handler.
        library = logging.getLogger(name)
        library.handlers, library.propagate = [], True
        library.setLevel(logging.WARNING)
    logging.getLogger("asyncio").addFilter(_is_relevant)


def get_logger(name: str) -> "FilteringBoundLogger":
    """Return a structlog logger that imports structlog before its first line."""
    return cast("FilteringBoundLogger", _LazyLogger(name))


@contextmanager
def bound(**fields: object) -> Iterator[None]:
    """Add fields to every line within, also of libraries and of threads with the context."""
    import structlog  # noqa: PLC0415 - see the module's docstring

    with structlog.contextvars.bound_contextvars(**fields):
        yield


def bound_value(field: str) -> str | None:
    """Return a field that `bound` or `bind` added; None: none has."""
    import structlog  # noqa: PLC0415 - see the module's docstring

    value = structlog.contextvars.get_contextvars().get(field)
    return None if value is None else str(value)


def bind(**fields: object) -> None:
    """Add fields to every later line of the current asyncio task.

    This takes a seventh of the time of `bound`. Call it in a task that ends with what the fields describe.
    """
    import structlog  # noqa: PLC0415 - see the module's docstring

    structlog.contextvars.bind_contextvars(**fields)


def meter() -> "Meter":
    """Return the meter of Tocsin's instruments; callable before an SDK is installed."""
    from opentelemetry import metrics  # noqa: PLC0415 - many commands have no instruments

    return metrics.get_meter("tocsin")


def name_action(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Derive the action from the text of the event if the caller gave none."""
    if not event.get("action"):
        event["action"] = _NO_NAME.sub("-", str(event.get("event", "")).lower()).strip("-")[:60] or "event"
    return event


class _LazyLogger:
    """A stand-in for a structlog logger; it creates the real logger before the first line."""

    __slots__ = ("_logger", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._logger: Any = None

    def __getattr__(self, method: str) -> Any:  # noqa: ANN401 - any attribute of a structlog logger
        if _deferred:
            level = logging.getLevelNamesMapping().get("ERROR" if method == "exception" else method.upper())
            if level is not None and not logging.getLogger(self._name).isEnabledFor(level):
                return _ignore
            _apply_deferred()
        import structlog  # noqa: PLC0415 - see the module's docstring

        if not structlog.is_configured():
            return getattr(_unconfigured_logger(), method)
        if self._logger is None:
            self._logger = structlog.get_logger(self._name)
        return getattr(self._logger, method)


def _unconfigured_logger() -> Any:  # noqa: ANN401 - of structlog
    """Return a logger for an application that configured no logging.

    It writes lines as structlog does then, but its tracebacks show no local variables.
    """
    import structlog  # noqa: PLC0415 - see the module's docstring

    *processors, _ = structlog.get_config()["processors"]
    renderer = structlog.dev.ConsoleRenderer(exception_formatter=_printable_traceback)
    return structlog.wrap_logger(None, processors=[*processors, renderer])


class _LazyFormatter(logging.Formatter):
    """A formatter that is built before its first line, because that imports structlog."""

    def __init__(self, build: Callable[[], logging.Formatter]) -> None:
        super().__init__()
        self._build = build
        self._formatter: logging.Formatter | None = None

    @override
    def format(self, record: logging.LogRecord) -> str:
        if self._formatter is None:
            self._formatter = self._build()
        return self._formatter.format(record)


def _ignore(*_args: object, **_fields: object) -> None:
    """Drop a line below the configured level."""


def _is_relevant(record: logging.LogRecord) -> bool:
    # asyncio warns about its own stream protocol whenever the NATS client closes a TLS connection.
    return not record.getMessage().startswith("returning true from eof_received()")


def _common_processors() -> "list[Processor]":
    """Return the steps that add fields to lines of structlog and of the standard library."""
    import structlog  # noqa: PLC0415 - see the module's docstring

    from . import trace_ids  # noqa: PLC0415 - it imports the events

    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        name_action,
        trace_ids.complete,
        structlog.processors.StackInfoRenderer(),
    ]


def _configure_structlog(lowest: Level) -> None:
    import structlog  # noqa: PLC0415 - see the module's docstring

    structlog.configure(
        processors=[*_common_processors(), structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(lowest),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,  # the loggers of modules outlive one configuration
    )


def _escape_controls(_: object, __: str, event_dict: "EventDict") -> "EventDict":
    """Escape control characters in the texts of a line.

    A job or a user may have sent them to change the terminal.
    """
    return {
        printable(name): printable_lines(value) if isinstance(value, str) else value
        for name, value in event_dict.items()
    }


def _printable_traceback(out: TextIO, exc_info: "ExcInfo") -> None:
    import structlog  # noqa: PLC0415 - see the module's docstring

    text = StringIO()
    structlog.dev.plain_traceback(text, exc_info)
    out.write(printable_lines(text.getvalue()))


def _to_json(event: "EventDict", **options: Any) -> str:  # noqa: ANN401 - options of the encoder
    """Return a line as JSON; a value that JSON does not have is a text."""
    try:
        return json.dumps(event, allow_nan=False, **options)
    except Exception:  # noqa: BLE001 - a handler may log any value: no line may be lost for it
        return json.dumps({name: _jsonable(value, **options) for name, value in event.items()})


def _jsonable(value: object, **options: Any) -> object:  # noqa: ANN401 - as above
    try:
        json.dumps(value, allow_nan=False, **options)
    except Exception:  # noqa: BLE001 - a text of its own may fail too
        try:
            return repr(value)
        except Exception as error:  # noqa: BLE001 - as above
            return f"<a value without readable text: {type(error).__name__}>"
    return json.loads(json.dumps(value, **options))


def _formatter(out: TextIO, *, is_console: bool) -> logging.Formatter:
    """Return the formatter that renders each line as text or as JSON.

    Tracebacks show no local variables, because those may hold inputs of jobs, tokens and resolved secrets.
    """
    import structlog  # noqa: PLC0415 - see the module's docstring

    rendering: list[Processor] = (
        [_escape_controls, structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=_printable_traceback)]
        if is_console
        else [
            structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False)),
            structlog.processors.JSONRenderer(_to_json, default=str),
        ]
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*_common_processors(), structlog.stdlib.ExtraAdder()],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
    )
