"""The CronJob of the Open Job Spec (ojs-cron §2), read and written.

A retry policy has the defaults of ojs-retry (first delay one second). `jitter: true` is ±10 %, and `on_exhaustion:
dead_letter` is `dead_letter`. Fields that the system manages are ignored (CRON-06). The registration form of the
conformance suite, `expression` and `job_template`, is read as well, and so are a `meta` beside the options and
`timeout_ms` in them, as the HTTP binding writes them. Every other field of a definition is an extension under its own
name (`EXTENSIONS`), so that writing loses nothing: `dst`, `catch_up`, `retention`, `execution_timeout` and so on
(`options.timeout` limits one attempt).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from pydantic import JsonValue

from .. import duration
from ..definition import DefinitionError, DefinitionProblem, JobDefinition, RetryPolicy, show
from .document import Document, Path

MANAGED: Final = frozenset({"last_run_at", "next_run_at", "run_count", "created_at"})
"""Fields that an implementation sets and a client cannot (ojs-cron §2.2)."""

DEFAULT_RETRY: Final = RetryPolicy(initial_delay=1)
"""ojs-retry's defaults: 3 attempts, PT1S, doubled, at most PT5M, with jitter."""

TYPE: Final = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")
"""ojs-core's job type (CRON-04)."""

_JITTER: Final = 0.1
_STAND_IN: Final = "unknown"  # for an invalid type, so that it is reported once
_SAME: Final = frozenset({"name", "timezone", "args", "overlap_policy", "enabled", "description"})
_TEMPLATE: Final = frozenset({"type", "args", "options"})
_OPTIONS: Final = frozenset({"queue", "priority", "timeout", "retry", "tags", "meta"})
_RENAMED: Final = frozenset({"schedule", "function", "dead_letter"})
EXTENSIONS: Final = frozenset(JobDefinition.model_fields) - _SAME - _OPTIONS - _RENAMED - {"dag"}
"""Fields of a definition that ojs-cron does not have; a CronJob has them under their own names."""

_JOB: Final = _SAME | EXTENSIONS | MANAGED | {"cron", "type", "options"}
_RETRY: Final = {
    "max_attempts": "max_attempts",
    "initial_interval": "initial_delay",
    "backoff_coefficient": "multiplier",
    "backoff_strategy": "backoff",
    "max_interval": "max_delay",
    "jitter": "jitter",
    "non_retryable_errors": "non_retryable_errors",
    "max_delay_with_jitter": "max_delay_with_jitter",
}
"""Names of a retry policy's fields here and in a definition; `max_delay_with_jitter` is an extension."""
_EXHAUSTION: Final = {"discard": False, "dead_letter": True}


def reading(written: Mapping[Any, object]) -> Document:
    document = Document(spelled=_spelled)
    job = document.known(_unfolded(document, written), _JOB)
    fields = {name: job[name] for name in job.keys() & (_SAME | EXTENSIONS)}
    for required, name in (("cron", "schedule"), ("type", "function")):
        if required in job:
            fields[name] = job[required]
        else:
            document.problems.append(DefinitionProblem("required, and not given", field=required, code="required"))
    if "function" not in fields:
        fields["function"] = _STAND_IN
    elif isinstance(kind := fields["function"], str) and not TYPE.fullmatch(kind):
        reason = "must be words of lower-case letters, digits and underscores, joined by dots, e.g. `report.generate`"
        document.wrong("type", kind, reason)
        fields["function"] = _STAND_IN
    document.fields = {**fields, **_options(document, job.get("options"))}
    return document


def respelled(error: DefinitionError) -> DefinitionError:
    """Return an error about a definition with the field names of a CronJob."""
    return DefinitionError(
        *(replace(problem, field=".".join(map(str, _spelled((problem.field,))))) for problem in error.problems)
    )


def write(definition: JobDefinition) -> dict[str, JsonValue]:
    """Return the CronJob that reads back as this definition, without managed fields.

    Raises:
        DefinitionError: a CronJob cannot express the job: it has steps, no schedule, or a function that is not a type.
    """
    if problems := tuple(_unsayable(definition)):
        raise DefinitionError(*problems)
    timeout = definition.timeout
    options: dict[str, JsonValue] = {
        "queue": definition.queue,
        "timeout": int(timeout) if timeout.is_integer() else timeout,
        "retry": _written_retry(definition.retry, dead_letter=definition.dead_letter),
    }
    if definition.priority:
        options["priority"] = definition.priority
    if definition.tags:
        options["tags"] = list(definition.tags)
    if definition.meta:
        options["meta"] = definition.meta
    dumped = definition.model_dump(mode="json", exclude_defaults=True)
    return {
        "name": definition.name,
        "cron": definition.schedule,
        "timezone": definition.timezone,
        "type": definition.function,
        "args": list(definition.args),
        "options": options,
        "overlap_policy": definition.overlap_policy,
        "enabled": definition.enabled,
        "description": definition.description,
        **{name: dumped[name] for name in sorted(EXTENSIONS & dumped.keys())},
    }


def _spelled(path: Path) -> Path:
    renamed = {"schedule": "cron", "function": "type", "dead_letter": "on_exhaustion"}
    match path:
        case ("retry", str(field), *rest):
            spelling = next((ojs_name for ojs_name, name in _RETRY.items() if name == field), field)
            return ("options", "retry", spelling, *rest)
        case (str(field), *rest) if field in _OPTIONS:
            return ("options", field, *rest)
        case (str(field), *rest):
            return (renamed.get(field, field), *rest)
        case _:
            return path


def _unfolded(read: Document, written: Mapping[Any, object]) -> dict[Any, object]:
    job = dict(written)
    if "expression" in job:
        job.setdefault("cron", job.pop("expression"))
    if "job_template" in job:
        template = job.pop("job_template")
        if isinstance(template, Mapping):
            job = {**read.known(template, _TEMPLATE, under="job_template."), **job}
        else:
            read.wrong("job_template", template, "must be a mapping", code="wrong-type")
    options = job.get("options", {})
    if "meta" in job and isinstance(options, Mapping):  # the HTTP binding and its clients write it here
        job["options"] = {"meta": job.pop("meta"), **options}
    return job


def _options(read: Document, written: object) -> dict[str, object]:
    retry: dict[str, object] = DEFAULT_RETRY.model_dump()
    if written is None:
        return {"retry": retry}
    if not isinstance(written, Mapping):
        read.wrong("options", written, "must be a mapping", code="wrong-type")
        return {"retry": retry}
    options = read.known(_in_seconds(written), _OPTIONS, under="options.")
    policy = options.get("retry", {})
    if isinstance(policy, Mapping):
        policy_fields = read.known(policy, _RETRY.keys() | {"on_exhaustion"}, under="options.retry.")
        if "on_exhaustion" in policy_fields:
            options["dead_letter"] = _dead_letter(read, policy_fields.pop("on_exhaustion"))
        if isinstance(policy_fields.get("jitter"), bool):
            policy_fields["jitter"] = _JITTER if policy_fields["jitter"] else 0.0
        options["retry"] = retry | {_RETRY[name]: value for name, value in policy_fields.items()}
    return options


def _in_seconds(options: Mapping[Any, object]) -> dict[Any, object]:
    remaining = dict(options)
    timeout = remaining.get("timeout_ms")
    if isinstance(timeout, int | float) and not isinstance(timeout, bool) and "timeout" not in remaining:
        del remaining["timeout_ms"]
        remaining["timeout"] = timeout / 1_000
    return remaining


def _dead_letter(read: Document, written: object) -> bool:
    if isinstance(written, str) and written in _EXHAUSTION:
        return _EXHAUSTION[written]
    reason = "must be one of `discard` or `dead_letter`"
    read.wrong("options.retry.on_exhaustion", written, reason, code="unknown-choice")
    return False


def _unsayable(definition: JobDefinition) -> Iterator[DefinitionProblem]:
    job, code = f"job `{definition.name}`", "not-expressible"
    if definition.dag:
        yield DefinitionProblem("a CronJob has no steps", field="dag", job=job, code=code)
        return
    if definition.schedule is None:
        yield DefinitionProblem("a CronJob needs a schedule", field="cron", job=job, code=code)
    if not TYPE.fullmatch(definition.function or ""):
        reason = "a CronJob's type is words joined by dots, e.g. `report.generate`"
        yield DefinitionProblem(reason, field="type", value=show(definition.function), job=job, code=code)


def _written_retry(retry: RetryPolicy, *, dead_letter: bool) -> dict[str, JsonValue]:
    return {
        "max_attempts": retry.max_attempts,
        "initial_interval": duration.iso(retry.initial_delay),
        "backoff_coefficient": retry.multiplier,
        "max_interval": duration.iso(retry.max_delay),
        "jitter": {0.0: False, _JITTER: True}.get(retry.jitter, retry.jitter),
        **({} if retry.backoff == "exponential" else {"backoff_strategy": retry.backoff}),
        **({"max_delay_with_jitter": True} if retry.max_delay_with_jitter else {}),
        "non_retryable_errors": list(retry.non_retryable_errors),
        "on_exhaustion": "dead_letter" if dead_letter else "discard",
    }
