"""The logger of a handler, which also keeps its lines with the execution."""

import json
import logging
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast, get_args

from pydantic import JsonValue
from pydantic_core import from_json, to_json

from ..domain.definition.fields import json_problem
from ..domain.errors import TocsinError
from ..domain.progress import MAX_CHECKPOINT_BYTES, fraction_of

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

Level: TypeAlias = Literal["debug", "info", "warning", "error", "critical"]
KeepLine: TypeAlias = Callable[[Level, str], None]

MAX_TRACEBACK_LINES: Final = 30
_TASK_LOGGER: Final = "tocsin.task"
_NUMBERS: Final[Mapping[Level, int]] = {name: logging.getLevelNamesMapping()[name.upper()] for name in get_args(Level)}
_LEVELS: Final[Mapping[str, Level]] = {
    **{name: name for name in _NUMBERS},
    "msg": "info",
    "warn": "warning",
    "exception": "error",
    "fatal": "critical",
}
_FORMS: Final[tuple[Callable[[object], str], ...]] = (repr, str, partial(json.dumps, default=str))
"""The texts that a log may have of a value. In JSON, the values in a list or an object have their `str`."""


def task_logger(
    logger: "FilteringBoundLogger", keep: KeepLine, redact: Callable[[str], str] = str
) -> "FilteringBoundLogger":
    """Return a logger that writes to `logger` and keeps its lines.

    It passes lines from level INFO on to `keep`. Debug lines are passed on if the worker writes them too. `redact` removes the secrets
    of the task from a text; `keep` does so itself.
    """
    return cast("FilteringBoundLogger", _TaskLogger(logger, keep, redact, _context(logger)))


class _TaskLogger:
    """A stand-in for a structlog logger."""

    __slots__ = ("_hidden", "_keep", "_logger", "_redact")

    def __init__(self, logger: Any, keep: KeepLine, redact: Callable[[str], str], hidden: Mapping[str, object]) -> None:  # noqa: ANN401 - any logger
        """`hidden`: the fields that kept lines do not have."""
        self._logger = logger
        self._keep = keep
        self._redact = redact
        self._hidden = hidden

    def log(self, level: int, event: str, *values: object, **fields: object) -> object:
        return self._write(partial(self._logger.log, level), _level_of(level), event, values, fields)

    async def alog(self, level: int, event: str, *values: object, **fields: object) -> object:
        """Write a line of a numeric level without blocking the event loop."""
        written = self._write(partial(self._logger.alog, level), _level_of(level), event, values, fields)
        return None if written is None else await written

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of a structlog logger
        method = getattr(self._logger, name)
        if name in {"bind", "new", "unbind", "try_unbind"}:
            return partial(self._bound, method)
        is_async = name.startswith("a") and name[1:] in _LEVELS
        level = _LEVELS.get(name[1:] if is_async else name)
        if level is None:
            return method

        def write(event: str | None = None, *values: object, **fields: object) -> object:
            if name.endswith("exception"):
                fields.setdefault("exc_info", True)
            written = self._write(method, level, event, values, fields)
            return _nothing() if is_async and written is None else written

        return write

    def _write(
        self,
        method: Callable[..., Any],
        level: Level,
        event: object,
        values: tuple[object, ...],
        fields: Mapping[str, object],
    ) -> Any:  # noqa: ANN401 - what the method returns
        """Keep a line, and write it by a method of the logger; None: dropped."""
        if not _is_written(level):  # before each value becomes a text
            return None
        try:
            bound = {name: value for name, value in _context(self._logger).items() if self._hidden.get(name) != value}
            self._keep(level, _text(event, values, {**bound, **fields}))
        except Exception as error:  # noqa: BLE001 - a value whose `repr` fails; no line may fail a task
            self._keep(level, f"<a line without readable text: {type(error).__name__}>")
        shown = (_without_secret(part, self._redact) for part in (event, *values))
        return method(*shown, **_without_secrets(fields, self._redact))

    def _bound(self, method: Callable[..., Any], *names: str, **fields: object) -> "_TaskLogger":
        """Return a logger whose fields a method of the logger changes."""
        logger = method(*names, **_without_secrets(fields, self._redact))
        return _TaskLogger(logger, self._keep, self._redact, self._hidden)


def _context(logger: Any) -> dict[str, object]:  # noqa: ANN401 - any logger
    return dict(logger.bind()._context)  # noqa: SLF001 - as `structlog.get_context`, which is slow to import


def _is_written(level: Level) -> bool:
    """Return whether a line goes anywhere; those from level INFO on are kept at least."""
    return level != "debug" or logging.getLogger(_TASK_LOGGER).isEnabledFor(logging.DEBUG)


async def _nothing() -> None:
    """Stand for a line that is not written."""


def _level_of(number: int) -> Level:
    return next((level for level, least in reversed([*_NUMBERS.items()]) if number >= least), "debug")


def _without_secrets(fields: Mapping[str, object], redact: Callable[[str], str]) -> dict[str, object]:
    """Return fields without secrets; a traceback with a secret becomes a text."""
    shown = {redact(name): _without_secret(value, redact) for name, value in fields.items() if name != "exc_info"}
    if "exc_info" in fields:
        trace = _trace(fields["exc_info"]).rstrip("\n")  # all of it: the worker's log has the whole traceback
        clean = redact(trace)
        shown |= {"exc_info": fields["exc_info"]} if clean == trace else {"exc_info": False, "exception": clean}
    return shown


def _without_secret(value: object, redact: Callable[[str], str]) -> object:
    """Return a value, or its text without secrets if this has one."""
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, str):
        return redact(value)
    for written in _FORMS:
        try:
            text = written(value)
        except Exception:  # noqa: BLE001, S112 - as in `_write`; the log cannot write this form either
            continue
        if (clean := redact(text)) != text:
            return clean
    return value


def _text(event: object, values: tuple[object, ...], fields: Mapping[str, object]) -> str:
    text = str(event) % values if values else str(event)
    shown = [
        f"{name}={value if isinstance(value, str) and value and ' ' not in value else repr(value)}"
        for name, value in fields.items()
        if name not in {"exc_info", "stack_info"}
    ]
    trace = _trace(fields.get("exc_info")).splitlines()[-MAX_TRACEBACK_LINES:]
    return "\n".join([" ".join([text, *shown]), *trace])


def _trace(given: object) -> str:
    """Return the traceback that `exc_info` names."""
    if not given:
        return ""
    if isinstance(given, BaseException):
        return "".join(traceback.format_exception(given))
    if isinstance(given, tuple):
        return "".join(traceback.format_exception(*given))
    return traceback.format_exc()


class InvalidProgressError(TocsinError, ValueError):
    """The fraction of a progress is no finite number."""

    code = "progress-invalid"


class InvalidHeartbeatError(TocsinError, ValueError):
    """The details of a heartbeat are not a JSON value."""

    code = "heartbeat-invalid"


class HeartbeatTooLargeError(TocsinError, ValueError):
    """The details of a heartbeat are too large."""

    code = "heartbeat-too-large"


def checked_progress(fraction: object) -> float:
    """Return a fraction from 0 to 1.

    A number outside, for example from rounding, becomes the nearer end.

    Raises:
        InvalidProgressError: it is not a finite number.
    """
    checked = fraction_of(fraction)
    if checked is None:
        raise InvalidProgressError(f"progress: fraction is {fraction!r}; pass a number from 0 to 1")
    return checked


def checked_details(details: object) -> JsonValue:
    """Return a copy of the details, which the handler may change afterwards.

    Raises:
        InvalidHeartbeatError: they are not a JSON value.
        HeartbeatTooLargeError: they are more than 16 KiB of JSON.
    """
    if problem := json_problem(details):
        raise InvalidHeartbeatError(f"heartbeat: details are not JSON: {problem}")
    encoded = to_json(details)
    if len(encoded) > MAX_CHECKPOINT_BYTES:
        raise HeartbeatTooLargeError(
            f"heartbeat: details are {len(encoded):,} bytes of JSON, more than {MAX_CHECKPOINT_BYTES:,}: "
            "keep them in a store and refer to it"
        )
    copy: JsonValue = from_json(encoded)
    return copy


def redacted(value: JsonValue, redact: Callable[[str], str]) -> JsonValue:
    """Return a JSON value with `redact` applied to each text in it."""
    match value:
        case str():
            return redact(value)
        case list():
            return [redacted(inner, redact) for inner in value]
        case dict():
            return {redact(key): redacted(inner, redact) for key, inner in value.items()}
        case _:
            return value
