"""Built-in functions: their names, their fields, and the checks that their specifications share."""

from collections.abc import Iterator
from typing import Any, Final

from ..secret_reference import SecretReferenceError, find_references
from ..template import TemplateError, check
from .errors import DefinitionProblem, excess
from .fields import StoredModel, size_of

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


def with_function(written: Any) -> Any:  # noqa: ANN401 - before validation
    """Return the fields of a job or a step, with the function that they imply."""
    if not isinstance(written, dict) or written.get("function") is not None:
        return written
    field = next((name for name in FIELDS if written.get(name) is not None), None)
    return written if field is None else {**written, "function": function_of(field)}


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
