"""The environment of Alembic."""

from alembic import context

from tocsin.adapters.sql.migration import VERSION_TABLE

context.configure(connection=context.config.attributes["connection"], version_table=VERSION_TABLE)
context.run_migrations()
