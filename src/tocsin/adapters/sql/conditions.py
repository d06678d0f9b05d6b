"""The conditions of queries on the rows of the history."""

from collections.abc import Collection
from typing import Any, Final

from sqlalchemy import Column, ColumnElement, false, not_, or_
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from ...domain.namespaces import SEPARATOR
from ...ports.queries import DeadLetterQuery, ExecutionQuery
from ..history.rows import plain
from . import tables

_EXECUTIONS: Final = tables.executions.c
_DEAD_LETTERS: Final = tables.dead_letters.c
_LAST: Final = "\U0010ffff"
"""No id continues with this character."""


def execution_conditions(query: ExecutionQuery, time: Column[Any]) -> list[ColumnElement[bool]]:
    """Return the conditions of a list of executions.

    `time`: the column of their scheduled time.
    """
    conditions = [
        column == value
        for column, value in (
            (_EXECUTIONS.job_name, query.job),
            (_EXECUTIONS.status, query.status),
            (_EXECUTIONS.trigger, query.trigger),
            (_EXECUTIONS.occurrence_id, query.occurrence),
        )
        if value is not None
    ]
    conditions += within(query.namespaces, _EXECUTIONS.job_name)
    return conditions + _common_conditions(query, time, _EXECUTIONS.error, _EXECUTIONS.execution_id)


def dead_letter_conditions(
    query: DeadLetterQuery, letters: ReadOnlyColumnCollection[str, Column[Any]] = _DEAD_LETTERS
) -> list[ColumnElement[bool]]:
    """Return the conditions of a list of dead letters.

    `letters`: the columns of the table, or of an alias.
    """
    conditions = [] if query.job is None else [letters.job_name == query.job]
    if query.pattern is not None:
        conditions.append(letters.error_pattern == plain(query.pattern))
    if query.unresolved:
        conditions.append(not_(letters.resolved))
    conditions += within(query.namespaces, letters.job_name)
    return conditions + _common_conditions(query, letters.last_attempt, letters.last_error, letters.letter_id)


def within(namespaces: Collection[str] | None, job: Column[Any]) -> list[ColumnElement[bool]]:
    """Return the condition that jobs are in some namespaces; None: all jobs."""
    if namespaces is None:
        return []
    names = (job.startswith(f"{namespace}{SEPARATOR}", autoescape=True) for namespace in namespaces)
    return [or_(false(), *names)]


def _common_conditions(
    query: ExecutionQuery | DeadLetterQuery, time: Column[Any], error: Column[Any], key: Column[Any]
) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if query.since is not None:
        conditions.append(time >= query.since)
    if query.until is not None:
        conditions.append(time < query.until)
    if query.error is not None:
        conditions += error.is_not(None), error.icontains(query.error, autoescape=True)
    if query.id_prefix is not None:
        # A range instead of LIKE uses the index on every database.
        conditions += key >= query.id_prefix, key < query.id_prefix + _LAST
    return conditions
