"""The file of an SQLite database, which may be removed while it is open."""

from collections.abc import Callable
from pathlib import Path
from threading import Lock

from sqlalchemy import Engine

from ...ports import HistoryUnavailable
from .migration import migrate


class DatabaseFile:
    """Watches the file of a database, if it has one.

    Connections to a removed file go on in a file without a name, which no other process sees.
    """

    def __init__(self, engine: Engine) -> None:
        """Remember the present file of an engine."""
        self._engine = engine
        name = engine.url.database
        self._path = Path(name) if engine.dialect.name == "sqlite" and name and name != ":memory:" else None
        self._number = self._present()
        self._making = Lock()

    def check(self, begin_again: Callable[[], None]) -> None:
        """Open the present file if it is another; make a missing one.

        Raises:
            HistoryUnavailable: it is another. The next call finds its content, and its own offset.
        """
        if self._present() == self._number:
            return
        with self._making:
            if self._present() == self._number:  # another thread was here
                return
            self._engine.dispose()
            migrate(self._engine)
            begin_again()
            self._number = self._present()
        raise HistoryUnavailable(
            f"{self._path} was removed or replaced; the history continues from the file's own place"
        )

    def _present(self) -> int | None:
        try:
            return None if self._path is None else self._path.stat().st_ino
        except OSError:
            return None
