"""Built-in functions: their names, their fields, and the checks that their specifications share."""

from collections.abc import Iterator
from typing import Any, Final

from pydantic import ValidationInfo, model_validator

from ..secret_reference import SecretReferenceError, find_references
from ..template import TemplateError, check
from .errors import DefinitionProblem, excess
from .fields import StoredModel, is_stored, size_of

PREFIX: Final = "tocsin."
"""The beginning of the names of built-in functions; no other function has such a name."""
FIELDS: Final = ("command", "http", "sql", "procedure", "container")
"""The fields with the specification of a built-in function."""
SQL_FUNCTIONS: Final = frozenset({"tocsin.sql", "tocsin.procedure"})
"""The built-in functions that work in a database."""
MAX_SPECIFICATION_BYTES: Final = 65_536
"""Bytes of the specification of a built-in function, as compact UTF-8 JSON. It is a part of every task."""


def function_of(field: str) -> str:
    """Return the built-in function whose specification a field has."""
    return f"{PREFIX}{field}"


def is_builtin(function: str | None) -> bool:
    return function is not None and function.startswith(PREFIX)


class BuiltinWork(StoredModel):
    """A job or a step; a field may imply its function."""

    @model_validator(mode="before")
    @classmethod
    def _names_its_builtin(cls, data: Any, info: ValidationInfo) -> Any:  # noqa: ANN401 - before validation
        if is_stored(info) or not isinstance(data, dict) or data.get("function") is not None:
            return data
        field = next((name for name in FIELDS if data.get(name) is not None), None)
        return data if field is None else {**data, "function": function_of(field)}


def size_problems(field: str, work: StoredModel, *, instead: str) -> Iterator[DefinitionProblem]:
    """Yield the problem of a specification that is too large; `instead`: the advice."""
    size = size_of(work.model_dump(mode="json", exclude_defaults=True))
    yield from excess(size, "bytes of JSON", MAX_SPECIFICATION_BYTES, field, instead)


def text_problems(place: str, text: str) -> Iterator[DefinitionProblem]:
    """Yield the problems of a template, and of the references to secrets in it."""
    try:
        check(text)
    except TemplateError as error:
        yield DefinitionProblem(str(error), field=place, code=error.code)
    try:
        find_references(text)
    except SecretReferenceError as error:
        yield DefinitionProblem(str(error), field=place, code="malformed-secret-reference")


def has_reference(text: str) -> bool:
    try:
        return bool(find_references(text))
    except SecretReferenceError:
        return False  # a problem of its own
