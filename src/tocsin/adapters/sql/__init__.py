"""The history in a SQL database: SQLite for development and single nodes, PostgreSQL otherwise.

Reads are dialect-neutral SQLAlchemy Core. Writes, which take most of the time, are a few statements of our own.

    engine.py        the database of a URL, and values and statements for its driver.
    migration.py     migration of a database to the tables of tables.py, by migrations/.
    batch_writer.py  a batch of facts in one transaction.
    history.py       the port, which runs all of this in threads.
"""
