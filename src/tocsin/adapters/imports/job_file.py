"""Job files of imports: each job has its original and findings as comments."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from ...domain.definition import DefinitionError, shorten
from ...domain.formats.reader import read_job
from ...domain.text import printable
from ..files import dump_yaml
from .commands import fields_with_work, settings_note
from .drafts import Draft, Draftings, Names
from .findings import Finding
from .schedules import UTC_NAME

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


def write(kind: str, sources: Iterable[str], read: Iterable[Draftings]) -> JobFile:
    """Return the job file for what was read from some sources.

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
