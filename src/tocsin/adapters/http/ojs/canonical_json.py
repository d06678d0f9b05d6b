"""Canonical JSON (RFC 8785), with strings in the normal form NFC.

Integers stay exact beyond 2^53, where RFC 8785 rounds them: two ids that differ must not count as equal.
"""

import json
import unicodedata
from decimal import Decimal
from typing import Final

_MAX_PLAIN_DIGITS: Final = 21
_MIN_PLAIN_EXPONENT: Final = -6


def canonical_json(value: object) -> str:
    """Return the canonical text of a JSON value.

    Raises:
        RecursionError: the value is nested too deeply.
    """
    match value:
        case str():
            return json.dumps(unicodedata.normalize("NFC", value), ensure_ascii=False)
        case float():
            return _number(value)
        case list() | tuple():
            return f"[{','.join(map(canonical_json, value))}]"
        case dict():
            entries = {unicodedata.normalize("NFC", str(name)): entry for name, entry in value.items()}
            names = sorted(entries, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
            return "{" + ",".join(f"{canonical_json(name)}:{canonical_json(entries[name])}" for name in names) + "}"
        case _:
            return json.dumps(value)


def _number(number: float) -> str:
    """Write a finite number as ECMAScript does.

    These are the shortest digits that read back as the same number.
    """
    if number == int(number) and abs(number) < 10.0**_MAX_PLAIN_DIGITS:
        return str(int(number))
    sign, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    assert isinstance(exponent, int)  # noqa: S101 - JSON has no infinity
    text = "".join(map(str, digits))
    point = len(text) + exponent
    minus = "-" if sign else ""
    if _MIN_PLAIN_EXPONENT < point <= 0:
        return f"{minus}0.{'0' * -point}{text}"
    if 0 < point <= _MAX_PLAIN_DIGITS:
        return f"{minus}{text[:point]}.{text[point:]}"
    fraction = f".{text[1:]}" if len(text) > 1 else ""
    return f"{minus}{text[0]}{fraction}e{point - 1:+d}"
