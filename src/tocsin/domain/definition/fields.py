"""The types of fields."""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, ValidationInfo

from .. import duration
from .plain_json import json_problem, text_problem

STORED: Final[Mapping[str, bool]] = {"stored": True}
"""The validation context for what is read from the log."""

OverlapPolicy: TypeAlias = Literal["skip", "allow", "cancel_previous", "enqueue"]
CatchUp: TypeAlias = Literal["once", "skip", "all"]


def is_stored(info: ValidationInfo) -> bool:
    """Whether it is read from the log."""
    return bool((info.context or {}).get("stored"))


def _plain(value: object, info: ValidationInfo) -> object:
    """Only what every executor in every language can read, and small enough to be looked at."""
    if not is_stored(info) and (reason := json_problem(value)):
        raise ValueError(reason)
    return value


def _matching(pattern: str, limit: int, meaning: str) -> Callable[[str], str]:
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if len(text) > limit or not compiled.fullmatch(text):
            raise ValueError(f"must match {pattern}, {meaning}, at most {limit} characters")
        return text

    return check


def _storable(text: str) -> str:
    if reason := text_problem(text):
        raise ValueError(reason)
    return text


_LOWER: Final = r"[a-z0-9][a-z0-9\-\.]*"
_LOWER_MEANING: Final = "lower-case letters, digits, hyphens and dots, the first a letter or a digit"

Name: TypeAlias = Annotated[str, AfterValidator(_matching(_LOWER, 255, _LOWER_MEANING))]
StepName: TypeAlias = Annotated[
    str, AfterValidator(_matching(r"[A-Za-z0-9][A-Za-z0-9_\-]*", 64, "letters, digits, underscores and hyphens"))
]
Function: TypeAlias = Annotated[str, AfterValidator(_matching(r"[!-~]+", 255, "printable ASCII without spaces"))]
Text: TypeAlias = Annotated[str, AfterValidator(_storable)]
Seconds: TypeAlias = Annotated[float, BeforeValidator(duration.parse, json_schema_input_type=float | str), Field(ge=0)]
Timeout: TypeAlias = Annotated[float, BeforeValidator(duration.parse, json_schema_input_type=float | str), Field(gt=0)]
Object: TypeAlias = Annotated[dict[str, JsonValue], BeforeValidator(_plain)]
Args: TypeAlias = Annotated[tuple[JsonValue, ...], BeforeValidator(_plain)]
Flag: TypeAlias = Annotated[bool, Field(strict=True)]
