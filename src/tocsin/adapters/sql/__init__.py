"""The history in a SQL database: SQLite for development and single nodes, PostgreSQL otherwise.

Reads are dialect-neutral SQLAlchemy Core. Writes, which take most of the time, are a few statements of our own.
"""
