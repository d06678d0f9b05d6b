"""SQLite files of empty histories, which are copies of the first.

Creating the tables takes ten times as long.
"""

import tempfile
from functools import cache
from pathlib import Path

from tocsin.adapters.sql.engine import connect
from tocsin.adapters.sql.migration import migrate


def history_url(folder: Path) -> str:
    """Return the URL of the history in a folder, which is empty at first."""
    file = folder / "history.db"
    if not file.exists():
        file.write_bytes(_empty_history())
    return f"sqlite:///{file}"


@cache
def _empty_history() -> bytes:
    """Return the content of a file whose tables are created."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "history.db"
        engine = connect(f"sqlite:///{file}")
        migrate(engine)
        engine.dispose()  # SQLite moves its write-ahead log into the file
        return file.read_bytes()
