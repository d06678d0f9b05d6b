"""Fields of the requests of workers (ojs-worker-protocol)."""

from typing import Any, Final

from pydantic import JsonValue

from ....domain.access import Principal
from ....domain.definition import size_of
from ....domain.definition.fields import json_problem, storable
from ....domain.events import Failure
from ....domain.task_fetch import MAX_WORKER_ID_LENGTH
from ....domain.visibility_lease import MAX_LEASE_S
from ....services.operations.task_leases import Holder
from . import envelope
from .protocol import refused

MAX_MESSAGE_LENGTH: Final = 4_096
MAX_NAME_LENGTH: Final = 255
"""The number of characters of an error's message that are stored, from its beginning."""
MAX_TRACEBACK_LENGTH: Final = 8_192
"""The number of characters of a backtrace that are stored, up to its end."""
MAX_DETAILS_BYTES: Final = 16_384


def failure(body: dict[str, Any]) -> Failure:
    """Return the error of a `nack`."""
    error = body.get("error")
    if not isinstance(error, dict):
        raise refused("error", "must be an object with `code` and `message`")
    details = error.get("details")
    code, message = error.get("code"), error.get("message", "")
    if not isinstance(message, str) or not isinstance(code, str | None) or not isinstance(details, dict | None):
        raise refused("error", "must be an object: `code` and `message` are strings, `details` is an object")
    backtrace = error.get("backtrace")
    kinds = (error.get("type"), (details or {}).get("error_class"), code, "handler_error")
    return Failure(
        type=storable(next(kind for kind in kinds if isinstance(kind, str) and kind)[:MAX_NAME_LENGTH]),
        message=storable(message[:MAX_MESSAGE_LENGTH]),
        traceback=storable(backtrace[-MAX_TRACEBACK_LENGTH:]) if isinstance(backtrace, str) else None,
        retryable=error.get("retryable") is not False,
        code=None if code is None else storable(code[:MAX_NAME_LENGTH]),
        details=_bounded(details),
    )


def _bounded(details: dict[str, Any] | None) -> dict[str, Any] | None:
    if problem := json_problem(details):
        return {"left_out": problem}
    if details is None or (size := size_of(details)) <= MAX_DETAILS_BYTES:
        return details
    return {"left_out": f"{size:,} bytes, more than {MAX_DETAILS_BYTES:,}"}


def result(body: dict[str, Any]) -> JsonValue:
    """Return the result of an `ack`."""
    result: JsonValue = body.get("result")
    return result


def job_id(body: dict[str, Any]) -> str:
    """Return the id of the job that an answer is for."""
    value = body.get("job_id")
    if not isinstance(value, str) or not value:
        raise refused("job_id", "must be the id of a job")
    return value


def _worker(body: dict[str, Any]) -> str:
    value = body.get("worker_id") or ""
    if not isinstance(value, str) or len(value) > MAX_WORKER_ID_LENGTH:
        raise refused("worker_id", f"must be a string of at most {MAX_WORKER_ID_LENGTH} characters")
    return value


def holder(caller: Principal, body: dict[str, Any]) -> Holder:
    return Holder(caller.full_name, _worker(body), caller.may_run)


def seconds(body: dict[str, Any], name: str) -> float | None:
    """Return a field in milliseconds as seconds; None: it is absent or 0."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1000 * MAX_LEASE_S:
        raise refused(name, "must be a number of milliseconds, at most a year")
    return value / 1000 or None


def is_queue(name: object) -> bool:
    """Check that a value has the form of a queue's name."""
    return isinstance(name, str) and envelope.QUEUE.fullmatch(name) is not None
