"""Values and rows that every database of the history shares."""

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import msgspec

from ...domain.dead_letter import Letter, LetterName
from ...domain.definition import STORED, JobDefinition
from ...domain.events import PoisonMessage
from ...domain.execution_record import ExecutionRecord
from ...domain.job_record import JobRecord
from ...domain.ledger import Timetable
from ...domain.totals import UNREGISTERED
from ...ports import SequenceConflict
from ...subjects import Stream

OPEN_EXECUTIONS: Final = 20_000
JOBS: Final = 100_000
"""The number of open records in memory."""
OWNERS: Final = 20_000
"""The number of jobs in memory with step names among the totals."""

R = TypeVar("R", ExecutionRecord, JobRecord, frozenset[str])


@dataclass(slots=True)
class RowCache(Generic[R]):
    """The records of open executions or jobs, or names of totals, as stored."""

    capacity: int
    is_over: Callable[[R], bool]
    records: OrderedDict[str, R] = field(default_factory=OrderedDict)

    def recall(self, names: Iterable[str]) -> tuple[dict[str, R], list[str]]:
        """Return the cached records of some names, and the names of the others."""
        names = [*names]
        cached = {name: self.records[name] for name in names if name in self.records}
        return cached, [name for name in names if name not in cached]

    def keep(self, records: Mapping[str, R]) -> None:
        for name, record in records.items():
            if self.is_over(record):
                self.records.pop(name, None)
            else:
                self.records[name] = record
                self.records.move_to_end(name)
        while len(self.records) > self.capacity:
            self.records.popitem(last=False)


class RecorderCache:
    """The rows that a recorder wrote, valid while no other recorder moves the offset."""

    def __init__(self) -> None:
        self.executions: RowCache[ExecutionRecord] = RowCache(
            OPEN_EXECUTIONS, lambda record: record.completed_at is not None
        )
        self.jobs: RowCache[JobRecord] = RowCache(JOBS, lambda record: record.deleted)
        self.total_names: RowCache[frozenset[str]] = RowCache(OWNERS, lambda _: False)
        self._offsets: dict[Stream, int] = {}

    def begin(self, stream: Stream, after: int) -> None:
        """Begin a batch; drop the rows of its stream unless the last ended at `after`."""
        if self._offsets.pop(stream, None) != after:
            self.forget(stream)

    def committed(self, stream: Stream, upto: int) -> None:
        """Mark a batch as committed, so that the rows of the stream stay valid."""
        self._offsets[stream] = upto

    def keep_total_names(self, known: Mapping[str, frozenset[str]], new: Iterable[tuple[str, str]]) -> None:
        """Remember the names of totals, known and new.

        The names of unregistered jobs are read for each batch, because `expire` makes room among them.
        """
        names = {owner: set(of_owner) for owner, of_owner in known.items() if owner != UNREGISTERED}
        for owner, name in new:
            if owner in names:
                names[owner].add(name)
        self.total_names.keep({owner: frozenset(of_owner) for owner, of_owner in names.items()})

    def forget(self, stream: Stream) -> None:
        self._offsets.pop(stream, None)
        if stream is Stream.LEDGER:
            self.jobs.records.clear()
        else:
            self.executions.records.clear()
            self.total_names.records.clear()


def offset_conflict(stream: Stream, after: int) -> SequenceConflict:
    """Return the error of a batch at another offset of its stream."""
    return SequenceConflict(f"the history's offset in {stream.value} is not {after} any more: another writer moved it")


_encode: Final = msgspec.json.Encoder().encode
_NUL: Final = re.compile(rb"(?<!\\)((?:\\\\)*)\\u0000")


def json_text(value: object) -> str:
    """Return JSON without NaN, infinity and U+0000."""
    encoded = _encode(value)
    if b"\\u0000" in encoded:
        encoded = _NUL.sub(rb"\1\\ufffd", encoded)
    return encoded.decode()


def plain(text: str | None) -> str | None:
    """Return a text without U+0000."""
    return text.replace("\0", "\ufffd") if text is not None and "\0" in text else text


EXECUTION: Final = tuple(
    {"job": "job_name", "steps": "dag_state"}.get(name, name) for name in ExecutionRecord.__struct_fields__
)
"""The columns of the fields of a record."""
_TEXTS: Final = ("error", "worker", "error_type", "traceback", "reason", "agent", "created_by", "queue")
ENCODERS: Final[Mapping[str, Callable[[Any], object]]] = {
    **dict.fromkeys(_TEXTS, plain),
    "dag_state": json_text,
    "result": lambda result: None if result is None else json_text(result),
    "tags": lambda tags: json_text(tags) if tags else None,
}
"""The encoders of some of their values."""


class LetterKeys:
    """The keys under which the history keeps dead letters.

    The key is the id. A client may bring an id that an execution of another job has: of the letters with one id, those that come later have
    their job in the key too.
    """

    def __init__(self, jobs: Mapping[str, str]) -> None:
        """`jobs`: the jobs of the stored letters by key, of all candidates."""
        self._jobs = dict(jobs)

    @staticmethod
    def candidates(names: Iterable[LetterName]) -> list[str]:
        return [key for job, letter_id in names for key in (letter_id, _with_job(letter_id, job))]

    def of(self, job: str, letter_id: str) -> str:
        """Return the key of a letter, which is stored from then on."""
        own = _with_job(letter_id, job)
        if own in self._jobs or self._jobs.setdefault(letter_id, job) != job:
            self._jobs[own] = job
            return own
        return letter_id


def letter_id_of(key: str) -> str:
    return key.partition(" ")[0]


def _with_job(letter_id: str, job: str) -> str:
    return f"{letter_id} {job}"


_TIMES: Final = ("first_attempt", "last_attempt")


def dead_letter_columns(letter: Letter) -> dict[str, Any]:
    """Return the columns of a dead letter but for its key and `resolved`.

    A poison message has no execution and no attempts; its `input` holds the message and its position in the log.
    """
    fact: Any = letter.message
    if isinstance(fact, PoisonMessage):
        values: dict[str, Any] = dict.fromkeys(("execution_id", "definition")) | dict.fromkeys(_TIMES, letter.time)
        attempts: tuple[Any, ...] = ()
        error = fact.reason
        content = fact.document(include={"durable", "subject", "sequence", "body"})
    else:
        values = {"execution_id": fact.execution_id, "definition": fact.definition or None}
        values |= {name: getattr(fact, name) for name in _TIMES}
        attempts, error = fact.attempts, fact.last_error and fact.last_error.summary
        content = fact.input
    texts = {
        "last_error": plain(error),
        "input": json_text(content),
        "attempt_history": json_text([attempt.document() for attempt in attempts]),
    }
    return {**values, **texts, "job_name": fact.job, "attempts": len(attempts)}


def job_record(columns: Mapping[str, Any]) -> JobRecord:
    """Return the record of a job without its definition, from its columns."""
    definition = columns["definition"]
    if definition is not None:
        definition = JobDefinition.model_validate(definition, context=STORED)
    return JobRecord(
        job=columns["job_name"],
        created_at=columns["created_at"],
        changed_at=columns["changed_at"],
        timetable=None if definition is None else Timetable.of(definition),
        paused=columns["paused"],
        deleted=columns["state"] == "DELETED",
        created_by=columns["created_by"],
        decided_until=columns["decided_until"],
        last_scheduled=columns["last_scheduled_time"],
        anchor=columns["anchor"],
    )
