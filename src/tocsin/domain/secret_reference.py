"""References to secrets in a job's input: `${env:NAME}` (hip-62, Job Input Sanitization).

A definition, the log and the history hold the reference and never its value. The worker resolves it in its own
environment right before the function runs. `$${` writes a literal `${`.
"""

import re
from collections.abc import Callable, Iterator
from typing import Final

from pydantic import JsonValue

from .errors import TocsinError

_OPENING: Final = re.compile(r"\$\$\{|\$\{(?P<inside>[^{}]*)(?P<closed>\})?")
_NAME: Final = re.compile(r"env:(?P<name>[A-Za-z_][A-Za-z0-9_]*)")


class SecretReferenceError(TocsinError, ValueError):
    """A reference that is malformed or names an unset variable."""

    code = "secret-not-resolved"


class SecretNotAllowedError(SecretReferenceError):
    """A reference to a variable that the worker does not allow."""

    code = "secret-not-allowed"


def find_references(value: JsonValue) -> tuple[str, ...]:
    """Return the variables that the strings inside `value` refer to, in order, each once.

    Raises:
        SecretReferenceError: a reference is malformed, e.g. `${env:}` or `${vault:X}`.
    """
    names: dict[str, None] = {}
    malformed: dict[str, None] = {}
    for text in _strings(value):
        for match_ in _OPENING.finditer(text):
            if (name := _name(match_)) is not None:
                names[name] = None
            elif match_["inside"] is not None:
                malformed[match_[0]] = None
    if malformed:
        quoted = ", ".join(f"`{text}`" for text in malformed)
        raise SecretReferenceError(f"malformed reference {quoted}; write ${{env:NAME}}, or $${{ for a literal ${{")
    return tuple(names)


def resolve_references(value: JsonValue, lookup: Callable[[str], str | None]) -> JsonValue:
    """Return `value` with every reference replaced by its value from `lookup`.

    Replaced values are not resolved again.

    Raises:
        SecretReferenceError: a reference is malformed, or `lookup` does not know a variable. The text names the variable and never a value.
    """
    values = {name: lookup(name) for name in find_references(value)}
    if missing := [name for name, found in values.items() if found is None]:
        names = ", ".join(f"`{name}`" for name in missing)
        raise SecretReferenceError(
            f"the input refers to {names}, which the worker's environment does not set; set the variable and restart the worker"
        )
    return _replace(value, lambda found: values.get(_name(found) or "") or "")


def _name(found: re.Match[str]) -> str | None:
    match_ = _NAME.fullmatch(found["inside"]) if found["closed"] else None
    return match_["name"] if match_ else None


def _strings(value: JsonValue) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for inner in value.values():
                yield from _strings(inner)
        case list() | tuple():
            for inner in value:
                yield from _strings(inner)


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
