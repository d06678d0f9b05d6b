"""References to secrets in a job's input (hip-62, Job Input Sanitization).

`${env:NAME}` refers to an environment variable of the worker, and `${file:/PATH}` to a file that is mounted there. A
definition, the log and the history hold the reference and never its value. The worker resolves it right before the function
runs. `$${` writes a literal `${`.

The name of a secret is `NAME` for a variable, and `file:/PATH` for a file.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

from pydantic import JsonValue

from .errors import TocsinError

_OPENING: Final = re.compile(r"\$\$\{|\$\{(?P<inside>[^{}]*)(?P<closed>\})?")
_VARIABLE: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_FILE: Final = r"file:(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._-]+)+"
"""An absolute path without empty parts, `.` and `..`, so that a path has one spelling."""
_NAME: Final = re.compile(rf"env:(?P<variable>{_VARIABLE})|(?P<file>{_FILE})")
_ALLOWED: Final = re.compile(rf"{_VARIABLE}|{_FILE}(?:/\*)?")


class SecretReferenceError(TocsinError, ValueError):
    """A reference that is malformed, or whose secret is absent."""

    code = "secret-not-resolved"


class SecretNotAllowedError(SecretReferenceError):
    """A reference to a secret that the worker does not allow."""

    code = "secret-not-allowed"


def find_references(value: JsonValue) -> tuple[str, ...]:
    """Return the names of the secrets in strings inside `value`, in order, each once.

    Raises:
        SecretReferenceError: a reference is malformed, e.g. `${env:}` or `${vault:X}`.
    """
    names: dict[str, None] = {}
    malformed: dict[str, None] = {}
    for text in texts_in(value):
        for match_ in _OPENING.finditer(text):
            if (name := _name(match_)) is not None:
                names[name] = None
            elif match_["inside"] is not None:
                malformed[match_[0]] = None
    if malformed:
        quoted = ", ".join(f"`{text}`" for text in malformed)
        raise SecretReferenceError(
            f"malformed reference {quoted}; write ${{env:NAME}} or ${{file:/PATH}}, or $${{ for a literal ${{"
        )
    return tuple(names)


def refers_to_secrets(*values: JsonValue | tuple[JsonValue, ...]) -> bool:
    """Return whether strings inside the values refer to secrets, or have a malformed reference."""
    return any(
        match_["inside"] is not None
        for value in values
        for text in texts_in(value)
        for match_ in _OPENING.finditer(text)
    )


def reference(name: str) -> str:
    return f"${{{name}}}" if is_file(name) else f"${{env:{name}}}"


def is_file(name: str) -> bool:
    return name.startswith("file:")


def is_allowed(name: str, allowed: Collection[str]) -> bool:
    """Return whether a list of allowed names covers a name.

    `file:/FOLDER/*` covers each file directly in that folder.
    """
    return name in allowed or (is_file(name) and f"{name.rpartition('/')[0]}/*" in allowed)


def check_allowed(names: Iterable[str]) -> None:
    """Raise ValueError for a name that is neither a variable nor an absolute path."""
    for name in names:
        if not _ALLOWED.fullmatch(name):
            raise ValueError(
                f"secrets: {name!r} names no secret; write the NAME of a variable, file:/PATH, or file:/FOLDER/*"
            )


def resolve_references(value: JsonValue, lookup: Callable[[str], str | None]) -> JsonValue:
    """Return `value` with each reference replaced by its value, which is not resolved again.

    Raises:
        SecretReferenceError: a reference is malformed, or `lookup` does not know a secret. The text has no value.
    """
    values = {name: lookup(name) for name in find_references(value)}
    if missing := [name for name, found in values.items() if found is None]:
        names = ", ".join(f"`{name}`" for name in missing)
        raise SecretReferenceError(
            f"the input refers to {names}, which this worker does not have: set the variable and restart the worker, or mount "
            "the file"
        )
    return _replace(value, lambda found: values.get(_name(found) or "") or "")


def _name(found: re.Match[str]) -> str | None:
    match_ = _NAME.fullmatch(found["inside"]) if found["closed"] else None
    return (match_["variable"] or match_["file"]) if match_ else None


def texts_in(value: JsonValue | tuple[JsonValue, ...]) -> Iterator[str]:
    """Yield each text of a JSON value, without the keys."""
    match value:
        case str():
            yield value
        case dict():
            for inner in value.values():
                yield from texts_in(inner)
        case list() | tuple():
            for inner in value:
                yield from texts_in(inner)


def _replace(value: JsonValue, substitute: Callable[[re.Match[str]], str]) -> JsonValue:
    match value:
        case str():
            return _OPENING.sub(lambda found: "${" if found["inside"] is None else substitute(found), value)
        case dict():
            return {key: _replace(inner, substitute) for key, inner in value.items()}
        case list() | tuple():
            return [_replace(inner, substitute) for inner in value]
        case _:
            return value
