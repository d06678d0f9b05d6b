"""The keys of the history in Redis, and conversion of records to hashes and back.

All keys have the same prefix, so that a database may be shared.

    tocsin:history:place:<installation>:<stream>   the last recorded sequence.
    tocsin:history:execution:<id>                  a hash with a field for each column.
    tocsin:history:dead-letter:<id>                the same; `<id> <job>` if another job's has the id.
    tocsin:history:jobs                            a hash of JSON by job name.
    tocsin:history:retentions                      a hash of seconds, for jobs with their own retention.
    tocsin:history:totals                          a hash of counts by the JSON of a total.
    tocsin:history:total-names:<owner>             a set of names.
    tocsin:history:last-runs                       a hash of the JSON of the last run by job name.
    tocsin:history:former-places                   a hash of the places before the history was emptied, by their keys.
    tocsin:history:executions…                     sorted sets of ids: all, by condition, and by order.
    tocsin:history:executions:ended:<status>       the same, of the JSON of an id, a job and a definition, by the end.
    tocsin:history:executions:results:<status>:<job>   the same, of the ids of a job that completed or failed.
    tocsin:history:executions:queue:<state>:<queue>   the same, of the ids in a state of the Open Job Spec; those that are over by the end.
    tocsin:history:dead-letters…                   the same.
    tocsin:history:counts:<job>                    a hash of the numbers of ended executions, by the JSON of what they share.
    tocsin:history:passed…                         sorted sets of spans of missed instants as JSON: all, and by job.

Sets are scored by scheduled time (dead letters by last attempt, spans by end) in microseconds since 1970. A score is exact until the
year 2255. `:started` and `:duration` (milliseconds) are scored by what their names say.

An absent field of a hash is None.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.structs import astuple
from pydantic import TypeAdapter
from pydantic_core import from_json
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from ...domain.dead_letter import Letter
from ...domain.events import JobState
from ...domain.execution_record import ExecutionRecord, Recoveries, StepRecord
from ...domain.job_record import JobRecord
from ...ports import DeadLetterRow, ExecutionRow, JobRow
from ...ports.summaries import MAX_ERROR, ExecutionHead
from ...subjects import Stream
from ..history import rows
from ..history.rows import json_text, plain

CHUNK: Final = 500
"""The number of rows in one request."""
ROOT: Final = "tocsin:history"
SCHEMA: Final = f"{ROOT}:schema"
JOBS: Final = f"{ROOT}:jobs"
RETENTIONS: Final = f"{ROOT}:retentions"
TOTALS: Final = f"{ROOT}:totals"
FORMER_PLACES: Final = f"{ROOT}:former-places"
LAST_RUNS: Final = f"{ROOT}:last-runs"

EXECUTIONS: Final = f"{ROOT}:executions"
STARTED: Final = f"{EXECUTIONS}:started"
DURATION: Final = f"{EXECUTIONS}:duration"
WITH_ERROR: Final = f"{EXECUTIONS}:error"
EXECUTION_IDS: Final = f"{EXECUTIONS}:ids"

PASSED: Final = f"{ROOT}:passed"

DEAD_LETTERS: Final = f"{ROOT}:dead-letters"
UNRESOLVED: Final = f"{DEAD_LETTERS}:unresolved"
DEAD_LETTER_IDS: Final = f"{DEAD_LETTERS}:ids"


async def read_each(client: Redis, names: Sequence[str], read: Callable[[Pipeline, str], object]) -> list[Any]:
    """Send a command for each name, `CHUNK` at a time; return the answers in order."""
    answers: list[Any] = []
    for start in range(0, len(names), CHUNK):
        async with client.pipeline(transaction=False) as reading:
            for name in names[start : start + CHUNK]:
                read(reading, name)
            answers += await reading.execute()
    return answers


def place(installation: str, stream: Stream) -> str:
    return f"{ROOT}:place:{installation}:{stream.value}"


def execution(execution_id: str) -> str:
    return f"{ROOT}:execution:{execution_id}"


def dead_letter(key: str) -> str:
    """Return the key of a dead letter's hash; `key`: see `LetterKeys`."""
    return f"{ROOT}:dead-letter:{key}"


def total_names(owner: str) -> str:
    return f"{ROOT}:total-names:{owner}"


def executions_by(field: str, value: str) -> str:
    """Return the set of executions with a `job`, `status`, `trigger`, `tag` or `occurrence`."""
    return f"{EXECUTIONS}:{field}:{value}"


def results_of(job: str, status: str) -> str:
    return f"{EXECUTIONS}:results:{status}:{job}"


def in_queue(queue: str, state: JobState) -> str:
    return f"{EXECUTIONS}:queue:{state}:{queue}"


def ended(status: str) -> str:
    return f"{EXECUTIONS}:ended:{status}"


def ended_member(record: ExecutionRecord) -> str:
    """Return the member that stands for an execution in `ended`."""
    return json_text((record.execution_id, record.job, record.definition))


def dead_letters_of(job: str) -> str:
    return f"{DEAD_LETTERS}:job:{job}"


def counts_of(job: str) -> str:
    return f"{ROOT}:counts:{job}"


def passed_of(job: str) -> str:
    return f"{PASSED}:job:{job}"


Hash: TypeAlias = dict[str, str]
Values: TypeAlias = dict[Any, Any]
"""A hash as the client accepts it: texts and integers by name. The type is `Any` because the client's types are
invariant.
"""

_ABSENT: Final[dict[str, Any]] = dict.fromkeys(("completed_at", "duration_ms", "worker", "error"))
_STEPS: Final = msgspec.json.Decoder(dict[str, StepRecord]).decode
_LETTER: Final = TypeAdapter(DeadLetterRow)
_JOB: Final = TypeAdapter(JobRow)


def execution_hash(record: ExecutionRecord) -> Values:
    columns = dict(zip(rows.EXECUTION, astuple(record), strict=True)) | {"duration_ms": record.duration_ms}
    parts = {name: encode(columns[name]) for name, encode in rows.ENCODERS.items()}
    return _hash({**columns, **parts, "recoveries": json_text(record.recoveries) if any(record.recoveries) else None})


def execution_record(stored: Hash) -> ExecutionRecord:
    row = _execution(stored)
    steps = _STEPS(stored["dag_state"])
    names = {*ExecutionRecord.__struct_fields__} & row.keys()
    return ExecutionRecord(job=stored["job_name"], steps=steps, **{name: row[name] for name in names})


def execution_row(stored: Hash) -> ExecutionRow:
    row = _execution(stored)
    if row["status"] != "running" and row.get("duration_ms") is None:
        row["started_at"] = None  # no worker started a step
    for name in ("queue", "was_handed_over", "recoveries"):
        row.pop(name, None)
    return ExecutionRow(**{**_ABSENT, **row})


def execution_head(stored: Mapping[str, str | None]) -> ExecutionHead:
    """Return the short row of an execution from its hash. Absent fields are None."""
    row = _execution({name: value for name, value in stored.items() if value is not None})
    if row["status"] != "running" and row.get("duration_ms") is None:
        row["started_at"] = None
    if "error" in row:
        row["error"] = row["error"][:MAX_ERROR]
    return ExecutionHead(**{**dict.fromkeys(stored), **row})


def _execution(stored: Hash) -> dict[str, Any]:
    row: dict[str, Any] = {**stored}
    for name in ("scheduled_time", "started_at", "completed_at"):
        if name in row:
            row[name] = datetime.fromisoformat(row[name])
    for name in ("attempt", "duration_ms", "definition", "start_delay_ms"):
        if name in row:
            row[name] = int(row[name])
    for name in ("dag_state", "result"):
        if name in row:
            row[name] = from_json(row[name])
    if "tags" in row:
        row["tags"] = tuple(from_json(row["tags"]))
    if "was_handed_over" in row:
        row["was_handed_over"] = True
    if "recoveries" in row:
        row["recoveries"] = Recoveries(*from_json(row["recoveries"]))
    return row


def dead_letter_hash(letter: Letter) -> Values:
    """Return the hash of a dead letter, without `resolved`, which a later fact sets."""
    return _hash({"id": letter.message.id, **rows.dead_letter_columns(letter)})


def dead_letter_row(stored: Hash) -> DeadLetterRow:
    optional = {"execution_id": None, "last_error": None, "resolved": False}
    return _LETTER.validate_python({**optional, **stored, "input": from_json(stored["input"])})


def job_text(record: JobRecord, definition: Mapping[str, Any] | None) -> str:
    """Return a job as JSON; `definition` is its own, or the stored definition."""
    row = {
        "job_id": record.id,
        "job_name": record.job,
        "state": record.state,
        "schedule_type": record.schedule_type,
        "next_run_time": record.next_run_time,
        "last_scheduled_time": record.last_scheduled,
        "created_at": record.created_at,
        "created_by": plain(record.created_by),
        "definition": definition,
        "changed_at": record.changed_at,
        "decided_until": record.decided_until,
        "paused": record.paused,
        "anchor": record.anchor,
    }
    return json_text(row)


def job_record(stored: Mapping[str, Any]) -> JobRecord:
    """Return the record of a job without its definition."""
    names = ("created_at", "changed_at", "decided_until", "last_scheduled_time", "anchor")
    times = {name: _time(stored[name]) for name in names}
    return rows.job_record({**stored, **times})


def job_row(text: str) -> JobRow:
    return _JOB.validate_json(text)


def aware(time: datetime) -> datetime:
    """Return an instant in UTC; an instant without a zone is in UTC already."""
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def _hash(columns: Mapping[str, Any]) -> Values:
    """Return the columns that have a value, with times as text; False is absent."""
    return {
        name: aware(value).isoformat() if isinstance(value, datetime) else int(value) if value is True else value
        for name, value in columns.items()
        if value is not None and value is not False
    }


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
