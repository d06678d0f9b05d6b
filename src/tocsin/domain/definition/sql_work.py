"""The statement or the procedure of a job or a step, and their rules."""

import re
from collections.abc import Iterator
from typing import Annotated, Final

from pydantic import Field

from ..secret_reference import texts_in
from ..template import VARIABLES
from .builtin_work import has_reference, size_problems, text_problems
from .errors import DefinitionProblem, excess, show
from .fields import Args, Name, Object, StoredModel, Text

MAX_ROWS: Final = 1_000
"""Rows of a result at most."""
MAX_ARGUMENTS: Final = 100
BOUND: Final = re.compile(r"(?<![:\w\\]):(\w+)(?!:)")
"""A bound parameter as SQLAlchemy reads it; `::` is a cast, and `\\:` a colon."""
_PARAMETER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_PART: Final = r"[A-Za-z_][A-Za-z0-9_$]{0,62}"
_PROCEDURE: Final = re.compile(rf"{_PART}(?:\.{_PART})?")
_INSTEAD: Final = "keep it in the database as a procedure"
_TEMPLATE: Final = re.compile(rf"\{{\{{-?\s*(?:{'|'.join(sorted(VARIABLES))})\b")


class SqlStatement(StoredModel):
    """A statement, which a worker with `--builtin sql` runs in a transaction of its own."""

    connection: Name
    """The name of a connection in the settings of the worker."""
    statement: Text
    """One statement. It is no template: values come as `:name` from `parameters`. Write `\\:` for a colon before a word."""
    parameters: Object = {}
    """The value of each `:name`. Texts are templates; a text that is a single `{{ … }}` becomes its value."""
    max_rows: Annotated[int, Field(ge=0, le=MAX_ROWS, strict=True)] = 0
    """The number of rows that the result has at most, up to 1,000. By default the rows are counted, and none is kept."""


class ProcedureCall(StoredModel):
    """A procedure, which a worker with `--builtin procedure` calls in a transaction of its own."""

    connection: Name
    """The name of a connection in the settings of the worker."""
    name: Text
    """The procedure, `NAME` or `SCHEMA.NAME`, in the letters that the database's catalog has."""
    arguments: Args = ()
    """The arguments in order. Texts are templates; a text that is a single `{{ … }}` becomes its value."""


def statement_problems(work: SqlStatement) -> Iterator[DefinitionProblem]:
    field = "sql.statement"
    if not work.statement.strip():
        yield DefinitionProblem("write a statement", field=field, code="required")
    if match_ := _TEMPLATE.search(work.statement):
        reason = (
            "a statement is no template, so that no value becomes SQL; write `:name`, and the template in `parameters`"
        )
        yield DefinitionProblem(reason, field=field, value=show(match_[0]))
    if has_reference(work.statement):  # a malformed reference may be SQL, and nothing replaces it
        reason = "databases write statements into their logs; refer to the secret in `parameters`"
        yield DefinitionProblem(reason, field=field, value=show(work.statement), code="secret-reference-not-allowed")
    yield from _parameter_problems(work)
    yield from size_problems("sql", work, instead=_INSTEAD)


def call_problems(work: ProcedureCall) -> Iterator[DefinitionProblem]:
    if not _PROCEDURE.fullmatch(work.name):
        reason = "write NAME or SCHEMA.NAME: letters, digits, `_` and `$`, the first no digit"
        yield DefinitionProblem(reason, field="procedure.name", value=show(work.name))
    yield from excess(len(work.arguments), "arguments", MAX_ARGUMENTS, "procedure.arguments")
    for text in texts_in([*work.arguments]):
        yield from text_problems("procedure.arguments", text)
    yield from size_problems("procedure", work, instead=_INSTEAD)


def _parameter_problems(work: SqlStatement) -> Iterator[DefinitionProblem]:
    bound, field = {*BOUND.findall(work.statement)}, "sql.parameters"
    for name in sorted(bound - work.parameters.keys()):
        reason = f"the statement has `:{name}`, and no parameter has this name; a colon that binds nothing is `\\:`"
        yield DefinitionProblem(reason, field=field, code="required")
    for name, value in work.parameters.items():
        if not _PARAMETER.fullmatch(name):
            reason = "the name of a parameter is made of letters, digits and underscores, the first no digit"
            yield DefinitionProblem(reason, field=field, value=show(name))
        elif name not in bound:
            yield DefinitionProblem(f"the statement has no `:{name}`", field=f"{field}.{name}", code="unknown-field")
        for text in texts_in(value):
            yield from text_problems(f"{field}.{name}", text)
