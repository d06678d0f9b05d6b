"""Load job definitions from files, folders and standard input, and report all problems at once."""

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final, NoReturn, TextIO, TypeAlias

from ...domain.definition import DefinitionError, DefinitionProblem, JobDefinition, show
from ...domain.formats import read, refuse_duplicates
from . import yaml_text
from .calendars import CalendarSection, Resolved
from .text_files import STDIN, STDIN_NAME, decoded, read_bytes, read_source

MAX_FILE_BYTES: Final = 16 * 1024 * 1024
"""A registry of ten thousand jobs has a third of this size. A larger file is not a job file."""


class NotJSON(DefinitionError):
    """The text is not JSON."""

    code = "invalid-json"


def _parse_json(text: str) -> list[object]:
    """Return the document in `text` as a list; keys and numbers are strict."""
    try:
        return [json.loads(text, object_pairs_hook=_unique, parse_constant=_constant)]
    except json.JSONDecodeError as error:
        reason = f"not JSON: {error.msg}, column {error.colno}"
        raise NotJSON(DefinitionProblem(reason, source=f":{error.lineno}", code=NotJSON.code)) from None
    except RecursionError:
        raise DefinitionError(DefinitionProblem("nested too deep", code="nested-too-deep")) from None
    except DefinitionError:
        raise
    except ValueError as error:  # an integer of thousands of digits
        raise DefinitionError(DefinitionProblem(str(error), code="invalid-number")) from None


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in unique if names.count(name) > 1)
        called = f" of {show(unique['name'])}" if twice != "name" and "name" in unique else ""
        reason = f"the key{called} is given twice"
        raise DefinitionError(DefinitionProblem(reason, field=twice, code="duplicate-key"))
    return unique


def _constant(name: str) -> NoReturn:
    raise DefinitionError(DefinitionProblem("JSON has no such number", field=name, code="invalid-number"))


_PARSERS: Final[dict[str, Callable[[str], list[object]]]] = {
    ".yaml": yaml_text.parse,
    ".yml": yaml_text.parse,
    ".json": _parse_json,
}


@dataclass(frozen=True, slots=True)
class _Document:
    """A document of a file, and the folder of the file."""

    place: str
    content: object
    folder: Path


_Entry: TypeAlias = _Document | DefinitionProblem


def load(
    *sources: str | Path, stdin: TextIO | None = None, today: date | None = None, connection: str | None = None
) -> tuple[JobDefinition, ...]:
    """Return the definitions of all sources in the given order.

    Files of a folder are sorted by name. Folders are searched recursively for `*.yaml`, `*.yml` and `*.json`, except hidden
    files. A YAML file may contain several documents. Jobs may name the calendars of all sources.

    Args:
        sources: files, folders, or `-` for standard input, which may be YAML or JSON.
        stdin: the stream to read for `-`; None for the standard input of this process.
        today: the date by which calendars of countries and of .ics files have their years; None: the date in UTC.
        connection: the connection of ScratchBird's `job_sql` and `procedure` that name none; None: they must.

    Raises:
        DefinitionError: lists every problem of every file, and the names that are defined more than once.
        ExtraNotInstalled: a calendar needs the extra `calendars`.
    """
    definitions: list[tuple[str, JobDefinition]] = []
    problems: list[DefinitionProblem] = []
    entries = _entries(sources, stdin or sys.stdin)
    section = _calendars(entries, today)
    problems.extend(section.problems)
    for entry in entries:
        if isinstance(entry, DefinitionProblem):
            problems.append(entry)
            continue
        try:
            jobs = read(entry.content, entry.place, calendars=section.calendars, connection=connection)
            definitions.extend((entry.place, definition) for definition in jobs)
        except DefinitionError as error:
            problems.extend(error.problems)
    try:
        refuse_duplicates(definitions)
    except DefinitionError as error:
        problems.extend(error.problems)
    if problems:
        raise DefinitionError(*problems)
    return tuple(definition for _, definition in definitions)


def load_calendars(*sources: str | Path, today: date | None = None) -> dict[str, Resolved]:
    """Return the calendars of job files with their dates; `today`: as of `load`."""
    entries = _entries(sources, sys.stdin)
    section = _calendars(entries, today)
    if problems := [*(entry for entry in entries if isinstance(entry, DefinitionProblem)), *section.problems]:
        raise DefinitionError(*problems)
    return section.calendars


def _calendars(entries: Iterable[_Entry], today: date | None) -> CalendarSection:
    section = CalendarSection(today or datetime.now(UTC).date())
    for entry in entries:
        if isinstance(entry, _Document):
            section.add(entry.content, entry.place, entry.folder)
    return section


def load_document(source: str) -> object:
    """Return the only document of a YAML or JSON file, or of standard input (`-`)."""
    name = STDIN_NAME if source == STDIN else source
    documents = _parsed(name, decoded(read_source(source, MAX_FILE_BYTES), name))
    if len(documents) != 1:
        reason = f"has {len(documents)} documents: write one"
        raise DefinitionError(DefinitionProblem(reason, source=name, code="invalid-value"))
    return documents[0]


def _entries(sources: Iterable[str | Path], stdin: TextIO) -> list[_Entry]:
    """Return the documents of all sources, or problems of files, in their order."""
    entries: list[_Entry] = []
    for name, text in _texts(sources, stdin, entries):
        try:
            contents = _parsed(name, text)
        except DefinitionError as error:
            entries.extend(error.problems)
            continue
        folder = Path.cwd() if name == STDIN_NAME else Path(name).parent
        for number, content in enumerate(contents, start=1):
            place = name if len(contents) == 1 else f"{name}, document {number}"
            entries.append(_Document(place, content, folder))
    return entries


def _parsed(name: str, text: str) -> list[object]:
    parse = _PARSERS.get(Path(name).suffix.lower(), _parse_either)
    try:
        return parse(text)
    except DefinitionError as error:
        raise DefinitionError(
            *(replace(problem, source=name + (problem.source or "")) for problem in error.problems)
        ) from None


def _parse_either(text: str) -> list[object]:
    # Text that starts like JSON may still be YAML in flow style.
    if text.lstrip().startswith(("{", "[")):
        try:
            return _parse_json(text)
        except NotJSON:
            pass
    return yaml_text.parse(text)


def _texts(sources: Iterable[str | Path], stdin: TextIO, problems: list[_Entry]) -> Iterable[tuple[str, str]]:
    for source in sources:
        if source == STDIN:
            yield STDIN_NAME, stdin.read()
            continue
        for path in _files(Path(source), problems):
            try:
                yield str(path), decoded(read_bytes(path, MAX_FILE_BYTES), str(path))
            except DefinitionError as error:
                problems.extend(error.problems)


def _files(path: Path, problems: list[_Entry]) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(
        file
        for file in path.rglob("*")
        # A mounted ConfigMap contains its files a second time under `..data`.
        if file.suffix.lower() in _PARSERS
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
    )
    if not files:
        reason = "no *.yaml, *.yml or *.json in this folder"
        problems.append(DefinitionProblem(reason, source=str(path), code="no-job-files"))
    return files
