"""Job files from the schedules of other programs.

    findings                   what has no equivalent, each kind with a stable code
    drafts, job_file           the jobs that were found, and the file with comments
    schedules                  schedules of other programs in Tocsin's words

A source is data: nothing in it is executed. What has no equivalent is a comment at its job and a finding of the report.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import BinaryIO, Final, Literal, TypeAlias

from ...domain.definition import DefinitionError, DefinitionProblem
from ...domain.schedule import validate_timezone
from ..files.text_files import STDIN, STDIN_NAME, decoded, read_source, refuse_control_characters
from . import airflow, celery, crontab, kubernetes
from .drafts import Draftings
from .findings import FINDING_CODES, LOSSES, Finding
from .job_file import JobFile, write
from .schedules import Zone

__all__ = ["FINDING_CODES", "LOSSES", "Finding", "JobFile", "Kind", "import_files"]

Kind: TypeAlias = Literal["crontab", "kubernetes", "celery", "airflow"]

MAX_BYTES: Final[Mapping[Kind, int]] = {"kubernetes": 4_194_304}
"""The largest size of a file, by kind; of other kinds 1 MiB."""


def import_files(
    kind: Kind,
    files: Sequence[str],
    *,
    now: datetime,
    timezone: str | None = None,
    is_system: bool | None = None,
    stdin: BinaryIO | None = None,
) -> JobFile:
    """Return the job file for some files of one kind, and the report about it.

    `timezone`: the zone of files that name none; None: UTC, with a finding. `is_system`: whether each entry of a
    crontab names a user; None: find out.

    Raises:
        DefinitionError: lists every file that cannot be read, with the line.
    """
    if timezone is not None:
        validate_timezone(timezone)
    zone = Zone(timezone or Zone().name, is_given=timezone is not None)
    readers: Mapping[Kind, Callable[..., Draftings]] = {
        "crontab": partial(crontab.read, is_system=is_system),
        "kubernetes": kubernetes.read,
        "celery": celery.read,
        "airflow": airflow.read,
    }
    read: list[Draftings] = []
    problems: list[DefinitionProblem] = []
    names = [STDIN_NAME if file == STDIN else file for file in files]
    for file, name in zip(files, names, strict=True):
        try:
            text = _text(read_source(file, MAX_BYTES.get(kind, 1_048_576), stdin), name)
            read.append(readers[kind](text, name, zone=zone, now=now))
        except DefinitionError as error:
            problems.extend(_placed(problem, name) for problem in error.problems)
    if problems:
        raise DefinitionError(*problems)
    return write(kind, names, read)


def _text(content: bytes, name: str) -> str:
    text = decoded(content, name).replace("\r\n", "\n")
    refuse_control_characters(text, name)
    if name == STDIN_NAME and not text.strip():
        reason = "empty: check the program before the pipe, which may have failed"
        raise DefinitionError(DefinitionProblem(reason, source=name, code="file-empty"))
    return text


def _placed(problem: DefinitionProblem, name: str) -> DefinitionProblem:
    """Return a problem with its file, if it names only a line."""
    source = problem.source or ""
    return replace(problem, source=name + source) if not source or source.startswith(":") else problem
