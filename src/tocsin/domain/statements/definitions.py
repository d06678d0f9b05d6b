"""The definition that a statement makes, or into which it changes another."""

from dataclasses import replace
from typing import Any, Final

from ..definition import DefinitionError, JobDefinition
from ..definition.builtin_work import FIELDS, is_builtin
from ..formats import read_job
from ..formats.scratchbird import CATCH_UP, EXTENSIONS, retry_policy
from ..schedule import parse, without_bounds
from ..statement_error import Place
from .model import AlterJob, CreateJob

_WORK: Final = frozenset({"function", "external_command", "job_sql", *FIELDS})
_SCHEDULES: Final = frozenset({"cron_expression", "timestamp", "interval_seconds"})
_BOUNDS: Final = ("starts_at", "ends_at")
_RETRY: Final = frozenset({"max_retries", "retry_backoff"})


def defined(statement: CreateJob, connection: str | None = None) -> JobDefinition:
    """Return the definition that `CREATE JOB` writes.

    `connection` is that of `AS` and `CALL` without a `CONNECTION`.

    Raises:
        DefinitionError: with all problems, each at its place in the text.
    """
    return _read(statement, dict(statement.fields), connection)


def altered(statement: AlterJob, before: JobDefinition, connection: str | None = None) -> JobDefinition:
    """Return a definition after `ALTER JOB`. What no clause names stays as it is.

    `connection` is that of `AS` and `CALL` without a `CONNECTION`, if the job had none.
    A state of `PAUSED` changes nothing here, because a pause is no part of a definition.

    Raises:
        DefinitionError: with all problems, each at its place in the text.
    """
    written = {name: value for name, value in statement.fields.items() if not is_pause(name, value)}
    keeps_steps = bool(before.dag) and written.keys().isdisjoint(_WORK)
    document = document_of(before.model_copy(update={"function": "f", "dag": ()}) if keeps_steps else before)
    if written.keys() & _SCHEDULES:
        document.pop("cron_expression", None)
    elif written.keys() & set(_BOUNDS) and before.schedule is not None:
        document |= _unbounded(before, before.schedule)
    if written.keys() & _WORK:
        work = before.sql or before.procedure
        connection = connection if work is None else work.connection
        document = {name: value for name, value in document.items() if name not in _WORK}
    if "partition_rule" in written:
        document.pop("partition", None)
    _replace_retry(document, written, before)
    after = _read(statement, document | written, connection)
    if "retry_backoff" in written:
        errors = before.retry.non_retryable_errors
        after = after.model_copy(update={"retry": after.retry.model_copy(update={"non_retryable_errors": errors})})
    return after.model_copy(update={"function": None, "dag": before.dag}) if keeps_steps else after


def is_pause(name: str, value: object) -> bool:
    return name == "state" and isinstance(value, str) and value.upper() == "PAUSED"


def document_of(definition: JobDefinition) -> dict[str, Any]:
    """Return a job with a single step in the names of ScratchBird.

    Every schedule is a `cron_expression`, and a rule for retries that ScratchBird does not have is a `retry`.
    """
    dumped = definition.model_dump(mode="json", exclude_defaults=True)
    document = {name: dumped[name] for name in dumped.keys() & (EXTENSIONS | {"description", "depends_on"})}
    document |= {"timeout": definition.timeout, "overlap_policy": definition.overlap_policy}
    document |= {"on_completion": definition.on_completion, "state": "ENABLED" if definition.enabled else "DISABLED"}
    document["catch_up"] = next(name for name, policy in CATCH_UP.items() if policy == definition.catch_up)
    if definition.schedule is not None:
        document["cron_expression"] = definition.schedule
    document["schedule_tz"] = definition.timezone
    document.pop("retry", None)
    if is_builtin(definition.function):
        del document["function"]  # its field implies it
    retry = definition.retry
    if retry == retry_policy(retry.max_attempts - 1, retry.initial_delay):
        return document | {"max_retries": retry.max_attempts - 1, "retry_backoff": retry.initial_delay}
    return document | {"retry": retry.model_dump(mode="json")}


def _unbounded(before: JobDefinition, text: str) -> dict[str, Any]:
    schedule = parse(text, before.timezone, dst=before.dst)
    bounds = ((name, getattr(schedule, name)) for name in _BOUNDS)
    return {
        "cron_expression": without_bounds(text),
        **{name: f"{at:%Y-%m-%dT%H:%M:%SZ}" for name, at in bounds if at is not None},
    }


def _replace_retry(document: dict[str, Any], written: dict[str, object], before: JobDefinition) -> None:
    """Let a new number of retries keep the rule, and a new backoff replace it."""
    if "retry" in written:
        for name in _RETRY:
            document.pop(name, None)
    elif "retry" in document and written.keys() & _RETRY:
        retries = written.get("max_retries", before.retry.max_attempts - 1)
        if "retry_backoff" in written or isinstance(retries, bool) or not isinstance(retries, int):
            del document["retry"]
            written["max_retries"] = retries
        else:
            document["retry"]["max_attempts"] = retries + 1
            del written["max_retries"]


def _read(statement: CreateJob, document: dict[str, Any], connection: str | None) -> JobDefinition:
    try:
        return read_job({"job_name": statement.job, **document}, connection=connection)
    except DefinitionError as error:
        job = f"job `{statement.job}`"
        raise DefinitionError(
            *(replace(problem, job=f"{_place_of(problem.field, statement)}: {job}") for problem in error.problems)
        ) from None


def _place_of(field: str, statement: CreateJob) -> Place:
    head = field.partition(".")[0].partition("[")[0]
    return statement.places.get(head, statement.place)
