"""Conversion of values that is the same for every database."""

import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic_core import to_json

from ...domain.definition import STORED, JobDefinition
from ...domain.job_record import JobRecord
from ...domain.ledger import Timetable

_NUL: Final = re.compile(rb"(?<!\\)((?:\\\\)*)\\u0000")


def json_text(value: object) -> str:
    """Return JSON without NaN, infinity and U+0000."""
    encoded = to_json(value, inf_nan_mode="null")
    if b"\\u0000" in encoded:
        encoded = _NUL.sub(rb"\1\\ufffd", encoded)
    return encoded.decode()


def plain(text: str | None) -> str | None:
    """Return a text without U+0000."""
    return text.replace("\0", "\ufffd") if text is not None and "\0" in text else text


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
