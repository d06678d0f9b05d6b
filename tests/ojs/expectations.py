"""The expectations of a case: a path in a JSON document, and the value there.

They are stricter than in the suite's own runner: a path that cannot be followed is absent, null differs from a number or a text,
`~1000` allows a tenth more or less instead of a half, and an unknown form is an error.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

JsonValue = Any

MISSING: Final = object()
"""The value at a path that does not exist."""
TOLERANCE: Final = 0.1
UUID_V7: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_PART: Final = re.compile(r"\.?([A-Za-z_][A-Za-z0-9_-]*)|\[(\d+|\*)\]|\[\?\(@\.(\w+)\s*==\s*'([^']*)'\)\]")
_NAMES: Final = {str: "string", bool: "boolean", int: "number", float: "number", list: "array", dict: "object"}


class Mismatch(AssertionError):
    """An answer is not what the case expects."""


class UnknownForm(ValueError):
    """A case says something that this runner does not understand: it must not pass unread."""


def at(path: str, document: JsonValue) -> JsonValue:
    """Return the value at a path such as `$.jobs[0].id`, `$.crons[*].name` or `$.jobs[?(@.id=='x')].state`; else `MISSING`."""
    rest = path.removeprefix("$")
    rest = rest if rest.startswith((".", "[")) else f".{rest}"
    found = document
    while rest:
        part = _PART.match(rest)
        if part is None:
            raise UnknownForm(f"the path {path!r}")
        rest = rest[part.end() :]
        name, index, key, value = part.groups()
        if name is not None:
            found = found.get(name, MISSING) if isinstance(found, Mapping) else MISSING
        elif not isinstance(found, list):
            return MISSING
        elif index == "*":
            return [at(f"${rest}", one) if rest else one for one in found]
        elif index is not None:
            found = found[int(index)] if int(index) < len(found) else MISSING
        else:
            found = next((one for one in found if isinstance(one, Mapping) and one.get(key) == value), MISSING)
    return found


def check(want: JsonValue, got: JsonValue) -> None:
    """Check a value against its expectation.

    Raises:
        Mismatch: the value does not fit.
        UnknownForm: the form of the expectation is unknown.
    """
    match want:
        case str():
            holds = _word(want, got)
        case Mapping():
            holds = _object(want, got)
        case list():
            holds = isinstance(got, list) and len(got) == len(want) and all(map(_fits, want, got))
        case bool() | None:
            holds = got is want
        case _:
            holds = is_number(got) and got == want
    if not holds:
        raise Mismatch(f"wanted {json.dumps(want)}, got {'nothing' if got is MISSING else json.dumps(got)[:300]}")


def is_number(value: JsonValue) -> bool:
    """True and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _fits(want: JsonValue, got: JsonValue) -> bool:
    try:
        check(want, got)
    except Mismatch:
        return False
    return True


def _object(want: Mapping[str, JsonValue], got: JsonValue) -> bool:
    """The suite's operators, which must all hold; else the very fields that are written."""
    if want and not any(name.startswith("$") or name == "range" for name in want):
        return isinstance(got, Mapping) and set(got) == set(want) and all(_fits(want[name], got[name]) for name in want)
    known: Mapping[str, Callable[[JsonValue], bool]] = {
        "$exists": lambda it: it is (got is not MISSING and got is not None),
        "$type": lambda it: _NAMES.get(type(got)) == it,
        "$match": lambda it: isinstance(got, str) and re.search(it, got) is not None,
        "$in": lambda it: any(_fits(one, got) for one in it),
        "$size": lambda it: (
            isinstance(got, list) and (len(got) >= it["$gte"] if isinstance(it, dict) else len(got) == it)
        ),
        "range": lambda it: is_number(got) and it["min"] <= got <= it["max"],
    }
    if not want or not set(want) <= set(known):
        raise UnknownForm(f"the expectation {want!r}")
    return all(known[operator](it) for operator, it in want.items())


def _word(want: str, got: JsonValue) -> bool:
    for pattern, holds in _WORDS:
        if words := re.fullmatch(pattern, want, re.DOTALL):
            return holds(got, *words.groups())
    if re.match(r"(string|number|array|contains|not_contains):", want):
        raise UnknownForm(f"the expectation {want!r}")
    return bool(got == want)


def _is_instant(value: JsonValue) -> bool:
    try:
        return isinstance(value, str) and "T" in value and datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


def _has(got: JsonValue, length: Callable[[int], bool]) -> bool:
    return isinstance(got, Sequence) and not isinstance(got, str) and length(len(got))


_WORDS: Final[Sequence[tuple[str, Callable[..., bool]]]] = (
    ("absent", lambda got: got is MISSING or got is None),
    ("exists", lambda got: got is not MISSING and got is not None),
    ("string:non_?empty", lambda got: isinstance(got, str) and bool(got)),
    ("string:uuidv7", lambda got: isinstance(got, str) and UUID_V7.fullmatch(got) is not None),
    ("string:datetime", _is_instant),
    ("string:contains:(.+)", lambda got, part: isinstance(got, str) and part in got),
    (r"string:pattern\((.+)\)", lambda got, pattern: isinstance(got, str) and re.search(pattern, got) is not None),
    (r"number:range\((.+),(.+)\)", lambda got, low, high: is_number(got) and float(low) <= got <= float(high)),
    ("number:positive", lambda got: is_number(got) and got > 0),
    ("number:non_negative", lambda got: is_number(got) and got >= 0),
    (r"~(\d+)", lambda got, about: is_number(got) and abs(got - float(about)) <= TOLERANCE * float(about)),
    ("array:nonempty", lambda got: _has(got, lambda n: n > 0)),
    ("array:empty", lambda got: _has(got, lambda n: n == 0)),
    (r"array:(?:min_length|min):(\d+)", lambda got, least: _has(got, lambda n: n >= int(least))),
    (r"array:length[:(](\d+)\)?", lambda got, length: _has(got, lambda n: n == int(length))),
    ("contains:(.+)", lambda got, one: isinstance(got, list) and one in got),
    ("not_contains:(.+)", lambda got, one: isinstance(got, list) and one not in got),
)
