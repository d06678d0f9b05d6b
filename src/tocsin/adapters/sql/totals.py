"""The totals in a SQL database."""

from collections.abc import Iterable
from typing import Final

from sqlalchemy import Connection, and_, delete, or_, select

from ...domain.totals import OTHER, UNREGISTERED, Growth, Total
from ..history.rows import RecorderCache, plain
from . import tables
from .engine import Encoding, read_rows, write_rows

_TOTALS: Final = tables.totals.c
_NAME: Final = "name"
_REBUILD: Final = "rebuild"
_KEY: Final = ("kind", "job_name", "label", "status")
_NO_TOTALS: Final = (_NAME, _REBUILD)
_FORGOTTEN_AT_ONCE: Final = 1_000


class TotalsWriter:
    """Adds the growth of a batch to the totals."""

    def __init__(self, encoding: Encoding) -> None:
        self._add = encoding.add(tables.totals, _KEY)
        self._insert = encoding.insert(tables.totals, (*_KEY, "total"))

    def add(self, connection: Connection, growth: Growth, cache: RecorderCache) -> None:
        """Add the growth of a batch, in the batch's transaction."""
        known, missing = cache.total_names.recall(growth.owners)
        known |= _names(connection, missing)
        grown, new = growth.limited(known)
        # In one order, so that no two transactions wait for each other.
        rows = sorted((total.kind, plain(total.job), plain(total.label), total.status, n) for total, n in grown.items())
        names = sorted((_NAME, plain(owner), plain(name), "", 1) for owner, name in new)
        write_rows(connection, self._add, rows)
        write_rows(connection, self._insert, names)
        cache.keep_total_names(known, new)


def _names(connection: Connection, owners: Iterable[str]) -> dict[str, frozenset[str]]:
    names: dict[str, set[str]] = {owner: set() for owner in owners}
    stored = select(_TOTALS.job_name, _TOTALS.label).where(_TOTALS.kind == _NAME)
    for owner, name in read_rows(connection, stored, _TOTALS.job_name, names):
        names[owner].add(name)
    return {owner: frozenset(found) for owner, found in names.items()}


def are_complete(connection: Connection, *, installation: str) -> bool:
    """Return whether a rebuild, if there was any, has reached its former place."""
    offsets = tables.offsets.c
    is_behind = and_(
        _TOTALS.kind == _REBUILD,
        _TOTALS.job_name == installation,
        or_(offsets.sequence.is_(None), offsets.sequence < _TOTALS.total),
    )
    place = and_(offsets.installation == _TOTALS.job_name, offsets.stream == _TOTALS.label)
    behind = select(_TOTALS.total).outerjoin(tables.offsets, place).where(is_behind).limit(1)
    return connection.execute(behind).first() is None


def read(connection: Connection, *, installation: str) -> dict[Total, int] | None:
    """Return all totals; None: they are not complete."""
    if not are_complete(connection, installation=installation):
        return None
    columns = select(_TOTALS.kind, _TOTALS.job_name, _TOTALS.label, _TOTALS.status, _TOTALS.total)
    return {Total(*key): count for *key, count in connection.execute(columns.where(_TOTALS.kind.not_in(_NO_TOTALS)))}


def forget_jobs(connection: Connection) -> None:
    """Remove the totals of some jobs that are neither registered nor in the history."""
    jobs, executions, letters = (table.c for table in (tables.jobs, tables.executions, tables.dead_letters))
    unknown = (
        select(_TOTALS.job_name)
        .distinct()
        .where(
            _TOTALS.kind.not_in(_NO_TOTALS),
            _TOTALS.job_name.not_in(("", OTHER)),
            _TOTALS.job_name.not_in(select(jobs.job_name).where(jobs.state != "DELETED")),
            ~select(executions.job_name).where(executions.job_name == _TOTALS.job_name).exists(),
            _TOTALS.job_name.not_in(select(letters.job_name)),
        )
        .limit(_FORGOTTEN_AT_ONCE)
    )
    if gone := connection.execute(unknown).scalars().all():
        is_name = and_(_TOTALS.kind == _NAME, _TOTALS.job_name == UNREGISTERED, _TOTALS.label.in_(gone))
        is_total = and_(_TOTALS.kind != _REBUILD, _TOTALS.job_name.in_(gone))
        connection.execute(delete(tables.totals).where(or_(is_total, is_name)))
        connection.execute(delete(tables.last_runs).where(tables.last_runs.c.job_name.in_(gone)))


def former_places(connection: Connection) -> list[dict[str, object]]:
    """Return rows with the places of the history before it is emptied."""
    places = {
        (row.job_name, row.label): row.total
        for row in connection.execute(select(tables.totals).where(_TOTALS.kind == _REBUILD))
    }
    for row in connection.execute(select(tables.offsets)):
        key = row.installation, row.stream
        places[key] = max(row.sequence, places.get(key, 0))
    return [
        {"kind": _REBUILD, "job_name": installation, "label": stream, "status": "", "total": sequence}
        for (installation, stream), sequence in places.items()
    ]
