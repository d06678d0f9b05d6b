"""The history in a SQL database: SQLite for development and for a single node, PostgreSQL for the rest.

Everything is dialect-neutral SQLAlchemy Core, but for the `insert … on conflict` that both databases spell alike.

    tables.py     what is stored, and how times and texts are
    engine.py     the database of a URL
    rows.py       records to rows and back
    recording.py  one batch of facts, in one transaction
    queries.py    what readers ask
    history.py    the port: all of it off the event loop
"""

from .history import SqlHistory, open_history

__all__ = ["SqlHistory", "open_history"]
