"""The meaning of an MQ executor's answer (hip-62, Integration with MQ).

The specification names the subject of an answer but not its fields. An answer counts only if its status is in the table
below; every other answer becomes a dead letter with the code of its error, and the attempt stays open until its timeout.
The answer is either the body itself or the `data` of a `hanzo.mq.v1` envelope.

    completed   completed, complete, success, succeeded, successful, ok, done
    failed      failed, fail, failure, error, errored, timeout, timed_out, cancelled, canceled, aborted
    started     started, running, in_progress, progress; optional, and no end of the attempt

The case of a status and blanks around it do not matter. Without a status, an `error` alone is a failure.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, TypeAlias

from pydantic import JsonValue

from .definition import MAX_INPUT_BYTES
from .definition.fields import json_problem, storable
from .errors import TocsinError
from .events import Completion, Failure
from .progress import fraction_of, message_of

Outcome: TypeAlias = Literal["completed", "failed", "started"]

SCHEMA: Final = "hanzo.mq.v1"
OUTCOMES: Final[Mapping[str, Outcome]] = {
    **dict.fromkeys(("completed", "complete", "success", "succeeded", "successful", "ok", "done"), "completed"),
    **dict.fromkeys(("failed", "fail", "failure", "error", "errored"), "failed"),
    **dict.fromkeys(("started", "running", "in_progress", "progress"), "started"),
    **dict.fromkeys(("timeout", "timed_out", "cancelled", "canceled", "aborted"), "failed"),
}
"""The outcome that each status means."""
INVALID_RESULT: Final = "invalid_result"
MAX_TEXT: Final = 4_096
"""Characters of an error text that are kept."""
MAX_NAME: Final = 255
"""Characters of the name of an executor, and of the type of an error, that are kept."""
_NO_ERROR: Final[tuple[JsonValue, ...]] = (None, "", {}, [], False)
"""Values of `error` that say nothing."""
_PLAIN_FAILURES: Final = frozenset({"failed", "fail", "failure", "error", "errored"})
_SHOWN: Final = 64


class AnswerRefused(TocsinError, ValueError):
    """An MQ executor's answer that is not counted."""

    codes: ClassVar[Mapping[str, str]] = {
        "mq-answer-invalid": "A field of an MQ executor's answer has a wrong value, so the answer is not counted.",
        "mq-status-missing": "The answer has neither a status nor an error.",
        "mq-status-unknown": "The status of the answer is not in the table of recognized statuses.",
        "mq-answer-contradictory": "The answer contradicts itself or its subject.",
        "mq-schema-unknown": "The envelope of the answer has an unknown schema.",
        "mq-answer-misaddressed": "The answer names no known execution of a job.",
        "mq-answer-ambiguous": "The answer names no step, and several steps are in flight.",
        "mq-token-wrong": "The token of the answer is not that of the task.",
    }

    def __init__(self, problem: str, code: str = "mq-answer-invalid") -> None:
        super().__init__(problem)
        self.code = code


@dataclass(frozen=True, slots=True)
class Answer:
    """The content of an answer; None: the answer does not say it."""

    outcome: Outcome
    job: str | None = None
    execution_id: str | None = None
    step: str | None = None
    attempt: int | None = None
    token: str | None = None
    result: JsonValue = None
    error: Failure | None = None
    executor: str | None = None
    progress: float | None = None
    """The part of the work that is done, from 0 to 1."""
    message: str = ""
    """What the executor does now."""


def read(completion: Completion) -> Answer:
    """Return the meaning of an answer; raise AnswerRefused if it does not count."""
    body = _unwrapped(completion)
    status, outcome = _outcome(body)
    if outcome == "completed":
        _check_success(completion, body)
    result, error = body.result, None
    progress = None
    if outcome == "started":
        result, progress = None, _progress(body.progress)
    elif outcome == "failed":
        result, error = None, _failure(status, body.error)
    elif problem := _result_problem(result):
        outcome, result = "failed", None
        error = Failure(type=INVALID_RESULT, message=problem, retryable=False)
    return Answer(
        outcome=outcome,
        job=_text("job_name", body.job_name),
        execution_id=_text("execution_id", body.execution_id),
        step=_text("step", body.step),
        attempt=_number("attempt", body.attempt),
        token=_text("token", body.token),
        result=result,
        error=error,
        executor=_name(body.worker) or _name(completion.source),
        progress=progress,
        message=message_of(body.message) if isinstance(body.message, str) else "",
    )


def _unwrapped(completion: Completion) -> Completion:
    schema, data = completion.schema_, completion.data
    if schema is None and (completion.status is not None or not isinstance(data, dict)):
        return completion
    if schema not in {None, SCHEMA}:
        raise AnswerRefused(f"`schema` is {_shown(schema)}; only {SCHEMA!r} is known", "mq-schema-unknown")
    if not isinstance(data, dict):
        raise AnswerRefused("the envelope has no object `data`, and so no status", "mq-status-missing")
    inner = Completion.model_validate(data)
    if completion.status is not None and _word(completion.status) != _word(inner.status):
        raise AnswerRefused(
            f"`status` is {_shown(completion.status)} beside `data.status` {_shown(inner.status)}",
            "mq-answer-contradictory",
        )
    return inner


def _outcome(body: Completion) -> tuple[str, Outcome]:
    if body.status is None:
        if body.error in _NO_ERROR:
            raise AnswerRefused(
                "the answer has no `status`, so it is no success; send `completed` or `failed`", "mq-status-missing"
            )
        return "failed", "failed"
    word = _word(body.status)
    if word is None or word not in OUTCOMES:
        raise AnswerRefused(
            f"`status` is {_shown(body.status)}; send one of {', '.join(OUTCOMES)}", "mq-status-unknown"
        )
    return word, OUTCOMES[word]


def _check_success(*parts: Completion) -> None:
    """Refuse a success that another field of the answer, or of its envelope, contradicts."""
    for part in parts:
        against = {
            "error": part.error not in _NO_ERROR,
            "success": part.success not in (None, True) and _word(part.success) != "true",
            "exit_code": part.exit_code not in (None, 0, "0"),
        }
        if fields := [name for name, contradicts in against.items() if contradicts]:
            value = _shown(getattr(part, fields[0]))
            raise AnswerRefused(f"the status is a success, but `{fields[0]}` is {value}", "mq-answer-contradictory")


def _failure(status: str, error: JsonValue) -> Failure:
    """Return the error of a failed attempt; it may be any JSON."""
    kind = None if status in _PLAIN_FAILURES else status
    if error in (None, ""):
        return Failure(type=kind or "unknown", message="the executor reported no error")
    if not isinstance(error, dict):
        return Failure(
            type=kind or "error", message=_storable(error if isinstance(error, str) else _json(error), MAX_TEXT) or ""
        )
    error_type, message = _storable(error.get("type"), MAX_NAME), _storable(error.get("message"), MAX_TEXT)
    return Failure(
        type=error_type or kind or "error",
        message=_storable(_json(error), MAX_TEXT) or "" if message is None else message,
        traceback=_storable(error.get("traceback"), MAX_TEXT),
        retryable=error.get("retryable") is not False,
        code=_storable(error.get("code"), MAX_NAME),
        details=_details(error.get("details")),
    )


def _result_problem(result: JsonValue) -> str | None:
    """Return why a result cannot be kept; the limits are those of other workers."""
    if problem := json_problem(result):
        return f"the result is {problem}" if problem.startswith(("nested", "more")) else f"the result has {problem}"
    size = len(_json(result).encode())
    if size > MAX_INPUT_BYTES:
        return (
            f"the result is {size:,} bytes of JSON, more than {MAX_INPUT_BYTES:,}: keep it in a store and refer to it"
        )
    return None


def _details(value: JsonValue) -> dict[str, JsonValue] | None:
    fits = isinstance(value, dict) and json_problem(value) is None and len(_json(value)) <= MAX_TEXT
    return value if fits and isinstance(value, dict) else None


def _word(status: JsonValue) -> str | None:
    return status.strip().lower() if isinstance(status, str) else None


def _text(field: str, value: JsonValue) -> str | None:
    if value is None or isinstance(value, str):
        return value or None
    raise AnswerRefused(f"`{field}` is {_shown(value)}, and must be a text")


def _number(field: str, value: JsonValue) -> int | None:
    if value is None:
        return None
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if is_whole and isinstance(value, int | float) and not isinstance(value, bool):
        return int(value)
    raise AnswerRefused(f"`{field}` is {_shown(value)}, and must be a whole number")


def _progress(value: JsonValue) -> float | None:
    if value is None:
        return None
    fraction = fraction_of(value)
    if fraction is None:
        raise AnswerRefused(f"`progress` is {_shown(value)}, and must be a number from 0 to 1")
    return fraction


def _name(value: JsonValue) -> str | None:
    if not isinstance(value, str) or not value.isprintable():
        return None
    return value.strip()[:MAX_NAME] or None


def _storable(value: JsonValue, limit: int) -> str | None:
    """Return a text without characters that cannot be stored; None: the value is no text."""
    return storable(value[:limit]) if isinstance(value, str) else None


def _json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _shown(value: JsonValue) -> str:
    text = _json(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
