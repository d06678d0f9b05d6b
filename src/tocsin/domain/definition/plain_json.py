"""What every executor in every language can read, and every history can store."""

import json
import re
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Final

from pydantic import JsonValue

from .errors import MAX_INTEGER_BITS, show

MAX_INPUT_BYTES: Final = 65_536
"""Input and args together, as compact UTF-8 JSON (hip-62: payloads exceeding 64KB are rejected)."""
MAX_DEPTH: Final = 64
"""Levels of nesting in a JSON value: more than anyone writes, and far below what stops a parser."""
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")


def json_problem(value: object) -> str | None:
    """Why a value is no plain JSON; None if it is. Bounded in time and depth, whatever aliases or loops it is made of."""
    stack: list[tuple[int, object]] = [(0, value)]
    seen = 0
    while stack:
        depth, current = stack.pop()
        seen += 1
        if seen > MAX_INPUT_BYTES:
            return f"more than {MAX_INPUT_BYTES:,} values: keep large data in a store and refer to it"
        if depth > MAX_DEPTH:
            return f"nested more than {MAX_DEPTH} levels deep"
        match current:
            case Mapping():
                if odd := [key for key in current if not isinstance(key, str)]:
                    return f"the key {show(odd[0])} is no text: put it in quotes"
                stack.extend((depth + 1, inner) for inner in (*current, *current.values()))
            case list() | tuple():
                stack.extend((depth + 1, inner) for inner in current)
            case _ if reason := _scalar_problem(current):
                return reason
    return None


def _scalar_problem(value: object) -> str | None:
    match value:
        case None | bool():
            return None
        case int():
            return (
                None if value.bit_length() <= MAX_INTEGER_BITS else "an integer of more than 64 bits: write it as text"
            )
        case float():
            return None if isfinite(value) else "JSON has no infinity and no NaN"
        case str():
            return text_problem(value)
        case _:
            return f"{show(value)} is nothing that JSON knows: put it in quotes"


def text_problem(text: str) -> str | None:
    """Why a text cannot be stored; None if it can be."""
    # JSON may escape half a surrogate pair, which is no character; PostgreSQL stores no U+0000.
    return "a character that cannot be stored (U+0000 or half a surrogate pair)" if _UNSTORABLE.search(text) else None


def size_of(value: Mapping[str, JsonValue] | Sequence[JsonValue]) -> int:
    """The bytes that it takes as compact UTF-8 JSON."""
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
