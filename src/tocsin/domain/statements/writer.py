"""The statement that makes a definition: `SHOW CREATE JOB`."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from .. import duration
from ..definition import DefinitionError, DefinitionProblem, JobDefinition
from ..formats.scratchbird import DEFAULT_BACKOFF_S, DEFAULT_RETRIES, clause_of, join_command
from ..statement_error import StatementError
from .definitions import defined, document_of
from .model import CreateJob
from .reader import read_statements

_PLAIN: Final = re.compile(r"[a-z][a-z0-9]*")


def create_statement(definition: JobDefinition) -> str:
    """Return the `CREATE JOB` of a definition; raise DefinitionError for jobs without one."""
    if definition.dag:
        raise _refused(definition, "dag", "a job in SQL has a single step: use `tocsin jobs export`")
    lines = (f"CREATE JOB {_name(definition.name)}", *_clauses(document_of(definition)))
    text = "\n  ".join(lines) + ";"
    back = _read_back(text)
    if back != definition:
        dumped, other = definition.model_dump(mode="json"), back.model_dump(mode="json") if back else {}
        field = next((name for name in dumped if dumped[name] != other.get(name)), "name")
        raise _refused(definition, field, "no clause says this: use `tocsin jobs export`")
    return text


def _read_back(text: str) -> JobDefinition | None:
    try:
        (statement,) = read_statements(text)
        return defined(statement) if isinstance(statement, CreateJob) else None
    except (StatementError, DefinitionError):
        return None


def _refused(definition: JobDefinition, field: str, reason: str) -> DefinitionError:
    job = f"job `{definition.name}`"
    return DefinitionError(DefinitionProblem(reason, field=field, job=job, code="not-expressible"))


def _clauses(document: dict[str, Any]) -> Iterator[str]:
    """Yield the clauses of a job in the names of ScratchBird. Defaults are left out."""
    schedule = document.get("cron_expression")
    if "job_class" in document:
        yield f"CLASS = {document.pop('job_class')}"
    yield from _timing(document)
    if "partition" in document and (rule := clause_of(document["partition"])) is not None:
        del document["partition"]
        yield f"PARTITION BY {rule}"
    dependencies = document.get("depends_on", [])
    if dependencies and all(dependency.keys() == {"job"} for dependency in dependencies):
        yield f"DEPENDS ON {', '.join(_name(dependency['job']) for dependency in document.pop('depends_on'))}"
    for field in ("queue", "description"):
        if field in document:
            yield f"{field.upper()} = {_text(document.pop(field))}"
    if document.pop("state") == "DISABLED":
        yield "DISABLED"
    yield from _options(document, usual_policy="enqueue" if schedule is None else "skip")


def _timing(document: dict[str, Any]) -> Iterator[str]:
    schedule, zone = document.pop("cron_expression", None), document.pop("schedule_tz")
    if schedule is not None:
        yield f"SCHEDULE = {_text(schedule)}"
    if zone != "UTC":
        yield f"TIMEZONE = {_text(zone)}"
    for keyword, field, usual in (
        ("MAX_RETRIES", "max_retries", DEFAULT_RETRIES),
        ("RETRY_BACKOFF", "retry_backoff", DEFAULT_BACKOFF_S),
        ("TIMEOUT", "timeout", None),  # an installation may have another default
    ):
        value = document.pop(field, usual)
        if value != usual:
            yield f"{keyword} = {value if field == 'max_retries' else _duration(value)}"
    if (policy := document.pop("catch_up")) != "last":
        yield f"CATCH_UP = {policy}"
    if (end := document.pop("on_completion")) != "preserve":
        yield f"ON COMPLETION {end.upper()}"


def _options(document: dict[str, Any], *, usual_policy: str) -> Iterator[str]:
    if document["overlap_policy"] == usual_policy:
        del document["overlap_policy"]
    work = None
    if "function" in document:
        work = f"FUNCTION {_text(document.pop('function'))}"
    elif document.get("command", {}).keys() == {"argv"} and (line := join_command(document["command"]["argv"])):
        del document["command"]
        work = f"EXEC {_text(line)}"
    if document:
        yield f"WITH {_text(json.dumps(document, ensure_ascii=False, sort_keys=True))}"
    if work is not None:
        yield work


def _name(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else f'"{name}"'


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _duration(seconds: float) -> str:
    """Return a duration as text, or as a number if only this is exact."""
    short = duration.short(seconds)
    try:
        if duration.parse(short) == seconds:
            return _text(short)
    except duration.DurationError:
        pass
    return repr(seconds)
