"""Job files from the schedules of other programs.

    findings                   what has no equivalent, each kind with a stable code
    drafts                     the jobs that were found
    schedules                  schedules of other programs in Tocsin's words

A source is data: nothing in it is executed. What has no equivalent is a comment at its job and a finding of the report.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from ...domain.definition import DefinitionError, DefinitionProblem, shorten
from ...domain.formats.reader import read_job
from ...domain.schedule import validate_timezone
from ...domain.text import printable
from ..files import dump_yaml
from ..files.text_files import STDIN, STDIN_NAME, decoded, read_source, refuse_control_characters
from . import airflow, celery, crontab, kubernetes
from .commands import fields_with_work, settings_note
from .drafts import Draft, Draftings, Names
from .findings import FINDING_CODES, LOSSES, Finding
from .schedules import UTC_NAME, Zone

__all__ = ["FINDING_CODES", "LOSSES", "Finding", "JobFile", "Kind", "import_files"]

Kind: TypeAlias = Literal["crontab", "kubernetes", "celery", "airflow"]

MAX_BYTES: Final[Mapping[Kind, int]] = {"kubernetes": 4_194_304}
"""The largest size of a file, by kind; of other kinds 1 MiB."""
_WIDTH: Final = 400
"""Characters of a comment."""
_FIRST: Final = (
    *("description", "enabled", "schedule", "timezone", "dst"),
    *("function", "command", "container", "input", "args", "dag"),
)
"""Fields that come first, because readers look for them."""
_LINES: Final = 20
"""Lines of the original in a comment."""


@dataclass(frozen=True, slots=True)
class JobFile:
    """A job file, and the report about it."""

    text: str
    jobs: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def losses(self) -> int:
        """The number of findings that lose something."""
        return sum(finding.is_loss for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        return {
            "jobs": list(self.jobs),
            "losses": self.losses,
            "findings": [finding.as_json() for finding in self.findings],
        }


def import_files(
    kind: Kind,
    files: Sequence[str],
    *,
    now: datetime,
    timezone: str | None = None,
    is_system: bool | None = None,
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
            text = _text(read_source(file, MAX_BYTES.get(kind, 1_048_576)), name)
            read.append(readers[kind](text, name, zone=zone, now=now))
        except DefinitionError as error:
            problems.extend(_placed(problem, name) for problem in error.problems)
    if problems:
        raise DefinitionError(*problems)
    return _written(kind, names, read)


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


def _written(kind: str, sources: Iterable[str], read: Iterable[Draftings]) -> JobFile:
    """Return the job file for the drafts of some sources.

    Every job is checked by the rules of `jobs apply`. A job that breaks a rule is written as a comment only.
    """
    names, written = Names(), list[str]()
    body: list[str] = []
    findings: list[Finding] = []
    heads: list[Finding] = []
    places: dict[str, str] = {}
    for drafted in read:
        if note := settings_note(drafted.drafts):
            drafted.add("command-settings", shorten(note, _WIDTH))
        heads += drafted.findings
        findings += drafted.findings
        for draft in drafted.drafts:
            if draft.key and (first := places.setdefault(draft.key, draft.source)) != draft.source:
                said = (
                    f"the entry of {first} has this name too: in one schedule the last counts, so remove the other job"
                )
                draft.add("entry-repeated", said)
            name = names.free(draft.wish)
            about, lines = _job(draft, name)
            findings += about
            body += ["", *lines]
            if not lines[-1].startswith("#"):
                names.take(name)
                written.append(name)
    listed = ", ".join(sources)
    head = [f"Written by `tocsin import {kind}` from {listed}.", "Read the comments before you apply this file."]
    head += [f"{finding.source}: {finding.code}: {finding.text}" for finding in heads]
    jobs = "jobs:" if written else "jobs: []"
    text = "\n".join((*(_comment(line) for line in head), "", jobs, *(body[1:] if body else ())))
    return JobFile(text.rstrip() + "\n", tuple(written), tuple(findings))


def _job(draft: Draft, name: str) -> tuple[list[Finding], list[str]]:
    filled = fields_with_work(draft)
    if "schedule" in filled:
        filled = {"timezone": UTC_NAME, **filled}  # without it, `jobs apply` takes the zone of the settings
    fields = {key: filled[key] for key in _FIRST if key in filled} | filled
    findings = [replace(finding, job=name) for finding in draft.findings]
    try:
        read_job({"name": name, **fields})
        entry = dump_yaml([{"name": name, **fields}]).rstrip("\n").split("\n")
    except DefinitionError as error:
        problems = "; ".join(str(problem) for problem in error.problems[:3])
        findings.append(Finding("job-not-registrable", shorten(problems, _WIDTH), draft.source, name))
        entry = []
    return findings, [*_comments(draft, findings), *entry]


def _comments(draft: Draft, findings: Iterable[Finding]) -> Iterator[str]:
    yield _comment(draft.source if not draft.original else f"{draft.source}: {draft.original[0]}")
    yield from (_comment(f"  {line}") for line in draft.original[1:_LINES])
    if len(draft.original) > _LINES:
        yield _comment(f"  and {len(draft.original) - _LINES:,} more lines")
    yield from (_comment(f"{finding.code}: {finding.text}") for finding in findings)


def _comment(text: str) -> str:
    return f"# {shorten(printable(text), _WIDTH)}".rstrip()
