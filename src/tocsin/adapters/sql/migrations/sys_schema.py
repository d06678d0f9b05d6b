"""Views in the schema `sys` of PostgreSQL, which may belong to another application."""

from contextlib import suppress

from alembic import op
from sqlalchemy.exc import ProgrammingError


def show_in_sys(name: str) -> None:
    """Make or replace the view `sys.<name>` over `sys_<name>` where PostgreSQL allows it.

    It refuses if the schema does not exist, if the schema or an object of this name has another owner, and if the object is no view with these
    columns. Then what exists stays, and `sys_<name>` alone has the rows.
    """
    with suppress(ProgrammingError), op.get_bind().begin_nested():
        op.execute(f"CREATE OR REPLACE VIEW sys.{name} AS SELECT * FROM sys_{name}")  # noqa: S608 - our own names
