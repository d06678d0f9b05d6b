"""The types of the fields of a definition, and plain JSON."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, ValidationInfo, model_validator

from .. import duration
from ..documented_model import DocumentedModel
from .errors import MAX_INTEGER_BITS, show

STORED: Final[Mapping[str, bool]] = {"stored": True}
"""The validation context for definitions from the log."""

OverlapPolicy: TypeAlias = Literal["skip", "allow", "cancel_previous", "enqueue"]
CatchUp: TypeAlias = Literal["once", "skip", "all"]
OnCompletion: TypeAlias = Literal["preserve", "drop"]


MAX_NAME_LENGTH: Final = 255


def is_stored(info: ValidationInfo) -> bool:
    return bool((info.context or {}).get("stored"))


def _plain(value: object, info: ValidationInfo) -> object:
    """Allow only small JSON that workers in every language can read."""
    if not is_stored(info) and (reason := json_problem(value)):
        raise ValueError(reason)
    return value


def matching(pattern: re.Pattern[str], reason: str, limit: int = MAX_NAME_LENGTH) -> AfterValidator:
    """Return the check that a text matches a pattern and has at most `limit` characters."""

    def check(text: str) -> str:
        if len(text) > limit or not pattern.fullmatch(text):
            raise ValueError(reason)
        return text

    return AfterValidator(check)


def short_for(field: str, *types: type) -> Callable[[object], object]:
    """Return the reader of a value that may stand for a mapping with one field."""
    return lambda written: {field: written} if isinstance(written, types) else written


def _matching(pattern: str, limit: int, meaning: str) -> AfterValidator:
    return matching(re.compile(pattern), f"must match {pattern}, {meaning}, at most {limit} characters", limit)


def _storable(text: str) -> str:
    if reason := text_problem(text):
        raise ValueError(reason)
    return text


_LOWER: Final = r"[a-z0-9][a-z0-9\-\.]*"
_LOWER_MEANING: Final = "lower-case letters, digits, hyphens and dots, the first a letter or a digit"

Name: TypeAlias = Annotated[str, _matching(_LOWER, MAX_NAME_LENGTH, _LOWER_MEANING)]
StepName: TypeAlias = Annotated[
    str, _matching(r"[A-Za-z0-9][A-Za-z0-9_\-]*", 64, "letters, digits, underscores and hyphens")
]
Function: TypeAlias = Annotated[str, _matching(r"[!-~]+", 255, "printable ASCII without spaces")]
Text: TypeAlias = Annotated[str, AfterValidator(_storable)]
Seconds: TypeAlias = Annotated[float, BeforeValidator(duration.parse, json_schema_input_type=float | str), Field(ge=0)]
Timeout: TypeAlias = Annotated[float, BeforeValidator(duration.parse, json_schema_input_type=float | str), Field(gt=0)]
Object: TypeAlias = Annotated[dict[str, JsonValue], BeforeValidator(_plain)]
Json: TypeAlias = Annotated[JsonValue, BeforeValidator(_plain)]
Args: TypeAlias = Annotated[tuple[JsonValue, ...], BeforeValidator(_plain)]
Priority: TypeAlias = Annotated[int, Field(ge=-100, le=100, strict=True)]
Flag: TypeAlias = Annotated[bool, Field(strict=True)]


_matches_name: Final = re.compile(_LOWER).fullmatch


def is_name(text: str) -> bool:
    return len(text) <= MAX_NAME_LENGTH and _matches_name(text) is not None


MAX_INPUT_BYTES: Final = 65_536
"""Bytes of input and args together, as compact UTF-8 JSON (hip-62: 64KB)."""
MAX_DEPTH: Final = 64
"""Levels of nesting in a JSON value; far below the limits of parsers."""
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")


def json_problem(value: object) -> str | None:
    """Return the reason why a value is not plain JSON; None: it is.

    Time and depth are bounded, even for values with aliases or cycles.
    """
    stack: list[tuple[int, object]] = [(0, value)]
    count = 0
    while stack:
        depth, current = stack.pop()
        count += 1
        if count > MAX_INPUT_BYTES:
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


def storable(text: str) -> str:
    """Return a text without the characters that cannot be stored."""
    return _UNSTORABLE.sub("\ufffd", text)


def text_problem(text: str) -> str | None:
    """Return the reason why a text cannot be stored; None: it can."""
    # JSON may contain half a surrogate pair, which is not a character; PostgreSQL cannot store U+0000.
    return "a character that cannot be stored (U+0000 or half a surrogate pair)" if _UNSTORABLE.search(text) else None


def size_of(value: JsonValue | Mapping[str, JsonValue] | Sequence[JsonValue]) -> int:
    """Return the number of bytes as compact UTF-8 JSON."""
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


class StoredModel(DocumentedModel, frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True):
    """A part of a definition: immutable; unknown fields are refused unless the log has them."""

    @model_validator(mode="before")
    @classmethod
    def _open_to_newer_versions(cls, data: Any, info: ValidationInfo) -> Any:  # noqa: ANN401 - before validation
        """Ignore fields that a newer version stored, so that the log stays readable."""
        known = cls.__pydantic_fields__.keys()
        if is_stored(info) and isinstance(data, dict) and not data.keys() <= known:
            names = {field.alias or name for name, field in cls.__pydantic_fields__.items()} | known
            return {key: value for key, value in data.items() if key in names}
        return data
