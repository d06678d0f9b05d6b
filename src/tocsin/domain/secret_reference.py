"""References to secrets in a job's input: `${env:NAME}` (hip-62, Job Input Sanitization).

A definition, the log and the history hold the reference and never what it stands for; the executor resolves it, in its
own environment, as the last thing before the work. `$${` is the way to write a literal `${`.
"""

import re
from collections.abc import Callable, Iterator
from typing import Final

from pydantic import JsonValue

from .errors import TocsinError

_OPENING: Final = re.compile(r"\$\$\{|\$\{(?P<inside>[^{}]*)(?P<closed>\})?")
_NAME: Final = re.compile(r"env:(?P<name>[A-Za-z_][A-Za-z0-9_]*)")


class SecretReferenceError(TocsinError, ValueError):
    """A reference that cannot be resolved: it is malformed, or names a variable that is not set."""

    code = "secret-not-resolved"


def find_references(value: JsonValue) -> tuple[str, ...]:
    """The names of the variables that the strings inside `value` refer to, each once, in the order found.

    Raises:
        SecretReferenceError: something that opens like a reference is none, e.g. `${env:}` or `${vault:X}`.
    """
    names: dict[str, None] = {}
    malformed: dict[str, None] = {}
    for text in _strings(value):
        for found in _OPENING.finditer(text):
            if (name := _name(found)) is not None:
                names[name] = None
            elif found["inside"] is not None:
                malformed[found[0]] = None
    if malformed:
        listed = ", ".join(f"`{text}`" for text in malformed)
        raise SecretReferenceError(f"malformed reference {listed}: write ${{env:NAME}}, or $${{ for a literal ${{")
    return tuple(names)


def resolve_references(value: JsonValue, lookup: Callable[[str], str | None]) -> JsonValue:
    """`value` with every reference replaced by what `lookup` gives for its name. What comes in is not looked at again.

    Raises:
        SecretReferenceError: a reference is malformed, or `lookup` knows no such variable; the text names it, and
            never the value of any.
    """
    values = {name: lookup(name) for name in find_references(value)}
    if missing := [name for name, found in values.items() if found is None]:
        listed = ", ".join(f"`{name}`" for name in missing)
        raise SecretReferenceError(f"the input refers to {listed}, which the executor's environment does not set")
    return _replace(value, lambda found: values.get(_name(found) or "") or "")


def _name(found: re.Match[str]) -> str | None:
    named = _NAME.fullmatch(found["inside"]) if found["closed"] else None
    return named["name"] if named else None


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
