"""Dead letters in groups, counted by the database."""

from typing import Any, Final

from sqlalchemy import Column, Connection, func, select

from ...ports.queries import DeadLetterQuery
from ...ports.summaries import LetterGroup, LetterGroups
from ..history.rows import letter_id_of
from . import tables
from .conditions import dead_letter_conditions

_LETTERS: Final = tables.dead_letters.c
_KEY: Final[tuple[Column[Any], ...]] = (_LETTERS.job_name, _LETTERS.error_pattern)


def letter_groups(
    connection: Connection, *, query: DeadLetterQuery, limit: int, by_definition: bool = False
) -> LetterGroups:
    """Return the groups of dead letters whose errors have the same pattern."""
    if not by_definition:
        groups = _grouped(connection, query, limit + 1)
    else:  # two statements, because each follows the order of an index
        groups = _grouped(connection, query, limit + 1, _LETTERS.definition)
        groups += _grouped(connection, query, limit + 1, _LETTERS.first_attempt)
        groups.sort(key=lambda group: (-group.count, -group.last.timestamp(), group.job_name, group.pattern))
    return LetterGroups(groups[:limit], is_complete=len(groups) <= limit)


def _grouped(
    connection: Connection, query: DeadLetterQuery, limit: int, part: Column[Any] | None = None
) -> list[LetterGroup]:
    """Return the largest groups by job, pattern and `part`.

    Only dead letters with a definition have parts by definition, and only those without one have others.
    """
    by = _KEY if part is None else (*_KEY, part)
    conditions = dead_letter_conditions(query)
    if part is not None:
        has_definition = part is _LETTERS.definition
        conditions.append(_LETTERS.definition.is_not(None) if has_definition else _LETTERS.definition.is_(None))
    count, last = func.count().label("number"), func.max(_LETTERS.last_attempt).label("last")
    counted = (
        select(*by, count, func.min(_LETTERS.last_attempt).label("first"), last)
        .where(*conditions)
        .group_by(*by)
        .order_by(count.desc(), last.desc(), *_KEY)
        .limit(limit)
        .subquery()
    )
    letter = tables.dead_letters.alias().c
    example = (
        select(letter.letter_id)
        .where(letter.job_name == counted.c.job_name, letter.error_pattern == counted.c.error_pattern)
        .where(letter.last_attempt == counted.c.last)
        .where(*dead_letter_conditions(query, letter))
        .order_by(letter.letter_id.desc())
        .limit(1)
    )
    if part is not None:
        example = example.where(letter[part.name] == counted.c[part.name])
        if part is not _LETTERS.definition:
            example = example.where(letter.definition.is_(None))
    statement = select(counted, example.scalar_subquery().label("example"))
    ordered = statement.order_by(counted.c.number.desc(), counted.c.last.desc(), *(counted.c[key.name] for key in _KEY))
    return [
        LetterGroup(
            job_name=row.job_name,
            pattern=row.error_pattern,
            count=row.number,
            first=row.first,
            last=row.last,
            example=letter_id_of(row.example),
            definition=row.definition if part is _LETTERS.definition else None,
            first_attempt=row.first_attempt if part is _LETTERS.first_attempt else None,
        )
        for row in connection.execute(ordered)
    ]
