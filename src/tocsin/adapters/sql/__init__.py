"""The history in a SQL database: SQLite for development and single nodes, PostgreSQL otherwise.

Reads are dialect-neutral SQLAlchemy Core. Writes, which take most of the time, are a few statements of our own.

    tables.py        tables, and the types of times and texts.
    engine.py        the database of a URL.
    migration.py     migration of a database to these tables, by migrations/.
    rows.py          records to rows and back.
    encoding.py      values and statements for the drivers.
    batch_writer.py  a batch of facts in one transaction.
    queries.py       queries of readers.
    history.py       the port, which runs all of this in threads.
"""

from .history import SqlHistory, open_history

__all__ = ["SqlHistory", "open_history"]
