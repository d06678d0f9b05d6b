"""From what a user names on the command line to definitions: find the files, parse each, read each, refuse all at once."""

import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final, TextIO

from ...domain.definition import DefinitionError, DefinitionProblem, JobDefinition
from ...domain.formats import read, refuse_duplicates
from . import json_text, yaml_text

STDIN: Final = "-"
"""The name that stands for standard input."""

MAX_FILE_BYTES: Final = 16 * 1024 * 1024
"""A registry of ten thousand jobs is a third of this; what is larger is some other file."""

_PARSERS: Final[dict[str, Callable[[str], list[object]]]] = {
    ".yaml": yaml_text.parse,
    ".yml": yaml_text.parse,
    ".json": json_text.parse,
}


def load(*sources: str | Path, stdin: TextIO | None = None) -> tuple[JobDefinition, ...]:
    """The definitions of all sources together, in the order given, the files of a folder by name.

    A folder is searched in depth for `*.yaml`, `*.yml` and `*.json`; what is hidden stays so. YAML may hold several
    documents.

    Args:
        sources: files, folders, or `-` for standard input, which may be YAML or JSON.
        stdin: what to read for `-`; None: the process's own.

    Raises:
        DefinitionError: with everything that is wrong in any of the files, and with names that two of them define.
    """
    found: list[tuple[str, JobDefinition]] = []
    problems: list[DefinitionProblem] = []
    for name, text in _texts(sources, stdin or sys.stdin, problems):
        try:
            found.extend(_read(name, text))
        except DefinitionError as error:
            problems.extend(error.problems)
    try:
        refuse_duplicates(found)
    except DefinitionError as error:
        problems.extend(error.problems)
    if problems:
        raise DefinitionError(*problems)
    return tuple(definition for _, definition in found)


def _read(name: str, text: str) -> Iterable[tuple[str, JobDefinition]]:
    parse = _PARSERS.get(Path(name).suffix.lower(), _parse_either)
    try:
        documents = parse(text)
    except DefinitionError as error:
        raise DefinitionError(
            *(replace(problem, source=name + (problem.source or "")) for problem in error.problems)
        ) from None
    if len(documents) == 1:
        return [(name, definition) for definition in read(documents[0], name)]
    found: list[tuple[str, JobDefinition]] = []
    problems: list[DefinitionProblem] = []
    for number, document in enumerate(documents, start=1):
        place = f"{name}, document {number}"
        try:
            found.extend((place, definition) for definition in read(document, place))
        except DefinitionError as error:
            problems.extend(error.problems)
    if problems:
        raise DefinitionError(*problems)
    return found


def _parse_either(text: str) -> list[object]:
    # What opens like JSON may still be YAML in its flow style.
    if text.lstrip().startswith(("{", "[")):
        try:
            return json_text.parse(text)
        except json_text.NotJSON:
            pass
    return yaml_text.parse(text)


def _texts(
    sources: Iterable[str | Path], stdin: TextIO, problems: list[DefinitionProblem]
) -> Iterable[tuple[str, str]]:
    for source in sources:
        if source == STDIN:
            yield "standard input", stdin.read()
            continue
        for path in _files(Path(source), problems):
            try:
                if path.stat().st_size > MAX_FILE_BYTES:
                    problems.append(DefinitionProblem(f"larger than {MAX_FILE_BYTES:,} bytes", source=str(path)))
                else:
                    yield str(path), path.read_bytes().decode("utf-8-sig")
            except OSError as error:
                problems.append(DefinitionProblem(error.strerror or str(error), source=str(path)))
            except UnicodeDecodeError as error:
                problems.append(
                    DefinitionProblem(f"not UTF-8: byte {error.start + 1} is no character", source=str(path))
                )


def _files(path: Path, problems: list[DefinitionProblem]) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(
        found
        for found in path.rglob("*")
        # A mounted ConfigMap holds its files a second time under `..data`.
        if found.suffix.lower() in _PARSERS and found.is_file() and not _is_hidden(found.relative_to(path))
    )
    if not files:
        problems.append(DefinitionProblem("no *.yaml, *.yml or *.json in this folder", source=str(path)))
    return files


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
