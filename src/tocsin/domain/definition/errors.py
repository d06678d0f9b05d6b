"""Problems of definitions and messages, with codes and texts."""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from pydantic import TypeAdapter, ValidationError
from typing_extensions import override

from ..errors import TocsinError

MAX_INTEGER_BITS: Final = 64
MAX_PROBLEMS: Final = 100
"""Problems that an error lists: a document of 4 MB may have a million."""
_CODES: Final = {
    "missing": "required",
    "extra_forbidden": "unknown-field",
    "json_invalid": "not-json",
    "literal_error": "unknown-choice",
    **dict.fromkeys(("greater_than", "greater_than_equal", "less_than", "less_than_equal"), "out-of-range"),
    **dict.fromkeys(("finite_number", "string_too_short", "string_too_long"), "out-of-range"),
    "int_from_float": "wrong-type",
    "too_large": "too-large",
    "unknown_calendar": "unknown-calendar",
}
"""The code of a problem, by pydantic's type of the error."""


@dataclass(frozen=True, slots=True)
class DefinitionProblem:
    """One problem of a definition, with the place where it is."""

    reason: str
    """The reason, and what to write instead."""
    field: str = ""
    """The field as written, dotted where it is nested; empty for the whole definition."""
    value: str | None = None
    """The written value, shortened."""
    step: str | None = None
    job: str | None = None
    """The name of the job, or its place in the document if it has no usable name."""
    source: str | None = None
    """The file."""
    unknown: bool = False
    """True: the field itself is unknown."""
    code: str = dataclasses.field(default="invalid-value", compare=False)
    """The stable name of this kind of problem."""

    def __post_init__(self) -> None:
        if self.unknown:
            object.__setattr__(self, "code", "unknown-field")

    @override
    def __str__(self) -> str:
        where = [part for part in (self.source, self.job) if part]
        subject = " in ".join(
            part for part in (self.field and f"`{self.field}`", self.step and f"step `{self.step}`") if part
        )
        if self.unknown:
            text = f"unknown field {subject}{self.reason}"
        elif self.value is not None:
            text = f"{subject} is {self.value}: {self.reason}"
        else:
            text = f"{subject}: {self.reason}" if subject else self.reason
        return ": ".join([*where, text])


class DefinitionError(TocsinError, ValueError):
    """A definition or an input is refused; `problems` lists the first 100 problems."""

    code = "invalid-definition"

    def __init__(self, *problems: DefinitionProblem) -> None:
        if len(problems) > MAX_PROBLEMS:
            problems = (
                *problems[: MAX_PROBLEMS - 1],
                DefinitionProblem("there are more: correct these problems first"),
            )
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


def shorten(text: str, limit: int = 60) -> str:
    """Return a text of at most `limit` characters."""
    return text if len(text) <= limit else f"{text[: limit - 3]}…"


def show(value: object) -> str:
    """Return a short form of any value for an error message."""
    match value:
        case None | bool() | float() | str():
            text = json.dumps(value, ensure_ascii=False, default=str)
            return shorten(text)
        case int():
            return str(value) if value.bit_length() <= MAX_INTEGER_BITS else "a very large number"
        case Mapping():
            return "a mapping" if value else "an empty mapping"
        case list() | tuple():
            return "a list" if value else "an empty list"
        case _:
            return f"{shorten(str(value))} ({type(value).__name__})"


def excess(number: int, things: str, most: int, field: str, advice: str = "") -> tuple[DefinitionProblem, ...]:
    """Return the problem of a field if it has more things than it may."""
    reason = f"{number:,} {things}, more than {most:,}" + (f": {advice}" if advice else "")
    return (DefinitionProblem(reason, field=field, code="too-large"),) if number > most else ()


def problem_code(kind: str, cause: object = None) -> str:
    """Return the code of Tocsin's own error, or that for the type of pydantic's error."""
    if isinstance(cause, TocsinError):
        return cause.code
    return _CODES.get(kind) or ("wrong-type" if kind.endswith("_type") else "invalid-value")


def problems(error: ValidationError) -> Iterator[DefinitionProblem]:
    """Yield every problem that pydantic found, in words for clients."""
    for details in error.errors(include_url=False):
        field = ".".join(str(part) for part in details["loc"])
        cause = details.get("ctx", {}).get("error")
        code = problem_code(details["type"], cause)
        match details["type"]:
            case "json_invalid":
                yield DefinitionProblem(f"not JSON: {cause}", code=code)
            case "missing":
                yield DefinitionProblem("required, and not given", field=field, code=code)
            case "extra_forbidden":
                yield DefinitionProblem("", field=field, unknown=True)
            case "model_type" | "model_attributes_type" if not field:
                yield DefinitionProblem(f"must be an object, and is {show(details['input'])}", code=code)
            case "tuple_type" | "list_type":
                yield DefinitionProblem("must be a list", field=field, value=show(details["input"]), code=code)
            case _:
                right = str(cause) if cause else details["msg"].removeprefix("Input ").replace("should", "must")
                yield DefinitionProblem(right, field=field, value=show(details["input"]) if field else None, code=code)


_MAX_PLACE: Final = 255
"""Characters of a place in an error."""
E = TypeVar("E")


def read_entries(
    document: object, field: str, key: str, entries: TypeAdapter[tuple[E, ...]], refuse: Callable[[str], Exception]
) -> tuple[E, ...]:
    """Return the entries in a document: a mapping with the list `field` and nothing else.

    Each entry is a mapping, or the text of its `key` alone.

    Raises:
        Exception: that of `refuse`: it is another document, or a field of an entry is wrong.
    """
    if not isinstance(document, Mapping) or document.keys() != {field} or not isinstance(document[field], list):
        raise refuse(f"the document must be a mapping with `{field}`, a list, and nothing else")
    given = [{key: entry} if isinstance(entry, str) else entry for entry in document[field]]
    try:
        return entries.validate_python(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(map(str, (field, *first["loc"])))
        raise refuse(f"{place[:_MAX_PLACE]}: {first['msg']}; it is {show(first['input'])}") from None
