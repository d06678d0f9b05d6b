"""Work without code: the fields of jobs and steps for built-in functions."""

from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

from pydantic import JsonValue

from .command import Command, command_problems
from .container_work import Container, container_problems
from .errors import DefinitionProblem, show
from .http_request import HttpRequest, request_problems
from .sql_work import ProcedureCall, SqlStatement, call_problems, statement_problems

PREFIX: Final = "tocsin."
"""The beginning of the names of built-in functions; no other function has such a name."""
FIELDS: Final = ("command", "http", "sql", "procedure", "container")
"""The fields with the specification of a built-in function."""


_CODE: Final = ("command", "sql", "container")
"""The fields with code of a job's author, which runs with the rights of a worker.

The settings of a worker list the procedures and the URLs that jobs may name, so `procedure` and `http` run no such code. They list images too,
but a job chooses the program in an image, and its arguments.
"""


class Work(Protocol):
    """A job of a single step, or a step."""

    @property
    def function(self) -> str | None:
        """The name of the function."""

    @property
    def command(self) -> Command | None:
        """The command that it runs."""

    @property
    def http(self) -> HttpRequest | None:
        """The request that it sends."""

    @property
    def sql(self) -> SqlStatement | None:
        """The statement that it runs."""

    @property
    def procedure(self) -> ProcedureCall | None:
        """The procedure that it calls."""

    @property
    def container(self) -> Container | None:
        """The container that it runs."""


class Steps(Work, Protocol):
    """A job, which may have steps."""

    @property
    def dag(self) -> Sequence[Work]:
        """The steps."""


def function_of(field: str) -> str:
    """Return the built-in function whose specification a field has."""
    return f"{PREFIX}{field}"


def is_builtin(function: str | None) -> bool:
    """Return whether a function is built in."""
    return function is not None and function.startswith(PREFIX)


def with_function(written: Any) -> Any:  # noqa: ANN401 - before validation
    """Return the fields of a job or a step, with the function that they imply."""
    if not isinstance(written, dict) or written.get("function") is not None:
        return written
    field = next((name for name in FIELDS if written.get(name) is not None), None)
    return written if field is None else {**written, "function": function_of(field)}


def given_fields(work: Work) -> tuple[str, ...]:
    """Return the fields that name the work; `function` only if it is not implied."""
    fields = tuple(name for name in FIELDS if getattr(work, name) is not None)
    is_implied = any(work.function == function_of(name) for name in fields)
    return fields if is_implied or work.function is None else ("function", *fields)


def specification(work: Work) -> dict[str, JsonValue] | None:
    """Return the specification that a task carries; None: the function is not built in."""
    part = next((part for name in FIELDS if (part := getattr(work, name)) is not None), None)
    return None if part is None else part.model_dump(mode="json", exclude_defaults=True)


SQL_FUNCTIONS: Final = frozenset({"tocsin.sql", "tocsin.procedure"})
"""The built-in functions that work in a database."""


def runs_code(definition: Steps) -> bool:
    """Return whether a step of a job runs a program or a statement."""
    return any(getattr(work, field) is not None for work in (definition, *definition.dag) for field in _CODE)


def work_problems(work: Work) -> Iterator[DefinitionProblem]:
    """Yield the problems of a job or a step that are about built-in functions."""
    if is_builtin(work.function) and work.function not in {function_of(field) for field in FIELDS}:
        reason = f"names that begin with `{PREFIX}` belong to built-in functions; use another name"
        yield DefinitionProblem(reason, field="function", value=show(work.function), code="reserved-name")
    elif is_builtin(work.function) and "function" in given_fields(work):
        field = str(work.function).removeprefix(PREFIX)
        reason = f"this function is built in: write `{field}`, and leave `function` out"
        yield DefinitionProblem(reason, field="function", value=show(work.function), code="reserved-name")
    if work.command is not None:
        yield from command_problems(work.command)
    if work.http is not None:
        yield from request_problems(work.http)
    if work.sql is not None:
        yield from statement_problems(work.sql)
    if work.procedure is not None:
        yield from call_problems(work.procedure)
    if work.container is not None:
        yield from container_problems(work.container)
