"""Why an attempt failed, as the log keeps it: bounded, storable, and without secrets."""

import re
import traceback
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final

from ..domain.events import Dispatched, Failure
from ..domain.secret_reference import SecretReferenceError
from .errors import NonRetryableError
from .handlers import Handlers
from .signatures import WrongInputError

HANDLER_NOT_FOUND: Final = "handler_not_found"
WRONG_INPUT: Final = "wrong_input"
SECRET_UNRESOLVED: Final = "secret_unresolved"  # noqa: S105 - the name of an error
TIMED_OUT: Final = "timed_out"
CANCELLED_ITSELF: Final = "cancelled_itself"

MAX_MESSAGE: Final = 4_096
"""Characters of a message that are kept, from its beginning."""
MAX_TRACEBACK: Final = 8_192
"""Characters of a traceback that are kept, up to its end."""
_SHOWN_HANDLERS: Final = 10
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")


def raised(error: BaseException, redact: Callable[[str], str]) -> Failure:
    """The failure of a handler that raised."""
    trace = "".join(traceback.format_exception(type(error), error, _own_frames_left_out(error)))
    return Failure(
        type=qualified_name(type(error)),
        message=_storable(redact(_message_of(error)))[:MAX_MESSAGE],
        traceback=_storable(redact(trace))[-MAX_TRACEBACK:],
        retryable=not isinstance(error, NonRetryableError),
    )


def timed_out(seconds: float) -> Failure:
    """The failure of a handler that took longer than its step allows."""
    return Failure(type=TIMED_OUT, message=f"did not finish within {seconds:g}s")


def cancelled_itself() -> Failure:
    """The failure of a handler that was cancelled by none of us: by a task or a future that it waited for."""
    return Failure(type=CANCELLED_ITSELF, message="something that the handler awaited was cancelled")


def unusable_input(error: WrongInputError | SecretReferenceError) -> Failure:
    """The failure of a task that its handler cannot be called with. Only a missing secret may be found elsewhere."""
    if isinstance(error, WrongInputError):
        return Failure(type=WRONG_INPUT, message=_storable(str(error))[:MAX_MESSAGE], retryable=False)
    return Failure(type=SECRET_UNRESOLVED, message=_storable(str(error))[:MAX_MESSAGE])


def handler_not_found(task: Dispatched, handlers: Handlers) -> Failure:
    """The failure of a task that no worker of its queue knows how to run."""
    if (nearest := handlers.nearest(task.function)) is not None:
        hint = f"did you mean {nearest!r}?"
    else:
        hint = f"it has {_listed(list(handlers))}"
    message = f"no worker of queue {task.queue!r} has a handler for {task.function!r}; of the last one asked: {hint}"
    return Failure(type=HANDLER_NOT_FOUND, message=message, retryable=False)


def qualified_name(kind: type[BaseException]) -> str:
    """What retry policies name: `ValueError`, `billing.errors.CardDeclined`."""
    name, module = kind.__qualname__, kind.__module__
    return name if module in {"builtins", "__main__"} else f"{module}.{name}"


def _message_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an exception that cannot tell its own text must not hide that it was raised
        return f"<{type(error).__name__} without readable text>"


def _own_frames_left_out(error: BaseException) -> TracebackType | None:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and _is_ours(trace.tb_frame.f_globals.get("__name__")):
        trace = trace.tb_next
    return trace


def _is_ours(module: object) -> bool:
    return isinstance(module, str) and module.startswith(__package__ + ".")


def _storable(text: str) -> str:
    return _UNSTORABLE.sub("\ufffd", text)


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "nothing"
    more = f" and {len(names) - _SHOWN_HANDLERS} more" if len(names) > _SHOWN_HANDLERS else ""
    return ", ".join(repr(name) for name in names[:_SHOWN_HANDLERS]) + more
