"""Migration of a database to the tables of this version.

Each process that opens the history compares the revision of the database. If it is not the newest, the process takes a
lock, compares again and migrates in one transaction. Two recorders that start together migrate one after the other, and
a killed migration changes nothing. Alembic is loaded only if there is something to migrate. Downgrades do not exist: an
older version rejects a database that a newer version has migrated.
"""

from pathlib import Path
from typing import Final

from sqlalchemy import Connection, Engine, inspect, text
from sqlalchemy.exc import DBAPIError

from ...ports import HistoryTooNew, HistoryUnavailable
from ..history import without_credentials
from .engine import writing

VERSION_TABLE: Final = "scheduler_migrations"
SCRIPTS: Final = Path(__file__).with_name("migrations")
REVISIONS: Final = ("r0001",)
HEAD: Final = REVISIONS[-1]

_LOCK: Final = 7_062_062
"""The key of PostgreSQL's advisory lock for migrations."""
_PATIENCE: Final = 120
"""SQLite waits this number of seconds for another process's migration."""


def migrate(engine: Engine) -> None:
    """Create or change the tables if necessary, or raise `HistoryUnavailable`."""
    try:
        with engine.connect() as connection:
            if _is_newest(connection):
                return
        with writing(engine).connect() as connection:
            if engine.dialect.name == "sqlite":
                connection.exec_driver_sql(f"PRAGMA busy_timeout = {_PATIENCE * 1_000}")
                connection.rollback()
            with connection.begin():
                if engine.dialect.name == "postgresql":
                    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
                if not _is_newest(connection):
                    upgrade(connection)
            connection.invalidate()  # the connection has the settings of a migration
    except DBAPIError as error:
        lines = [line.strip() for line in str(error.orig).splitlines() if line.strip()]
        reason = " ".join(lines) or type(error.orig).__name__
        raise HistoryUnavailable(
            f"`database.url` is {without_credentials(_url(engine))}, and the history cannot be kept there: {reason}"
        ) from error


def _url(engine: Engine) -> str:
    return engine.url.render_as_string(hide_password=True)


def _is_newest(connection: Connection) -> bool:
    has_table = inspect(connection).has_table(VERSION_TABLE)
    version = text(f"SELECT version_num FROM {VERSION_TABLE}")  # noqa: S608 - our own name
    revision = connection.execute(version).scalar() if has_table else None
    if revision is not None and revision not in REVISIONS:
        raise HistoryTooNew(
            f"`database.url` is {without_credentials(_url(connection.engine))}, and a newer version of "
            f"Tocsin has migrated it: the tables are at {revision}, and this version knows {HEAD} at most. There is "
            "no downgrade: run the newer version, or use another database, which is filled from the log"
        )
    return revision == HEAD


def upgrade(connection: Connection) -> None:
    """Run every migration that the database lacks, in the caller's transaction."""
    from alembic import command  # noqa: PLC0415 - rarely needed, and slow to load
    from alembic.config import Config  # noqa: PLC0415

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    command.upgrade(config, HEAD)
