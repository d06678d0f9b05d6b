"""The job definition of ScratchBird's scheduler, read.

Its names stand for fields of a definition: `max_retries` for one attempt less, `retry_backoff` for a delay that doubles
without jitter and without a limit, `schedule_tz` for the time zone, `catch_up: none` for `skip`. Its defaults apply: 3
retries, a backoff of 60 seconds, a timeout of one hour. Every other field of a definition is an extension under its own name
(`EXTENSIONS`), such as `function`, `queue` or `input`. Fields that the system manages are ignored.

The fields in `_NOT_SERVED` are refused with the reason.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from .. import duration
from ..definition import DefinitionProblem, JobDefinition, RetryPolicy
from ..definition.sql_work import BOUND
from ..errors import TocsinError
from .document import Document, Path

MANAGED: Final = frozenset({"job_uuid", "created_at", "created_by_user_uuid", "next_run_time"})
"""Fields that the system sets and a client cannot."""

DEFAULT_TIMEOUT_S: Final = 3_600.0
DEFAULT_RETRIES: Final = 3
DEFAULT_BACKOFF_S: Final = 60.0
MAX_RETRIES: Final = 99

SCHEDULES: Final = {"CRON": "cron_expression", "AT": "timestamp", "EVERY": "interval_seconds"}
"""The field of a schedule, by its kind."""
CATCH_UP: Final = {"none": "skip", "last": "once", "all": "all"}
"""Policies for missed instants, here and in a definition."""
_STATES: Final = ("ENABLED", "DISABLED", "PAUSED")
_TYPES: Final = {
    "EXTERNAL": ("external_command", "command", "http", "container", "function"),
    "SQL": ("job_sql", "sql"),
    "PROCEDURE": ("procedure",),
}
"""The fields that a job of a type has, one of them."""
_NOT_SERVED: Final = {
    "run_as": (
        "Tocsin has no users of a database: a job runs with the rights of its worker. Give the work to a worker with these rights, by "
        "`queue`"
    ),
}
"""Fields without a counterpart, with the reason."""

_RENAMED: Final = frozenset({"schedule", "timezone", "enabled"})
_SAME: Final = frozenset({"name", "description", "timeout", "depends_on", "on_completion", "catch_up"})
EXTENSIONS: Final = frozenset(JobDefinition.model_fields) - _SAME - _RENAMED - _NOT_SERVED.keys() - {"dag"}
"""Fields of a definition that ScratchBird does not have; a document has them under their own names. Jobs with steps have no such form."""

MARKS: Final = frozenset(
    {
        *("job_name", "job_type", "schedule_type", "schedule_kind", "cron_expression", "schedule_tz", "timestamp"),
        *("interval_seconds", "starts_at", "ends_at", "max_retries", "retry_backoff", "state", "run_as"),
        *("job_sql", "external_command", "connection", "partition_rule"),
    }
)
"""Fields that no other format has."""
_JOB: Final = _SAME | EXTENSIONS | MANAGED | MARKS | _NOT_SERVED.keys()


# Quotes and backslashes work as in a shell, and nothing else does: no shell runs. A line with an operator of the shell is
# refused, because the program would get it as an argument.

_OPERATORS: Final = "();<>|&"


STRATEGIES: Final[Mapping[str, tuple[str, ...]]] = {
    "ALL_SHARDS": (),
    "SINGLE_SHARD": ("shard_uuid", "shard"),
    "SHARD_SET": ("shard_uuids", "shards"),
    "DYNAMIC": ("partition_expression",),
}
"""The fields of each strategy, one of which names the shards; shards have names here, and no UUIDs."""
_COLUMN: Final = re.compile(r"[A-Za-z0-9_\-]+")


def partition_of(rule: object) -> dict[str, object] | str:
    """Return the partition of a rule, or what is wrong with the rule."""
    if not isinstance(rule, Mapping):
        return 'write a mapping, such as {"strategy": "ALL_SHARDS"}'
    strategy = rule.get("strategy")
    name = strategy.upper() if isinstance(strategy, str) else ""
    if name not in STRATEGIES:
        return f"`strategy` is one of {', '.join(STRATEGIES)}"
    fields = STRATEGIES[name]
    given = [field for field in rule if field != "strategy"]
    if len(given) != bool(fields) or any(field not in fields for field in given):
        needs = f"exactly one of {', '.join(f'`{field}`' for field in fields)}" if fields else "no other field"
        return f"with the strategy {name} give {needs}"
    if name == "ALL_SHARDS":
        return {"all_shards": True}
    value = rule[given[0]]
    if name == "DYNAMIC":
        is_column = isinstance(value, str) and _COLUMN.fullmatch(value) is not None
        return {"shard_key": f"input.{value}" if is_column else value}
    return {"single_shard" if name == "SINGLE_SHARD" else "shard_set": value}


def clause_of(partition: Mapping[str, object]) -> str | None:
    """Return the rule of `PARTITION BY` for a stored partition; None: no clause says it."""
    match partition:
        case {"all_shards": True}:
            return "ALL_SHARDS"
        case {"single_shard": str(shard)}:
            return f"SHARD '{shard}'"
        case {"shard_set": [*shards]}:
            names = ", ".join(f"'{shard}'" for shard in shards)
            return f"SHARD_SET ({names})"
        case {"shard_key": str(key)}:
            return f"DYNAMIC '{key}'"
        case _:
            return None


class CommandLineError(TocsinError, ValueError):
    """A line that is not the argument vector of one program."""

    code = "invalid-command-line"


def split_command(text: str) -> list[str]:
    """Return the words of a line; raise CommandLineError if it needs a shell."""
    try:
        words, parts = shlex.split(text), _parts(text)
    except ValueError:
        raise CommandLineError("a quotation mark is never closed, or a backslash ends the line") from None
    if not words:
        raise CommandLineError("it is empty: write a program and its arguments")
    if words != parts or any(word and not word.strip(_OPERATORS) for word in words):
        raise CommandLineError(
            f"no shell runs, so none of {' '.join(_OPERATORS)} works as an operator: name one program, such as "
            "`/bin/sh -c 'first | second'`"
        )
    return words


def join_command(arguments: Sequence[str]) -> str | None:
    """Return the line that reads back as these arguments, or None."""
    text = shlex.join(arguments)
    try:
        return text if split_command(text) == [*arguments] else None
    except CommandLineError:
        return None


def _parts(text: str) -> list[str]:
    """Split as a shell does that knows operators outside quotes."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace_split = True
    lexer.commenters = ""
    return list(lexer)


def reading(written: Mapping[Any, object], connection: str | None = None) -> Document:
    """Read one job. `connection` is that of `job_sql` and `procedure` without one."""
    document = Document(spelled=_spelling(written))
    job = document.known(written, _JOB)
    if connection is not None and job.get("connection") is None and ("job_sql" in job or _is_call(job)):
        job["connection"] = connection
    for name in job.keys() & MANAGED:
        del job[name]
    for name in sorted(job.keys() & _NOT_SERVED.keys()):
        document.wrong(name, job.pop(name), _NOT_SERVED[name], code="not-expressible")
    fields = {name: job[name] for name in job.keys() & (_SAME | EXTENSIONS)}
    _is_twice(document, job, "job_name", "name")
    if "job_name" in job:
        fields["name"] = job["job_name"]
    _work(document, job, fields)
    _schedule(document, job, fields)
    _retry(document, job, fields)
    document.implied = {"timeout": DEFAULT_TIMEOUT_S}
    _choices(document, job, fields)
    _partition(document, job, fields)
    document.fields = fields
    return document


def retry_policy(retries: int = DEFAULT_RETRIES, backoff: float = DEFAULT_BACKOFF_S) -> RetryPolicy:
    """Return the policy of `max_retries` and `retry_backoff` (seconds)."""
    return RetryPolicy(
        max_attempts=retries + 1, initial_delay=backoff, multiplier=2.0, max_delay=duration.MAX_DURATION_S, jitter=0.0
    )


def bounded(schedule: str, starts_at: object = None, ends_at: object = None) -> str:
    bounds = [f"{word} {at}" for word, at in (("from", starts_at), ("until", ends_at)) if at is not None]
    return " ".join((schedule, *bounds))


def _is_call(job: Mapping[str, object]) -> bool:
    procedure = job.get("procedure")
    return isinstance(procedure, str) or (isinstance(procedure, Mapping) and "connection" not in procedure)


def _spelling(written: Mapping[Any, object]) -> Callable[[Path], Path]:
    schedule = next((field for field in SCHEDULES.values() if field in written), "cron_expression")
    names = {
        "schedule": schedule,
        "timezone": "schedule_tz",
        "enabled": "state",
        "name": "job_name" if "job_name" in written else "name",
        "command": "external_command" if "external_command" in written else "command",
        "sql": "job_sql" if "job_sql" in written else "sql",
        "partition": "partition_rule" if "partition_rule" in written else "partition",
    }

    def spelled(path: Path) -> Path:
        match path:
            case ("retry", field, *_) if "retry" not in written:
                return ("max_retries" if field == "max_attempts" else "retry_backoff",)
            case (str(head), *rest):
                return (names.get(head, head), *rest)
            case _:
                return path

    return spelled


def _is_twice(document: Document, job: Mapping[str, object], name: str, same: str) -> bool:
    if name in job and same in job:
        document.wrong(same, job[same], f"is the same as `{name}`: leave one of them out", code="exclusive-fields")
    return name in job and same in job


def _work(document: Document, job: Mapping[str, object], fields: dict[str, object]) -> None:
    if "external_command" in job:
        written = job["external_command"]
        _is_twice(document, job, "external_command", "command")
        fields["command"] = written
        if isinstance(written, str):
            try:
                fields["command"] = split_command(written)
            except CommandLineError as error:
                document.wrong("external_command", written, str(error))
                fields["command"] = ["command"]  # a stand-in, so that it is reported once
    _database_work(document, job, fields)
    if "job_type" not in job:
        return
    kind = _choice(document, "job_type", job["job_type"], tuple(_TYPES))
    if kind is not None and not any(job.get(field) is not None for field in _TYPES[kind]):
        reason = f"such a job has `{_TYPES[kind][0]}`; the type follows from the work, so leave it out"
        document.wrong("job_type", kind, reason, code="exclusive-fields")


def _partition(document: Document, job: Mapping[str, object], fields: dict[str, object]) -> None:
    if "partition_rule" not in job or _is_twice(document, job, "partition_rule", "partition"):
        return
    rule = job["partition_rule"]
    partition = partition_of(rule)
    if isinstance(partition, str):
        document.wrong("partition_rule", rule, partition)
    else:
        fields["partition"] = partition


def _database_work(document: Document, job: Mapping[str, object], fields: dict[str, object]) -> None:
    """Read `job_sql` and `procedure`, which run in the `connection` of a worker.

    Each `:name` of a statement gets its value from the input.
    """
    procedure, is_call = job.get("procedure"), _is_call(job)
    if "job_sql" not in job and not is_call:
        if "connection" in job:
            reason = "only `job_sql` and `procedure` run in a database: leave it out"
            document.wrong("connection", job["connection"], reason, code="exclusive-fields")
        return
    connection = job.get("connection")
    if connection is None:
        reason = (
            "name the database: a connection in the settings of the worker (`builtin.sql.connections`), or set "
            "`execution.default_connection`"
        )
        document.problems.append(DefinitionProblem(reason, field="connection", code="required"))
        connection = "connection"  # a stand-in, so that it is reported once
    if "job_sql" in job:
        statement = job["job_sql"]
        _is_twice(document, job, "job_sql", "sql")
        names = BOUND.findall(statement) if isinstance(statement, str) else ()
        parameters = {name: f"{{{{ input.{name} }}}}" for name in names}
        fields["sql"] = {"connection": connection, "statement": statement, "parameters": parameters}
    if is_call:
        call: dict[Any, object] = dict(procedure) if isinstance(procedure, Mapping) else {"name": procedure}
        fields["procedure"] = {**call, "connection": connection}


def _schedule(document: Document, job: Mapping[str, object], fields: dict[str, object]) -> None:
    given = [field for field in SCHEDULES.values() if field in job]
    if len(given) > 1:
        names = " and ".join(f"`{field}`" for field in given)
        document.wrong(given[1], job[given[1]], f"{names} exclude each other: give one", code="exclusive-fields")
    _kind(document, job, given)
    if "schedule_tz" in job:
        fields["timezone"] = job["schedule_tz"]
    bounds = {field: _moment(document, field, job[field]) for field in ("starts_at", "ends_at") if field in job}
    if not given:
        for field in bounds:
            reason = "it limits a schedule: give `cron_expression` or `interval_seconds` too"
            document.wrong(field, job[field], reason, code="required")
        return
    written = job[given[0]]
    match given[0]:
        case "timestamp":
            moment = _moment(document, "timestamp", written)
            fields["schedule"] = f"at {moment}" if moment else "@daily"  # a stand-in, so that it is reported once
            for field in bounds:
                reason = "a job that runs once has no bounds: leave it out"
                document.wrong(field, job[field], reason, code="exclusive-fields")
            return
        case "interval_seconds":
            fields["schedule"] = _every(document, written)
        case _:
            fields["schedule"] = written
    if isinstance(fields["schedule"], str):
        fields["schedule"] = bounded(fields["schedule"], bounds.get("starts_at"), bounds.get("ends_at"))


def _kind(document: Document, job: Mapping[str, object], given: list[str]) -> None:
    if "schedule_kind" in job:
        kind = _choice(document, "schedule_kind", job["schedule_kind"], tuple(SCHEDULES))
        if kind is not None and SCHEDULES[kind] not in given:
            reason = f"such a schedule has `{SCHEDULES[kind]}`"
            document.wrong("schedule_kind", kind, reason, code="exclusive-fields" if given else "required")
    if "schedule_type" in job:
        kind = _choice(document, "schedule_type", job["schedule_type"], ("ONE_TIME", "RECURRING"))
        if kind is not None and (not given or (kind == "ONE_TIME") is not ("timestamp" in given)):
            allowed = "`timestamp`" if kind == "ONE_TIME" else "`cron_expression` or `interval_seconds`"
            reason = f"such a schedule has {allowed}"
            document.wrong("schedule_type", kind, reason, code="exclusive-fields" if given else "required")


def _every(document: Document, written: object) -> str:
    try:
        return f"@every {duration.short(duration.parse(written))}"
    except duration.DurationError as error:
        document.wrong("interval_seconds", written, str(error), code=error.code)
        return "@daily"  # a stand-in, so that it is reported once


_SHORTEST_MOMENT: Final = len("2027-03-01T09:00")


def _moment(document: Document, field: str, written: object) -> str | None:
    """Return a date and time as text; None: it is refused."""
    text = written.strip() if isinstance(written, str) else ""
    try:
        datetime.fromisoformat(text)  # local times have no offset
        is_moment = len(text) >= _SHORTEST_MOMENT
    except ValueError:
        is_moment = False
    if is_moment:
        return text
    reason = 'must be a date and a time as text, such as "2027-03-01T09:00" or "2027-03-01T09:00:00Z"'
    code = "invalid-instant" if isinstance(written, str) else "wrong-type"
    document.wrong(field, written, reason, code=code)
    return None


def _retry(document: Document, job: Mapping[str, object], fields: dict[str, object]) -> None:
    if "retry" in job:
        for field in sorted(job.keys() & {"max_retries", "retry_backoff"}):
            document.wrong(field, job[field], "`retry` has it too: leave one of them out", code="exclusive-fields")
        return
    retries, backoff = job.get("max_retries", DEFAULT_RETRIES), DEFAULT_BACKOFF_S
    if isinstance(retries, bool) or not isinstance(retries, int):
        document.wrong("max_retries", retries, "must be a whole number", code="wrong-type")
        retries = DEFAULT_RETRIES
    elif not 0 <= retries <= MAX_RETRIES:
        document.wrong("max_retries", retries, f"must be from 0 to {MAX_RETRIES}", code="out-of-range")
        retries = DEFAULT_RETRIES
    if "retry_backoff" in job:
        try:
            backoff = duration.parse(job["retry_backoff"])
        except duration.DurationError as error:
            document.wrong("retry_backoff", job["retry_backoff"], str(error), code=error.code)
    fields["retry"] = retry_policy(retries, backoff).model_dump()


def _choices(document: Document, job: Mapping[str, object], fields: dict[str, object]) -> None:
    if "state" in job:
        state = _choice(document, "state", job["state"], _STATES)
        fields["enabled"] = state != "DISABLED"
        if state == "PAUSED":
            reason = "a pause is not a part of a definition: register the job, and run `tocsin jobs pause`; or write DISABLED"
            document.wrong("state", job["state"], reason, code="not-expressible")
    if "on_completion" in job:
        end = _choice(document, "on_completion", job["on_completion"], ("PRESERVE", "DROP"))
        fields["on_completion"] = (end or "PRESERVE").lower()
    if "catch_up" in job:
        policy = _choice(document, "catch_up", job["catch_up"], tuple(CATCH_UP))
        fields["catch_up"] = CATCH_UP[policy or "last"]


def _choice(document: Document, field: str, written: object, allowed: tuple[str, ...]) -> str | None:
    """Return the choice that a text names in any case; None: it is refused."""
    folded = written.casefold() if isinstance(written, str) else None
    choice = next((name for name in allowed if name.casefold() == folded), None)
    if choice is None:
        names = ", ".join(f"`{name}`" for name in allowed)
        document.wrong(field, written, f"must be one of {names}", code="unknown-choice")
    return choice
