"""Validate the job envelope of the Open Job Spec (ojs-core §5, ojs-http-binding §9.1).

Several documents of the specification place the same field differently, and all of them are read: queue, times and policies
inside `options` or next to it (`options` wins), intervals in ISO 8601 or in milliseconds, times with a zone or relative to
now (`+PT5S`). The models say which values are valid, and the descriptions of their fields answer the others.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    JsonValue,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from ....domain import duration
from ....domain.access import WORKER_QUEUE, Principal
from ....domain.definition import DefinitionError, JobDefinition, RetryPolicy, show
from ....domain.definition.errors import problems
from ....domain.events import Actor, Enqueued, StartRate, UniqueRule
from ....domain.namespaces import declared_of
from ....domain.secret_reference import find_references, reference
from ....domain.task_fetch import MAX_LEASE_S
from ....domain.text import utc_text
from ....domain.trace_context import parse as parse_traceparent
from ....settings import Archive
from ..api.problems import FieldError, Problem, as_line
from ..auth.security import outside_namespaces
from .job_policies import InvalidPolicy, RatePolicy, UniquePolicy

QUEUE: Final = WORKER_QUEUE
PRIORITIES: Final[Mapping[str, int]] = {"HIGH": 3, "NORMAL": 2, "LOW": 1}
"""The named priorities (L4-PRI-003)."""
MAX_TYPE_LENGTH: Final = 200
JITTER: Final = 0.5
"""`jitter: true` of ojs-retry §5.1: a delay between half and one and a half times as long."""
JOB_PREFIX: Final = "ojs."
"""Precedes the type in the job name of such executions, because a registered job may have the name of a type."""
META_KEY: Final = "ojs"
"""Key of a task's `meta` that holds the fields which only this protocol knows."""

_TYPE: Final = r"^[a-z][a-z0-9_-]*(\.[a-z][a-z0-9_-]*)*$"
_UUID_V7: Final = r"^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"
_OPTIONS: Final = (
    *("queue", "priority", "tags", "timeout", "timeout_ms", "visibility_timeout_ms", "expires_at", "retry", "unique"),
    *("rate_limit",),
)
"""Fields that may be inside `options` or next to it; `scheduled_at` and `delay_until` are two names of one field."""
OPTIONS: Final = (*_OPTIONS, "scheduled_at", "delay_until")
"""The options of a job that the manifest names."""
_DECLARED: Final = frozenset(
    {
        *("specversion", "id", "type", "args", "queue", "meta", "options", "priority", "timeout", "retry", "tags"),
        *("scheduled_at", "delay_until", "expires_at", "schema"),
    }
)
_MANAGED: Final = frozenset(
    {
        *("state", "attempt", "max_attempts", "created_at", "enqueued_at", "started_at", "completed_at"),
        *("cancelled_at", "discarded_at", "error", "errors", "result", "next_attempt_at", "retry_delay_ms"),
        *("result_stored_at", "result_expires_at", "result_size_bytes", "worker_id", "workflow_id", "previous_state"),
        *("parent_results", "parent_results_left_out", "last_checkpoint", "input", "bind", "fence", "traceparent"),
    }
)
"""Fields that the server manages: ignored if a client sends them, who could otherwise pass for the server."""
_Backoff: TypeAlias = Literal["exponential", "linear", "polynomial", "constant", "none"]


def _instant(value: object, info: ValidationInfo) -> datetime:
    if not isinstance(value, str):
        raise ValueError("not text")  # noqa: TRY004 - pydantic reports only ValueError as a validation error
    try:
        if value.startswith("+"):
            now: datetime = (info.context or {})["now"]
            return now + timedelta(seconds=duration.parse(value[1:]))
        instant = datetime.fromisoformat(value)
        if instant.tzinfo is None:
            raise ValueError("no offset from UTC")
        return instant.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(str(error)) from None


def _named(priority: object) -> object:
    return PRIORITIES.get(priority, priority) if isinstance(priority, str) else priority


def _seconds(milliseconds: float) -> float:
    return milliseconds / 1000


_Instant: TypeAlias = Annotated[
    Annotated[datetime, BeforeValidator(_instant)] | None,
    Field(description="must be an instant with its zone (`2026-11-20T10:00:00Z`), or relative to now (`+PT5S`)"),
]
_Milliseconds: TypeAlias = Annotated[
    Annotated[float, AfterValidator(_seconds), Field(gt=0, le=MAX_LEASE_S)] | None,
    Field(description="must be a number of milliseconds, more than 0 and at most a year"),
]
_Interval: TypeAlias = Annotated[
    Annotated[float, BeforeValidator(duration.parse)] | None,
    Field(description="must be an ISO 8601 duration, e.g. `PT1S`"),
]
_IntervalMs: TypeAlias = Annotated[
    Annotated[float, AfterValidator(_seconds), Field(ge=0, le=duration.MAX_DURATION_S)] | None,
    Field(description="must be a number of milliseconds, at most ten years"),
]
_Object: TypeAlias = Annotated[dict[str, Any], Field(description="must be an object")]
PENDING: Final = "must be false or absent: activation of pending jobs is not supported"
"""Such a job must not run before its activation, so the option cannot be ignored."""


class _Retry(BaseModel, strict=True, use_attribute_docstrings=True):
    """A retry policy (ojs-retry §3). The text of a field says which values are valid."""

    max_attempts: int = Field(default=3, ge=0, le=100)
    """must be an integer from 0 to 100"""
    backoff_coefficient: float = Field(default=2.0, ge=1, allow_inf_nan=False)
    """must be a number, at least 1"""
    backoff_strategy: _Backoff = "exponential"
    """must be one of exponential, linear, polynomial, constant, none"""
    jitter: bool = True
    """must be true or false"""
    on_exhaustion: Literal["discard", "dead_letter"] = "discard"
    """must be `discard` or `dead_letter`"""
    non_retryable_errors: list[str] = []
    """must be an array of strings"""
    initial_interval_ms: _IntervalMs = None
    initial_interval: _Interval = None
    max_interval_ms: _IntervalMs = None
    max_interval: _Interval = None

    @model_validator(mode="before")
    @classmethod
    def _prefer_milliseconds(cls, given: Any) -> Any:  # noqa: ANN401 - any JSON value
        if not isinstance(given, dict):
            return given
        ignored = {name for name in ("initial_interval", "max_interval") if given.get(f"{name}_ms") is not None}
        return {name: value for name, value in given.items() if name not in ignored}

    def policy(self) -> RetryPolicy:
        return RetryPolicy(
            max_attempts=max(self.max_attempts, 1),
            initial_delay=_first(self.initial_interval_ms, self.initial_interval, 1.0),
            max_delay=_first(self.max_interval_ms, self.max_interval, 300.0),
            multiplier=self.backoff_coefficient,
            backoff="none" if self.backoff_strategy == "constant" else self.backoff_strategy,
            jitter=JITTER if self.jitter else 0.0,
            max_delay_with_jitter=True,
            non_retryable_errors=tuple(self.non_retryable_errors),
        )


class _Envelope(BaseModel, strict=True, use_attribute_docstrings=True):
    """A pushed job. Fields of `options` are moved next to it before validation (`_flattened`)."""

    options: _Object = {}
    id: str | None = Field(default=None, pattern=_UUID_V7)
    """must be a UUIDv7 in lower case"""
    type: str = Field(pattern=_TYPE, max_length=MAX_TYPE_LENGTH)
    """must be words of lower-case letters, digits, underscores and hyphens, joined by dots, e.g. `email.send`"""
    priority: Annotated[int, BeforeValidator(_named)] = Field(default=0, ge=-100, le=100)
    """must be an integer from -100 to 100, or one of HIGH, NORMAL, LOW"""
    visibility_timeout_ms: _Milliseconds = None
    start_at: _Instant = None
    expires_at: _Instant = None
    retry: _Retry | None = None
    """must be an object"""
    unique: UniquePolicy | None = None
    """must be an object"""
    rate_limit: RatePolicy | None = None
    """must be an object"""
    pending: None = Field(default=None, description=PENDING)
    args: list[Any]
    """must be an array"""
    queue: str = Field(default="default", pattern=f"^{QUEUE.pattern}$")
    """must be lower-case letters, digits, hyphens and dots, and must not start with a hyphen or a dot"""
    timeout_ms: _Milliseconds = None
    timeout: float | None = Field(default=None, gt=0, le=MAX_LEASE_S)
    """must be a number of seconds, more than 0 and at most a year"""
    tags: list[str] = []
    """must be an array of strings"""
    meta: _Object = {}


_POLICIES: Final[Mapping[str, type[BaseModel]]] = {"retry": _Retry, "unique": UniquePolicy, "rate_limit": RatePolicy}
_KINDS: Final = {"retry": ("invalid-retry-policy", 422), "pending": ("unsupported", 422)}
"""The kind and the status of an invalid field; other fields have `invalid-request` and 400."""


@dataclass(frozen=True)
class Defaults:
    """Values for fields that a job leaves out."""

    now: datetime
    timeout: float
    traceparent: str | None = None
    """The trace that a job without `meta.traceparent` continues."""
    max_timeout: float | None = None
    """The longest timeout that the scheduler policy permits; None: any."""
    remembered: float = Archive().hot_window
    """Seconds for which the log has jobs that ended (`archive.hot_window`)."""
    namespaces: frozenset[str] = frozenset()


_OWN_ID: Final = "must be left out, because the token is bound to namespaces: the server makes the id, and `Idempotency-Key` names a request"
_NO_SECRETS: Final = (
    "must refer to no secret of a worker, because only a registered definition may; write `$${` for a literal `${`"
)
"""Args often have what an end user wrote."""


def within(caller: Principal, wish: Enqueued, defaults: Defaults, made: str) -> Enqueued:
    """Return an input in the namespace of its queues.

    The name of its job begins with the namespace, so that the callers of the namespace see it. An input for queues of the default
    namespace stays the same. `made`: the id that the server made for it.
    """
    definition = wish.definition
    if caller.is_bound and wish.execution_id != made:
        # Ids are unique in the installation, and those of occurrences can be computed: an id of the client would tell whether a job of
        # others ran, and could be that of its next execution.
        raise _invalid("id", wish.execution_id, _OWN_ID)
    queues = definition.step_queues()
    for queue in queues:
        if not caller.reaches(queue):
            raise outside_namespaces(caller, "queue", queue)
    known = defaults.namespaces if caller.namespaces is None else caller.namespaces
    first = declared_of(queues[0], known)
    if (differs := next((queue for queue in queues if declared_of(queue, known) != first), None)) is not None:
        raise _invalid("queue", differs, f"must be in the namespace of {queues[0]!r}, as all jobs of a workflow")
    if first is None:
        return wish
    named = definition.model_copy(update={"name": f"{first}.{definition.name}"})
    # Clients choose the keys of rates. Without the namespace, they would use up the rates of others.
    rate = None if wish.rate is None else wish.rate.changed(key=f"namespace:{first}:{wish.rate.key}")
    return wish.model_copy(update={"definition": named, "rate": rate})


def read(body: object, execution_id: str, defaults: Defaults, by: Actor) -> Enqueued:
    """Return the input of a pushed job; `execution_id`: its id if it brings none."""
    if not isinstance(body, dict):
        raise _invalid("body", body, "must be a JSON object: a job")
    fields, sources = _flattened(body)
    try:
        envelope = _Envelope.model_validate(fields, context={"now": defaults.now})
    except ValidationError as error:
        raise _problem(error, fields, sources) from None
    meta: dict[str, JsonValue] = {**envelope.meta, META_KEY: _protocol_fields(body, envelope, execution_id, fields)}
    try:
        definition = JobDefinition(
            name=JOB_PREFIX + envelope.type.replace("_", "-"),
            function=envelope.type,
            args=tuple(envelope.args),
            queue=envelope.queue,
            priority=envelope.priority,
            timeout=_first(envelope.timeout_ms, envelope.timeout, defaults.timeout),
            retry=_retry_policy(envelope.retry),
            dead_letter=envelope.retry is not None and envelope.retry.on_exhaustion == "dead_letter",
            overlap_policy="allow",
            tags=tuple(envelope.tags),
            meta=meta,
        )
    except (DefinitionError, ValidationError) as error:
        reason = why_refused(error)
        raise Problem(400, "invalid-request", reason, (FieldError(right=reason),)) from None
    if names := find_references(envelope.args):
        raise _invalid("args", reference(names[0]), _NO_SECRETS)
    if defaults.max_timeout is not None and definition.timeout > defaults.max_timeout:
        requirement = f"must be at most {duration.short(defaults.max_timeout)}, `job_timeout` of the scheduler policy"
        raise _invalid("timeout", duration.short(definition.timeout), requirement)
    trace = parse_traceparent(envelope.meta.get("traceparent")) or parse_traceparent(defaults.traceparent)
    unique, rate = _rules_of(envelope, defaults.remembered)
    starts_later = envelope.start_at is not None and envelope.start_at > defaults.now
    return Enqueued(
        execution_id=envelope.id or execution_id,
        definition=definition,
        start_at=envelope.start_at if starts_later else None,
        expires_at=envelope.expires_at,
        by=by,
        traceparent=None if trace is None else trace.traceparent,  # ojs-distributed-tracing §6.1
        unique=unique,
        rate=rate,
    )


def why_refused(error: DefinitionError | ValidationError) -> str:
    """Return the problems of a definition, in words for clients."""
    found = error.problems if isinstance(error, DefinitionError) else problems(error)
    return "; ".join(map(str, found))


def is_queue(name: object) -> bool:
    """Return whether a value has the form of a queue's name."""
    return isinstance(name, str) and QUEUE.fullmatch(name) is not None


def is_job_id(text: str) -> bool:
    """Return whether a client may give a job or workflow this id."""
    return re.fullmatch(_UUID_V7, text) is not None


def _flattened(body: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values of a body by field of `_Envelope`, and the source of each."""
    options = body.get("options")
    inner = options if isinstance(options, dict) else {}
    fields = {name: body[name] for name in ("options", "id", "type", "meta") if body.get(name) is not None}
    if "args" in body:
        fields["args"] = body["args"]
    sources: dict[str, str] = {}
    names = [(name, name) for name in _OPTIONS] + [("start_at", "scheduled_at"), ("start_at", "delay_until")]
    for field, name in names:
        is_inner = inner.get(name) is not None
        value = inner[name] if is_inner else body.get(name)
        if value is not None and field not in fields:
            fields[field], sources[field] = value, f"options.{name}" if is_inner else name
    if (is_set := pending(body)) is not None:
        sources["pending"], fields["pending"] = is_set
    if "timeout_ms" in fields:
        fields.pop("timeout", None)
    return fields, sources


def pending(body: Mapping[str, Any]) -> tuple[str, object] | None:
    """Return the place and the value of a `pending` that is set and not false."""
    options = body.get("options")
    inner = options.get("pending") if isinstance(options, dict) else None
    places = (("options.pending", inner), ("pending", body.get("pending")))
    return next(((place, value) for place, value in places if value is not None and value is not False), None)


def _problem(error: ValidationError, fields: Mapping[str, Any], sources: Mapping[str, str]) -> Problem:
    details = error.errors(include_url=False, include_context=False)[0]
    field, *path = details["loc"]
    if details["type"] == "missing" and not path:
        missing = FieldError(field=str(field), right="required, and not given")
        return Problem(400, "invalid-request", f"`{missing.field}`: {missing.right}", (missing,))
    name = str(field)
    source, value, known = sources.get(name, name), fields[name], _Envelope.model_fields[name].description
    if (policy := _POLICIES.get(name)) is not None:
        source = name
        if path:
            source, value, of_policy = f"{name}.{path[0]}", value.get(path[0]), policy.model_fields
            unknown = f"is not supported; the fields of the policy are {', '.join(of_policy)}"
            known = of_policy[str(path[0])].description if path[0] in of_policy else unknown
    return _invalid(source, value, known or "", *_KINDS.get(name, ()))


def _invalid(field: str, value: object, requirement: str, kind: str = "invalid-request", status: int = 400) -> Problem:
    wrong = FieldError(field=field, value=show(value), right=requirement)
    return Problem(status, kind, as_line(wrong), (wrong,))


def _protocol_fields(
    body: Mapping[str, Any], envelope: _Envelope, execution_id: str, fields: Mapping[str, Any]
) -> dict[str, JsonValue]:
    """Return the fields that only this protocol knows, as `job_view` shows them again."""
    meta: dict[str, JsonValue] = {
        "id": envelope.id or execution_id,
        "options": envelope.options,
        "extra": {name: value for name, value in body.items() if name not in _DECLARED | _MANAGED},
    }
    if envelope.visibility_timeout_ms is not None:
        meta["lease"] = envelope.visibility_timeout_ms
    if envelope.expires_at is not None:
        expiry: str = fields["expires_at"]
        meta["expires_at"] = utc_text(envelope.expires_at) if expiry.startswith("+") else expiry
    return meta


def _retry_policy(retry: _Retry | None) -> RetryPolicy:
    if retry is None:
        return RetryPolicy(initial_delay=1, jitter=JITTER, max_delay_with_jitter=True)
    try:
        return retry.policy()
    except ValidationError:  # the only constraint that `_Retry` does not have
        right, names = "must be an array of strings that can be stored", retry.non_retryable_errors
        raise _invalid("retry.non_retryable_errors", names, right, *_KINDS["retry"]) from None


def _rules_of(job: _Envelope, remembered: float) -> tuple[UniqueRule | None, StartRate | None]:
    unique, rate, policy = None, None, "unique"
    try:
        if job.unique is not None:
            unique = job.unique.rule(
                type=job.type, queue=job.queue, args=job.args, meta=job.meta, remembered=remembered
            )
        policy = "rate_limit"
        if job.rate_limit is not None:
            rate = job.rate_limit.rule(job.queue, remembered)
    except InvalidPolicy as error:
        field = f"{policy}.{error.field}" if error.field else policy
        raise _invalid(field, error.value, error.requirement) from None
    return unique, rate


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)
