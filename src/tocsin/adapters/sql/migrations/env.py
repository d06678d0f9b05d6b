"""What Alembic runs: all revisions in the transaction of whoever asked (`migration.migrate`), who holds the lock."""

from alembic import context

from tocsin.adapters.sql.migration import VERSION_TABLE

context.configure(connection=context.config.attributes["connection"], version_table=VERSION_TABLE)
context.run_migrations()
