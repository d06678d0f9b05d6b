"""The history in a SQL database: SQLite for development and for a single node, PostgreSQL for the rest.

Reading is dialect-neutral SQLAlchemy Core; writing, where the time goes, is a few statements of our own.

    tables.py     what is stored, and how times and texts are
    engine.py     the database of a URL
    migration.py  bringing a database to these tables; migrations/ how they came to be
    rows.py       records to rows and back
    encoding.py   values and statements as the drivers take them
    recording.py  one batch of facts, in one transaction
    queries.py    what readers ask
    history.py    the port: all of it off the event loop
"""

from .history import SqlHistory, open_history

__all__ = ["SqlHistory", "open_history"]
