"""Reads the job envelope that a client of the Open Job Spec pushes (ojs-core §5, ojs-http-binding §9.1).

What a job may say is said in several places by several documents; each is read: `queue` and the times beside or among the
`options`, intervals in ISO 8601 or milliseconds, times with a zone or relative to now (`+PT5S`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from pydantic import JsonValue, ValidationError

from ....domain import duration
from ....domain.definition import DefinitionError, JobDefinition, RetryPolicy, show
from ....domain.events import Actor, Enqueued
from ....services.operations.task_leases import LONGEST
from ..api.problems import FieldError, Problem

TYPE: Final = re.compile(r"[a-z][a-z0-9_-]*(\.[a-z][a-z0-9_-]*)*")
UUID_V7: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
QUEUE: Final = re.compile(r"[a-z0-9][a-z0-9\-.]{0,254}")
PRIORITY: Final = 100
JITTER: Final = 0.5
"""`jitter: true` of ojs-retry §5.1: a delay between half and one and a half times as long."""
LONGEST_TYPE: Final = 200
PREFIX: Final = "ojs."
"""Before the type in the name that such executions are kept under: a registered job may be called like a type."""
KEY: Final = "ojs"
"""Where a task carries what only this protocol knows of it."""

_KNOWN: Final = frozenset(
    {
        *("specversion", "id", "type", "args", "queue", "meta", "options", "priority", "timeout", "retry", "tags"),
        *("scheduled_at", "delay_until", "expires_at", "schema"),
    }
)
_MANAGED: Final = frozenset(
    {
        *(
            "state",
            "attempt",
            "max_attempts",
            "created_at",
            "enqueued_at",
            "started_at",
            "completed_at",
            "cancelled_at",
        ),
        *("discarded_at", "error", "errors", "result", "next_attempt_at", "retry_delay_ms"),
    }
)
"""What the system manages: ignored where a client sends it."""
_STRATEGIES: Final = {
    "exponential": "exponential",
    "linear": "linear",
    "polynomial": "polynomial",
    "constant": "none",
    "none": "none",
}


@dataclass(frozen=True)
class Defaults:
    """What holds where a job does not say."""

    now: datetime
    timeout: float


def read(body: object, execution_id: str, defaults: Defaults, by: Actor) -> Enqueued:
    """The wish that a pushed job makes; `execution_id` where it brings no id of its own.

    Raises:
        Problem: it cannot be used; the answer names the field, the value and what would be right.
    """
    if not isinstance(body, Mapping):
        raise _wrong("body", body, "must be a JSON object: a job")
    reader = _Reader(body, defaults)
    given_id = body.get("id")
    if given_id is not None and not (isinstance(given_id, str) and UUID_V7.fullmatch(given_id)):
        raise _wrong("id", given_id, "must be a UUIDv7 in lower case")
    kind = reader.type()
    about: dict[str, JsonValue] = {
        "id": given_id or execution_id,
        "options": dict(reader.options),
        "extra": {name: value for name, value in body.items() if name not in _KNOWN | _MANAGED},
        "priority": reader.priority(),
    }
    lease = reader.milliseconds("visibility_timeout_ms")
    if lease is not None:
        about["lease"] = lease
    start_at, expires_at = reader.time("scheduled_at", "delay_until"), reader.time("expires_at")
    if expires_at is not None:
        about["expires_at"] = reader.as_given("expires_at", expires_at)
    retry, dead_letter = reader.retry()
    try:
        definition = JobDefinition(
            name=PREFIX + kind.replace("_", "-"),
            function=kind,
            args=reader.args(),
            queue=reader.queue(),
            timeout=reader.timeout(),
            retry=retry,
            dead_letter=dead_letter,
            overlap_policy="allow",
            tags=reader.tags(),
            meta={**reader.meta(), KEY: about},
        )
    except (DefinitionError, ValidationError) as error:
        raise Problem(400, "invalid-request", str(error), (FieldError(right=str(error)),)) from None
    return Enqueued(
        execution_id=given_id or execution_id,
        definition=definition,
        start_at=start_at if start_at is not None and start_at > defaults.now else None,
        expires_at=expires_at,
        by=by,
    )


class _Reader:
    """One body, field by field."""

    def __init__(self, body: Mapping[str, Any], defaults: Defaults) -> None:
        self._body = body
        self._defaults = defaults
        options = body.get("options")
        if not isinstance(options, Mapping | None):
            raise _wrong("options", options, "must be an object")
        self.options: Mapping[str, Any] = options or {}

    def type(self) -> str:
        kind = self._body.get("type")
        if kind is None:
            raise _missing("type")
        if not isinstance(kind, str) or not TYPE.fullmatch(kind) or len(kind) > LONGEST_TYPE:
            raise _wrong(
                "type",
                kind,
                "must be words of lower-case letters, digits, underscores and hyphens, joined by dots, "
                "e.g. `email.send`",
            )
        return kind

    def args(self) -> tuple[JsonValue, ...]:
        args = self._body.get("args")
        if "args" not in self._body:
            raise _missing("args")
        if not isinstance(args, list):
            raise _wrong("args", args, "must be an array")
        return tuple(args)

    def meta(self) -> dict[str, JsonValue]:
        meta = self._body.get("meta")
        if not isinstance(meta, Mapping | None):
            raise _wrong("meta", meta, "must be an object")
        return dict(meta or {})

    def queue(self) -> str:
        field, queue = self._either("queue")
        if queue is None:
            return "default"
        if not isinstance(queue, str) or not QUEUE.fullmatch(queue):
            raise _wrong(field, queue, "must be lower-case letters, digits, hyphens and dots, the first no hyphen")
        return queue

    def priority(self) -> int:
        field, priority = self._either("priority")
        if priority is None:
            return 0
        if not isinstance(priority, int) or isinstance(priority, bool) or abs(priority) > PRIORITY:
            raise _wrong(field, priority, f"must be an integer from -{PRIORITY} to {PRIORITY}")
        return priority

    def tags(self) -> tuple[str, ...]:
        field, tags = self._either("tags")
        if tags is None:
            return ()
        if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
            raise _wrong(field, tags, "must be an array of texts")
        return tuple(tags)

    def timeout(self) -> float:
        given = self.milliseconds("timeout_ms")
        if given is not None:
            return given
        field, timeout = self._either("timeout")
        if timeout is None:
            return self._defaults.timeout
        if not isinstance(timeout, int | float) or isinstance(timeout, bool) or not 0 < timeout <= LONGEST:
            raise _wrong(field, timeout, "must be a number of seconds, more than 0 and at most a year of them")
        return float(timeout)

    def milliseconds(self, name: str) -> float | None:
        """A duration of the options in seconds."""
        field, value = self._either(name)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value / 1000 <= LONGEST:
            raise _wrong(field, value, "must be a number of milliseconds, more than 0 and at most a year of them")
        return value / 1000

    def time(self, *names: str) -> datetime | None:
        """An instant under the first of some names that is given, or relative to now."""
        for name in names:
            field, value = self._either(name)
            if value is not None:
                return self._instant(field, value)
        return None

    def as_given(self, name: str, meant: datetime) -> str:
        """A time as the client wrote it, unless that was relative."""
        _, value = self._either(name)
        return value if isinstance(value, str) and not value.startswith("+") else meant.isoformat()

    def retry(self) -> tuple[RetryPolicy, bool]:
        """The policy, and whether what fails for good is kept as a dead letter."""
        _, given = self._either("retry")
        if given is None:
            return RetryPolicy(initial_delay=1, jitter=JITTER, max_delay_with_jitter=True), False
        if not isinstance(given, Mapping):
            raise _unusable_policy("retry", given, "must be an object")
        attempts = given.get("max_attempts", 3)
        if not isinstance(attempts, int) or isinstance(attempts, bool) or not 0 <= attempts <= 100:  # noqa: PLR2004 - as RetryPolicy
            raise _unusable_policy("retry.max_attempts", attempts, "must be an integer from 0 to 100")
        coefficient = given.get("backoff_coefficient", 2.0)
        if not isinstance(coefficient, int | float) or isinstance(coefficient, bool) or coefficient < 1:
            raise _unusable_policy("retry.backoff_coefficient", coefficient, "must be a number, at least 1")
        strategy = given.get("backoff_strategy", "exponential")
        if strategy not in _STRATEGIES:
            raise _unusable_policy("retry.backoff_strategy", strategy, f"must be one of {', '.join(_STRATEGIES)}")
        jitter, exhausted = given.get("jitter", True), given.get("on_exhaustion", "discard")
        if not isinstance(jitter, bool):
            raise _unusable_policy("retry.jitter", jitter, "must be true or false")
        if exhausted not in {"discard", "dead_letter"}:
            raise _unusable_policy("retry.on_exhaustion", exhausted, "must be `discard` or `dead_letter`")
        patterns = given.get("non_retryable_errors", [])
        if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
            raise _unusable_policy("retry.non_retryable_errors", patterns, "must be an array of texts")
        policy = RetryPolicy.model_validate(
            {
                "max_attempts": max(attempts, 1),
                "initial_delay": _interval(given, "initial_interval", 1.0),
                "max_delay": _interval(given, "max_interval", 300.0),
                "multiplier": float(coefficient),
                "backoff": _STRATEGIES[strategy],
                "jitter": JITTER if jitter else 0.0,
                "max_delay_with_jitter": True,
                "non_retryable_errors": tuple(patterns),
            }
        )
        return policy, exhausted == "dead_letter"

    def _either(self, name: str) -> tuple[str, Any]:
        """A field of the options, or beside them."""
        if self.options.get(name) is not None:
            return f"options.{name}", self.options[name]
        return name, self._body.get(name)

    def _instant(self, field: str, value: object) -> datetime:
        right = "must be an instant with its zone (`2026-11-20T10:00:00Z`), or relative to now (`+PT5S`)"
        if not isinstance(value, str):
            raise _wrong(field, value, right)
        try:
            if value.startswith("+"):
                return self._defaults.now + timedelta(seconds=duration.parse(value[1:]))
            at = datetime.fromisoformat(value)
        except (ValueError, OverflowError):
            raise _wrong(field, value, right) from None
        if at.tzinfo is None:
            raise _wrong(field, value, right)
        return at


def _interval(given: Mapping[str, Any], name: str, usual: float) -> float:
    """Seconds, from ISO 8601 or from milliseconds."""
    if (milliseconds := given.get(f"{name}_ms")) is not None:
        if isinstance(milliseconds, int | float) and not isinstance(milliseconds, bool) and milliseconds >= 0:
            return milliseconds / 1000
        raise _unusable_policy(f"retry.{name}_ms", milliseconds, "must be a number of milliseconds")
    value = given.get(name)
    if value is None:
        return usual
    try:
        return float(duration.parse(value))
    except (ValueError, TypeError):
        raise _unusable_policy(f"retry.{name}", value, "must be a duration of ISO 8601, e.g. `PT1S`") from None


def _missing(field: str) -> Problem:
    wrong = FieldError(field=field, right="required, and not given")
    return Problem(400, "invalid-request", f"`{field}`: {wrong.right}", (wrong,))


def _wrong(field: str, value: object, right: str) -> Problem:
    wrong = FieldError(field=field, value=show(value), right=right)
    return Problem(400, "invalid-request", f"`{field}` is {wrong.value}: {right}", (wrong,))


def _unusable_policy(field: str, value: object, right: str) -> Problem:
    wrong = FieldError(field=field, value=show(value), right=right)
    return Problem(422, "invalid-retry-policy", f"`{field}` is {wrong.value}: {right}", (wrong,))
