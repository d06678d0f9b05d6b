"""Drafts of jobs: fields that an import found, findings, and the original text."""

import re
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import JsonValue

from ...domain.definition import shorten
from .findings import Finding

MAX_NAME: Final = 120
"""The length of a name, so that a number fits after it."""
MAX_STEP_NAME: Final = 56
UNLIMITED: Final = "24h"
"""The timeout of a job whose source has no time limit."""
IN_TEMPLATE: Final = "write it into a pod template of the worker"
"""The remedy for a field of a pod that no job has."""
_WORDS: Final = re.compile(r"[^a-z0-9.]+")
_STEP_WORDS: Final = re.compile(r"[^A-Za-z0-9_]+")
_PRINTABLE: Final = re.compile(r"[^!-~]+")
_REFERENCE: Final = re.compile(r"(?<!\$)(?=\$\{)")


@dataclass(slots=True)
class StepDraft:
    """A step before its job has its final name."""

    name: str
    after: list[str] = field(default_factory=list)
    command: dict[str, Any] | None = None
    """Its command; None: `fields` have its work."""
    fields: dict[str, JsonValue] = field(default_factory=dict)


@dataclass
class Draft:
    """A job before it has its final name."""

    wish: str
    source: str
    original: list[str] = field(default_factory=list)
    """Lines of the source, for the comment above the job."""
    fields: dict[str, JsonValue] = field(default_factory=dict)
    """The fields of the job, without its name."""
    findings: list[Finding] = field(default_factory=list)
    command: dict[str, Any] | None = None
    """The command of a job without steps; None: `fields` or `steps` have the work."""
    steps: list[StepDraft] = field(default_factory=list)
    key: str | None = None
    """The name that a schedule has once; None: several jobs may have the same."""
    names_no_zone: bool = False
    """Whether the source leaves the time zone of the schedule to its scheduler."""

    def add(self, code: str, text: str) -> None:
        self.findings.append(Finding(code, shorten(text, 400), self.source))


@dataclass
class Draftings:
    """The result of reading one source file."""

    source: str
    drafts: list[Draft] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def add(self, code: str, text: str, line: int | None = None) -> None:
        """Add a finding about the file, or about one of its lines."""
        self.findings.append(Finding(code, text, self.source if line is None else f"{self.source}:{line}"))


def literal(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return a value in which no text refers to a secret. `${` is written `$${`."""
    match value:
        case str():
            return _REFERENCE.sub("$", value)
        case dict():
            return {key: literal(inner) for key, inner in value.items()}
        case list() | tuple():
            return [literal(inner) for inner in value]
        case _:
            return value


class Names:
    """Valid and unique names of the jobs of a file, or of steps."""

    def __init__(self, *, of_steps: bool = False) -> None:
        self._of_steps = of_steps
        self._taken: set[str] = set()
        self._numbers: dict[str, int] = {}

    def free(self, wish: str) -> str:
        """Return a valid and free name, near to the wish."""
        if self._of_steps:
            base = _STEP_WORDS.sub("_", wish[: 4 * MAX_STEP_NAME]).strip("_")[:MAX_STEP_NAME] or "step"
        else:
            base = _WORDS.sub("-", wish[: 4 * MAX_NAME].lower()).strip("-.")[:MAX_NAME].rstrip("-.") or "job"
        name, number = base, self._numbers.get(base, 1)
        while name in self._taken:
            number += 1
            name = f"{base}-{number}"
        self._numbers[base] = number
        return name

    def take(self, name: str) -> None:
        self._taken.add(name)


def function_name(wish: str) -> str:
    return _PRINTABLE.sub("-", wish[:255]).strip("-") or "function"
