"""Tocsin in a process that finds the log there when it starts, whatever has become of it a moment later.

python -m tests.system.hasty [tocsin's own arguments]
"""

from tocsin import bootstrap
from tocsin.cli import main


async def found_there(installation: bootstrap.Installation) -> None:
    """Wait for nothing."""


if __name__ == "__main__":
    bootstrap.await_log = found_there
    main()
