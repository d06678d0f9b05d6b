"""The environment of Alembic.

All revisions run in the transaction of `migration.migrate`, which holds the lock.
"""

from alembic import context

from tocsin.adapters.sql.migration import VERSION_TABLE

context.configure(connection=context.config.attributes["connection"], version_table=VERSION_TABLE)
context.run_migrations()
